package interop

import (
	"context"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/transporttest"
)

var unit = flag.Duration("suite.unit", 2*time.Second, "the unit of times in the suite; a busy machine needs a longer one")

// realArtemis describes an Artemis. The transport has no recall and no throttle backoff of the
// server, ended leases have no retry schedule, and a receive does not wait long for the messages
// that follow the first.
func realArtemis() transporttest.Server {
	s := transporttest.AllGuarantees()
	s.Unit, s.Slack = *unit, soon // the server shares the machine with the tests
	s.PushesThrottleBackoff, s.TimeoutsTakeTheSchedule, s.Recall = false, false, false
	s.FullReceives = false
	s.LacksPositions, s.LacksTopicTypes = true, true
	s.Capabilities = transport.Capabilities{
		Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, Verdicts: transport.Snooze,
	}
	return s
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
		n := &network{}
		o.Dialer = n.dial
		c, err := amqp.New(s.Address(), o) // the suite closes it
		assert.Must(t, err)
		return transporttest.Fixture{
			Transport:  c,
			Disconnect: func() { n.cut(true) },
			CreateTopic: func(ctx context.Context, name string, _ settings.TopicType) error {
				mu.Lock()
				topics = append(topics, name)
				mu.Unlock()
				return a.createTopic(ctx, name)
			},
			CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
				mu.Lock()
				groups[name] = s
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
	transporttest.Run(t, fixture(amqp.Options{CopyRetries: true, RequestTimeout: requestTimeout}), realArtemis())
}

func TestSuite(t *testing.T) {
	t.Parallel()
	s := realArtemis()
	s.LacksExactRetries = true // the delays are those of the address settings
	transporttest.Run(t, fixture(amqp.Options{RequestTimeout: requestTimeout}), s)
}
