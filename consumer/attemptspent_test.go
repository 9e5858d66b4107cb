package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// Outcome.AttemptSpent is true only if the handler returned Snooze and the server counted the
// attempt.
func TestAttemptSpent(t *testing.T) {
	for _, tt := range []struct {
		name  string
		caps  transport.Capabilities
		away  bool // the server does not respond to the retry
		end   consumer.Disposition
		spent bool
	}{
		{"a server with snoozes", ours, false, consumer.Snoozed, false},
		{"a server without snoozes", transport.Capabilities{}, false, consumer.Retried, true},
		{"a server that did not count it", transport.Capabilities{}, true, consumer.Unsettled, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps = tt.caps
				s.fill(1)
				s.onRetry = func(*tidegate.Delivery) error {
					if tt.away {
						return &tidegate.Error{Op: "ChangeInvisibleDuration", Message: "connection refused"}
					}
					return nil
				}
				var seen outcomes
				stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return consumer.Snooze(time.Hour) },
					consumer.PushOptions{InvisibleDuration: 10 * time.Second, OnDelivery: seen.add})
				time.Sleep(time.Minute)
				stop()
				got := seen.all()
				if len(got) == 0 || got[0].Disposition != tt.end || got[0].AttemptSpent != tt.spent {
					t.Errorf("outcomes %+v, want %v with AttemptSpent %t", got, tt.end, tt.spent)
				}
			})
		})
	}
}
