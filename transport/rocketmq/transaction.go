package rocketmq

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

const (
	opEnd = "EndTransaction"

	half = rmqpb.MessageType_TRANSACTION
)

var _ transport.Transactor = (*Client)(nil)

// SendHalf implements transport.Transactor. gRPC repeats the request only if it certainly reached
// no server.
func (c *Client) SendHalf(ctx context.Context, msg *tidegate.Message) transport.SendResult {
	if wire.TypeOf(msg) != rmqpb.MessageType_NORMAL {
		return transport.SendResult{Err: fail(opSend, msg.Topic, protocol.CodeMessagePropertyConflict,
			"a message in a transaction can have no message group, lite topic, delivery time or priority; leave them empty")}
	}
	t, rt, err := c.writable(ctx, msg.Topic)
	if err != nil {
		return transport.SendResult{Err: err}
	}
	if len(rt.Accepts) > 0 && !rt.Accepts[half] && !rt.Accepts[rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED] {
		return transport.SendResult{Err: fail(opSend, msg.Topic, protocol.CodeMessagePropertyConflict,
			fmt.Sprintf("the topic accepts %s; create a topic of type TRANSACTION", rt.Types()))}
	}
	q, _ := rt.Choose(&t.next, "", nil)
	var results [1]transport.SendResult
	p := c.parcel(t, rt, q, []*tidegate.Message{msg}, results[:])
	p.sending.Half = true
	res := c.sendRequest(ctx, q.Server, []parcel{p}, q.Server.Begin())
	if r := &results[0]; r.Err == nil {
		r.Receipt.TransactionID, r.Receipt.Offset = entryOf(res, 0, 1, msg.ID).GetTransactionId(), -1
	}
	return results[0]
}

// EndTransaction implements transport.Transactor. It sends the request to the server that stored
// the half message. RocketMQ's proxy discards its entry of a transaction 30 s after the send. The
// error then matches tidegate.ErrNotFound, and RocketMQ's broker sends a check to a producer later
// (see ServeChecks).
func (c *Client) EndTransaction(ctx context.Context, tx transport.Transaction, r transport.Resolution) error {
	if err := c.endTransaction(ctx, tx, r, rmqpb.TransactionSource_SOURCE_CLIENT); err != nil {
		return err
	}
	return nil
}

func (c *Client) endTransaction(ctx context.Context, tx transport.Transaction, r transport.Resolution, source rmqpb.TransactionSource) *tidegate.Error {
	how := map[transport.Resolution]rmqpb.TransactionResolution{
		transport.Commit: rmqpb.TransactionResolution_COMMIT, transport.Rollback: rmqpb.TransactionResolution_ROLLBACK,
	}[r]
	switch {
	case how == 0:
		return fail(opEnd, tx.Topic, tidegate.CodeBadRequest, fmt.Sprintf("the resolution is %s; give Commit or Rollback", r))
	case tx.ID == "":
		return fail(opEnd, tx.Topic, protocol.CodeInvalidTransactionID, "the transaction ID is empty; give Receipt.TransactionID of the half message")
	}
	ep := c.access
	if tx.Endpoint != "" {
		var err error
		if ep, err = c.serverAt(tx.Endpoint); err != nil {
			return &tidegate.Error{Op: opEnd, Subject: tx.Topic, Endpoint: tx.Endpoint, Err: err}
		}
	}
	_, _, err := call(ctx, c, request{ep: ep, id: c.id, op: opEnd, subject: tx.Topic}, rmqpb.MessagingServiceClient.EndTransaction,
		&rmqpb.EndTransactionRequest{
			Topic: c.resource(tx.Topic), MessageId: tx.MessageID, TransactionId: tx.ID, Resolution: how, Source: source,
		})
	if err != nil && err.Code == tidegate.CodeInternalServerError && // RocketMQ has no code of its own for it
		(strings.Contains(err.Message, "TRANSACTION_DATA_NOT_FOUND") || strings.Contains(err.Message, "found transaction data")) {
		err.Code, err.MaybeStored = tidegate.CodeNotFound, false
	}
	return err
}

// maxLines bounds the log lines of one kind in a second. A broken server can cause one with each
// message and each command.
const maxLines = 32

// A sampler logs the lines of one kind, at most maxLines in a second. The next line after that has
// the number of the skipped ones. The zero value is ready.
type sampler struct {
	mu      sync.Mutex
	began   time.Time // of the second
	lines   int       // in it
	skipped int       // since the last line
}

// allow reports whether a line may be logged at now, and how many were skipped since the last one.
func (s *sampler) allow(now time.Time) (skipped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.began) >= time.Second {
		s.began, s.lines = now, 0
	}
	if s.lines == maxLines {
		s.skipped++
		return 0, false
	}
	s.lines++
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}

// log logs a line, unless there were too many.
func (s *sampler) log(l *slog.Logger, level slog.Level, text string, args ...any) {
	skipped, ok := s.allow(time.Now())
	if !ok {
		return
	}
	if skipped > 0 {
		args = append(args, "skipped_lines", skipped)
	}
	l.Log(context.Background(), level, text, args...) // the line belongs to no request
}
