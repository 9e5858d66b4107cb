package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Release gives back deliveries that did not reach a consumer: they are ready
// again at once, and the attempt does not count. Those that are not valid any more are
// left alone.
func (b *Broker) Release(_ context.Context, ds []*tidegate.Delivery) {
	if !b.begin() {
		return
	}
	defer b.end()
	var flights []*store.Flight
	for i := 0; i < len(ds); {
		s, h, err := b.locate(ds[i])
		if i++; err != nil {
			continue
		}
		grants := []grant{{handle: h}}
		for ; i < len(ds); i++ { // those of the same topic and group are written together
			other, h, err := b.locate(ds[i])
			if err != nil || other != s {
				break
			}
			grants = append(grants, grant{handle: h})
		}
		flights = append(flights, s.giveBack(grants))
	}
	for _, f := range flights {
		_ = f.Wait() // a store that fails tells everybody else
	}
}

// giveBack makes deliveries ready again that are still valid, as if they had not been made.
func (s *subscription) giveBack(grants []grant) *store.Flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var changed []*lease
	for _, g := range grants {
		l, err := s.current(g.handle, now)
		if err != nil {
			continue
		}
		to, _ := l.state().Next(consume.EventRelease, consume.AttemptsLeft, l.Push)
		l.Attempt--
		l.renumber()
		l.Due = now
		s.set(l, to)
		s.wake(1, l.cursor.queue.number)
		changed = append(changed, l)
	}
	if len(changed) == 0 {
		return nil
	}
	return s.saveLazily(changed...)
}
