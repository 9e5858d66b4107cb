package consume

import (
	"container/heap"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// A Target is the position at which a group continues in a queue.
type Target struct {
	Queue int
	At    store.Mark
}

// A Rewound is the result of Rewind for one target.
type Rewound struct {
	From    int64 // the offset of the cursor before
	Dropped int64 // unfinished messages
}

// Rewind moves cursors, and drops all unfinished messages of their queues. All handles of these
// queues become invalid.
func (p *Progress) Rewind(targets []Target, now time.Time) []Rewound {
	moved := make(map[*cursor]bool, len(targets))
	for _, t := range targets {
		moved[p.cursors[t.Queue]] = true
	}
	dropped := p.dropUnfinished(moved)
	done := make([]Rewound, len(targets))
	for i, t := range targets {
		c := p.cursors[t.Queue]
		done[i] = Rewound{From: c.next, Dropped: dropped[c].Messages}
		p.effects.Done.add(t.At.Offset-c.next+dropped[c].Messages, t.At.Bytes-c.bytes+dropped[c].Bytes)
		c.next, c.bytes = t.At.Offset, t.At.Bytes
		c.rewound = max(now.UnixNano(), c.rewound+1)
		p.Outdate(t.Queue)
	}
	p.newRound()
	p.effects.Durable, p.effects.WakeRest = true, true
	return done
}

// dropUnfinished drops all unfinished messages of some queues, and returns the dropped amount for
// each queue.
func (p *Progress) dropUnfinished(moved map[*cursor]bool) map[*cursor]Amount {
	dropped := map[*cursor]Amount{}
	for c := range moved {
		var sum Amount
		for _, l := range c.leases {
			p.uncount(l)
			if l.dueIndex >= 0 {
				heap.Remove(&p.due, l.dueIndex)
			}
			sum.add(1, l.Size)
		}
		dropped[c] = sum
		p.effects.LeasedBytes -= sum.Bytes
		c.leases, c.ready, c.ages = map[int64]*Lease{}, nil, throttle.Ages{}
		p.effects.add(Write{Kind: DeleteProgress, Queue: c.number}) // before the writes of promote
		p.putCursor(c)
	}
	for c, spilled := range p.forgetSpilled(func(c *cursor) bool { return moved[c] }) {
		sum := dropped[c]
		sum.add(spilled.Messages, spilled.Bytes)
		dropped[c] = sum
	}
	for name, mg := range p.groups {
		mg.held = slices.DeleteFunc(mg.held, func(l *Lease) bool { return moved[l.cursor] })
		if mg.head == nil || moved[mg.head.cursor] {
			p.promote(name, mg)
		}
	}
	return dropped
}
