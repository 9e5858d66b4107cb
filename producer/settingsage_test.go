package producer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// Effective requests the settings again when the last response is 30 s old, or 5 s after a failure.
func TestAgeOfSettings(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error // of the first request
		age  time.Duration
	}{
		{"a response", nil, 30 * time.Second},
		{"a failure", errors.New("connection refused"), 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.settings = func(context.Context) (transport.ProducerSettings, error) {
					return transport.ProducerSettings{MaxAttempts: 7}, tt.err
				}
				p := newProducer(t, f, Options{})
				begin := time.Now()
				for _, step := range []struct {
					at       time.Duration
					requests int64
				}{{0, 1}, {tt.age - time.Millisecond, 1}, {tt.age, 2}} {
					time.Sleep(step.at - time.Since(begin))
					if _, err := p.Effective(t.Context(), "orders"); !errors.Is(err, tt.err) {
						t.Errorf("Effective: %v, want %v", err, tt.err)
					}
					if n := f.asked.Load(); n != step.requests {
						t.Errorf("%d requests after %v, want %d", n, step.at, step.requests)
					}
				}
			})
		})
	}
}
