package interop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

var errHandler = errors.New("no such customer")

// A retry is delivered after the delay that Outcome.Delay reports, and not before. Only a tidegate
// broker is exact. On a RocketMQ a waiting receive does not see a retry, so the consumer makes
// another one when it is due, whose wait is 5 s at least; the log has the times.
func TestRetryAfter(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		const delay = 3 * time.Second
		c := x.consume(sub, func(_ context.Context, d *tidegate.Delivery) error {
			if d.Attempt <= 3 {
				return fmt.Errorf("wrapped: %w", consumer.RetryIn(delay, errHandler))
			}
			return nil
		}, consumer.PushOptions{})
		x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: sub.Topic, Body: []byte("x")})
		last := c.next()
		for attempt := 2; attempt <= 4; attempt++ {
			o := c.outcome()
			assert.That(t, o.Disposition == consumer.Retried && o.Delay == delay && errors.Is(o.Err, errHandler),
				"outcome %+v, want a retry after %v", o, delay)
			d := c.next()
			got := d.at.Sub(last.at)
			t.Logf("attempt %d came %v after attempt %d", d.Attempt, got, last.Attempt)
			if d.Attempt != attempt || got < delay || x.server.RetriesWakeReceives && got > delay+10*time.Millisecond {
				t.Errorf("attempt %d after %v, want attempt %d after %v", d.Attempt, got, attempt, delay)
			}
			last = d
		}
		assert.Equal(t, "outcome", c.outcome().Disposition, consumer.Acked)
		c.stop()
	})
}

// DeadLetter ends a message at once. Its origin and its reason are kept by a tidegate broker only;
// elsewhere Delivery.DeadLetter reports that they are unknown.
func TestDeadLetter(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		c := x.consume(sub, func(context.Context, *tidegate.Delivery) error { return consumer.DeadLetterNow(errHandler) }, consumer.PushOptions{})
		sent := x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: sub.Topic, Body: []byte("x")})
		c.next()
		if o := c.outcome(); o.Disposition != consumer.DeadLettered || o.Delivery.Attempt != 1 || !errors.Is(o.Err, errHandler) {
			t.Errorf("outcome %+v, want a dead letter", o)
		}
		c.stop()
		x.wantLetter(sub, sent.MessageID, tidegate.DeadLetter{Attempts: 1, Reason: errHandler.Error()})
	})
}

// A message becomes a dead letter when its last attempt has failed, and the handler knows which
// one that is.
func TestExhaustedAttempts(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 2), Topic: x.topic("orders", settings.TopicNormal)}
		finals := make(chan bool, 2)
		c := x.consume(sub, func(ctx context.Context, _ *tidegate.Delivery) error {
			final, known := consumer.FinalAttempt(ctx)
			finals <- final && known
			return errHandler
		}, consumer.PushOptions{})
		sent := x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: sub.Topic, Body: []byte("x")})
		for i, want := range []consumer.Outcome{
			{Disposition: consumer.Retried, Delay: time.Second}, {Disposition: consumer.DeadLettered},
		} {
			if o := c.outcome(); o.Disposition != want.Disposition || o.Delay != want.Delay || o.Delivery.Attempt != i+1 {
				t.Errorf("outcome %+v, want %+v", o, want)
			}
		}
		if first, second := <-finals, <-finals; first || !second {
			t.Errorf("final attempts: %v, %v, want false, true", first, second)
		}
		c.stop()
		x.wantLetter(sub, sent.MessageID, tidegate.DeadLetter{Attempts: 2, Reason: errHandler.Error()})
	})
}

// wantLetter receives the only dead letter of a group.
func (x *target) wantLetter(sub consumer.Subscription, id string, want tidegate.DeadLetter) {
	x.t.Helper()
	// On a RocketMQ the attempts continue to count, so this group has the largest maximum.
	letters := consumer.Subscription{Group: x.group("undertaker", false, 17), Topic: tidegate.DeadLetterTopic(sub.Group)}
	d := x.take(letters, 1)[0]
	assert.That(x.t, d.ID == id && string(d.Body) == "x", "dead letter %+v, want that of %s", d.Message, id)
	got, ok := d.DeadLetter()
	switch {
	case !x.server.DeadLetterOrigins:
		assert.That(x.t, !ok, "the dead letter has the origin %+v", got)
	case !ok || got.Topic != sub.Topic || got.Group != sub.Group || got.MessageID != id || got.Attempts != want.Attempts || got.Reason != want.Reason:
		x.t.Errorf("origin %+v, %v, want %+v", got, ok, want)
	}
}

// A snoozed message is redelivered with the same attempt number. If the server cannot do that, the
// message is retried, and the outcome reports that the attempt counts.
func TestSnooze(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		first := true
		c := x.consume(sub, func(context.Context, *tidegate.Delivery) error {
			if first {
				first = false
				return consumer.Snooze(time.Second)
			}
			return nil
		}, consumer.PushOptions{})
		x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: sub.Topic, Body: []byte("x")})
		want, attempt := consumer.Snoozed, 1
		if !x.server.Capabilities.Verdicts.Has(transport.Snooze) {
			want, attempt = consumer.Retried, 2
		}
		if o := c.outcome(); o.Disposition != want || o.AttemptSpent == x.server.Capabilities.Verdicts.Has(transport.Snooze) || o.Delay != time.Second {
			t.Errorf("outcome %+v, want %v, and the attempt spent: %v", o, want, !x.server.Capabilities.Verdicts.Has(transport.Snooze))
		}
		o := c.outcome()
		assert.That(t, o.Disposition == consumer.Acked && o.Delivery.Attempt == attempt, "outcome %+v, want attempt %d", o, attempt)
		c.stop()
	})
}

// A failed message of a FIFO group is redelivered before its successors.
func TestFIFORetry(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", true, 16), Topic: x.topic("lines", settings.TopicFIFO)}
		p := x.producer(producer.Options{})
		const each = 5
		for i := range each {
			for _, g := range []string{"a", "b"} {
				x.send(p, &tidegate.Message{Topic: sub.Topic, MessageGroup: g, Body: fmt.Append(nil, i)})
			}
		}
		c := x.consume(sub, func(_ context.Context, d *tidegate.Delivery) error {
			if string(d.Body) == "1" && d.Attempt == 1 {
				return errHandler
			}
			return nil
		}, consumer.PushOptions{})
		got := map[string]string{}
		for range 2 * (each + 1) {
			d := c.next()
			got[d.MessageGroup] += fmt.Sprintf("%s/%d ", d.Body, d.Attempt)
		}
		for _, g := range []string{"a", "b"} {
			want := "0/1 1/1 1/2 2/1 3/1 4/1 "
			assert.That(t, got[g] == want, "group %s: delivered %s, want %s", g, got[g], want)
		}
		c.stop()
	})
}

// An orderly stop spends no attempt of a message that no handler has seen. A tidegate broker takes
// such messages back; on a RocketMQ, which would count that as an attempt, they are handled first.
func TestShutdownWithUnreadMessages(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		p := x.producer(producer.Options{})
		const quick, slow = 100, 100
		fill := func(n int, body string) {
			for i, r := range p.SendBatch(x.ctx, repeat(n, sub.Topic, body)) {
				assert.MustThat(t, r.Err == nil, "message %d: %v", i, r.Err)
			}
		}
		fill(quick, "quick")
		c := x.consume(sub, func(ctx context.Context, d *tidegate.Delivery) error {
			if string(d.Body) == "slow" {
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}, consumer.PushOptions{Concurrency: 2})
		seen := map[string]bool{}
		note := func(d *tidegate.Delivery) {
			assert.That(t, d.Attempt == 1 && !seen[d.ID], "message %s came as attempt %d, before: %v", d.ID, d.Attempt, seen[d.ID])
			seen[d.ID] = true
		}
		for range quick {
			note(c.next().Delivery)
		}
		fill(slow, "slow")
		for range 3 {
			note(c.next().Delivery)
		}
		report := c.stop()
		t.Logf("%+v", report)
		for len(c.deliveries) > 0 {
			note(c.next().Delivery)
		}
		if report.Cancelled+report.Unsettled+report.Retried > 0 || !x.server.Capabilities.Suspend && report.Released > 0 || x.server.Capabilities.Suspend && report.Released == 0 {
			t.Errorf("report %+v", report)
		}
		if rest := quick + slow - len(seen); rest > 0 {
			for _, d := range x.take(sub, rest) {
				note(d)
			}
		}
	})
}

func repeat(n int, topic, body string) []*tidegate.Message {
	var msgs []*tidegate.Message
	for range n {
		msgs = append(msgs, &tidegate.Message{Topic: topic, Body: []byte(body)})
	}
	return msgs
}

// A simple consumer extends, acknowledges and gives up deliveries explicitly. Only a tidegate
// broker rejects an acknowledgement with a handle that was replaced; a RocketMQ accepts it without
// effect.
func TestSimpleConsumer(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		sent := x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: sub.Topic, Body: []byte("x")})
		c := x.simple(sub)
		receive := func() *tidegate.Delivery {
			for x.ctx.Err() == nil {
				ds := assert.Value(c.Receive(x.ctx, 1))(t)
				if len(ds) == 1 {
					return ds[0]
				}
			}
			t.Fatal("nothing was received")
			return nil
		}
		d := receive()
		old := *d
		if err := c.ChangeInvisibleDuration(x.ctx, d, time.Second); err != nil || d.Handle == old.Handle {
			t.Fatalf("ChangeInvisibleDuration: %v, handle %q after %q", err, d.Handle, old.Handle)
		}
		// The client's own Ack: that of the consumer would request the valid handle.
		if err := x.client.Ack(x.ctx, []*tidegate.Delivery{&old})[0]; errors.Is(err, tidegate.ErrInvalidHandle) != x.server.RefusesStaleHandles {
			t.Errorf("Ack with the old handle: %v", err)
		}
		again := receive()
		assert.That(t, again.ID == sent.MessageID && again.Attempt == 2,
			"received attempt %d of %s, want 2 of %s", again.Attempt, again.ID, sent.MessageID)
		assert.NoError(t, assert.Err(c.Settle(x.ctx, again, transport.Verdict{Kind: transport.DeadLetter, Reason: "hopeless"})))
		x.wantLetter(sub, sent.MessageID, tidegate.DeadLetter{Attempts: 2, Reason: "hopeless"})
	})
}

// A tidegate broker reports an invalid filter, which ends the consumer. A RocketMQ reports an
// internal error instead, so the consumer continues and reports each failure.
func TestUnreadableFilter(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal), Filter: consumer.SQL("price >")}
		failures := make(chan consumer.ReceiveFailure, 100)
		c := x.consume(sub, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) { failures <- f }})
		f := <-failures
		if x.broker == nil {
			assert.That(t, !errors.Is(f.Err, tidegate.ErrInvalid) && f.RetryIn != 0, "failure %+v, want one that is retried", f)
			c.stop()
			return
		}
		<-c.done
		if e, ok := errors.AsType[*tidegate.Error](c.err); !ok || e.Code != protocol.CodeIllegalFilterExpression || f.RetryIn != 0 {
			t.Errorf("Run: %v after the failure %+v, want %s", c.err, f, tidegate.Code(protocol.CodeIllegalFilterExpression))
		}
	})
}

// list returns the IDs of the dead letters that the filter chooses, sorted.
func list(t *testing.T, x *target, q deadletter.Queue, f deadletter.Filter) (ids []string) {
	t.Helper()
	for l, err := range deadletter.List(x.ctx, q, f, true) {
		assert.Must(t, err)
		assert.That(t, string(l.Message.Body) == "x" && l.Origin.Topic == "" != x.server.DeadLetterOrigins, "letter %+v", l)
		ids = append(ids, l.Message.ID)
	}
	slices.Sort(ids)
	return ids
}

// The dead letters of a group are listed, filtered and sent back by receiving them. Those that stay
// are there in the next listing.
func TestDeadLetterQueue(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 2), Topic: x.topic("orders", settings.TopicNormal)}
		q := deadletter.Queue{Transport: x.client, Group: sub.Group, As: x.group("clerk", false, 1000)}
		repaired, hopeless := make(chan bool), make(chan bool)
		c := x.consume(sub, func(_ context.Context, d *tidegate.Delivery) error {
			select {
			case <-repaired:
				if d.Tag == "hopeless" {
					<-hopeless // until the redrive is over
					return consumer.DeadLetterNow(errHandler)
				}
				return nil
			default:
				return errHandler
			}
		}, consumer.PushOptions{})
		p := x.producer(producer.Options{})
		var sent []string
		const letters = 40 // more than one receive brings
		for i := range letters {
			tag := "curable"
			if i == 0 {
				tag = "hopeless"
			}
			sent = append(sent, x.send(p, &tidegate.Message{Topic: sub.Topic, Tag: tag, Body: []byte("x"), Properties: map[string]string{"n": fmt.Sprint(i)}}).MessageID)
		}
		for dead := 0; dead < letters; {
			switch o := c.outcome(); o.Disposition {
			case consumer.DeadLettered:
				dead++
			case consumer.Retried:
			default:
				t.Fatalf("outcome %+v", o)
			}
		}
		all := slices.Sorted(slices.Values(sent))
		begin := time.Now()
		for len(list(t, x, q, deadletter.Filter{})) == 0 && backoff.Sleep(x.ctx, time.Second) == nil {
			t.Logf("no letter after %v: a proxy remembers for a while that the topic was missing", time.Since(begin))
		}
		for range 2 {
			ids := list(t, x, q, deadletter.Filter{})
			assert.MustThat(t, slices.Equal(ids, all), "listed %d letters, want %d\n%v\n%v", len(ids), letters, ids, all)
			t.Logf("listed %d letters after %v", letters, time.Since(begin))
		}
		chosen := deadletter.Filter{Match: func(l *deadletter.Letter) bool { return len(l.Message.Properties["n"]) == 1 }} // 0 to 9
		assert.Slices(t, "filtered", list(t, x, q, chosen), slices.Sorted(slices.Values(sent[:10])))
		close(repaired)
		for len(c.deliveries) > 0 {
			c.next()
		}
		o := deadletter.Options{
			Filter: chosen, To: sub.Topic, Sender: x.client, Journal: filepath.Join(t.TempDir(), "journal"), MaxFailureShare: 1, PerSecond: 1000,
		}
		dry := o
		dry.DryRun, dry.Journal = true, ""
		if report, err := deadletter.Redrive(x.ctx, q, dry); err != nil || report.Redriven != 10 || report.Seen != letters {
			t.Errorf("dry run: %+v, %v", report, err)
		}
		report, err := deadletter.Redrive(x.ctx, q, o)
		t.Logf("%+v after %v", report, time.Since(begin))
		assert.That(t, err == nil && report.Redriven == 10 && report.Failed+report.Unresolved+report.Returned <= 0,
			"redrive: %+v, %v", report, err)
		got := map[string]int{}
		for range 10 {
			d := c.next()
			id, ok := strings.CutSuffix(d.ID, ".redrive-1")
			assert.That(t, ok && d.Attempt == 1, "delivered %s as attempt %d", d.ID, d.Attempt)
			got[id]++
		}
		for _, id := range sent[:10] {
			assert.That(t, got[id] == 1, "letter %s came %d times", id, got[id])
		}
		close(hopeless)
		// The hopeless one is a dead letter again, of the next generation. The job does not send it
		// once more.
		for x.ctx.Err() == nil {
			if o := c.outcome(); o.Disposition == consumer.DeadLettered {
				break
			}
		}
		left := append(slices.Clone(sent[10:]), sent[0]+".redrive-1")
		slices.Sort(left)
		assert.Slices(t, "listed", list(t, x, q, deadletter.Filter{}), left)
		report, err = deadletter.Redrive(x.ctx, q, o)
		t.Logf("%+v, %v after %v", report, err, time.Since(begin))
		if report.Redriven != 0 || report.Returned != 1 || err != nil && !errors.Is(err, deadletter.ErrTooManyFailures) {
			t.Errorf("the job again: %+v, %v", report, err)
		}
		c.stop()
	})
}

// A group with too few attempts is rejected before a letter is received: on a RocketMQ, which
// continues the count of a letter's attempts, the letter would move to the dead letters of that
// group. It is still there for a group with enough attempts.
func TestDeadLetterQueueNeedsAttempts(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 1), Topic: x.topic("orders", settings.TopicNormal)}
		c := x.consume(sub, func(context.Context, *tidegate.Delivery) error { return errHandler }, consumer.PushOptions{})
		sent := x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: sub.Topic, Body: []byte("x")})
		assert.MustEqual(t, "outcome", c.outcome().Disposition, consumer.DeadLettered)
		few := deadletter.Queue{Transport: x.client, Group: sub.Group, As: x.group("clerk", false, 17)}
		for _, err := range deadletter.List(x.ctx, few, deadletter.Filter{}, false) {
			if x.server.Capabilities.Suspend && err != nil || !x.server.Capabilities.Suspend && !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("listing with 17 attempts: %v", err)
			}
		}
		many := few
		many.As = x.group("archivist", false, 1000)
		ids := list(t, x, many, deadletter.Filter{})
		assert.That(t, len(ids) == 1 && ids[0] == sent.MessageID, "listed %v, want %s", ids, sent.MessageID)
		c.stop()
	})
}

// An edited message goes to the group of its dead letter alone, through RocketMQ's retry topic: as
// a first attempt in the original topic, which the filter of the group selects by the new tag, and
// whose failures count. It is an error before anything is sent if the group has no retry topic, or
// is FIFO. A tidegate broker does this over its HTTP API only.
func TestRedriveToOneGroup(t *testing.T) {
	on(t, func(x *target) {
		topic := x.topic("orders", settings.TopicNormal)
		clerk := x.group("clerk", false, 1000)
		begin := func(name string, fifo bool, handler consumer.Handler) (deadletter.Queue, *push) {
			sub := consumer.Subscription{Group: x.group(name, fifo, 2), Topic: topic, Filter: consumer.Tags("old", "new")}
			return deadletter.Queue{Transport: x.client, Group: sub.Group, As: clerk}, x.consume(sub, handler, consumer.PushOptions{})
		}
		repaired := make(chan bool)
		q, failing := begin("billing", false, func(_ context.Context, d *tidegate.Delivery) error {
			select {
			case <-repaired:
				if d.Attempt == 1 {
					return errHandler
				}
				return nil
			default:
				return errHandler
			}
		})
		_, others := begin("audit", false, func(context.Context, *tidegate.Delivery) error { return nil })
		fresh, _ := begin("fresh", false, func(context.Context, *tidegate.Delivery) error { return nil })
		ordered, _ := begin("ordered", true, func(context.Context, *tidegate.Delivery) error { return nil })
		sent := x.send(x.producer(producer.Options{}), &tidegate.Message{Topic: topic, Tag: "old", Body: []byte("x")})
		for o := failing.outcome(); o.Disposition != consumer.DeadLettered; o = failing.outcome() {
			assert.MustThat(t, o.Disposition == consumer.Retried, "outcome %+v", o)
		}
		for len(failing.deliveries) > 0 {
			failing.next()
		}
		others.next()
		close(repaired)
		o := deadletter.Options{
			ToGroupOnly: true, To: topic, Sender: x.client, Journal: filepath.Join(t.TempDir(), "journal"), MaxFailureShare: 1,
			Edit: func(m *tidegate.Message) error {
				m.Tag, m.Body = "new", []byte("y")
				return nil
			},
		}
		if x.real == nil {
			if _, err := deadletter.Redrive(x.ctx, q, o); err == nil || !strings.Contains(err.Error(), "only RocketMQ has retry topics") {
				t.Errorf("on a tidegate broker: %v", err)
			}
			return
		}
		for _, wrong := range []deadletter.Queue{fresh, ordered} {
			other := o
			other.Journal = filepath.Join(t.TempDir(), "other")
			_, err := deadletter.Redrive(x.ctx, wrong, other)
			assert.That(t, err != nil && strings.Contains(err.Error(), "of this group alone"), "group %s: %v", wrong.Group, err)
		}
		var report deadletter.Report
		for ; report.Redriven == 0 && x.ctx.Err() == nil; _ = backoff.Sleep(x.ctx, 25*time.Second) {
			var err error
			if report, err = deadletter.Redrive(x.ctx, q, o); err != nil && !strings.Contains(err.Error(), "RocketMQ has no topic") {
				t.Fatalf("%+v, %v", report, err)
			}
			t.Logf("%+v, %v: a broker announces new topics every 30 s, and a proxy remembers for a while that one was missing", report, err)
		}
		for attempt := 1; attempt <= 2; attempt++ {
			d := failing.next()
			if d.ID != sent.MessageID+".redrive-1" || d.Topic != topic || d.Attempt != attempt || d.Tag != "new" || string(d.Body) != "y" {
				t.Errorf("delivered %+v, want the edited message in attempt %d", d, attempt)
			}
		}
		n := len(others.deliveries)
		assert.That(t, n <= 0, "another group received %d messages more", n)
	})
}
