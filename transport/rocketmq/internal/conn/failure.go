package conn

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// parsePushback parses the trailer's values by the rules of gRFC A6. Without a value the server
// requests nothing (0). A negative value, a value that is not an int32, and several values forbid
// another attempt (-1).
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

// OfStatus makes the error of a status that is not OK. It keeps the first line of the server's
// text: RocketMQ adds links and stacks.
//
// ILLEGAL_POLLING_TIME is about the request if its polling time is wrong, but a proxy that was
// paused also responds with it, to requests whose deadline passed meanwhile. The code becomes
// REQUEST_TIMEOUT, because another attempt may succeed.
func OfStatus(op, subject, endpoint string, st *rmqpb.Status, trailer metadata.MD) *tidegate.Error {
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Code: tidegate.Code(st.GetCode()), Message: firstLine(st.GetMessage())}
	switch e.Code {
	case 0:
		e.Code = tidegate.CodeInternalServerError
		e.Message = "the response has no status code" + prefixed(": ", e.Message)
	case tidegate.CodeTooManyRequests:
		e.RetryAfter = parsePushback(trailer.Get(wire.TrailerPushBack))
	case protocol.CodeIllegalPollingTime:
		if strings.Contains(e.Message, "deadline") {
			e.Code, e.Message = tidegate.CodeRequestTimeout, "40018 ILLEGAL_POLLING_TIME: "+e.Message
		}
	case tidegate.CodeInternalServerError:
		e.NotConnected = brokerless.MatchString(e.Message)
		if op == optional {
			ofRecall(e)
		}
	}
	return e
}

// brokerless matches the texts of a RocketMQ proxy that has no connection to the broker of a
// request, or does not know the broker any more. RocketMQ has no code of its own for them. They are
// those of RemotingConnectException, of ClusterMessageService and of DefaultMQProducerImpl; each is
// thrown before the request is written to a broker. "send request to … failed" is not one of them:
// it may be thrown after a part was written.
var brokerless = regexp.MustCompile(`^(?:[\w.$]+(?:Exception|Error): )*(?:connect to <?[^\s<>]+>? failed(?:$|[\s,.;])|cannot find broker \S|The broker\[[^\]]*\] not exist)`)

// ofRecall corrects the code of a failed recall. RocketMQ responds with 50001 to recalls that can
// never succeed.
func ofRecall(e *tidegate.Error) {
	text := e.Message
	switch {
	case strings.Contains(text, "operation is forbidden"):
		e.Code = tidegate.CodeForbidden
		e.Message += "; set recallMessageEnable=true in the configuration of the broker"
	case strings.Contains(text, "recall handle is invalid"), strings.Contains(text, "topic not match"):
		e.Code = tidegate.CodeBadRequest
		e.Message += "; give the topic and the Receipt.RecallHandle of a message with a delivery time"
	case strings.Contains(text, "timestamp invalid"):
		e.Code = tidegate.CodeNotFound
		e.Message += "; the delivery time is over, or beyond the maximum of the broker"
	case strings.Contains(text, "the topic[") && strings.Contains(text, "not exist"):
		e.Code = tidegate.CodeTopicNotFound
	}
}

// maxText bounds a server's text in an error, in bytes.
const maxText = 512

// firstLine returns the first line of a server's text, bounded.
func firstLine(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	if len(line) <= maxText {
		if more {
			line = strings.TrimRight(line, " ,;:")
		}
		return line
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + "…"
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// MaybeStored reports whether a message may be stored, or a delivery settled, although a status
// became e: a server with an internal failure may have done it (RocketMQ 5.2: 50401 is stored,
// 50400 and 50001 may be; a tidegate broker: 50001 if the state of its disk is unknown).
func MaybeStored(e *tidegate.Error) bool {
	if e.NotConnected {
		return false
	}
	c := e.Code
	switch c {
	case tidegate.CodeNotImplemented, protocol.CodeUnsupported, protocol.CodeVersionUnsupported, protocol.CodeVerifyFIFOMessageUnsupported:
		return false
	}
	return c >= protocol.CodeInternalError && c < protocol.CodeFailedToConsumeMessage
}

// OfCall returns the error of a failed gRPC call. sent means that the request changes something and
// had a connection, so that a server may have carried it out. ctx is the caller's.
//
//	gRPC status         becomes
//	Canceled            ErrClosed if the client is closed; the cause of ctx if that ended; else code 0
//	DeadlineExceeded    the cause of ctx if that ended; else code 0
//	Unauthenticated     40100
//	PermissionDenied    40300
//	ResourceExhausted   41300 if a message is larger than one side allows; else code 0: HTTP/2 asks for calm
//	InvalidArgument     40000, OutOfRange too
//	Unimplemented       50100 for features that some servers lack; else code 0: something before the server responds
//	all others          code 0
//
// Code 0 without a cause of the caller's matches tidegate.ErrUnavailable.
func OfCall(ctx context.Context, op, subject, endpoint string, err error, sent, closed bool) *tidegate.Error {
	st := status.Convert(err)
	if text := firstLine(st.Message()); text != st.Message() {
		err = status.Error(st.Code(), text)
	}
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Err: err}
	ended := st.Code() == codes.Canceled || st.Code() == codes.DeadlineExceeded
	switch cause := causeOf(ctx, st.Code()); {
	case ended && cause != nil:
		e.Err = fmt.Errorf("%w: %w", cause, err)
	case closed:
		e.Err = fmt.Errorf("%w: %w", tidegate.ErrClosed, err)
	default:
		if e.Code = codeOf(op, st); e.Code == 0 {
			e.Err = fmt.Errorf("%w: %w", tidegate.ErrUnavailable, err)
		}
	}
	e.MaybeStored = sent && e.Code == 0
	return e
}

// causeOf returns the cause of the end of the caller's ctx, or nil if it has not ended. A server
// also observes the deadline, and its response can arrive a moment before the local clock reaches
// it. causeOf waits for this moment, because before it ctx has no cause.
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

// optional is the RPC that not every server has, with the name of the RPC for recalls.
const optional = "RecallMessage"

func codeOf(op string, st *status.Status) tidegate.Code {
	switch st.Code() {
	case codes.Unauthenticated:
		return tidegate.CodeUnauthorized
	case codes.PermissionDenied:
		return tidegate.CodeForbidden
	case codes.ResourceExhausted:
		if tooLarge(st.Message()) {
			return protocol.CodePayloadTooLarge
		}
	case codes.InvalidArgument, codes.OutOfRange:
		return tidegate.CodeBadRequest
	case codes.Unimplemented:
		if op == optional {
			return tidegate.CodeNotImplemented
		}
	}
	return 0
}

// tooLarge reports whether gRPC rejected a message for its size. It has no code for
// that, so only its texts differ: the first is that of grpc-go, the second of grpc-java.
func tooLarge(text string) bool {
	return strings.Contains(text, "larger than max") || strings.Contains(text, "exceeds maximum size")
}
