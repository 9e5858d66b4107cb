package broker

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/subscription"
)

// A Position is where in a topic a group is to go on consuming. Exactly one
// field is set.
type Position struct {
	Earliest bool // with the oldest message that is there
	Latest   bool // with the next message that is stored

	// Time: with the first message of each queue that was stored at that time
	// or later. The messages of a queue are in the order of these times as long
	// as the broker's clock does not go back.
	Time time.Time

	// Offsets, by queue number: with that offset. Other queues stay as they
	// are. A queue or an offset that is not there, from the oldest message's to
	// the one after the last, is an error.
	Offsets map[int]int64
}

// A QueueRewind is what Broker.Rewind did in one queue.
type QueueRewind struct {
	Queue int   `json:"queue"`
	From  int64 `json:"from"` // the offset that would have been read next
	To    int64 `json:"to"`   // the offset that is read next

	// Dropped is how many messages that the group had not finished were taken
	// from it: in flight, waiting for a retry or for their turn, parked. Those
	// at To or behind it come anew.
	Dropped int64 `json:"dropped"`
}

// Rewind makes a group go on consuming a topic from another position, which may also lie ahead, and
// returns what that did, by queue, when it is written, all at once. What the group has not finished
// is dropped in those queues: older handles are refused (40013), attempts count from 1 again,
// message groups are not parked any more, and a message that became a dead letter can become
// another one. Dead letters stay where they are. The group's backlog follows at once, and with it
// throttling; its measured drain rate does not count what is skipped. It waits while messages are
// being removed, by retention or a purge; ctx ends that wait.
//
// A group that is not there is an error (40403), as are a topic (40402) and a
// position that is not one (40000); a group that never received from the
// topic begins at the position. The process may end at any moment after it; a
// power failure within a few ten milliseconds may take it back as a whole.
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
	if _, err := b.Group(group); err != nil {
		return nil, err
	}
	s, err := b.subscribe(ctx, group, topic)
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
	b.logger.Info("a group was rewound", "group", group, "topic", topic, "queues", len(done))
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
		return fail.New(tidegate.CodeBadRequest, "position", "it has %d of earliest, latest, a time and offsets %q: give one", len(set), set)
	}
	return nil
}
