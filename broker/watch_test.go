package broker_test

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A watching is a receive that leaves a watch.
type watching struct {
	*engine.Watch
	ready atomic.Int32 // how often the watch was woken
}

func newWatching() *watching {
	w := &watching{}
	w.Watch = engine.NewWatch(func() { w.ready.Add(1) })
	return w
}

// watch receives from t as the group g, without a wait, and with a watch.
func watch(tb testing.TB, b *broker.Broker, edit ...func(*engine.Request)) (*watching, []*tidegate.Delivery) {
	tb.Helper()
	w := newWatching()
	p := engine.Request{
		ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute},
		Watch:          w.Watch,
	}
	for _, f := range edit {
		f(&p)
	}
	ds := assert.Value(serve(b).Poll(tb.Context(), p))(tb)
	return w, ds
}

// Each event after which a receive may find a message wakes the watch once. No other event does.
func TestWatchIsWoken(t *testing.T) {
	t.Parallel()
	parking := settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark}
	retrying := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 3, Levels: []time.Duration{10 * time.Second}}}
	message := func(id string) *tidegate.Message { return &tidegate.Message{ID: id, Topic: "t", Body: []byte(id)} }
	grouped := func(id string) *tidegate.Message {
		return &tidegate.Message{ID: id, Topic: "t", Body: []byte(id), MessageGroup: "m"}
	}
	receiveOne := func(t *testing.T, b *broker.Broker) *tidegate.Delivery {
		t.Helper()
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
		assert.MustEqual(t, "messages", len(ds), 1)
		return ds[0]
	}
	no := func(t *testing.T, err error) {
		t.Helper()
		assert.Must(t, err)
	}
	type test struct {
		group settings.Group
		sent  []*tidegate.Message // before the watch; the first is received if there is any
		kind  settings.TopicType  // by default FIFO for a FIFO group, and otherwise NORMAL
		event func(t *testing.T, b *broker.Broker, d *tidegate.Delivery)
		after time.Duration // until the watch is woken
		gone  bool          // the source is gone: there is no message
	}
	for name, c := range map[string]test{
		"a new message": {event: func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) { mustSend(t, b, message("1"), message("2")) }},
		"a retry": {sent: []*tidegate.Message{message("1")}, after: 20 * time.Second, event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: 20 * time.Second})
			no(t, err)
		}},
		"a release": {sent: []*tidegate.Message{message("1")}, event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			serve(b).Return(t.Context(), []*tidegate.Delivery{d})
		}},
		"the end of the invisible time": {
			group: settings.Group{MaxAttempts: -1}, sent: []*tidegate.Message{message("1")}, after: time.Minute,
			event: func(*testing.T, *broker.Broker, *tidegate.Delivery) {},
		},
		"a delayed message": {kind: settings.TopicDelay, after: time.Hour, event: func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) {
			m := message("1")
			m.DeliverAt = time.Now().Add(time.Hour)
			mustSend(t, b, m)
		}},
		"a commit": {kind: settings.TopicTransaction, event: func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) {
			no(t, endTransaction(t, b, sendHalf(t, b, "1"), transport.Commit))
		}},
		"the acknowledgement of a predecessor": {
			group: settings.Group{FIFO: true}, sent: []*tidegate.Message{grouped("1"), grouped("2")},
			event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
				no(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
			},
		},
		"the dead letter of a predecessor": {
			group: settings.Group{FIFO: true, MaxAttempts: 1}, sent: []*tidegate.Message{grouped("1"), grouped("2")},
			event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
				_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})
				no(t, err)
			},
		},
		"the redrive of a dead letter": {sent: []*tidegate.Message{message("1")}, event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})
			no(t, err)
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
			if no(t, err); done.Redriven != 1 {
				t.Fatalf("%+v", done)
			}
		}},
		"the redrive of a parked message": {group: parking, sent: []*tidegate.Message{grouped("1")}, event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})
			no(t, err)
			done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{})
			if no(t, err); done.Messages != 1 {
				t.Fatalf("%+v", done)
			}
		}},
		"a rewind": {sent: []*tidegate.Message{message("1")}, event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			no(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
			_, err := b.Rewind(t.Context(), "g", "t", status.Position{Earliest: true})
			no(t, err)
		}},
		"a message of the retry topic": {group: retrying, sent: []*tidegate.Message{message("1")}, after: 10 * time.Second, event: func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) {
			_, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Level: 1})
			no(t, err)
		}},
		"the deletion of the topic": {gone: true, event: func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) {
			no(t, b.DeleteTopic(t.Context(), "t"))
		}},
		"the deletion of the group": {gone: true, event: func(t *testing.T, b *broker.Broker, _ *tidegate.Delivery) {
			no(t, b.DeleteGroup(t.Context(), "g"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				kind := cmp.Or(c.kind, settings.TopicNormal)
				if c.group.FIFO {
					kind = settings.TopicFIFO
				}
				putTopic(t, b, "t", settings.Topic{Queues: 2, Type: kind})
				putGroup(t, b, "g", c.group)
				var d *tidegate.Delivery
				if mustSend(t, b, c.sent...); len(c.sent) > 0 {
					d = receiveOne(t, b)
				}
				w, ds := watch(t, b)
				if len(ds) > 0 || !w.Left() || w.Over() || w.ready.Load() > 0 {
					t.Fatalf("%d messages, left %t, woken %d times; want a watch", len(ds), w.Left(), w.ready.Load())
				}
				begin := time.Now()
				c.event(t, b, d)
				synctest.Wait()
				if c.after > 0 {
					if time.Sleep(c.after - time.Since(begin) - 1); w.ready.Load() > 0 {
						t.Error("it is woken before there is a message")
					}
					time.Sleep(time.Second) // timers of the wall clock may be late
					synctest.Wait()
				}
				n := w.ready.Load()
				assert.MustThat(t, n == 1 && w.Over(), "it is woken %d times, want once", n)
				if !c.gone {
					if again, ds := watch(t, b); len(ds) == 0 {
						t.Error("the next receive finds no message")
					} else {
						again.End()
					}
				}
				if kind == settings.TopicNormal && !c.gone {
					mustSend(t, b, message("later"))
				}
				synctest.Wait()
				if w.End(); w.ready.Load() != 1 {
					t.Error("it is woken again")
				}
			})
		})
	}
}

// A receive that has not taken all messages that it could take leaves no watch.
func TestNoWatchIsLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*engine.Request)
		want int // messages
		left bool
		err  error
	}{
		"all messages":           {func(*engine.Request) {}, 3, true, nil},
		"as many as it may take": {func(p *engine.Request) { p.Max = 3 }, 3, false, nil},
		"its bytes":              {func(p *engine.Request) { p.MaxBytes = 15 }, 1, false, nil},
		"all of a queue":         {func(p *engine.Request) { p.Queue = 0 }, 3, true, nil},
		"another queue":          {func(p *engine.Request) { p.Queue = 1 }, 0, true, nil},
		"no such queue":          {func(p *engine.Request) { p.Queue = 2 }, 0, false, nil},
		"a filter":               {func(p *engine.Request) { p.Filter.Expression = "other" }, 0, true, nil},
		"no memory":              {func(p *engine.Request) { p.Memory = space(0) }, 0, false, errNoSpace},
		"memory for one":         {func(p *engine.Request) { p.Memory = space(10) }, 1, false, nil},
		"a repetition":           {func(p *engine.Request) { p.AttemptID, p.Repeat = "a", true }, 0, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Queues: 2, Type: settings.TopicFIFO})
				putGroup(t, b, "g", settings.Group{})
				for i := range 3 {
					r := send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Tag: "this", Body: make([]byte, 10), MessageGroup: "m"})
					if r[0].Err != nil || r[0].Receipt.Queue != 0 {
						t.Fatalf("message %d: %+v, want one in queue 0", i, r[0])
					}
				}
				w := newWatching()
				p := engine.Request{
					ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute},
					Watch:          w.Watch,
				}
				c.edit(&p)
				ds, err := serve(b).Poll(t.Context(), p)
				if !errors.Is(err, c.err) || len(ds) != c.want || w.Left() != c.left || w.ready.Load() != 0 {
					t.Errorf("%d messages, left %t, error %v; want %d, %t, %v", len(ds), w.Left(), err, c.want, c.left, c.err)
				}
				w.End()
			})
		})
	}
}

// A watch of one queue is woken by messages of this queue alone. An ended one is never woken.
func TestWatchOfAQueue(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putGroup(t, b, "g", settings.Group{})
		var ws [3]*watching // of both queues, and one that ends
		for i := range ws {
			ws[i], _ = watch(t, b, func(p *engine.Request) { p.Queue = i % 2 })
		}
		ws[2].End()
		first := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Receipt.Queue
		if ws[first].ready.Load() != 1 || ws[1-first].ready.Load() != 0 {
			t.Errorf("a message in queue %d has woken the watch of queue 0 %d times and of queue 1 %d times", first, ws[0].ready.Load(), ws[1].ready.Load())
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		if ws[0].ready.Load() != 1 || ws[1].ready.Load() != 1 || ws[2].ready.Load() != 0 {
			t.Errorf("messages in both queues have woken the watches %d and %d times, and an ended one %d times", ws[0].ready.Load(), ws[1].ready.Load(), ws[2].ready.Load())
		}
	})
}

// A space is memory for the bodies of so many bytes.
type space int64

var errNoSpace = errors.New("no space")

func (s space) Admit(bytes int64) error {
	if bytes > int64(s) {
		return errNoSpace
	}
	return nil
}
