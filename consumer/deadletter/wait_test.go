package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/transport"
)

// A busy sender throttles its first send, with a wait.
type busy struct {
	transport.Sender
	wait  time.Duration
	sends []time.Time
}

func (b *busy) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	if b.sends = append(b.sends, time.Now()); len(b.sends) == 1 {
		return []transport.SendResult{{Err: &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: b.wait}}}
	}
	return b.Sender.Send(ctx, msgs)
}

// After a throttled send a redrive waits for the backoff of a producer, 1 s with a jitter of a
// fifth, or for the time that the server requests if that is longer.
func TestRedriveWaitsAsTheServerRequests(t *testing.T) {
	for _, tt := range []struct {
		name              string
		wait, least, most time.Duration
	}{
		{"no wait", 0, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"a shorter wait", 100 * time.Millisecond, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"a longer wait", time.Minute, time.Minute, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				p := newPlace(t, b)
				p.fail("always", "m")
				src, sender := p.queue(), &busy{Sender: p.rest, wait: tt.wait}
				src.Lease = 30 * time.Minute
				report, err := p.redrive(src, deadletter.Options{Sender: sender})
				if err != nil || report.Redriven != 1 || report.Failed != 0 || len(sender.sends) != 2 {
					t.Fatalf("%+v, %v after %d sends; want the letter sent back by the second one", report, err, len(sender.sends))
				}
				if waited := sender.sends[1].Sub(sender.sends[0]); waited < tt.least || waited > tt.most {
					t.Errorf("the second send follows after %v, want %v to %v", waited, tt.least, tt.most)
				}
			})
		})
	}
}
