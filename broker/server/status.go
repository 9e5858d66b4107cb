package server

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Metadata that tidegate's broker and its SDK agree on.
const (
	headerFeatures  = "x-tidegate-features"
	headerReason    = "x-tidegate-reason"
	trailerPushBack = "grpc-retry-pushback-ms"
)

var features = metadata.Pairs(headerFeatures, "batch, pushback, suspend, deadletter")

// statusOK is every successful answer's. It is shared and never changed.
var statusOK = &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}

func refuse(code tidegate.Code, subject, text string) *tidegate.Error {
	return &tidegate.Error{Code: code, Subject: subject, Message: text}
}

// answer turns a request's failure into what the client gets: a status inside
// the answer or, where there can be no answer, a gRPC status.
func (s *Server) answer(ctx context.Context, op string, err error) (*rmqpb.Status, error) {
	e, known := errors.AsType[*tidegate.Error](err)
	switch {
	case known && e.Code != 0:
		if e.Code == tidegate.CodeInternalServerError && e.Err != nil && !errors.Is(err, tidegate.ErrClosed) {
			s.log.ErrorContext(ctx, "request failed", "op", op, "error", err) // the disk, most likely
		}
		return statusOf(e), nil
	case ctx.Err() != nil:
		// The client gave up, or its time is over: it reads no answer.
		return nil, status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, tidegate.ErrClosed):
		return nil, status.Error(codes.Unavailable, "the broker is closed")
	}
	s.log.ErrorContext(ctx, "request failed", "op", op, "error", err)
	return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: op + ": " + err.Error()}, nil
}

// statusOf returns the status of an error that has a code.
func statusOf(e *tidegate.Error) *rmqpb.Status {
	return &rmqpb.Status{Code: rmqpb.Code(e.Code), Message: textOf(e)}
}

// textOf returns subject, text and cause, in one line.
func textOf(e *tidegate.Error) string {
	text := e.Message
	if e.Err != nil {
		if text != "" {
			text += ": "
		}
		text += strings.ReplaceAll(e.Err.Error(), "\n", "; ")
	}
	if e.Code == tidegate.CodeTooManyRequests {
		// Seed 004's words, and clients may look for them at the beginning.
		if prefix := tidegate.ErrThrottled.Error(); !strings.HasPrefix(text, prefix) {
			text = strings.TrimSuffix(prefix+": "+text, ": ")
		}
		return text
	}
	switch {
	case text == "" && e.Subject == "":
		return e.Code.String()
	case text == "":
		return e.Subject + ": " + e.Code.String()
	case e.Subject != "" && !strings.Contains(text, e.Subject):
		return e.Subject + ": " + text
	}
	return text
}

// pushBackOf returns how long the client should wait before its next attempt;
// 0 where the error does not say.
func pushBackOf(err error) time.Duration {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.RetryAfter > 0 {
		return e.RetryAfter
	}
	return 0
}

// pushBack returns the trailer that tells d, rounded up to a millisecond.
func pushBack(d time.Duration) metadata.MD {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return metadata.Pairs(trailerPushBack, strconv.FormatInt(int64(ms), 10))
}

func setPushBack(ctx context.Context, d time.Duration) {
	if d > 0 {
		// It fails only if the answer is on its way, which is after this.
		_ = grpc.SetTrailer(ctx, pushBack(d))
	}
}

// codeOf returns the code of a failure that has one, or else that of an
// unknown one.
func codeOf(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return e.Code
	}
	return tidegate.CodeInternalServerError
}
