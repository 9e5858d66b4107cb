package broker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A change of the invisible duration whose response was lost is repeated with the replaced handle,
// also after a restart. The repetition takes effect and returns the same new handle. A replaced
// handle permits no other operation, and a handle of an earlier change or delivery permits none.
func TestChangeIsRepeatable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")})
		take := func() *tidegate.Delivery {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute, Push: true})
			if len(ds) != 1 {
				t.Fatalf("%d deliveries", len(ds))
			}
			return ds[0]
		}
		change := func(d *tidegate.Delivery, dur time.Duration) *tidegate.Delivery {
			t.Helper()
			c := *d
			var err error
			if c.Handle, err = b.Extend(t.Context(), d, dur, false); err != nil {
				t.Fatal(err)
			}
			return &c
		}
		repeat := func(d *tidegate.Delivery) string {
			t.Helper()
			h, err := b.Extend(t.Context(), d, time.Minute, true)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		refused := func(d *tidegate.Delivery, repeatToo bool) {
			t.Helper()
			_, retried := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
			_, given := b.Extend(t.Context(), d, 0, false)
			_, changed := b.Extend(t.Context(), d, time.Minute, false)
			_, dead := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})
			_, givenAgain := b.Extend(t.Context(), d, 0, true)
			errs := map[string]error{
				"ack": b.Ack(t.Context(), []*tidegate.Delivery{d})[0], "retry": retried, "release": given, "release again": givenAgain,
				"change": changed, "dead letter": dead,
			}
			if repeatToo {
				_, errs["repeated change"] = b.Extend(t.Context(), d, time.Minute, true)
			}
			for name, err := range errs {
				if !errors.Is(err, tidegate.ErrInvalidHandle) {
					t.Errorf("%s with a handle that was replaced: %v", name, err)
				}
			}
		}
		first := take()
		elapse(30 * time.Second)
		second := change(first, time.Minute)
		refused(first, false)
		for range 2 {
			elapse(50 * time.Second) // past the invisible duration of before
			if again := repeat(first); again != second.Handle || again == first.Handle {
				t.Errorf("repeated, the change gives %q after %q", again, second.Handle)
			}
		}
		b = reopen(t, b, fs)
		if again := repeat(first); again != second.Handle {
			t.Errorf("repeated after a restart, the change gives %q after %q", again, second.Handle)
		}
		third := *second // as if a change whose response was lost had not been carried out
		third.Handle = repeat(second)
		refused(first, true)
		refused(second, false)
		elapse(61 * time.Second) // it runs out
		refused(second, true)
		elapse(10 * time.Second) // the ladder's first step
		fourth := take()
		if fourth.Attempt != 2 {
			t.Errorf("attempt %d", fourth.Attempt)
		}
		refused(&third, true) // the serial number before that of the delivery, which is no change
		change(fourth, 0)     // released
		refused(fourth, true)
		if err := b.Ack(t.Context(), []*tidegate.Delivery{take()})[0]; err != nil {
			t.Error(err)
		}
	})
}
