package interop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// One push consumer receives from several topics, each with its filter. A retry is delivered from
// its own topic. A topic that does not exist is reported with its name, does not stop the others,
// and is received from once it exists.
func TestSeveralTopics(t *testing.T) {
	on(t, func(x *target) {
		orders, returns, missing := x.topic("orders", settings.TopicNormal), x.topic("returns", settings.TopicNormal), x.name("missing")
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topics: map[string]tidegate.Filter{
			orders: consumer.Tags("paid", "refunded"), returns: {}, missing: {},
		}}
		failures := make(chan consumer.ReceiveFailure, 1000)
		c := x.consume(sub, func(_ context.Context, d *tidegate.Delivery) error {
			if d.Topic == returns && d.Attempt == 1 {
				return consumer.RetryIn(time.Second, errHandler)
			}
			return nil
		}, consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) { failures <- f }})
		p := x.producer(producer.Options{})
		const each = 20
		want := map[string]int{}
		for i := range each {
			tag := []string{"paid", "open", "refunded", ""}[i%4]
			x.send(p, &tidegate.Message{Topic: orders, Tag: tag, Body: []byte("x")})
			if i%2 == 0 {
				want[orders+" "+tag]++
			}
			x.send(p, &tidegate.Message{Topic: returns, Tag: tag, Body: []byte("x")})
			want[returns+" "+tag] += 2
		}
		got := map[string]int{}
		begin := time.Now()
		for range each/2 + 2*each {
			d := c.next()
			got[d.Topic+" "+d.Tag]++
			if o := c.outcome(); o.Delivery.Topic != orders && o.Delivery.Topic != returns || o.Delivery.ConsumerGroup != sub.Group {
				t.Errorf("outcome %+v", o)
			}
		}
		t.Logf("%d deliveries within %v", each/2+2*each, time.Since(begin))
		assert.That(t, fmt.Sprint(got) == fmt.Sprint(want), "delivered %v, want %v", got, want)
		assert.Must(t, x.createTopic(x.ctx, missing, settings.TopicNormal))
		sent, err := p.Send(x.ctx, &tidegate.Message{Topic: missing, Body: []byte("x")})
		for errors.Is(err, tidegate.ErrTopicNotFound) && backoff.Sleep(x.ctx, time.Second) == nil {
			sent, err = p.Send(x.ctx, &tidegate.Message{Topic: missing, Body: []byte("x")}) // a proxy remembers for a while that it was missing
		}
		assert.Must(t, err)
		if d := c.next(); d.ID != sent.MessageID || d.Topic != missing {
			t.Errorf("delivered %s of %s, want the message of the new topic", d.ID, d.Topic)
		}
		c.stop()
		assert.That(t, len(failures) != 0, "the missing topic was not reported")
		for len(failures) > 0 {
			if f := <-failures; f.Topic != missing || !errors.Is(f.Err, tidegate.ErrTopicNotFound) {
				t.Errorf("failure %+v, want one of %s", f, missing)
			}
		}
	})
}
