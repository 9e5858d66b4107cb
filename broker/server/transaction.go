package server

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// resolutions are the ends of a transaction that a client can send. RocketMQ's Go client sends
// UNSPECIFIED if it does not know the end; the broker then checks again.
var resolutions = map[rmqpb.TransactionResolution]transport.Resolution{
	rmqpb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED: transport.ResolutionUnknown,
	rmqpb.TransactionResolution_COMMIT:                             transport.Commit,
	rmqpb.TransactionResolution_ROLLBACK:                           transport.Rollback,
}

func (s *Server) endTransaction(ctx context.Context, client string, req *rmqpb.EndTransactionRequest) (*rmqpb.EndTransactionResponse, error) {
	s.sessions.Get(client)
	how, ok := resolutions[req.GetResolution()]
	if !ok {
		return nil, refusal.New(tidegate.CodeBadRequest, "resolution",
			fmt.Sprintf("the resolution is %d; give COMMIT (1), ROLLBACK (2), or 0 if it is unknown", req.GetResolution()))
	}
	if err := s.engine.EndTransaction(ctx, engine.TransactionEnd{
		Topic: req.GetTopic().GetName(), TransactionID: req.GetTransactionId(), MessageID: req.GetMessageId(), Resolution: how,
	}); err != nil {
		return nil, err
	}
	return &rmqpb.EndTransactionResponse{Status: wire.OK}, nil
}

// attached is the server as its engine sees it.
type attached struct{ s *Server }

// CheckTransaction implements engine.Server. It passes a check on to a client that publishes its
// topic.
func (a attached) CheckTransaction(c engine.TransactionCheck) bool {
	for _, p := range a.s.sessions.Publishing(c.Message.Topic) {
		cmd := requests.RecoverCommand(c, p.Topic)
		if p.Stream.Offer(cmd, proto.Size(cmd)) {
			return true
		}
	}
	return false
}

// ConsumerSettingsChanged implements engine.Server.
func (a attached) ConsumerSettingsChanged(group string) { a.s.sessions.ResendGroup(group) }
