package conn

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func TestTransportError(t *testing.T) {
	gone, cancel := context.WithCancelCause(t.Context())
	errGone := errors.New("the caller has gone")
	cancel(errGone)
	late, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer stop()
	// The server, which keeps the deadline too, is a moment faster than our clock.
	alive := t.Context()
	for name, tt := range map[string]struct {
		ctx          context.Context
		op, text     string // "Op" and "text" if empty
		grpc         codes.Code
		sent, closed bool
		code         tidegate.Code
		is           error
		maybe        bool
		class        tidegate.Class
	}{
		"refused":           {ctx: alive, grpc: codes.Unavailable, is: tidegate.ErrUnavailable, class: tidegate.ClassTransient},
		"broken":            {ctx: alive, grpc: codes.Unavailable, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
		"slow":              {ctx: alive, grpc: codes.DeadlineExceeded, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
		"deadline":          {ctx: late, grpc: codes.DeadlineExceeded, sent: true, is: context.DeadlineExceeded, maybe: true, class: tidegate.ClassTransient},
		"cancelled":         {ctx: gone, grpc: codes.Canceled, sent: true, is: errGone, maybe: true, class: tidegate.ClassTransient},
		"cancelled early":   {ctx: gone, grpc: codes.Canceled, is: errGone, class: tidegate.ClassTransient},
		"server cancelled":  {ctx: alive, grpc: codes.Canceled, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
		"closed":            {ctx: alive, grpc: codes.Canceled, sent: true, closed: true, is: tidegate.ErrClosed, maybe: true, class: tidegate.ClassCancelled},
		"closed, deadline":  {ctx: late, grpc: codes.DeadlineExceeded, sent: true, closed: true, is: context.DeadlineExceeded, maybe: true, class: tidegate.ClassTransient},
		"refused, deadline": {ctx: late, grpc: codes.Unavailable, is: tidegate.ErrUnavailable, class: tidegate.ClassTransient},
		"unauthenticated":   {ctx: alive, grpc: codes.Unauthenticated, sent: true, code: 40100, is: tidegate.ErrUnauthorized, class: tidegate.ClassPermanent},
		"denied":            {ctx: alive, grpc: codes.PermissionDenied, sent: true, code: 40300, is: tidegate.ErrForbidden, class: tidegate.ClassPermanent},
		"too large":         {ctx: alive, grpc: codes.ResourceExhausted, text: "grpc: received message larger than max (5 vs. 4)", sent: true, code: 41300, is: tidegate.ErrInvalid, class: tidegate.ClassPermanent},
		"too large, Java":   {ctx: alive, grpc: codes.ResourceExhausted, text: "gRPC message exceeds maximum size 4: 5", sent: true, code: 41300, is: tidegate.ErrInvalid, class: tidegate.ClassPermanent},
		"calm":              {ctx: alive, grpc: codes.ResourceExhausted, text: "stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM", sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
		"invalid":           {ctx: alive, grpc: codes.InvalidArgument, sent: true, code: 40000, is: tidegate.ErrInvalid, class: tidegate.ClassPermanent},
		"out of range":      {ctx: alive, grpc: codes.OutOfRange, sent: true, code: 40000, is: tidegate.ErrInvalid, class: tidegate.ClassPermanent},
		"ingress":           {ctx: alive, grpc: codes.Unimplemented, text: "unexpected HTTP status code received from server: 404 (Not Found)", sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
		"unimplemented":     {ctx: alive, op: optional, grpc: codes.Unimplemented, sent: true, code: 50100, class: tidegate.ClassPermanent},
		"internal":          {ctx: alive, grpc: codes.Internal, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
		"unknown":           {ctx: alive, grpc: codes.Unknown, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: tidegate.ClassTransient},
	} {
		t.Run(name, func(t *testing.T) {
			op := cmp.Or(tt.op, "Op")
			below := status.Error(tt.grpc, cmp.Or(tt.text, "text"))
			e := OfCall(tt.ctx, op, "subject", "here:1", below, tt.sent, tt.closed)
			if e.Code != tt.code || e.MaybeStored != tt.maybe || !errors.Is(e, below) || tt.is != nil && !errors.Is(e, tt.is) {
				t.Errorf("%+v", e)
			}
			assert.Equal(t, "unavailable", errors.Is(e, tidegate.ErrUnavailable), (tt.is == tidegate.ErrUnavailable))
			assert.Equal(t, "class", tidegate.Classify(e), tt.class)
			assert.That(t, e.Op == op && e.Subject == "subject" && e.Endpoint == "here:1", "%+v", e)
		})
	}
}

func FuzzParsePushback(f *testing.F) {
	for _, s := range []string{"", "0", "1", "-1", "99999999999", "1.5", "+3", " 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := parsePushback([]string{s})
		assert.That(t, d == -1 || d >= 0 && d <= (1<<31-1)*time.Millisecond && d%time.Millisecond == 0, "%q: %v", s, d)
		assert.That(t, d <= 0 || parsePushback([]string{s, s}) == -1, "two values are no wish")
	})
}

// The server can report the end of the caller's deadline a moment before the client's clock reaches
// it.
func TestDeadlineReportedByTheServerFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Millisecond, cause)
		defer cancel()
		e := OfCall(ctx, "Op", "subject", "here:1", status.Error(codes.DeadlineExceeded, "text"), true, false)
		assert.That(t, errors.Is(e, cause) && e.MaybeStored && !errors.Is(e, tidegate.ErrUnavailable), "%+v", e)
	})
}

// RocketMQ's texts have links and stacks behind the first line.
func TestFirstLine(t *testing.T) {
	long := strings.Repeat("é", 400)
	for in, want := range map[string]string{
		"":       "",
		"plain":  "plain",
		"a: b\n": "a: b",
		"  topic not exist, apply first please!\r\nSee https://rocketmq.apache.org/docs for further details.": "topic not exist, apply first please!",
		"No route info of this topic: t,\n\tat org.apache.rocketmq":                                           "No route info of this topic: t",
		long: long[:maxText] + "…",
	} {
		got := firstLine(in)
		assert.That(t, got == want, "%.40q: %q, want %q", in, got, want)
	}
	e := OfStatus("Op", "s", "e", &rmqpb.Status{Code: rmqpb.Code_TOPIC_NOT_FOUND, Message: "no topic\nstack"}, nil)
	assert.Equal(t, "e.Message", e.Message, "no topic")
	if e := OfCall(t.Context(), "Op", "s", "e", status.Error(codes.Unavailable, "down\nstack"), false, false); strings.Contains(e.Error(), "stack") {
		t.Errorf("%v", e)
	}
}

// A proxy responds after a pause as if the polling time of the waiting requests were wrong. Another
// attempt may succeed.
func TestDeadlineOfAPausedProxy(t *testing.T) {
	for text, want := range map[string]tidegate.Code{
		"The deadline time remaining is not enough":                protocol.CodeRequestTimeout,
		"the polling time of 25s is above the largest one allowed": protocol.CodeIllegalPollingTime,
	} {
		e := OfStatus("ReceiveMessage", "t", "e", &rmqpb.Status{Code: rmqpb.Code_ILLEGAL_POLLING_TIME, Message: text}, nil)
		class := tidegate.ClassPermanent
		if want == protocol.CodeRequestTimeout {
			class = tidegate.ClassTransient
		}
		if e.Code != want || tidegate.Classify(e) != class || !strings.Contains(e.Error(), text) || !strings.Contains(e.Error(), "40018") {
			t.Errorf("%v, want %v", e, want)
		}
	}
}

// A proxy without a connection to the broker has certainly stored nothing. The texts are those that
// RocketMQ 5.2.0 and 5.5.0 sent; a text that a part of the request may precede is none of them.
func TestProxyWithoutBroker(t *testing.T) {
	for text, want := range map[string]bool{
		"connect to 127.0.0.1:26104 failed":                                                              true,
		"connect to <127.0.0.1:26104> failed":                                                            true,
		"connect to broker-a.mq:10911 failed, see the log":                                               true,
		"org.apache.rocketmq.remoting.exception.RemotingConnectException: connect to <a:1> failed\n\tat": true,
		"cannot find broker broker-a":                                                                    true,
		"org.apache.rocketmq.proxy.common.ProxyException: cannot find broker broker-a":                   true,
		"The broker[broker-a] not exist\nSee https://rocketmq.apache.org/docs":                           true,

		"send request to <127.0.0.1:26104> failed":                                               false,
		"wait response on the channel <127.0.0.1:26104> timeout, 2000(ms)":                       false,
		"the consumer group[x connect to a:1 failed] not online":                                 false,
		"connect to a:1 failedover":                                                              false,
		"service not available now. It may be caused by one of the following reasons":            false,
		"[PC_SYNCHRONIZED]broker busy, start flow control for a while":                           false,
		"Cannot invoke \"Settings.getSubscription()\" because \"settings\" is null, cannot find": false,
		"": false,
	} {
		e := OfStatus("SendMessage", "t", "e", &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: text}, nil)
		if e.NotConnected != want || MaybeStored(e) == want || e.Code != 50001 || tidegate.Classify(e) != tidegate.ClassTransient {
			t.Errorf("%q: %#v, MaybeStored %t; want NotConnected %t", text, e, MaybeStored(e), want)
		}
		e = OfStatus("SendMessage", "t", "e", &rmqpb.Status{Code: rmqpb.Code_PROXY_TIMEOUT, Message: text}, nil)
		assert.That(t, !e.NotConnected && MaybeStored(e), "%q with 50400: %#v", text, e)
	}
}

// RocketMQ 5.3 to 5.5 respond with 50001 to recalls that can never succeed. The same texts mean
// nothing in the response to another request.
func TestRecallsThatCannotSucceed(t *testing.T) {
	for text, want := range map[string]struct {
		code   tidegate.Code
		remedy string
	}{
		"recall failed, operation is forbidden": {tidegate.CodeForbidden, "recallMessageEnable"},
		"org.apache.rocketmq.client.exception.MQBrokerException: CODE: 16  DESC: recall failed, operation is forbidden": {tidegate.CodeForbidden, "recallMessageEnable"},
		"recall handle is invalid": {tidegate.CodeBadRequest, "RecallHandle"},
		"org.apache.commons.codec.DecoderException: recall handle is invalid": {tidegate.CodeBadRequest, "RecallHandle"},
		"recall failed, topic not match":                                      {tidegate.CodeBadRequest, "topic"},
		"recall failed, timestamp invalid":                                    {tidegate.CodeNotFound, "delivery time"},
		"recall failed, the topic[orders] not exist":                          {tidegate.CodeTopicNotFound, ""},
		"recall failed, broker service not available":                         {tidegate.CodeInternalServerError, ""},
		"recall failed, execute error":                                        {tidegate.CodeInternalServerError, ""},
	} {
		st := &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: text}
		class := tidegate.ClassPermanent
		if want.code == tidegate.CodeInternalServerError {
			class = tidegate.ClassTransient
		}
		if e := OfStatus("RecallMessage", "t", "e", st, nil); e.Code != want.code || tidegate.Classify(e) != class || !strings.Contains(e.Message, want.remedy) {
			t.Errorf("%q: %v, want %v with %q", text, e, want.code, want.remedy)
		}
		e := OfStatus("SendMessage", "t", "e", st, nil)
		assert.That(t, e.Code == tidegate.CodeInternalServerError && e.Message == text, "%q of a send: %v", text, e)
	}
}
