package broker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A send whose context ends during the write is stored nevertheless. Consumers get it and the
// earlier messages.
func TestCancelledSendIsStoredNevertheless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for range 3 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		}
		release := holdWrites(b)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan transport.SendResult)
		go func() {
			done <- b.Send(ctx, []*tidegate.Message{{ID: "m", Topic: "t", Body: []byte("x")}})[0]
		}()
		synctest.Wait()
		cause := errors.New("enough")
		cancel(cause)
		r := <-done
		if e, ok := errors.AsType[*tidegate.Error](r.Err); !ok || !e.MaybeStored || !errors.Is(r.Err, cause) {
			t.Errorf("the send ended with %v", r.Err)
		}
		release()
		synctest.Wait()
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10}); len(ds) != 4 {
			t.Errorf("%d messages, want 4", len(ds))
		}
	})
}

// A receive that waits is woken for a message in a queue that the topic got
// meanwhile, even if the message was there before the group's cursor.
func TestNewQueueWakesReceives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		got := make(chan int)
		go func() { got <- len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour})) }()
		synctest.Wait()
		start := time.Now()
		addToGroups := growQueues(t, b, "t", 2)
		nextQueue(t, b, "t", 1)
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		synctest.Wait()
		s := subscriptions(b)[0]
		h := consume.Handle{Group: s.Group().ID(), Place: store.Place{Topic: s.Topic().ID(), Queue: 1}}
		if err := b.Ack(t.Context(), []*tidegate.Delivery{{Handle: h.String()}})[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
			t.Errorf("a handle of a queue without a cursor: %v", err)
		}
		addToGroups()
		if n := <-got; n != 1 || time.Since(start) != 0 {
			t.Errorf("%d deliveries after %v", n, time.Since(start))
		}
	})
}
