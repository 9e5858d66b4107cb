package brokertest_test

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The engine in the same process, and the same engine through gRPC, pass the
// suite that every transport passes.
func TestTransports(t *testing.T) {
	for name, open := range map[string]func(*brokertest.Broker) transport.Transport{
		"engine": func(b *brokertest.Broker) transport.Transport { return b.Broker },
		"grpc":   func(b *brokertest.Broker) transport.Transport { return b.Client() },
	} {
		t.Run(name, func(t *testing.T) {
			s := transporttest.AllGuarantees()
			s.Virtual, s.Capabilities = true, transport.Capabilities{
				Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, RepeatChange: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
				Watch: name == "grpc",
			}
			transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
				b := brokertest.New(t)
				fixture := transporttest.Fixture{
					Transport: open(b),
					CreateTopic: func(ctx context.Context, name string, kind settings.TopicType) error {
						_, err := b.PutTopic(ctx, name, settings.Topic{Type: kind})
						return err
					},
					CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
						g := settings.Group{FIFO: s.FIFO, MaxAttempts: s.MaxAttempts, Retry: s.Retry.(backoff.Steps)}
						if s.FIFO {
							g.FIFORetryInterval = settings.Duration(s.Retry.Delay(0))
						}
						_, err := b.PutGroup(ctx, name, g)
						return err
					},
				}
				if name == "grpc" {
					fixture.Disconnect = b.Disconnect
				}
				return fixture
			}, s)
		})
	}
}
