package catalog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// fill stores n messages of 100 bytes in each queue of a topic.
func fill(t *testing.T, c *Catalog, tp *topic.Topic, n int) {
	t.Helper()
	for _, q := range tp.Queues() {
		if err := c.config.Store.Messages.Add(func(w *store.Batch) {
			for range n {
				tp.Put(w, q, &store.Message{Message: tidegate.Message{ID: tidegate.NewMessageID(), Body: make([]byte, 100)}}, time.Now())
			}
		}, func(error) {
			q.Publish(q.Next().Offset)
			tp.Wake(q, int64(n))
		}).Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// drain receives and acknowledges all messages, and returns their number.
func drain(t *testing.T, s *subscription.Subscription) int {
	t.Helper()
	ds, err := s.Receive(t.Context(), &subscription.Request{ReceiveRequest: transport.ReceiveRequest{
		Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		h, err := handle.ParseReceipt(d.Handle)
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 1)
		if s.Ack([]handle.Receipt{h}, errs); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	return len(ds)
}

// A topic gets more queues while a group receives from it for the first time: the group receives
// from the new ones too.
func TestTopicGrowsDuringAFirstReceive(t *testing.T) {
	t.Parallel()
	for _, start := range []settings.Start{settings.StartEarliest, settings.StartLatest} {
		t.Run(string(start), func(t *testing.T) {
			t.Parallel()
			c, _ := open(t, vfs.NewMem())
			tp, g := topicAndGroup(t, c, start)
			s := subscription.New(c.config.Env, g, tp, false)
			queues := len(tp.Queues()) + 2
			if _, err := c.PutTopic(t.Context(), "t", settings.Topic{Queues: queues}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Register(s); err != nil {
				t.Fatal(err)
			}
			fill(t, c, tp, 1)
			if n := drain(t, s); n != queues {
				t.Errorf("%d messages of %d are delivered", n, queues)
			}
		})
	}
}

// An automatic queue that is about to be deleted is created explicitly: it stays.
func TestPutKeepsAnAutomaticQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, vfs.NewMem())
		tp, err := c.OwnTopic(t.Context(), "DLQ.t", settings.Topic{Queues: 1}, true)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, c, tp, 2)
		s, err := c.Subscribe(t.Context(), "g", "DLQ.t")
		if err != nil {
			t.Fatal(err)
		}
		if n := drain(t, s); n != 2 {
			t.Fatalf("%d messages are delivered, want 2", n)
		}
		time.Sleep(AutoDeleteDelay)
		if err := c.LockAdmin(t.Context()); err != nil {
			t.Fatal(err)
		}
		deleted := make(chan bool, 1)
		go func() {
			is, err := c.DeleteUnused(tp)
			if err != nil {
				t.Error(err)
			}
			deleted <- is
		}()
		if synctest.Wait(); len(deleted) > 0 {
			t.Fatal("the deletion does not wait for the token")
		}
		if _, err := c.PutTopicLocked("DLQ.t", settings.Topic{}, false); err != nil {
			t.Fatal(err)
		}
		c.UnlockAdmin()
		if <-deleted || c.FindTopic("DLQ.t") != tp {
			t.Fatal("the queue is gone")
		}
		tp.SetAutomatic(true)
		if is, err := c.DeleteUnused(tp); !is || err != nil {
			t.Errorf("an automatic queue that is not in use is deleted: %t, %v", is, err)
		}
		if n := c.config.Retention.Freed().Bytes(); n != 200 {
			t.Errorf("%d bytes can be reclaimed once it is deleted, want 200", n)
		}
	})
}
