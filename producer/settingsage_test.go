package producer

import (
	"context"
	"errors"
	"runtime"
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

// Many sends that fail in one moment request the settings in one goroutine.
func TestOneGoroutineRenewsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		respond := make(chan struct{})
		f := &fake{}
		f.settings = func(context.Context) (transport.ProducerSettings, error) {
			<-respond
			return transport.ProducerSettings{}, errors.New("connection refused")
		}
		p := newProducer(t, f, Options{})
		topic := p.use("orders")
		defer topic.release()
		before := runtime.NumGoroutine()
		for range 100 {
			p.requestSettingsLater(topic)
		}
		if n := runtime.NumGoroutine() - before; n > 1 {
			t.Errorf("%d goroutines request the settings, want one", n)
		}
		close(respond)
		synctest.Wait()
		time.Sleep(settingsRetry)
		p.requestSettingsLater(topic)
		synctest.Wait()
		if n := f.asked.Load(); n != 2 {
			t.Errorf("%d requests, want a second one after the failure of the first", n)
		}
	})
}
