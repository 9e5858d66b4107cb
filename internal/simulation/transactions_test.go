package simulation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A ledger has the local transactions of all producers, like the table of a database. The broker
// can ask any producer of a topic.
type ledger struct {
	mu    sync.Mutex
	state map[string]transport.Resolution // by the name of the message
}

func (l *ledger) put(name string, r transport.Resolution) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == nil {
		l.state = map[string]transport.Resolution{}
	}
	l.state[name] = r
}

// check is the producer's Checker. A transaction without an entry is under way.
func (l *ledger) check(_ context.Context, c transport.TransactionCheck) transport.Resolution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state[c.Message.ID]
}

var errLocal = errors.New("the local transaction fails, by the simulation")

// transact sends the message in a transaction. The name of the message decides about its local
// transaction.
func (s *sender) transact(ctx context.Context, m *tidegate.Message) (tidegate.Receipt, error) {
	d := newDice(s.w.plan.seed, "transaction "+m.ID)
	ran := false
	r, err := s.p.Transact(ctx, m, func(ctx context.Context, _ *tidegate.Message) error {
		ran = true
		wait(ctx, time.Duration(d.Int64N(int64(time.Second))))
		if d.chance(0.3) {
			s.w.ledger.put(m.ID, transport.Rollback)
			return errLocal
		}
		s.w.ledger.put(m.ID, transport.Commit)
		if d.chance(0.1) { // the response of the database is lost
			return fmt.Errorf("no response: %w", errLocal)
		}
		return nil
	})
	if !ran { // a half message without a response is never committed
		s.w.ledger.put(m.ID, transport.Rollback)
	}
	return r, err
}

// serveChecks resolves the transactions that the broker checks, until ctx ends.
func (s *sender) serveChecks(ctx context.Context) {
	if err := s.p.ServeChecks(ctx, s.topic); err != nil && ctx.Err() == nil && !errors.Is(err, tidegate.ErrClosed) {
		s.w.book.fail("%s: ServeChecks ended by itself: %v", s.name, err)
	}
}

// rolledBack reports whether the message belongs to a transaction that was rolled back.
func (w *world) rolledBack(x *sent) bool { return w.ledger.state[x.name] == transport.Rollback }

// transactionsEnd compares the deliveries with the ledger, which decides also if every response was
// lost.
func transactionsEnd(w *world, broken func(string, ...any)) {
	for _, g := range w.plan.groups {
		letters := w.letters(g.name)
		for name, r := range w.ledger.state {
			if w.book.sent[name].topic != g.topic {
				continue
			}
			handled := 0
			for i := range w.sites {
				if c := w.book.handled[copyKey{g.name, name, i}]; c != nil {
					handled += len(c.calls)
				}
			}
			switch {
			case r == transport.Rollback && handled > 0:
				broken("%s was rolled back, and %s got it", name, g.name)
			case r == transport.Commit && handled+letters[name] == 0:
				broken("%s was committed, and %s did not get it", name, g.name)
			}
		}
	}
}
