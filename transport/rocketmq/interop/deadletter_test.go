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
	"github.com/tidegate/tidegate/producer"
)

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
