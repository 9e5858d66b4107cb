package rest_test

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// over returns a transport to the broker over HTTP, which ends with the test.
func over(t *testing.T, b *brokertest.Broker, o rest.Options) *rest.Client {
	t.Helper()
	o.Dialer = b.DialHTTP
	c, err := rest.New(b.HTTPAddress(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// The suite that every transport passes, in virtual time. The package comment names what HTTP
// lacks.
func TestTransport(t *testing.T) {
	guarantees := transporttest.AllGuarantees()
	guarantees.PushesThrottleBackoff = false
	transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
		b := brokertest.New(t)
		return transporttest.Fixture{
			Transport: over(t, b, rest.Options{}),
			CreateTopic: func(ctx context.Context, name string, kind transporttest.TopicType) error {
				_, err := b.PutTopic(ctx, name, settings.Topic{Type: settings.TopicType(kind)})
				return err
			},
			CreateGroup: func(ctx context.Context, name string, c transporttest.GroupConfig) error {
				g := settings.Group{FIFO: c.FIFO, MaxAttempts: c.MaxAttempts, Retry: backoff.Steps(c.Retry)}
				if c.FIFO && len(c.Retry) > 0 {
					g.FIFORetryInterval = settings.Duration(c.Retry[0])
				}
				_, err := b.PutGroup(ctx, name, g)
				return err
			},
			Disconnect: b.Disconnect,
		}
	}, transporttest.Options{Virtual: true, Guarantees: guarantees, Capabilities: transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true,
		RetryResult: true, RepeatReceive: true, Snooze: true, Reconsume: true,
	}})
}
