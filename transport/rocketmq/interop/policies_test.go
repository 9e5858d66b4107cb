package interop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// Messages of one topic have the retries and the end of their policies, and a policy cannot exceed
// the group's maximum of attempts. The consumer announces all of it before the first message.
func TestPolicies(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 3), Topic: x.topic("orders", settings.TopicNormal)}
		c := x.consume(sub, func(context.Context, *tidegate.Delivery) error { return errHandler }, consumer.PushOptions{
			Policies: []policy.Policy{
				{Tag: "invoice", Retry: backoff.Steps{2 * time.Second}, MaxAttempts: 2},
				{Tag: "noise", MaxAttempts: 1, Exhausted: policy.Discard},
				{Tag: "many", MaxAttempts: 30, Exhausted: policy.Discard},
			},
		})
		p := x.producer(producer.Options{})
		type end struct {
			delays  []time.Duration
			end     consumer.Disposition
			finding bool
		}
		want := map[string]end{
			"plain":   {[]time.Duration{time.Second, time.Second}, consumer.DeadLettered, false},
			"invoice": {[]time.Duration{2 * time.Second}, consumer.DeadLettered, false},
			"noise":   {nil, consumer.Discarded, false},
			"many":    {[]time.Duration{time.Second, time.Second}, consumer.DeadLettered, true},
		}
		tags := map[string]string{} // message ID → tag
		outcomes := 0
		for tag, w := range want {
			m := &tidegate.Message{Topic: sub.Topic, Tag: tag, Body: []byte(tag)}
			e := assert.Value(c.consumer.EffectivePolicy(x.ctx, m))(t)
			var delays []time.Duration
			for _, r := range e.Preview() {
				delays = append(delays, r.Lo)
			}
			if !slices.Equal(delays, w.delays) || (e.Exhausted == policy.Discard) != (w.end == consumer.Discarded) || (len(e.Findings) > 0) != w.finding {
				t.Errorf("%s: the consumer announces\n%v\nwant delays %v, and %v", tag, e, w.delays, w.end)
			}
			tags[x.send(p, m).MessageID] = tag
			outcomes += len(w.delays) + 1
		}
		got := map[string]end{}
		for range outcomes {
			o := c.outcome()
			g := got[tags[o.Delivery.ID]]
			if o.Disposition == consumer.Retried {
				g.delays = append(g.delays, o.Delay)
			} else {
				g.end = o.Disposition
			}
			assert.That(t, errors.Is(o.Err, errHandler) && o.SettleErr == nil, "outcome %+v", o)
			got[tags[o.Delivery.ID]] = g
		}
		for tag, w := range want {
			if g := got[tag]; !slices.Equal(g.delays, w.delays) || g.end != w.end {
				t.Errorf("%s: retried after %v, then %v; want %v, then %v", tag, g.delays, g.end, w.delays, w.end)
			}
		}
		c.stop()
		letters := consumer.Subscription{Group: x.group("undertaker", false, 17), Topic: tidegate.DeadLetterTopic(sub.Group)}
		var bodies []string
		for _, d := range x.take(letters, 3) {
			bodies = append(bodies, string(d.Body))
		}
		if slices.Sort(bodies); strings.Join(bodies, " ") != "invoice many plain" {
			t.Errorf("dead letters %q", bodies)
		}
	})
}
