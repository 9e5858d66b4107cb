package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

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
		placedAs(t, tt.name, func(t *testing.T, p *place) {
			p.fail("always", "m")
			src, sender := p.queue(), &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, _ []*tidegate.Message) []error {
				if n > 1 {
					return nil
				}
				return []error{&tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: tt.wait}}
			}}
			src.Lease = 30 * time.Minute
			report, err := p.redrive(src, deadletter.Options{Sender: sender})
			sends := sender.Calls("Send")
			assert.MustThat(t, err == nil && report.Redriven == 1 && report.Failed == 0 && len(sends) == 2,
				"%+v, %v after %d sends; want the letter sent back by the second one", report, err, len(sends))
			if waited := sends[1].At.Sub(sends[0].At); waited < tt.least || waited > tt.most {
				t.Errorf("the second send follows after %v, want %v to %v", waited, tt.least, tt.most)
			}
		})
	}
}
