package endtoend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// A group consumes its topic and its own dead letters, and fails in both. Each message is delivered
// as often as the group allows in the topic, and once more so often as a dead letter. Then it stays
// among the dead letters, from where an operator can send it back: dead letters do not go round.
func TestDeadLettersDoNotLoop(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		settings *settings.Address
		letters  string         // the topic of the dead letters
		want     map[string]int // deliveries
	}{
		"failures":        {errors.New("no"), nil, "%DLQ%billing", map[string]int{"orders": 2, "%DLQ%billing": 2}},
		"the handler's":   {consumer.DeadLetterNow(errors.New("no")), nil, "%DLQ%billing", map[string]int{"orders": 1, "%DLQ%billing": 1}},
		"without address": {consumer.DeadLetterNow(errors.New("no")), &settings.Address{MaxDeliveryAttempts: new(3)}, "%DLQ%billing", map[string]int{"orders": 1, "%DLQ%billing": 1}},
		"an address": {
			errors.New("no"), &settings.Address{MaxDeliveryAttempts: new(3), DeadLetterAddress: new("DLA")}, "DLA",
			map[string]int{"orders": 3, "DLA": 3},
		},
	} {
		t.Run(name, onBroker(func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{})
			b.CreateTopic(tt.letters, settings.Topic{})
			b.CreateGroup("billing", settings.Group{MaxAttempts: 2, Retry: backoff.Steps{time.Second}})
			if tt.settings != nil {
				assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "#", *tt.settings)))
			}
			var mu sync.Mutex
			got := map[string]int{}
			sub := consumer.Subscription{Group: "billing", Topics: map[string]tidegate.Filter{"orders": {}, tt.letters: {}}}
			stop := Consume(t, b, sub, func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				got[d.Topic]++
				return tt.err
			})
			b.Send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
			time.Sleep(5 * time.Minute)
			stop()
			assert.That(t, fmt.Sprint(got) == fmt.Sprint(tt.want), "deliveries %v, want %v", got, tt.want)
			page, err := b.DeadLetters("billing", status.DeadLetterQuery{})
			assert.MustThat(t, err == nil && len(page.DeadLetters) == 1 && page.DeadLetters[0].Origin.Reason == "no", "dead letters %+v, %v, want one", page, err)
			s := b.Stats("billing", tt.letters)
			assert.That(t, s.Ready+s.Inflight+s.WaitingRetry == 0 && s.Discarded == 0, "the group's dead letters are %+v", s)
			done, err := b.RedriveDeadLetters(t.Context(), "billing", status.DeadLetterSelection{})
			assert.That(t, err == nil && done.Redriven == 1 && b.Stats("billing", "orders").Ready == 1,
				"redrive: %+v, %v, with %+v", done, err, b.Stats("billing", "orders"))
		}))
	}
}
