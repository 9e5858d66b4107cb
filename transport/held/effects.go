package held

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held/internal/shelf"
)

const (
	maxWorkers = 4   // that settle in the background
	maxBatch   = 100 // settlements of one call in the background
)

// lock locks the shelf, makes the changes that are due, and returns the time.
func (t *Table) lock() time.Time {
	t.mu.Lock()
	now := time.Now()
	t.shelf.Due(now)
	return now
}

// unlock arms the timer, unlocks the shelf, and carries out the actions that follow the change.
func (t *Table) unlock(now time.Time) {
	out := t.shelf.Take()
	t.queue = append(t.queue, out.Settle...)
	workers := 0
	if !t.closed {
		workers = min(len(t.queue), maxWorkers-t.workers)
		t.workers += workers
	}
	if n := len(out.Open) + len(out.Close) + workers; n > 0 { // Add(0) may race with Wait
		t.wg.Add(n)
	}
	if next := t.shelf.Next(); !next.IsZero() && (t.armed.IsZero() || next.Before(t.armed)) {
		t.timer.Reset(next.Sub(now))
		t.armed = next
	}
	t.mu.Unlock()

	for _, w := range out.Wake {
		select {
		case w.C <- struct{}{}:
		default: // it is awake
		}
	}
	for _, g := range out.Grant {
		native(g.Link).Grant(g.N)
	}
	for _, l := range out.Open {
		go t.open(l)
	}
	for _, l := range out.Close {
		go func() {
			defer t.wg.Done()
			native(l).Close()
			now := t.lock()
			t.shelf.Closed(l)
			t.unlock(now)
		}()
	}
	for range workers {
		go t.work()
	}
}

func native(l *shelf.Link) Link { return l.Native.(Link) }

// tick is the function of the timer.
func (t *Table) tick() {
	now := t.lock()
	t.armed = time.Time{}
	t.unlock(now)
}

func (t *Table) open(l *shelf.Link) {
	defer t.wg.Done()
	ctx, cancel := context.WithTimeout(t.ctx, openTimeout)
	defer cancel()
	k := l.Source.Key
	link, err := t.system.Open(ctx, &Feed{Group: k.Group, Topic: k.Topic, Filter: k.Filter, FIFO: l.FIFO, table: t, link: l})
	now := t.lock()
	l.Native = link
	t.shelf.Opened(l, err, now)
	t.unlock(now)
}

// Deliver adds a message. d has the decoded message; its Attempt is the attempt number of the
// system, from 1. The Table keeps d until the message ends, and delivers copies of it with Handle,
// ConsumerGroup and InvisibleUntil. The message comes back in Settlement.Native.
func (f *Feed) Deliver(d *tidegate.Delivery, native any) {
	t := f.table
	now := t.lock()
	t.shelf.Deliver(f.link, d, native, now)
	t.unlock(now)
}

// Lost reports that the link has ended without a call of Close: the system has all messages back.
// The receives of the source fail with err. Settlements of its deliveries fail with NotConnected
// until there is a new link, which they open in the background, and with
// [tidegate.ErrInvalidHandle] afterwards.
func (f *Feed) Lost(err error) {
	t := f.table
	now := t.lock()
	t.shelf.Lost(f.link, cmp.Or(err, tidegate.ErrUnavailable), now)
	t.unlock(now)
}

// work carries out settlements of the queue until it is empty.
func (t *Table) work() {
	defer t.wg.Done()
	for {
		t.mu.Lock()
		n := 0
		for n < min(len(t.queue), maxBatch) && t.queue[n].Link == t.queue[0].Link {
			n++
		}
		if n == 0 {
			t.workers--
			t.mu.Unlock()
			return
		}
		batch := append([]shelf.Settlement(nil), t.queue[:n]...)
		t.queue = append(t.queue[:0], t.queue[n:]...)
		t.mu.Unlock()

		errs := settle(t.ctx, batch)
		now := t.lock()
		for i, s := range batch {
			t.shelf.Left(s.Message, errAt(errs, i), now)
		}
		t.unlock(now)
	}
}

// settle carries out settlements of one link.
func settle(ctx context.Context, batch []shelf.Settlement) []error {
	list := make([]Settlement, len(batch))
	for i, s := range batch {
		list[i] = Settlement{Native: s.Native, Delivery: s.Delivery, Outcome: Outcome(s.Outcome), Delay: s.Delay, Reason: s.Reason}
	}
	return native(batch[0].Link).Settle(ctx, list)
}

func errAt(errs []error, i int) error {
	if i < len(errs) {
		return errs[i]
	}
	return nil
}

// receiveError describes the failure of a receive.
func receiveError(r transport.ReceiveRequest, err error) *tidegate.Error {
	return failure("ReceiveMessage", r.Topic, err)
}

// failure returns err with an operation and a subject.
func failure(op, subject string, err error) *tidegate.Error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return &tidegate.Error{Op: op, Subject: subject, Err: err}
	}
	c := *e
	if c.Op == "" {
		c.Op, c.Subject = op, subject
	}
	return &c
}

var _ transport.Receiver = (*Table)(nil)
var _ transport.Settler = (*Table)(nil)
