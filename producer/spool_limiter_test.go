package producer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/spool"
)

// A rejecting limiter permits the first event only. It observes, so retries take no tokens.
type refusing struct {
	mu    sync.Mutex
	asked int
}

func (l *refusing) WaitN(context.Context, int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked++; l.asked > 1 {
		return errors.New("not permitted")
	}
	return nil
}

func (*refusing) Observe(error) {}

// The messages of a message group are spooled in their order. Here the limiter rejects the newer
// message, while the older one in the same request is retried without the limiter.
func TestSpoolKeepsTheOrderBehindARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newStore()
		f.fail = func(*tidegate.Message) error { return codeError(tidegate.CodeInternalServerError) }
		s := newSpool(t, spool.Options{})
		p := newProducer(t, f, Options{Limiter: &refusing{}, Spool: s})
		var msgs []*tidegate.Message
		for _, id := range []string{"1", "2", "3"} {
			m := named(id)
			m.MessageGroup = "g"
			msgs = append(msgs, m)
		}
		for i, r := range p.SendBatch(t.Context(), msgs) {
			if r.Err != nil || !r.Receipt.Spooled {
				t.Errorf("message %d: %+v, %v; want it in the spool", i+1, r.Receipt, r.Err)
			}
		}
		entries, err := s.Entries(false, 0, 10)
		if err != nil || len(entries) != 3 {
			t.Fatalf("%+v, %v; want 3 entries", entries, err)
		}
		for i, e := range entries {
			if e.Message.ID != msgs[i].ID {
				t.Errorf("entry %d is message %s, want %s", i+1, e.Message.ID, msgs[i].ID)
			}
		}
	})
}
