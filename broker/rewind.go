package broker

import (
	"context"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
)

// Rewind moves a group to another position of a topic, backward or forward. All queues change in
// one write. Rewind returns the result by queue when this write is on disk. The group loses its
// unfinished messages in these queues: older handles are invalid (40013), attempts count from 1
// again, and message groups are no longer parked. Dead letters stay, so a message that is consumed
// again can have a second dead letter. The group's backlog changes at once, and so do throttles
// that depend on it. The measured drain rate does not count skipped messages. Rewind waits while
// retention or a purge removes messages; ctx ends that wait.
//
// A group that never received from the topic begins at the position. The error is 40403 or 40402 if
// the group or the topic does not exist, and 40000 if the position is invalid.
func (b *Broker) Rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	done, err := b.rewind(ctx, group, topic, to)
	return done, refusal.WithOp("Rewind", err)
}

func (b *Broker) rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	if !b.calls.Begin() {
		return nil, refusal.Closed()
	}
	defer b.calls.End()
	if err := validate(to); err != nil {
		return nil, err
	}
	if _, err := b.catalog.Group(group); err != nil {
		return nil, err
	}
	s, err := b.catalog.Subscribe(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	rewound, write, err := s.Rewind(ctx, engine.Position{Latest: to.Latest, Time: to.Time, Offsets: to.Offsets})
	if err != nil {
		return nil, err
	}
	if err := write.Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	done := make([]status.QueueRewind, len(rewound))
	for i, r := range rewound {
		done[i] = status.QueueRewind(r)
	}
	b.logger.Info("group rewound", "group", group, "topic", topic, "queues", len(done))
	return done, nil
}

func validate(p status.Position) error {
	var set []string
	for name, isSet := range map[string]bool{"earliest": p.Earliest, "latest": p.Latest, "a time": !p.Time.IsZero(), "offsets": len(p.Offsets) > 0} {
		if isSet {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	if len(set) != 1 {
		return refusal.New(tidegate.CodeBadRequest, "position", "it has %d of earliest, latest, a time and offsets %q; give one", len(set), set)
	}
	return nil
}
