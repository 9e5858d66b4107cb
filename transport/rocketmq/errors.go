package rocketmq

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// pushbackKey is the trailer in which a server says how long to wait (gRFC A6).
const pushbackKey = "grpc-retry-pushback-ms"

// parsePushback reads the trailer's values as gRFC A6 says: none is no wish
// (0); one that is negative or not an int32, and more than one, ask not to try
// again (-1).
func parsePushback(values []string) time.Duration {
	if len(values) == 0 {
		return 0
	}
	ms, err := strconv.ParseInt(values[0], 10, 32)
	if err != nil || ms < 0 || len(values) > 1 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// statusError makes the error of a status that is not OK.
func statusError(op, subject, endpoint string, st *rmqpb.Status, trailer metadata.MD) *tidegate.Error {
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Code: tidegate.Code(st.GetCode()), Message: st.GetMessage()}
	switch e.Code {
	case 0:
		e.Code = tidegate.CodeInternalServerError
		e.Message = "the answer has no status code" + prefixed(": ", st.GetMessage())
	case tidegate.CodeTooManyRequests:
		e.RetryAfter = parsePushback(trailer.Get(pushbackKey))
	}
	return e
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// maybeStored reports whether a message may be stored, or a delivery settled,
// although its request was answered with the code (observed on RocketMQ 5.2: 50401 is, 50400 may be).
func maybeStored(c tidegate.Code) bool {
	return c == tidegate.CodeProxyTimeout || c == tidegate.CodeMasterPersistenceTimeout || c == tidegate.CodeSlavePersistenceTimeout
}

// transportError makes the error of a call that gRPC failed. sent tells that
// the request changes something and had a connection, so that a server may have
// done it. ctx is the caller's.
//
//	gRPC status         becomes
//	Canceled            ErrClosed if the client is closed; the cause of ctx if that ended; else code 0
//	DeadlineExceeded    the cause of ctx if that ended; else code 0
//	Unauthenticated     40100
//	PermissionDenied    40300
//	ResourceExhausted   41300: gRPC's own check of a message's size, not throttling
//	InvalidArgument     40000, OutOfRange too
//	Unimplemented       50100
//	all others          code 0
//
// Code 0 without a cause of the caller's matches tidegate.ErrUnavailable.
func transportError(ctx context.Context, op, subject, endpoint string, err error, sent, closed bool) *tidegate.Error {
	st := status.Convert(err)
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Err: err}
	ended := st.Code() == codes.Canceled || st.Code() == codes.DeadlineExceeded
	switch cause := causeOf(ctx, st.Code()); {
	case ended && cause != nil:
		e.Err = fmt.Errorf("%w: %w", cause, err)
	case closed:
		e.Err = fmt.Errorf("%w: %w", tidegate.ErrClosed, err)
	default:
		if e.Code = codeOf(st.Code()); e.Code == 0 {
			e.Err = fmt.Errorf("%w: %w", tidegate.ErrUnavailable, err)
		}
	}
	e.MaybeStored = sent && e.Code == 0
	return e
}

// causeOf returns why the caller's ctx ended, nil if it did not. A server keeps
// the deadline too, and its answer may come a moment before our own clock says
// so. That moment is waited for: before it ctx does not tell its cause.
func causeOf(ctx context.Context, code codes.Code) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	const moment = 5 * time.Millisecond
	if at, ok := ctx.Deadline(); ok && code == codes.DeadlineExceeded && time.Until(at) < moment {
		return cmp.Or(backoff.Sleep(ctx, moment), context.DeadlineExceeded)
	}
	return nil
}

func codeOf(c codes.Code) tidegate.Code {
	switch c {
	case codes.Unauthenticated:
		return tidegate.CodeUnauthorized
	case codes.PermissionDenied:
		return tidegate.CodeForbidden
	case codes.ResourceExhausted:
		return tidegate.CodePayloadTooLarge
	case codes.InvalidArgument, codes.OutOfRange:
		return tidegate.CodeBadRequest
	case codes.Unimplemented:
		return tidegate.CodeNotImplemented
	}
	return 0
}
