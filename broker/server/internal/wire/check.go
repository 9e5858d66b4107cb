package wire

import (
	"crypto/md5"
	"maps"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// RecoverCommand is a check in the form of the wire. The message has all that
// RocketMQ's clients want of one: Node a digest, Python an encoding.
func RecoverCommand(c serving.TransactionCheck, topic *rmqpb.Resource) *rmqpb.RecoverOrphanedTransactionCommand {
	m := c.Message
	user := maps.Clone(m.Properties)
	if user == nil {
		user = map[string]string{}
	}
	user[protocol.PropertyCheckTimes] = strconv.Itoa(c.Number)
	user[protocol.PropertyTransactionID] = c.TransactionID
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
