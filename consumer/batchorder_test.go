package consumer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// A batch is sorted by topic, queue and offset.
func TestBatchIsSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.queues = []int{0, 1}
		for _, m := range []struct {
			id, topic string
			queue     int
		}{
			{"7", "returns", 1}, {"3", "orders", 1}, {"1", "orders", 0}, {"5", "returns", 0},
			{"8", "returns", 1}, {"6", "returns", 0}, {"4", "orders", 1}, {"2", "orders", 0},
		} {
			s.add(m.queue, &tidegate.Message{ID: m.id, Topic: m.topic})
		}
		var mu sync.Mutex
		var got [][]string
		p, err := consumer.NewBatch(s, consumer.Subscription{Group: "billing", Topics: map[string]tidegate.Filter{"orders": {}, "returns": {}}},
			func(_ context.Context, ds []*tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				var ids []string
				for _, d := range ds {
					ids = append(ids, d.ID)
				}
				got = append(got, ids)
				return nil
			}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 8, MaxWait: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		stop := runPush(t, p)
		time.Sleep(5 * time.Second)
		stop()
		if want := []string{"1", "2", "3", "4", "5", "6", "7", "8"}; len(got) != 1 || !slices.Equal(got[0], want) {
			t.Errorf("batches %q, want one with %q", got, want)
		}
	})
}
