package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// tries counts the deliveries of each message, with the times between them.
type tries struct {
	mu    sync.Mutex
	at    map[string][]time.Time
	final map[string][]finality
}

func (c *tries) fail(ctx context.Context, d *tidegate.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[d.Tag] = append(c.at[d.Tag], time.Now())
	c.final[d.Tag] = append(c.final[d.Tag], finalityOf(ctx))
	d.Tag = "changed by the handler"
	clear(d.Properties)
	return errors.New("no connection")
}

func (c *tries) gaps(tag string) (gaps []time.Duration) {
	for i, at := range c.at[tag][1:] {
		gaps = append(gaps, at.Sub(c.at[tag][i]))
	}
	return gaps
}

// Each message has the schedule, the attempts and the end of its policy, also if its handler
// changes the delivery.
func TestPolicies(t *testing.T) {
	for name, caps := range map[string]transport.Capabilities{
		"a server that decides": {Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, RepeatChange: true, RetryResult: true}, "a RocketMQ": {},
	} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.caps = caps
			s.settings = transport.ConsumerSettings{MaxAttempts: 6, Retry: backoff.Steps{time.Hour}}
			for _, tag := range []string{"plain", "invoice", "acme", "noise", "many"} {
				props := map[string]string{"tenant": tag}
				s.add(0, &tidegate.Message{ID: tag, Topic: "orders", Tag: tag, Properties: props, Body: []byte("x")})
			}
			c := &tries{at: map[string][]time.Time{}, final: map[string][]finality{}}
			var seen outcomes
			stop := start(t, s, consumer.Subscription{}, c.fail, consumer.PushOptions{OnDelivery: seen.add, Policies: []policy.Policy{
				{MaxAttempts: 4, Retry: backoff.Steps{time.Second}},
				{Tag: "invoice", Retry: backoff.Steps{time.Minute, time.Hour}},
				{Tag: "noise", Exhausted: policy.Discard},
				{Tag: "many", MaxAttempts: 30},
				{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 2},
			}})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			c.mu.Lock()
			if n := len(c.at["many"]); caps == (transport.Capabilities{}) && n != 6 {
				t.Errorf("a message has %d attempts, want the server's maximum of 6", n)
			}
			c.mu.Unlock()
			time.Sleep(24 * time.Hour)
			stop()
			for tag, want := range map[string][]time.Duration{
				"plain":   {time.Second, time.Second, time.Second},
				"invoice": {time.Minute, time.Hour, time.Hour},
				"acme":    {time.Second},
				"noise":   {time.Second, time.Second, time.Second},
			} {
				got := c.gaps(tag)
				assert.That(t, slices.Equal(got, want), "%s: delivered again after %v, want %v", tag, got, want)
				for i, f := range c.final[tag] {
					assert.That(t, (f == final) == (i == len(want)), "%s: attempt %d is %v", tag, i+1, f)
				}
				end := consumer.DeadLettered
				if tag == "noise" {
					end = consumer.Discarded
				}
				list := seen.all()
				o := list[slices.IndexFunc(list, func(o consumer.Outcome) bool { return o.Delivery.ID == tag && o.Disposition != consumer.Retried })]
				if _, dead := s.dead[tag]; o.Disposition != end || o.Delivery.Attempt != len(want)+1 || dead != (end == consumer.DeadLettered) || o.SettleErr != nil {
					t.Errorf("%s: %+v, dead letter %v, want %v", tag, o, dead, end)
				}
			}
		}))
	}
}

// The consumer reports the values in effect, with their sources.
func TestEffectivePolicy(t *testing.T) {
	s := newServer(t)
	s.settings = transport.ConsumerSettings{MaxAttempts: 6, Retry: backoff.Steps{time.Minute}}
	p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders", Retry: backoff.Steps{time.Second}},
		func(context.Context, *tidegate.Delivery) error { return nil },
		consumer.PushOptions{Policies: []policy.Policy{{Topic: "orders", Tag: "invoice", MaxAttempts: 3}}})
	assert.Must(t, err)
	e, err := p.EffectivePolicy(t.Context(), &tidegate.Message{Tag: "invoice"})
	if err != nil || e.MaxAttempts != 3 || e.MaxAttemptsFrom != `PushOptions.Policies[0] (tag "invoice", topic "orders")` ||
		e.RetryFrom != "Subscription.Retry" || e.Retry.Delay(0) != time.Second {
		t.Errorf("got\n%v\n%v", e, err)
	}
	e, err = p.EffectivePolicy(t.Context(), &tidegate.Message{})
	assert.That(t, err == nil && e.MaxAttempts == 6 && e.MaxAttemptsFrom == "server: settings of the group", "got\n%v\n%v", e, err)
	broken := errors.New("connection lost")
	s.onSettings = func(context.Context) error { return broken }
	e, err = p.EffectivePolicy(t.Context(), &tidegate.Message{Tag: "invoice"})
	assert.That(t, errors.Is(err, broken) && e.MaxAttempts == 3 && e.RetryFrom == "Subscription.Retry", "without the server's settings: got\n%v\n%v", e, err)
	if _, err = p.EffectivePolicy(t.Context(), &tidegate.Message{Topic: "no topic"}); err == nil || !strings.Contains(err.Error(), `"no topic"`) {
		t.Errorf("of a topic that cannot exist: %v", err)
	}
}
