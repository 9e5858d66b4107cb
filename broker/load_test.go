package broker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// Concurrent senders and consumers, with failures, filters and batches of several sizes. All
// messages are consumed without an error, and no receive waits longer than its maximum.
func TestLoadIsConsumedWhole(t *testing.T) {
	t.Parallel()
	for _, kind := range []settings.TopicType{settings.TopicNormal, settings.TopicFIFO} {
		for _, callers := range []int{1, 16} {
			t.Run(fmt.Sprintf("%s,%d", kind, callers), func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Type: kind, Queues: 4})
				putGroup(t, b, "g", settings.Group{FIFO: kind == settings.TopicFIFO, MaxAttempts: -1})
				const each = 200
				ctx, consumed := context.WithCancel(t.Context())
				var acked, deliveries atomic.Int64
				var wg sync.WaitGroup
				for c := range callers {
					wg.Go(func() {
						for i := range each {
							m := &tidegate.Message{Topic: "t", Tag: "a", Body: []byte("x")}
							if kind == settings.TopicFIFO {
								m.MessageGroup = fmt.Sprint(c, i%7)
							}
							if r := send(t, b, m); r[0].Err != nil {
								t.Error(r[0].Err)
							}
						}
					})
					wg.Go(func() {
						r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Max: 1 + c%3*8, InvisibleDuration: time.Hour, Wait: time.Minute, Push: c%2 == 0}
						if c%3 == 1 {
							r.Filter.Expression = "a||b"
						}
						for ctx.Err() == nil {
							ds, err := b.Receive(ctx, r)
							if err != nil && ctx.Err() == nil {
								t.Error(err)
							}
							for _, d := range ds {
								if deliveries.Add(1)%17 == 0 {
									if _, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.Retry, Delay: time.Millisecond}); err != nil {
										t.Error(err)
									}
									continue
								}
								if err := b.Ack(ctx, []*tidegate.Delivery{d})[0]; err != nil {
									t.Error(err)
								}
								if acked.Add(1) == int64(callers*each) {
									consumed()
								}
							}
						}
					})
				}
				<-ctx.Done() // the test's time limit, with the stacks of the waiting goroutines, if a message is lost
				wg.Wait()
				consumed()
				if g, err := b.Group("g"); err != nil || g.Topics[0].Backlog != (status.Backlog{}) || g.Topics[0].Inflight != 0 {
					t.Errorf("left: %+v, %v", g.Topics, err)
				}
			})
		}
	}
}
