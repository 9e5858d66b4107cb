package transporttest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The first request of a send fails, and the producer sends the message again.
func ExampleFake() {
	fake := &transporttest.Fake{
		OnSend: func(_ context.Context, n int, _ transport.Lane, _ []*tidegate.Message) []error {
			if n == 1 {
				return []error{tidegate.ErrUnavailable}
			}
			return nil
		},
	}
	p, err := producer.New(fake, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	r, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("42")})
	fmt.Println(r.Attempts, err)
	for _, c := range fake.Calls("Send") {
		fmt.Println(c.Topic, string(c.Messages[0].Body))
	}
	// Output:
	// 2 <nil>
	// orders 42
	// orders 42
}

// The Fake responds to each message of a request in its place, and records copies of the messages.
func TestFakeSends(t *testing.T) {
	fake := &transporttest.Fake{
		OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			return []error{nil, tidegate.ErrThrottled}
		},
	}
	msgs := []*tidegate.Message{{ID: "a", Topic: "orders"}, {ID: "b", Topic: "orders"}, {ID: "c", Topic: "orders"}}
	results := fake.Send(t.Context(), msgs)
	msgs[0].ID = "changed"
	if len(results) != 3 || results[0].Err != nil || results[1].Err != tidegate.ErrThrottled || results[2].Err != nil {
		t.Fatalf("results %+v", results)
	}
	if first, third := results[0].Receipt, results[2].Receipt; first.MessageID != "a" || first.Offset != 0 || third.MessageID != "c" || third.Offset != 1 {
		t.Errorf("receipts %+v and %+v", first, third)
	}
	calls := fake.Calls("Send")
	assert.That(t, len(calls) == 1 && len(calls[0].Messages) == 3 && calls[0].Messages[0].ID == "a" && calls[0].Topic == "orders",
		"calls %+v", calls)
	assert.Equal(t, "calls of SendHalf", len(fake.Calls("SendHalf")), 0)
}

// A handler fails for one message. The consumer acknowledges the other one and retries this one.
func TestFakeDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &transporttest.Fake{}
		fake.Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: "1", Topic: "other"}})
		ctx, stop := context.WithCancel(t.Context())
		p, err := consumer.NewPush(fake, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			if d.ID == "3" {
				return errors.New("no such account")
			}
			return nil
		}, consumer.PushOptions{})
		assert.Must(t, err)
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Second) // the receive waits
		fake.Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: "2", Topic: "orders"}}, &tidegate.Delivery{Message: tidegate.Message{ID: "3", Topic: "orders"}})
		time.Sleep(time.Minute)
		stop()
		assert.NoError(t, <-done)
		acks, settled := fake.Calls("Ack"), fake.Calls("Settle")
		if len(acks) != 1 || acks[0].Deliveries[0].ID != "2" || acks[0].Group != "billing" || acks[0].Deliveries[0].Attempt != 1 {
			t.Errorf("acknowledged %+v, want message 2", acks)
		}
		assert.That(t, len(settled) == 1 && settled[0].Deliveries[0].ID == "3" && settled[0].Verdict.Kind == transport.Retry,
			"settled %+v, want a retry of message 3", settled)
	})
}

// A receive that waits ends with Close, and a watch with Deliver.
func TestFakeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &transporttest.Fake{Announces: transport.Capabilities{Watch: true}}
		r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 2, Wait: time.Minute}
		start := time.Now()
		if ds, err := fake.Receive(t.Context(), r); len(ds) != 0 || err != nil || time.Since(start) != time.Minute {
			t.Errorf("%d deliveries, %v after %v; want none after a minute", len(ds), err, time.Since(start))
		}
		_, ready, err := fake.ReceiveOrWatch(t.Context(), r)
		assert.MustThat(t, err == nil && ready != nil, "%v, a watch: %v", err, ready != nil)
		d := &tidegate.Delivery{Message: tidegate.Message{ID: "1", Topic: "orders"}}
		fake.Deliver(d)
		d.Topic = "changed" // the Fake has a copy
		<-ready             // otherwise the bubble is in a deadlock
		ds, err := fake.Receive(t.Context(), r)
		assert.MustThat(t, err == nil && len(ds) == 1 && ds[0].Handle != "" && ds[0].ConsumerGroup == "billing",
			"%+v, %v; want one delivery", ds, err)
		if h, err := fake.Extend(t.Context(), ds[0], time.Minute, false); err != nil || h == ds[0].Handle {
			t.Errorf("handle %q, %v; want a new one", h, err)
		}
		time.AfterFunc(time.Second, func() { fake.Close() })
		assert.Is(t, "after Close", assert.Err(fake.Receive(t.Context(), r)), tidegate.ErrClosed)
	})
}

// A consumer of lite topics gets the deliveries of those that it has.
func TestFakeLiteTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := &tidegate.Error{Code: 42902}
		fake := &transporttest.Fake{
			OnSyncLite: func(_ context.Context, _ int, s transport.LiteSync) error {
				if len(s.Topics) > 0 && s.Topics[0] == "c" {
					return refused
				}
				return nil
			},
			OnServeLite: func(ctx context.Context, _ int, _ transport.LiteConsumer, ended func(string)) error {
				time.Sleep(time.Minute)
				ended("a")
				<-ctx.Done()
				return nil
			},
		}
		for _, name := range []string{"a", "b", "c"} {
			fake.Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: name, Topic: "sessions", LiteTopic: name}})
		}
		var handled, ended []string
		p, err := consumer.NewPush(fake, consumer.Subscription{Group: "agents", Topic: "sessions", Lite: true}, func(_ context.Context, d *tidegate.Delivery) error {
			handled = append(handled, d.ID)
			return nil
		}, consumer.PushOptions{Concurrency: 1, OnLiteEnd: func(name string) { ended = append(ended, name) }})
		assert.Must(t, err)
		assert.Must(t, p.Subscribe(t.Context(), "a", transport.LiteStart{}))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Second)
		assert.NoError(t, p.Subscribe(t.Context(), "b", transport.LiteStart{Oldest: true}))
		assert.Is(t, "a change that the Fake rejects", p.Subscribe(t.Context(), "c", transport.LiteStart{}), refused)
		time.Sleep(2 * time.Minute)
		stop()
		assert.NoError(t, <-done)
		assert.Equal(t, "the handled messages", fmt.Sprint(handled), "[a b]")
		assert.Equal(t, "the ended lite topics", fmt.Sprint(ended), "[a]")
		syncs := fake.Calls("SyncLite")
		assert.That(t, syncs[0].Group == "agents" && syncs[0].Topic == "sessions" && fmt.Sprint(syncs[0].Lite.Topics) == "[a]" && syncs[1].Lite.Start.Oldest,
			"the calls of SyncLite are %+v", syncs)
		assert.Equal(t, "the consumer of ServeLite", fake.Calls("ServeLite")[0].Lite.ID, syncs[0].Lite.ID)
	})
}
