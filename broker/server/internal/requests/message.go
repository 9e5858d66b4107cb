package requests

import (
	"errors"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	// maxDelay is how far ahead a delivery may be (RocketMQ's maxDelayTimeMills).
	maxDelay = 24 * time.Hour

	// maxRecovery bounds orphaned_transaction_recovery_duration
	// (RocketMQ's maxTransactionRecoverySecond).
	maxRecovery = time.Hour

	// maxNamespace bounds the namespace of a topic, which responses repeat, in bytes.
	maxNamespace = 255
)

// Message converts a message for the engine, and rejects the faults that only gRPC can have; the
// engine checks the rest. maxBody is the maximum size of the unpacked body. The result shares
// memory with m. born is the time of its creation, zero if the message has none.
func Message(m *rmqpb.Message, maxBody int, now time.Time) (out tidegate.Message, born time.Time, _ error) {
	p := m.GetSystemProperties()
	out = tidegate.Message{
		ID:           p.GetMessageId(),
		Topic:        m.GetTopic().GetName(),
		Tag:          p.GetTag(),
		Keys:         p.GetKeys(),
		MessageGroup: p.GetMessageGroup(),
		LiteTopic:    p.GetLiteTopic(),
		Priority:     int(p.GetPriority()),
		Properties:   userProperties(m.GetUserProperties()),
		TraceContext: p.GetTraceContext(),
		Body:         m.GetBody(),
	}
	maps.DeleteFunc(out.Properties, func(_, value string) bool { return value == "" }) // as RocketMQ does
	switch {
	case strings.TrimSpace(out.ID) == "":
		return out, born, refusal.New(protocol.CodeIllegalMessageID, "message_id", "the message_id is empty or blank; give each message its own")
	case len(out.ID) > refusal.MaxMessageID:
		return out, born, refusal.TooLong(protocol.CodeIllegalMessageID, "message_id", len(out.ID), refusal.MaxMessageID)
	case len(out.TraceContext) > refusal.MaxTraceContext:
		return out, born, refusal.TooLong(protocol.CodeMessagePropertiesTooLarge, "trace_context", len(out.TraceContext), refusal.MaxTraceContext)
	case len(p.GetBornHost()) > refusal.MaxBornHost:
		return out, born, refusal.TooLong(protocol.CodeMessagePropertiesTooLarge, "born_host", len(p.GetBornHost()), refusal.MaxBornHost)
	case p.GetLiteTopic() == "" && p != nil && p.LiteTopic != nil: // the engine would treat it as none
		return out, born, tidegate.ValidateLiteTopic("")
	}
	if t := p.GetBornTimestamp(); t != nil {
		if born = t.AsTime(); t.CheckValid() != nil || !refusal.Storable(born) {
			return out, born, refusal.New(tidegate.CodeBadRequest, "born_timestamp",
				"the born_timestamp is %d s after 1970; give one between 1970 and %d", t.GetSeconds(), refusal.LastYear)
		}
	}
	if t := p.GetDeliveryTimestamp(); t != nil {
		if err := t.CheckValid(); err != nil {
			return out, born, refusal.New(protocol.CodeIllegalDeliveryTime, "delivery_timestamp", "%s", err.Error())
		}
		out.DeliverAt = t.AsTime()
		if ahead := out.DeliverAt.Sub(now); ahead > maxDelay {
			return out, born, refusal.New(protocol.CodeIllegalDeliveryTime, "delivery_timestamp",
				"the delivery_timestamp is %v ahead; the limit is %v", ahead.Round(time.Millisecond), maxDelay)
		}
	}
	if d := p.GetOrphanedTransactionRecoveryDuration(); d != nil {
		if v := d.AsDuration(); d.CheckValid() != nil || v < 0 || v > maxRecovery {
			return out, born, refusal.New(tidegate.CodeBadRequest, "orphaned_transaction_recovery_duration",
				"the orphaned_transaction_recovery_duration is %v; give 0 to %v", v, maxRecovery)
		}
	}
	if err := checkDigest(p.GetBodyDigest(), out.Body); err != nil {
		return out, born, err
	}
	switch e := p.GetBodyEncoding(); e {
	case rmqpb.Encoding_ENCODING_UNSPECIFIED, rmqpb.Encoding_IDENTITY:
	case rmqpb.Encoding_GZIP:
		body, err := gunzip(out.Body, maxBody)
		if err != nil {
			return out, born, err
		}
		out.Body = body
	default:
		return out, born, refusal.New(protocol.CodeMessageCorrupted, "body_encoding",
			"the body_encoding is %d; give IDENTITY (1) or GZIP (2)", e)
	}
	return out, born, nil
}

// userProperties returns the properties that the user set: a program of RocketMQ's clients
// that sends a delivered message on may send the server's with them.
func userProperties(all map[string]string) map[string]string {
	for _, name := range [...]string{protocol.PropertyMessageGroup, protocol.PropertyTransactionID} {
		delete(all, name)
	}
	return all
}

// CheckNamespace rejects a topic whose namespace is too long for responses and storage.
func CheckNamespace(topic *rmqpb.Resource) error {
	if n := len(topic.GetResourceNamespace()); n > maxNamespace {
		return refusal.TooLong(tidegate.CodeBadRequest, "resource_namespace", n, maxNamespace)
	}
	return nil
}

// OddKind returns the kind of a message that no topic of this broker takes, and false for the
// others. Only TRANSACTION counts as a message_type; whether a message is NORMAL, FIFO, DELAY,
// PRIORITY or LITE follows from its message group, delivery time, priority and lite topic alone, as
// on RocketMQ's proxy.
func OddKind(p *rmqpb.SystemProperties) (rmqpb.MessageType, bool) {
	switch p.GetMessageType() {
	case rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED, rmqpb.MessageType_NORMAL, rmqpb.MessageType_FIFO, rmqpb.MessageType_DELAY,
		rmqpb.MessageType_TRANSACTION, rmqpb.MessageType_PRIORITY, rmqpb.MessageType_LITE:
		return 0, false
	}
	return p.GetMessageType(), true
}

// checkDigest compares a digest that the client gave with the body as it travelled.
func checkDigest(d *rmqpb.Digest, body []byte) error {
	if d.GetChecksum() == "" {
		return nil
	}
	switch ok, have := wire.MatchesDigest(body, d); {
	case ok:
		return nil
	case have == "":
		return refusal.New(protocol.CodeMessageCorrupted, "body_digest",
			"the body_digest has the type %d; give CRC32 (1), MD5 (2) or SHA1 (3)", d.GetType())
	default:
		return refusal.New(protocol.CodeMessageCorrupted, "body_digest",
			"the body_digest is %v %.64q, but that of the %d bytes received is %s", d.GetType(), d.GetChecksum(), len(body), have)
	}
}

// gunzip unpacks a body of at most limit bytes.
func gunzip(packed []byte, limit int) ([]byte, error) {
	if len(packed) == 0 {
		return nil, nil // an empty body, which the engine rejects as such
	}
	corrupted := func(err error) error {
		return refusal.New(protocol.CodeMessageCorrupted, "body", "the body_encoding is GZIP, but the body of %d bytes is not valid GZIP: %v", len(packed), err)
	}
	body, err := wire.Gunzip(packed, limit)
	switch {
	case errors.Is(err, wire.ErrTooLong):
		return nil, refusal.New(tidegate.CodeMessageBodyTooLarge, "body",
			"the body of %d bytes exceeds the limit of %d bytes after decompression", len(packed), limit)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, corrupted(errors.New("it is truncated"))
	case err != nil:
		return nil, corrupted(err)
	}
	return body, nil
}

// RecoverCommand is a check in the form of the wire. The message has all that
// RocketMQ's clients want of one: Node a digest, Python an encoding.
func RecoverCommand(c engine.TransactionCheck, topic *rmqpb.Resource) *rmqpb.RecoverOrphanedTransactionCommand {
	m := c.Message
	user := maps.Clone(m.Properties)
	if user == nil {
		user = map[string]string{}
	}
	user[protocol.PropertyCheckTimes] = strconv.Itoa(c.Number)
	user[protocol.PropertyTransactionID] = c.TransactionID
	p := &rmqpb.SystemProperties{
		Keys: m.Keys, MessageId: m.ID, MessageType: rmqpb.MessageType_TRANSACTION, BodyEncoding: rmqpb.Encoding_IDENTITY,
		BodyDigest:     wire.MD5(m.Body),
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
