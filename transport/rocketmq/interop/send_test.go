package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// Messages keep their ID, tag, keys and properties in every kind of send. A RocketMQ does not
// announce Capabilities.Batch, so each message travels in a request of its own.
func TestSend(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		p := x.producer(producer.Options{})
		const each = 20
		sent := map[string]string{}
		message := func(how string, i int) *tidegate.Message {
			m := &tidegate.Message{
				ID: tidegate.NewMessageID(), Topic: sub.Topic, Tag: fmt.Sprint(how, i), Keys: []string{fmt.Sprint("key", i)},
				Properties: map[string]string{"how": how}, Body: fmt.Append(nil, how, " ", i),
			}
			sent[m.ID] = fmt.Sprint(m.Tag, m.Keys, m.Properties, string(m.Body))
			return m
		}
		results := make(chan error, each)
		var batch []*tidegate.Message
		for i := range each {
			r := x.send(p, message("send", i))
			assert.That(t, r.Attempts == 1 && r.RecallHandle == "" && r.TransactionID == "", "receipt %+v", r)
			assert.Must(t, p.SendAsync(x.ctx, message("async", i), func(_ tidegate.Receipt, err error) { results <- err }))
			batch = append(batch, message("batch", i))
		}
		for range each {
			assert.NoError(t, <-results)
		}
		for i, r := range p.SendBatch(x.ctx, batch) {
			assert.That(t, r.Err == nil && r.Receipt.MessageID == batch[i].ID, "message %d of the batch: %+v", i, r)
		}
		for _, d := range x.take(sub, 3*each) {
			got := fmt.Sprint(d.Tag, d.Keys, d.Properties, string(d.Body))
			assert.That(t, got == sent[d.ID], "message %s: received %s, sent %s", d.ID, got, sent[d.ID])
			delete(sent, d.ID)
		}
		assert.Equal(t, "capabilities", x.client.Capabilities(""), x.server.Capabilities)
		a, err := p.Shutdown(x.ctx)
		assert.That(t, err == nil && a.Delivered == 3*each && a.Failed == 0, "accounts %+v, %v", a, err)
	})
}

// The SDK rejects messages that the server would reject or wrongly accept. It sends no request for
// them, and returns the same code for every server.
func TestSendRejected(t *testing.T) {
	on(t, func(x *target) {
		p := x.producer(producer.Options{})
		normal, fifo := x.topic("orders", settings.TopicNormal), x.topic("lines", settings.TopicFIFO)
		for name, c := range map[string]struct {
			msg    tidegate.Message
			code   tidegate.Code
			reason producer.StopReason
		}{
			"no body":        {tidegate.Message{Topic: normal}, protocol.CodeMessageBodyEmpty, producer.StopInvalid},
			"late delivery":  {tidegate.Message{Topic: normal, DeliverAt: time.Now().Add(25 * time.Hour)}, protocol.CodeIllegalDeliveryTime, producer.StopInvalid},
			"empty property": {tidegate.Message{Topic: normal, Properties: map[string]string{"k": ""}}, protocol.CodeIllegalMessagePropertyKey, producer.StopInvalid},
			"a group":        {tidegate.Message{Topic: normal, MessageGroup: "g"}, protocol.CodeMessagePropertyConflict, producer.StopPermanent},
			"no group":       {tidegate.Message{Topic: fifo}, protocol.CodeMessagePropertyConflict, producer.StopPermanent},
			"no topic":       {tidegate.Message{Topic: x.name("nowhere")}, tidegate.CodeTopicNotFound, producer.StopPermanent},
		} {
			if name != "no body" {
				c.msg.Body = []byte("x")
			}
			_, err := p.Send(x.ctx, &c.msg)
			send, ok := errors.AsType[*producer.SendError](err)
			assert.That(t, ok && send.Reason == c.reason && !send.MaybeStored,
				"%s: %v, want the reason %q and nothing stored", name, err, c.reason)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != c.code {
				t.Errorf("%s: %v, want %d %s", name, err, int(c.code), c.code)
			}
		}
		assert.NoError(t, x.client.Ping(x.ctx, normal))
		err := x.client.Ping(x.ctx, x.name("nowhere"))
		assert.That(t, errors.Is(err, tidegate.ErrTopicNotFound), "Ping of a topic that is missing: %v", err)
	})
}

// Newer versions of RocketMQ have more types of topics. An older one rejects the creation of such a
// topic.
func TestTopicTypes(t *testing.T) {
	on(t, func(x *target) {
		accepted := map[settings.TopicType]bool{
			settings.TopicNormal: true, settings.TopicFIFO: true, settings.TopicDelay: true, settings.TopicTransaction: true,
			settings.TopicPriority: x.server.Priorities,
		}
		if x.real != nil {
			accepted["LITE"] = x.real.Options().Version >= "5.5.0"
		}
		for kind, want := range accepted {
			err := x.createTopic(x.ctx, x.name(strings.ToLower(string(kind))), kind)
			assert.That(t, (err == nil) == want, "a topic of type %s: %v, want it created: %v", kind, err, want)
		}
	})
}

// A delayed message is delivered at its time, or recalled before. A recall that can never succeed
// fails in one attempt, and the error has the remedy. On RocketMQ these are all recalls of 5.2.0,
// and those of later versions without recallMessageEnable.
func TestDelayAndRecall(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("later", settings.TopicDelay)}
		other := x.topic("other", settings.TopicDelay)
		p := x.producer(producer.Options{})
		unit := time.Second
		if x.real != nil {
			unit = 10 * time.Second // on a busy machine a message that is due earlier can be sent too late for a recall
		}
		recalled := x.send(p, &tidegate.Message{Topic: sub.Topic, Body: []byte("recalled"), DeliverAt: time.Now().Add(4 * unit)})
		at := time.Now().Add(5 * unit)
		delayed := x.send(p, &tidegate.Message{Topic: sub.Topic, Body: []byte("kept"), DeliverAt: at})
		assert.Equal(t, "the offset of a delayed message is before it is delivered", recalled.Offset, -1)
		returnsHandles := x.real == nil || knowsRecall(x.real.Options())
		assert.That(t, (recalled.RecallHandle != "") == returnsHandles, "the receipt has the handle %q, want one: %v", recalled.RecallHandle, returnsHandles)

		want := []string{delayed.MessageID}
		late, lateRemedy := tidegate.Code(protocol.CodeMessageNotFound), "already delivered"
		switch {
		case x.server.Recall:
			x.refusesRecall(p, sub.Topic, "handle", tidegate.CodeBadRequest, "RecallHandle")
			x.refusesRecall(p, other, recalled.RecallHandle, tidegate.CodeBadRequest, "topic")
			id, err := p.Recall(x.ctx, sub.Topic, recalled.RecallHandle)
			assert.That(t, err == nil && id == recalled.MessageID, "recalled %q, %v", id, err)
			if x.server.RefusesRepeatedRecalls {
				x.refusesRecall(p, sub.Topic, recalled.RecallHandle, protocol.CodeMessageNotFound, "recalled")
			} else {
				id, err := p.Recall(x.ctx, sub.Topic, recalled.RecallHandle)
				assert.That(t, err == nil && id == recalled.MessageID, "recalled again %q, %v", id, err)
				late, lateRemedy = tidegate.CodeNotFound, "the delivery time is over"
			}
		case returnsHandles:
			want = []string{recalled.MessageID, delayed.MessageID}
			late, lateRemedy = tidegate.CodeForbidden, "recallMessageEnable=true"
			x.refusesRecall(p, sub.Topic, recalled.RecallHandle, late, lateRemedy)
		default:
			want = []string{recalled.MessageID, delayed.MessageID}
			late, lateRemedy = tidegate.CodeNotImplemented, "from 5.3.0 on"
			delayed.RecallHandle = "handle"
			x.refusesRecall(p, sub.Topic, delayed.RecallHandle, late, lateRemedy)
		}
		var got []string
		for _, d := range x.take(sub, len(want)) {
			got = append(got, d.ID)
			assert.That(t, d.ID != delayed.MessageID || !time.Now().Before(at.Add(-10*time.Millisecond)),
				"delivered %v early", time.Until(at))
		}
		assert.That(t, fmt.Sprint(got) == fmt.Sprint(want), "received %v, want %v", got, want)
		x.refusesRecall(p, sub.Topic, delayed.RecallHandle, late, lateRemedy)
	})
}

// refusesRecall makes a recall that can never succeed. It fails in one attempt with a code, and its
// error contains a remedy.
func (x *target) refusesRecall(p *producer.Producer, topic, handle string, code tidegate.Code, remedy string) {
	x.t.Helper()
	id, err := p.Recall(x.ctx, topic, handle)
	send, ok := errors.AsType[*producer.SendError](err)
	e, coded := errors.AsType[*tidegate.Error](err)
	if !ok || !coded || id != "" || e.Code != code || send.Reason != producer.StopPermanent || send.Attempts != 1 || send.MaybeStored || !strings.Contains(err.Error(), remedy) {
		x.t.Errorf("a recall from %s by the handle %q: message %q, %v; want %s in one attempt, and %q", topic, handle, id, err, code, remedy)
	}
}

// Consumers receive messages of committed transactions only. The server requests the resolution of
// a transaction that its producer left open.
func TestTransactions(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("payments", settings.TopicTransaction)}
		var checks atomic.Int64
		p := x.producer(producer.Options{Checker: func(_ context.Context, c transport.TransactionCheck) transport.Resolution {
			checks.Add(1)
			assert.That(t, string(c.Message.Body) == "open", "the server asks about %q", c.Message.Body)
			return transport.Commit
		}})
		begin := func(body string) *producer.Transaction {
			tx := assert.Value(p.Begin(x.ctx, &tidegate.Message{Topic: sub.Topic, Body: []byte(body)}))(t)
			assert.That(t, tx.Receipt().TransactionID != "", "receipt %+v has no transaction ID", tx.Receipt())
			return tx
		}
		ctx, cancel := context.WithCancel(x.ctx)
		served := make(chan error, 1)
		go func() { served <- p.ServeChecks(ctx, sub.Topic) }()
		assert.NoError(t, begin("rolled back").Rollback(x.ctx))
		assert.NoError(t, begin("committed").Commit(x.ctx))
		begin("open")
		for _, want := range []string{"committed", "open"} {
			d := x.take(sub, 1)[0]
			assert.That(t, string(d.Body) == want && d.TransactionID != "" && len(d.Properties) == 0,
				"received %q with the transaction ID %q and the properties %v, want %q", d.Body, d.TransactionID, d.Properties, want)
		}
		assert.Equal(t, "the server asked times", checks.Load(), 1)
		cancel()
		assert.NoError(t, <-served, "ServeChecks")
	})
}

// sizes collects the sizes of batches.
type sizes struct {
	mu   sync.Mutex
	list []int
}

func (s *sizes) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, n)
}

// Each message of a batch has the end of its verdict.
func TestBatchVerdicts(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		const each = 10
		var seen sizes
		c := x.consumeBatches(sub, func(_ context.Context, ds []*tidegate.Delivery) error {
			seen.add(len(ds))
			res := make(consumer.BatchResult, len(ds))
			for i, d := range ds {
				switch {
				case d.Attempt > 1:
				case string(d.Body) == "retry":
					res[i] = consumer.RetryIn(time.Second, errHandler)
				case string(d.Body) == "dead":
					res[i] = consumer.DeadLetterNow(errHandler)
				}
			}
			return res
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 20, MaxWait: time.Second}})
		p := x.producer(producer.Options{})
		want := map[string]int{"good 1 acked": each, "retry 1 retried": each, "retry 2 acked": each, "dead 1 dead-lettered": each}
		var wg sync.WaitGroup
		bodies := map[string]string{} // message ID → body
		var mu sync.Mutex
		for range each {
			for _, body := range []string{"good", "retry", "dead"} {
				wg.Go(func() {
					r, err := p.Send(x.ctx, &tidegate.Message{Topic: sub.Topic, Body: []byte(body)})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					bodies[r.MessageID] = body
				})
			}
		}
		wg.Wait()
		got := map[string]int{}
		for range 4 * each {
			o := c.outcome()
			got[fmt.Sprint(bodies[o.Delivery.ID], " ", o.Delivery.Attempt, " ", o.Disposition)]++
		}
		c.stop()
		assert.That(t, fmt.Sprint(got) == fmt.Sprint(want), "outcomes %v, want %v", got, want)
		t.Logf("sizes of the batches: %v", seen.list)
		n := slices.Max(seen.list)
		assert.That(t, n >= 2 && n <= 20, "the largest batch has %d messages", n)
		letters := consumer.Subscription{Group: x.group("undertaker", false, 17), Topic: tidegate.DeadLetterTopic(sub.Group)}
		for _, d := range x.take(letters, each) {
			assert.That(t, string(d.Body) == "dead", "dead letter %q", d.Body)
		}
	})
}

// Batches keep the order of each message group, also behind a failed message. A batch has at most
// one message of each message group.
func TestBatchesOfFIFOGroup(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", true, 16), Topic: x.topic("lines", settings.TopicFIFO)}
		p := x.producer(producer.Options{})
		const each = 4
		groups := strings.Split("abcdefghijkl", "")
		for i := range each {
			for _, g := range groups {
				x.send(p, &tidegate.Message{Topic: sub.Topic, MessageGroup: g, Body: fmt.Append(nil, i)})
			}
		}
		var seen sizes
		c := x.consumeBatches(sub, func(_ context.Context, ds []*tidegate.Delivery) error {
			seen.add(len(ds))
			res := make(consumer.BatchResult, len(ds))
			of := map[string]bool{}
			for i, d := range ds {
				assert.That(t, !of[d.MessageGroup], "two messages of group %s in a batch", d.MessageGroup)
				of[d.MessageGroup] = true
				if d.MessageGroup == "a" && string(d.Body) == "1" && d.Attempt == 1 {
					res[i] = errHandler
				}
			}
			return res
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxWait: 100 * time.Millisecond}})
		got := map[string]string{}
		for range each*len(groups) + 1 {
			d := c.next()
			got[d.MessageGroup] += fmt.Sprintf("%s/%d ", d.Body, d.Attempt)
		}
		c.stop()
		for _, g := range groups {
			want := "0/1 1/1 2/1 3/1"
			if g == "a" {
				want = "0/1 1/1 1/2 2/1 3/1"
			}
			s := strings.TrimSpace(got[g])
			assert.That(t, s == want, "group %s: delivered %s, want %s", g, s, want)
		}
		t.Logf("sizes of the batches: %v", seen.list)
		n := slices.Max(seen.list)
		assert.That(t, x.broker == nil || n == len(groups), "the largest batch has %d messages of %d groups", n, len(groups))
	})
}

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
