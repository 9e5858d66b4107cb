package backoff

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestSleep(t *testing.T) {
	stop := errors.New("stopped")
	for _, c := range []struct {
		name   string
		d      time.Duration
		end    time.Duration // when ctx ends; negative for never
		want   error
		waited time.Duration
	}{
		{"whole", time.Hour, -1, nil, time.Hour},
		{"cut short", time.Hour, time.Minute, stop, time.Minute},
		{"ended before", time.Hour, 0, stop, 0},
		{"nothing to wait for", 0, -1, nil, 0},
		{"negative", -time.Hour, -1, nil, 0},
		{"nothing to wait for, ended before", 0, 0, stop, 0},
	} {
		assert.Bubble(t, c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.end == 0 {
				cancel(stop)
			} else if c.end > 0 {
				defer time.AfterFunc(c.end, func() { cancel(stop) }).Stop()
			}
			start := time.Now()
			err := Sleep(ctx, c.d)
			assert.That(t, err == c.want, "Sleep = %v, want %v", err, c.want)
			assert.Equal(t, "waited for", time.Since(start), c.waited)
		})
	}
}
