package rest_test

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// over returns a transport to the broker over HTTP, which ends with the test.
func over(t *testing.T, b *brokertest.Broker, o rest.Options) *rest.Client {
	t.Helper()
	o.Dialer = b.DialHTTP
	c := assert.Value(rest.New(b.HTTPAddress(), o))(t)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// The suite that every transport passes, in virtual time. The package comment lists the features
// that HTTP lacks.
func TestTransport(t *testing.T) {
	s := transporttest.AllGuarantees()
	s.PushesThrottleBackoff = false
	s.Virtual, s.Capabilities = true, transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true,
		RetryResult: true, RepeatReceive: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
	transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
		b := brokertest.New(t)
		return transporttest.Fixture{
			Transport: over(t, b, rest.Options{}),
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
			Disconnect: b.Disconnect,
		}
	}, s)
}
