package broker_test

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/transport"
)

// served has the operations of a broker for programs and for servers.
type served struct{ *engine.Engine }

func serve(b *broker.Broker) served { return served{b.Engine()} }

// SendHalf stores a half message, as a server does.
func (b served) SendHalf(ctx context.Context, m *tidegate.Message, firstCheck time.Duration) transport.SendResult {
	return b.Append(ctx, []engine.Incoming{{Message: m, BornHost: "localhost", Half: true, FirstCheck: firstCheck}})[0]
}

// NegativeAck settles a delivery by a negative acknowledgement.
func (b served) NegativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) error {
	_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.NegativeAck, Delay: delay})
	return err
}
