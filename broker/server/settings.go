package server

import (
	"context"
	"math"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// packedBatchSize is the most messages in one receive of clients that read packed deliveries: a
// receive costs them and the broker as much as some 20 messages of 1 KiB.
const packedBatchSize = 128

// batchSize returns the most messages in one receive of a client.
func batchSize(packed bool) int32 {
	if packed {
		return packedBatchSize
	}
	return refusal.MaxReceive
}

// settings returns the client's settings, merged with those of the server.
func (s *Server) settings(ctx context.Context, p *session.Profile) (*rmqpb.Settings, error) {
	out, err := p.Settings()
	if err != nil {
		return nil, err
	}
	out.Metric = &rmqpb.Metric{} // off
	if pub := out.GetPublishing(); pub != nil {
		out.BackoffPolicy = &rmqpb.RetryPolicy{
			MaxAttempts: int32(min(s.o.ProducerMaxAttempts, math.MaxInt32)),
			Strategy:    requests.Exponential(s.o.ProducerBackoff.Initial, s.o.ProducerBackoff.Max, s.o.ProducerBackoff.Multiplier),
		}
		pub.MaxBodySize = int32(min(s.maxBody, math.MaxInt32))
		pub.ValidateMessageType = true
		return out, nil
	}
	c, err := s.engine.GroupSettings(ctx, p.Group)
	if err != nil {
		return nil, err
	}
	sub := out.GetSubscription()
	sub.Fifo = &c.FIFO
	sub.ReceiveBatchSize = new(batchSize(p.Packed))
	sub.LongPollingTimeout = durationpb.New(s.o.MaxLongPolling)
	topics := make([]string, len(sub.GetSubscriptions()))
	for i, e := range sub.GetSubscriptions() {
		topics[i] = e.GetTopic().GetName()
	}
	out.BackoffPolicy = requests.RetryPolicy(s.engine.RetryPolicy(c, topics...), p.Language)
	return out, nil
}
