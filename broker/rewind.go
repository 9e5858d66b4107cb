package broker

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/subscription"
)

// A Position is a position in a topic, from which a group continues. Exactly one field is set.
type Position struct {
	Earliest bool // the oldest stored message
	Latest   bool // the next message to be stored

	// Time selects the first message of each queue that was stored at that time or later. The
	// messages of a queue are in the order of these times unless the broker's clock goes back.
	Time time.Time

	// Offsets are the positions by queue number, from the offset of the oldest message to the one
	// after the last. The group's positions in other queues stay.
	Offsets map[int]int64
}

// A QueueRewind is the result of Broker.Rewind in one queue.
type QueueRewind struct {
	Queue int   `json:"queue"`
	From  int64 `json:"from"` // next offset before the rewind
	To    int64 `json:"to"`   // next offset after it

	// Dropped is the number of unfinished messages that were taken from the group: those in flight,
	// those that waited for a retry or for their message group, and parked ones. Messages from To
	// on are delivered again.
	Dropped int64 `json:"dropped"`
}

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
func (b *Broker) Rewind(ctx context.Context, group, topic string, to Position) ([]QueueRewind, error) {
	done, err := b.rewind(ctx, group, topic, to)
	return done, fail.WithOp("Rewind", err)
}

func (b *Broker) rewind(ctx context.Context, group, topic string, to Position) ([]QueueRewind, error) {
	if !b.begin() {
		return nil, fail.Closed()
	}
	defer b.end()
	if err := to.validate(); err != nil {
		return nil, err
	}
	if _, err := b.catalog.Group(group); err != nil {
		return nil, err
	}
	s, err := b.catalog.Subscribe(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	rewound, write, err := s.Rewind(ctx, subscription.Position{Latest: to.Latest, Time: to.Time, Offsets: to.Offsets})
	if err != nil {
		return nil, err
	}
	if err := write.Wait(); err != nil {
		return nil, fail.Store(err)
	}
	done := make([]QueueRewind, len(rewound))
	for i, r := range rewound {
		done[i] = QueueRewind(r)
	}
	b.logger.Info("group rewound", "group", group, "topic", topic, "queues", len(done))
	return done, nil
}

func (p Position) validate() error {
	var set []string
	for name, isSet := range map[string]bool{"earliest": p.Earliest, "latest": p.Latest, "a time": !p.Time.IsZero(), "offsets": len(p.Offsets) > 0} {
		if isSet {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	if len(set) != 1 {
		return fail.New(tidegate.CodeBadRequest, "position", "it has %d of earliest, latest, a time and offsets %q; give one", len(set), set)
	}
	return nil
}
