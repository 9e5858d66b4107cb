package producer

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/spool"
)

// Messages that wait behind a throttled request move to the spool once, also if the spool has
// written them before the producer has called OnAttempt for all of them.
func TestWaitingMessagesAreSpooledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 64
		f, s := newStore(), newSpool(t, spool.Options{})
		p := newProducer(t, f, Options{Spool: s, OnAttempt: func(a Attempt) {
			if a.Stop != NotStopped {
				time.Sleep(time.Second) // the spool writes meanwhile
			}
		}})
		f.set(func(*tidegate.Message) error { return throttled(0) })
		var calls [n]atomic.Int64
		for i := range n {
			if err := p.SendAsync(t.Context(), named(fmt.Sprint(i)), func(r tidegate.Receipt, err error) {
				calls[i].Add(1)
				if err != nil || !r.Spooled {
					t.Errorf("message %d: %+v, %v", i, r, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if c := calls[i].Load(); c != 1 {
				t.Errorf("the function of message %d was called %d times", i, c)
			}
		}
	})
}
