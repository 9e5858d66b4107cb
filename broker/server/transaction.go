package server

import (
	"context"
	"crypto/md5"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// propertyTransactionID is RocketMQ's name of the property that tells the
// transaction ID in a check.
const propertyTransactionID = "__transactionId__"

var endTransaction = rpc[*rmqpb.EndTransactionRequest, *rmqpb.EndTransactionResponse]{
	op: "EndTransaction",
	describe: func(req *rmqpb.EndTransactionRequest, c *Call) {
		c.Topic, c.MessageIDs = req.GetTopic().GetName(), []string{req.GetMessageId()}
	},
	do: (*Server).endTransaction,
	fail: func(_ *rmqpb.EndTransactionRequest, st *rmqpb.Status) *rmqpb.EndTransactionResponse {
		return &rmqpb.EndTransactionResponse{Status: st}
	},
}

// resolutions are what a client can say of a transaction. RocketMQ's Go client
// says UNSPECIFIED when it does not know; the broker asks again then.
var resolutions = map[rmqpb.TransactionResolution]broker.Resolution{
	rmqpb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED: broker.ResolutionUnknown,
	rmqpb.TransactionResolution_COMMIT:                             broker.ResolutionCommit,
	rmqpb.TransactionResolution_ROLLBACK:                           broker.ResolutionRollback,
}

func (s *Server) endTransaction(ctx context.Context, client string, req *rmqpb.EndTransactionRequest) (*rmqpb.EndTransactionResponse, error) {
	s.sessions.get(client)
	how, ok := resolutions[req.GetResolution()]
	if !ok {
		return nil, refuse(tidegate.CodeBadRequest, "resolution",
			fmt.Sprintf("the resolution is %d; there are COMMIT (1), ROLLBACK (2), and 0 for not known yet", req.GetResolution()))
	}
	if err := s.b.EndTransaction(ctx, broker.TransactionEnd{
		Topic: req.GetTopic().GetName(), TransactionID: req.GetTransactionId(), MessageID: req.GetMessageId(), Resolution: how,
	}); err != nil {
		return nil, err
	}
	return &rmqpb.EndTransactionResponse{Status: statusOK}, nil
}

// check passes a check on to a client that publishes its topic.
func (s *Server) check(c broker.TransactionCheck) bool {
	for _, p := range s.sessions.publishing(c.Message.Topic) {
		cmd := recoverCommand(c, p.topic)
		if p.stream.push(cmd, proto.Size(cmd)) {
			return true
		}
	}
	return false
}

// recoverCommand is a check in the form of the wire. The message has all that
// RocketMQ's clients want of one: Node a digest, Python an encoding.
func recoverCommand(c broker.TransactionCheck, topic *rmqpb.Resource) *rmqpb.RecoverOrphanedTransactionCommand {
	m := c.Message
	user := maps.Clone(m.Properties)
	if user == nil {
		user = map[string]string{}
	}
	user[broker.PropertyCheckTimes] = strconv.Itoa(c.Number)
	user[propertyTransactionID] = c.TransactionID
	p := &rmqpb.SystemProperties{
		Keys: m.Keys, MessageId: m.ID, MessageType: rmqpb.MessageType_TRANSACTION, BodyEncoding: rmqpb.Encoding_IDENTITY,
		BodyDigest:     &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: string(appendMD5(make([]byte, 0, 2*md5.Size), m.Body))},
		BornTimestamp:  timestamppb.New(c.BornAt),
		BornHost:       strings.ToValidUTF8(c.BornHost, "?"),
		StoreTimestamp: timestamppb.New(c.StoredAt),
	}
	if m.Tag != "" {
		p.Tag = &m.Tag
	}
	if m.TraceContext != "" {
		p.TraceContext = &m.TraceContext
	}
	return &rmqpb.RecoverOrphanedTransactionCommand{
		Message:       &rmqpb.Message{Topic: topic, UserProperties: user, SystemProperties: p, Body: m.Body},
		TransactionId: c.TransactionID,
	}
}
