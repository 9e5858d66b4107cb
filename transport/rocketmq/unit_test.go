package rocketmq

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

func TestAuthorization(t *testing.T) {
	// printf 20250102T030405Z | openssl dgst -sha1 -hmac secret
	const want = "MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature=F2AAF211D4F8038FA2EE86F40F3E56019780D7FA"
	if got := authorization(Credentials{AccessKey: "ak", SecretKey: "secret"}, "20250102T030405Z"); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeaderer(Credentials{AccessKey: "ak", SecretKey: "secret", SessionToken: "st"})
		o := &Options{Namespace: "ns", Credentials: h.keys}
		md, _ := metadata.FromOutgoingContext(h.outgoing(metadata.AppendToOutgoingContext(t.Context(), "mine", "kept"), newIdentity(o, "id"), "more", "x"))
		for k, want := range map[string]string{
			"x-mq-client-id": "id", "x-mq-language": "GO", "x-mq-client-version": clientVersion, "x-mq-protocol": "v2",
			"x-mq-namespace": "ns", "x-mq-session-token": "st", "x-mq-date-time": "20000101T000000Z", "more": "x", "mine": "kept",
			"authorization": authorization(h.keys, "20000101T000000Z"),
		} {
			if got := md.Get(k); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %q, want %q", k, got, want)
			}
		}
		first := md.Get("x-mq-request-id")[0]
		time.Sleep(time.Second)
		md, _ = metadata.FromOutgoingContext(newHeaderer(Credentials{}).outgoing(t.Context(), newIdentity(&Options{}, "id")))
		for _, k := range []string{"x-mq-namespace", "x-mq-session-token", "authorization"} {
			if got := md.Get(k); got != nil {
				t.Errorf("%s: %q, want none", k, got)
			}
		}
		if md.Get("x-mq-request-id")[0] == first || md.Get("x-mq-date-time")[0] != "20000101T000001Z" {
			t.Errorf("second request: %v", md)
		}
	})
}

func TestTransportError(t *testing.T) {
	gone, cancel := context.WithCancelCause(t.Context())
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
		class        transport.Class
	}{
		"refused":           {ctx: alive, grpc: codes.Unavailable, is: tidegate.ErrUnavailable, class: transport.Transient},
		"broken":            {ctx: alive, grpc: codes.Unavailable, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
		"slow":              {ctx: alive, grpc: codes.DeadlineExceeded, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
		"deadline":          {ctx: late, grpc: codes.DeadlineExceeded, sent: true, is: context.DeadlineExceeded, maybe: true, class: transport.Transient},
		"cancelled":         {ctx: gone, grpc: codes.Canceled, sent: true, is: errGone, maybe: true, class: transport.Transient},
		"cancelled early":   {ctx: gone, grpc: codes.Canceled, is: errGone, class: transport.Transient},
		"server cancelled":  {ctx: alive, grpc: codes.Canceled, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
		"closed":            {ctx: alive, grpc: codes.Canceled, sent: true, closed: true, is: tidegate.ErrClosed, maybe: true, class: transport.Cancelled},
		"closed, deadline":  {ctx: late, grpc: codes.DeadlineExceeded, sent: true, closed: true, is: context.DeadlineExceeded, maybe: true, class: transport.Transient},
		"refused, deadline": {ctx: late, grpc: codes.Unavailable, is: tidegate.ErrUnavailable, class: transport.Transient},
		"unauthenticated":   {ctx: alive, grpc: codes.Unauthenticated, sent: true, code: 40100, is: tidegate.ErrUnauthorized, class: transport.Permanent},
		"denied":            {ctx: alive, grpc: codes.PermissionDenied, sent: true, code: 40300, is: tidegate.ErrForbidden, class: transport.Permanent},
		"too large":         {ctx: alive, grpc: codes.ResourceExhausted, text: "grpc: received message larger than max (5 vs. 4)", sent: true, code: 41300, is: tidegate.ErrInvalid, class: transport.Permanent},
		"too large, Java":   {ctx: alive, grpc: codes.ResourceExhausted, text: "gRPC message exceeds maximum size 4: 5", sent: true, code: 41300, is: tidegate.ErrInvalid, class: transport.Permanent},
		"calm":              {ctx: alive, grpc: codes.ResourceExhausted, text: "stream terminated by RST_STREAM with error code: ENHANCE_YOUR_CALM", sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
		"invalid":           {ctx: alive, grpc: codes.InvalidArgument, sent: true, code: 40000, is: tidegate.ErrInvalid, class: transport.Permanent},
		"out of range":      {ctx: alive, grpc: codes.OutOfRange, sent: true, code: 40000, is: tidegate.ErrInvalid, class: transport.Permanent},
		"ingress":           {ctx: alive, grpc: codes.Unimplemented, text: "unexpected HTTP status code received from server: 404 (Not Found)", sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
		"unimplemented":     {ctx: alive, op: opRecall, grpc: codes.Unimplemented, sent: true, code: 50100, class: transport.Permanent},
		"internal":          {ctx: alive, grpc: codes.Internal, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
		"unknown":           {ctx: alive, grpc: codes.Unknown, sent: true, is: tidegate.ErrUnavailable, maybe: true, class: transport.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			op := cmp.Or(tt.op, "Op")
			below := status.Error(tt.grpc, cmp.Or(tt.text, "text"))
			e := transportError(tt.ctx, op, "subject", "here:1", below, tt.sent, tt.closed)
			if e.Code != tt.code || e.MaybeStored != tt.maybe || !errors.Is(e, below) || tt.is != nil && !errors.Is(e, tt.is) {
				t.Errorf("%+v", e)
			}
			if got := errors.Is(e, tidegate.ErrUnavailable); got != (tt.is == tidegate.ErrUnavailable) {
				t.Errorf("unavailable: %t", got)
			}
			if got := transport.Classify(e); got != tt.class {
				t.Errorf("class %s, want %s", got, tt.class)
			}
			if e.Op != op || e.Subject != "subject" || e.Endpoint != "here:1" {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestEncodeReason(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a b%\n": "a%20b%25%0A", "é": "%C3%A9",
		strings.Repeat("x", 2000):                    strings.Repeat("x", maxReason),
		strings.Repeat("x", maxReason-5) + "é" + "y": strings.Repeat("x", maxReason-5), // a rune is not split
	} {
		got := encodeReason(in)
		if got != want {
			t.Errorf("%.20q: %.40q, want %.40q", in, got, want)
		}
		if back, err := url.PathUnescape(got); err != nil || !strings.HasPrefix(in, back) {
			t.Errorf("%.20q does not come back: %q, %v", in, back, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	_, err := New("nowhere", Options{
		RequestTimeout: -1, HeartbeatInterval: -1, RouteRefresh: -1, SettingsSync: -1, MaxReceiveSize: -1, Compression: -1,
		Namespace: "a b", ClientID: "ü", Credentials: Credentials{AccessKey: "x"},
	})
	for _, field := range []string{"nowhere", "RequestTimeout", "HeartbeatInterval", "RouteRefresh", "SettingsSync",
		"MaxReceiveSize", "Compression", "Namespace", "ClientID", "Credentials"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	if _, err := New("host:1", Options{ConnectBackoff: backoff.Exponential{Initial: -1}}); !errors.Is(err, tidegate.ErrInvalid) ||
		!strings.Contains(err.Error(), "ConnectBackoff") {
		t.Errorf("ConnectBackoff alone: %v does not match ErrInvalid", err)
	}
	for _, bad := range []string{"", ";", "host", "host:0", "host:65536", ":1", "1.2.3.4:1;host:1", "[::1:1"} {
		if c, err := New(bad, Options{}); !errors.Is(err, tidegate.ErrInvalid) || c != nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestParseEndpoints(t *testing.T) {
	for in, want := range map[string]struct {
		scheme rmqpb.AddressScheme
		key    string
	}{
		"127.0.0.1:8081":       {rmqpb.AddressScheme_IPv4, "127.0.0.1:8081"},
		"[::1]:8081":           {rmqpb.AddressScheme_IPv6, "[::1]:8081"},
		"mq.example:80":        {rmqpb.AddressScheme_DOMAIN_NAME, "mq.example:80"},
		"1.2.3.4:1; 5.6.7.8:2": {rmqpb.AddressScheme_IPv4, "1.2.3.4:1;5.6.7.8:2"},
	} {
		pb, err := parseEndpoints(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		addrs, _ := addressesOf(pb)
		if pb.GetScheme() != want.scheme || strings.Join(addrs, ";") != want.key {
			t.Errorf("%s: %v", in, pb)
		}
	}
}

// What a client logs is for its logger alone.
func TestDefaults(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil || o.Logger.Enabled(t.Context(), slog.LevelError) || !headerSafe(o.ClientID) || o.RequestTimeout != 3*time.Second ||
		o.MaxReceiveSize != 32<<20 || o.ConnectBackoff.Max != 120*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
	if p, _ := (Options{}).withDefaults(); p.ClientID == o.ClientID {
		t.Errorf("two clients have the ID %s", p.ClientID)
	}
}

func FuzzParsePushback(f *testing.F) {
	for _, s := range []string{"", "0", "1", "-1", "99999999999", "1.5", "+3", " 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := parsePushback([]string{s})
		if d != -1 && (d < 0 || d > (1<<31-1)*time.Millisecond || d%time.Millisecond != 0) {
			t.Errorf("%q: %v", s, d)
		}
		if d > 0 && parsePushback([]string{s, s}) != -1 {
			t.Error("two values are no wish")
		}
	})
}

// The server's clock can say a moment before ours that the caller's deadline has passed.
func TestDeadlineToldByTheServerFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Millisecond, cause)
		defer cancel()
		e := transportError(ctx, "Op", "subject", "here:1", status.Error(codes.DeadlineExceeded, "text"), true, false)
		if !errors.Is(e, cause) || !e.MaybeStored || errors.Is(e, tidegate.ErrUnavailable) {
			t.Errorf("%+v", e)
		}
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
		if got := firstLine(in); got != want {
			t.Errorf("%.40q: %q, want %q", in, got, want)
		}
	}
	e := statusError("Op", "s", "e", &rmqpb.Status{Code: rmqpb.Code_TOPIC_NOT_FOUND, Message: "no topic\nstack"}, nil)
	if e.Message != "no topic" {
		t.Errorf("%q", e.Message)
	}
	if e := transportError(t.Context(), "Op", "s", "e", status.Error(codes.Unavailable, "down\nstack"), false, false); strings.Contains(e.Error(), "stack") {
		t.Errorf("%v", e)
	}
}

// A proxy that was paused responds to what waited for it as if the polling time were
// wrong. Another attempt may succeed.
func TestDeadlineOfAPausedProxy(t *testing.T) {
	for text, want := range map[string]tidegate.Code{
		"The deadline time remaining is not enough":                tidegate.CodeRequestTimeout,
		"the polling time of 25s is above the largest one allowed": tidegate.CodeIllegalPollingTime,
	} {
		e := statusError(opReceive, "t", "e", &rmqpb.Status{Code: rmqpb.Code_ILLEGAL_POLLING_TIME, Message: text}, nil)
		class := transport.Permanent
		if want == tidegate.CodeRequestTimeout {
			class = transport.Transient
		}
		if e.Code != want || transport.Classify(e) != class || !strings.Contains(e.Error(), text) || !strings.Contains(e.Error(), "40018") {
			t.Errorf("%v, want %v", e, want)
		}
	}
}
