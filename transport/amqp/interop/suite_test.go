package interop

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// guarantees are those of Artemis. The transport has no recall and no throttle backoff of the
// server, and ended leases have no retry schedule.
func guarantees() transporttest.Guarantees {
	g := transporttest.AllGuarantees()
	g.PushesThrottleBackoff, g.TimeoutsTakeTheLadder, g.Recall = false, false, false
	return g
}

var capabilities = transport.Capabilities{
	Batch: true, Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, Snooze: true,
}

// fixture returns a fixture whose transport has the settings of the groups that it creates.
func fixture(o amqp.Options) func(t *testing.T) transporttest.Fixture {
	return func(t *testing.T) transporttest.Fixture {
		s, a := server(t)
		var mu sync.Mutex
		groups := map[string]transport.ConsumerSettings{}
		var topics []string
		o := o
		o.Groups = func(group, _ string) transport.ConsumerSettings {
			mu.Lock()
			defer mu.Unlock()
			return groups[group]
		}
		c, err := amqp.New(s.Address(), o) // the suite closes it
		if err != nil {
			t.Fatal(err)
		}
		return transporttest.Fixture{
			Transport: c,
			CreateTopic: func(ctx context.Context, name string, _ transporttest.TopicType) error {
				mu.Lock()
				topics = append(topics, name)
				mu.Unlock()
				return a.createTopic(ctx, name)
			},
			CreateGroup: func(ctx context.Context, name string, c transporttest.GroupConfig) error {
				mu.Lock()
				groups[name] = transport.ConsumerSettings{FIFO: c.FIFO, MaxAttempts: c.MaxAttempts, Retry: backoff.Steps(c.Retry)}
				all := topics
				mu.Unlock()
				for _, topic := range all {
					if err := a.createGroup(ctx, topic, name); err != nil {
						return err
					}
				}
				return nil
			},
		}
	}
}

func TestSuiteWithCopies(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, fixture(amqp.Options{CopyRetries: true, RequestTimeout: 10 * time.Second}),
		transporttest.Options{Unit: time.Second, Guarantees: guarantees(), Capabilities: capabilities})
}

func TestSuite(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, fixture(amqp.Options{RequestTimeout: 10 * time.Second}),
		transporttest.Options{Unit: time.Second, Guarantees: guarantees(), Capabilities: capabilities})
}
