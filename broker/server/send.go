package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// sendMessage stores the messages of one request. It is one message for all
// of RocketMQ's clients; tidegate's own sends many.
func (s *Server) sendMessage(ctx context.Context, client string, req *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	in := req.GetMessages()
	if len(in) == 0 {
		return nil, refusal.New(protocol.CodeMessageCorrupted, "messages", "the request has no message")
	}
	batch := newSendBatch(len(in))
	resp, err := s.send(ctx, client, in, batch)
	batch.free() // not after a panic: part of the engine may still use the messages
	return resp, err
}

// send stores messages. The response has no reference to the batch, and neither has the error.
func (s *Server) send(ctx context.Context, client string, in []*rmqpb.Message, batch *sendBatch) (*rmqpb.SendMessageResponse, error) {
	msgs, list := batch.messages, batch.incoming
	now, half := time.Now(), false
	unpacked := hold(ctx, s.bodies)
	defer unpacked.Release()
	var topic *string // of all messages
	if s.o.Intercept != nil || !requests.Announces(ctx, wire.FeatureTopics) {
		first := in[0].GetTopic().GetName()
		topic = &first
	}
	for i, m := range in {
		born, err := s.incoming(&msgs[i], m, topic, now)
		if err == nil && len(msgs[i].Body) > len(m.GetBody()) { // it came compressed
			err = unpacked.Resize(unpacked.Bytes()+int64(len(msgs[i].Body)), false)
		}
		if err != nil {
			return nil, oneOf(i, len(in), err)
		}
		list[i] = engine.Incoming{Message: &msgs[i], BornAt: born, BornHost: m.GetSystemProperties().GetBornHost(), Client: client}
		if p := m.GetSystemProperties(); p.GetMessageType() == rmqpb.MessageType_TRANSACTION {
			list[i].Half, list[i].FirstCheck = true, p.GetOrphanedTransactionRecoveryDuration().AsDuration()
			half = true
		}
	}
	results := s.messages.Append(ctx, list)
	if len(results) != len(in) {
		return nil, fmt.Errorf("the engine gave %d results for %d messages", len(results), len(in))
	}
	for i := range results {
		if half && list[i].Half && results[i].Err == nil && (i == 0 || msgs[i].Topic != msgs[i-1].Topic) {
			s.sessions.Publishes(client, in[i].GetTopic())
		}
	}
	return s.sent(ctx, msgs, results)
}

// incoming checks one message of a request. all is the topic of all of them; nil if they can have
// different ones.
func (s *Server) incoming(to *tidegate.Message, m *rmqpb.Message, all *string, now time.Time) (born time.Time, err error) {
	topic := m.GetTopic().GetName()
	if all != nil && topic != *all {
		return born, refusal.New(protocol.CodeMessageCorrupted, "topic",
			"its topic is %.130q, and that of the first message is %.130q; give all messages of a request the same topic", topic, *all)
	}
	if err := requests.CheckNamespace(m.GetTopic()); err != nil {
		return born, err
	}
	if *to, born, err = requests.Message(m, s.maxBody, now); err != nil {
		return born, err
	}
	if kind, odd := requests.OddKind(m.GetSystemProperties()); odd {
		c, err := s.engine.TopicSettings(topic)
		if err != nil {
			return born, err
		}
		return born, refusal.New(protocol.CodeMessagePropertyConflict, "message_type",
			"the message has the type %v, and the topic has the type %s; this broker has no topics for messages of this type", kind, c.Type)
	}
	return born, nil
}

// oneOf names the message of a larger request that err is about.
func oneOf(i, n int, err error) error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok || n == 1 {
		return err
	}
	c := *e
	c.Message = fmt.Sprintf("message %d of %d: %s", i+1, n, refusal.Text(e))
	c.Err = nil
	return &c
}

// sent returns the response. If all messages are of one topic and failed in the same way, there are
// no entries, as with RocketMQ's proxy: the failure is the request's.
func (s *Server) sent(ctx context.Context, msgs []tidegate.Message, results []transport.SendResult) (*rmqpb.SendMessageResponse, error) {
	if !slices.ContainsFunc(msgs, func(m tidegate.Message) bool { return m.Topic != msgs[0].Topic }) {
		if err := refusal.Common(len(results), func(i int) error { return results[i].Err }); err != nil {
			return nil, err
		}
	}
	out := wire.NewSendResponse(len(results))
	out.Status = wire.OK
	waits := make([]time.Duration, 1, 4) // of the runs of messages with the same topic
	for i, e := range out.Entries {
		if i > 0 && msgs[i].Topic != msgs[i-1].Topic {
			waits = append(waits, 0)
		}
		e.MessageId = msgs[i].ID
		if err := results[i].Err; err != nil {
			st, gerr := s.answer(ctx, "SendMessage", err)
			if gerr != nil {
				return nil, err
			}
			e.Status = st
			run := &waits[len(waits)-1]
			*run = max(*run, refusal.PushBackOf(err))
		} else {
			e.Status = wire.OK
			r := &results[i].Receipt
			e.Offset, e.RecallHandle, e.TransactionId = max(r.Offset, 0), r.RecallHandle, r.TransactionID
			if e.TransactionId == "" {
				e.TransactionId = e.MessageId // as RocketMQ does; clients show it
			}
		}
		if e.Status.GetCode() != out.Entries[0].Status.GetCode() {
			out.Status = requests.MultipleResults
		}
	}
	switch {
	case len(waits) == 1:
		setPushBack(ctx, waits[0])
	case slices.Max(waits) > 0:
		// It fails only after the response was sent, which is later.
		_ = grpc.SetTrailer(ctx, requests.PushBacks(waits))
	}
	return out, nil
}

// A sendBatch has the messages of one request in the engine's types.
type sendBatch struct {
	messages []tidegate.Message
	incoming []engine.Incoming
}

// A batchOfOne is a sendBatch of one message, in one allocation.
type batchOfOne struct {
	sendBatch
	message  [1]tidegate.Message
	incoming [1]engine.Incoming
}

var sendBatches sync.Pool // of *sendBatch, zero up to the capacity

// newSendBatch returns a batch of n messages, which are zero.
func newSendBatch(n int) *sendBatch {
	if n == 1 {
		b := &batchOfOne{}
		b.messages, b.sendBatch.incoming = b.message[:], b.incoming[:]
		return &b.sendBatch
	}
	if wire.Reusable(n) {
		if b, _ := sendBatches.Get().(*sendBatch); b != nil && cap(b.messages) >= n {
			b.messages, b.incoming = b.messages[:n], b.incoming[:n]
			return b
		}
	}
	return &sendBatch{make([]tidegate.Message, n), make([]engine.Incoming, n)}
}

// free ends the use of the batch: other requests use its memory.
func (b *sendBatch) free() {
	if !wire.Reusable(len(b.messages)) {
		return
	}
	clear(b.messages)
	clear(b.incoming)
	sendBatches.Put(b)
}

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
			"the resolution is %d; give COMMIT (1), ROLLBACK (2), or 0 if it is unknown", req.GetResolution())
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
