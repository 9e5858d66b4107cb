package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Dead letters that wait for their topic, which cannot be created while settings change, reserve no
// space that sends need.
func TestDeadLettersWaitForTheirTopicWithoutRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, size = 6, 256 << 10 // more than the log has room for below
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for range n {
			if err := send0(t, b, size); err != nil {
				t.Fatal(err)
			}
		}
		var ds []*tidegate.Delivery
		for len(ds) < n {
			ds = append(ds, one(t, b, "g", "t"))
		}
		leaveRoom(t, b, n*size/2)
		if err := b.Parts().Catalog.LockAdmin(t.Context()); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, n)
		for _, d := range ds {
			go func() { done <- second(b.DeadLetter(t.Context(), d, "")) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := b.Send(ctx, []*tidegate.Message{{ID: "a", Topic: "t", Body: []byte("x")}})[0]; r.Err != nil {
			t.Errorf("a send meanwhile: %v", r.Err)
		}
		b.Parts().Catalog.UnlockAdmin()
		for range n {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := sent(t, b, tidegate.DeadLetterTopic("g")); got != n {
			t.Errorf("%d dead letters, want %d", got, n)
		}
	})
}

// A commit that waits for space does not hold its transaction: a purge of the topic and a check of
// due transactions do not wait for it.
func TestCommitWaitsForRoomWithoutItsClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x")}, time.Hour)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		var id store.HalfID
		if err := b.Parts().Store.HalfMessages(func(h store.HalfID, _ store.HalfState) error { id = h; return nil }); err != nil {
			t.Fatal(err)
		}
		const size = 1 << 30
		if err := b.Parts().Store.Messages.Room(t.Context(), size, nil); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			done <- serve(b).EndTransaction(t.Context(), serving.TransactionEnd{Topic: "t", TransactionID: r.Receipt.TransactionID, Resolution: transport.Commit})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if release, err := b.Parts().Transactions.Claim(ctx, id); err != nil {
			t.Errorf("a request that waits for space holds the claim: %v", err)
		} else {
			release()
		}
		b.Parts().Store.Messages.Release(size)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := stored(t, b, "t"); got != 1 {
			t.Errorf("%d messages are committed, want 1", got)
		}
	})
}
