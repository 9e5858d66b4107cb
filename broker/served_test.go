package broker_test

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/transport"
)

// served has the operations of a broker for programs and for servers.
type served struct {
	*broker.Broker
	serving.Engine
}

func serve(b *broker.Broker) served { return served{b, serving.Of(b)} }

// SendHalf stores a half message, as a server does.
func (b served) SendHalf(ctx context.Context, m *tidegate.Message, firstCheck time.Duration) transport.SendResult {
	return b.Append(ctx, []serving.Incoming{{Message: m, BornHost: "localhost", Half: true, FirstCheck: firstCheck}})[0]
}

// NegativeAck is a Reconsume with a negative acknowledgement.
func (b served) NegativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) error {
	_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.NegativeAck, Delay: delay})
	return err
}
