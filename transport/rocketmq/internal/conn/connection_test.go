package conn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// A load balancer that leads the requests of one connection to different servers
// gets no batches.
func TestMixedAnnouncementsEndBatches(t *testing.T) {
	c := &Connection{}
	ours := parseFeatures([]string{"batch, suspend, topics, heartbeats, queues"})
	c.announce(ours)
	f := *c.Features.Load()
	assert.That(t, f == ours && f.Batch && f.Topics && f.Heartbeats && f.Queues, "%+v of %+v", f, ours)
	c.announce(Features{})
	c.announce(ours)
	want := Features{Capabilities: transport.Capabilities{Suspend: true}}
	assert.Equal(t, "after a response without features", *c.Features.Load(), want)
}

// If gRPC opens two connections at the same time, it may drop the newer one.
func TestConnectionInUse(t *testing.T) {
	l := new(Link)
	first, second := &Connection{number: 1}, &Connection{number: 2}
	l.Saw(first)
	l.Saw(second)
	first.announce(Features{})
	l.Saw(first)
	assert.Equal(t, "the connection that responds is not the one in use", l.current.Load(), first)
	second.announce(Features{})
	l.Saw(second)
	l.Saw(first) // a late response
	assert.Equal(t, "an old connection replaced the one in use", l.current.Load(), second)
}

// At most half of the servers are excluded.
func TestExcluded(t *testing.T) {
	for _, tt := range []struct {
		trips []int64
		want  []bool
	}{
		{[]int64{5}, []bool{false}},
		{[]int64{0, 0}, []bool{false, false}},
		{[]int64{0, 7}, []bool{false, true}},
		{[]int64{9, 7}, []bool{false, true}}, // both failed: the first stays out
		{[]int64{9, 7, 8}, []bool{false, true, false}},
		{[]int64{4, 3, 2, 1}, []bool{false, false, true, true}},
		{[]int64{0, 3, 0, 1}, []bool{false, true, false, true}},
		{[]int64{0, 0, 1, 0}, []bool{false, false, true, false}},
	} {
		got := excluded(tt.trips)
		assert.That(t, slices.Equal(got, tt.want), "%v: %v, want %v", tt.trips, got, tt.want)
	}
}

func TestAuthorization(t *testing.T) {
	// printf 20250102T030405Z | openssl dgst -sha1 -hmac secret
	const want = "MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature=F2AAF211D4F8038FA2EE86F40F3E56019780D7FA"
	got := authorization("ak", "secret", "20250102T030405Z")
	assert.That(t, got == want, "%s\nwant %s", got, want)
}

func TestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewSigner("ak", "secret")
		md, _ := metadata.FromOutgoingContext(h.Outgoing(metadata.AppendToOutgoingContext(t.Context(), "mine", "kept"), NewIdentity("id", "ns", "st"), "more", "x"))
		for k, want := range map[string]string{
			"x-mq-client-id": "id", "x-mq-language": "GO", "x-mq-client-version": ClientVersion, "x-mq-protocol": "v2",
			"x-mq-namespace": "ns", "x-mq-session-token": "st", "x-mq-date-time": "20000101T000000Z", "more": "x", "mine": "kept",
			"authorization": authorization(h.access, h.secret, "20000101T000000Z"),
		} {
			got := md.Get(k)
			assert.That(t, len(got) == 1 && got[0] == want, "%s: %q, want %q", k, got, want)
		}
		first := md.Get("x-mq-request-id")[0]
		time.Sleep(time.Second)
		md, _ = metadata.FromOutgoingContext(NewSigner("", "").Outgoing(t.Context(), NewIdentity("id", "", "")))
		for _, k := range []string{"x-mq-namespace", "x-mq-session-token", "authorization"} {
			got := md.Get(k)
			assert.That(t, got == nil, "%s: %q, want none", k, got)
		}
		assert.That(t, md.Get("x-mq-request-id")[0] != first && md.Get("x-mq-date-time")[0] == "20000101T000001Z",
			"second request: %v", md)
	})
}

func TestVerdict(t *testing.T) {
	answered := func(c tidegate.Code) *tidegate.Error { return &tidegate.Error{Code: c} }
	errGone := errors.New("the caller has gone")
	lost := &tidegate.Error{Err: tidegate.ErrUnavailable}
	share := fmt.Errorf("the attempt's share: %w", tidegate.ErrUnavailable)
	for name, tt := range map[string]struct {
		err   *tidegate.Error
		cause error
		took  time.Duration
		want  Verdict
	}{
		"accepted":                  {want: Healthy},
		"throttled":                 {err: answered(tidegate.CodeTooManyRequests), want: Healthy},
		"broken connection":         {err: lost, want: failing},
		"attempt's share over":      {err: lost, cause: share, took: time.Millisecond, want: failing},
		"internal error":            {err: answered(tidegate.CodeInternalServerError), want: failing},
		"proxy timeout":             {err: answered(protocol.CodeProxyTimeout), want: failing},
		"wrong message":             {err: answered(tidegate.CodeMessageBodyTooLarge), want: Nothing},
		"wrong keys":                {err: answered(tidegate.CodeUnauthorized), want: Nothing},
		"no topic":                  {err: answered(tidegate.CodeTopicNotFound), want: Nothing},
		"not implemented":           {err: answered(tidegate.CodeNotImplemented), want: Nothing},
		"lane changed":              {err: &tidegate.Error{Err: transport.ErrLaneChanged}, want: Nothing},
		"closed":                    {err: &tidegate.Error{Err: tidegate.ErrClosed}, want: Nothing},
		"cancelled":                 {err: &tidegate.Error{Err: context.Canceled}, cause: context.Canceled, took: time.Hour, want: Nothing},
		"cancelled with a reason":   {err: &tidegate.Error{Err: errGone}, cause: errGone, took: time.Hour, want: Nothing},
		"short deadline":            {err: &tidegate.Error{Err: context.DeadlineExceeded}, cause: context.DeadlineExceeded, took: patience - 1, want: Nothing},
		"deadline after some while": {err: &tidegate.Error{Err: context.DeadlineExceeded}, cause: context.DeadlineExceeded, took: patience, want: failing},
	} {
		got := VerdictOf(tt.err, tt.cause, tt.took)
		assert.That(t, got == tt.want, "%s: %d, want %d", name, got, tt.want)
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
		"[fe80::1%eth0]:8081":  {rmqpb.AddressScheme_IPv6, "[fe80::1%eth0]:8081"},
		"mq_1.büro.example:80": {rmqpb.AddressScheme_DOMAIN_NAME, "mq_1.büro.example:80"},
		"1.2.3.4:1; 5.6.7.8:2": {rmqpb.AddressScheme_IPv4, "1.2.3.4:1;5.6.7.8:2"},
	} {
		pb, err := ParseAddresses(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		addrs, _ := AddressesOf(pb)
		assert.That(t, pb.GetScheme() == want.scheme && strings.Join(addrs, ";") == want.key, "%s: %v", in, pb)
	}
}

// The error of an address that cannot be names the part and the remedy.
func TestBadEndpoints(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "the address is empty",
		" ; ":                     "host:port",
		"http://mq.example:8081":  "is a URL",
		"[::1:1":                  "host:port",
		"grpc://1.2.3.4:8081":     "is a URL",
		"my host:8081":            `the character ' '`,
		"a:1;b c:2":               `the character ' '`,
		"mq\t.example:8081":       `the character '\t'`,
		"user@mq.example:8081":    `the character '@'`,
		"mq.example/path:8081":    `the character '/'`,
		"mq%eth0.example:8081":    `the character '%'`,
		"[fe80::1%]:8081":         "the character",
		"fe80::1:8081":            "host:port",
		"mq.example":              "host:port",
		"mq.example:0":            "port of 1 to 65535",
		"mq.example:8081/v1":      "port of 1 to 65535",
		":8081":                   "host:port",
		"127.0.0.1:1;localhost:1": "one kind",
	} {
		pb, err := ParseAddresses(in)
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && errors.Is(err, tidegate.ErrInvalid),
			"%q: %v, %v, want an error with %q", in, pb, err, want)
	}
}

// The number of a queue belongs to one broker permanently; that of a broker that is gone means
// none.
func TestPlacesAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Places
		var next atomic.Uint64
		see := func(names ...string) *Route {
			r := &Route{}
			for _, name := range names {
				r.Readers = append(r.Readers, Broker{PB: &rmqpb.Broker{Name: name}})
			}
			l.Note(r, time.Minute)
			return r
		}
		expect := func(r *Route, number int, want string) {
			t.Helper()
			if b, id, ok := l.Source(r, &next, number<<brokerShift|7); ok != (want != "") || b.PB.GetName() != want || ok && id != 7 {
				t.Errorf("place %d: broker %q, queue %d, want %q", number, b.PB.GetName(), id, want)
			}
		}
		r := see("a", "b")
		expect(r, 0, "a")
		expect(r, 1, "b")
		r = see("b")
		expect(r, 0, "")
		expect(r, 1, "b")
		time.Sleep(ForgetAfter * time.Minute)
		r = see("a", "b") // back, just in time
		expect(r, 0, "a")
		time.Sleep(time.Minute)
		see("b")
		time.Sleep(ForgetAfter * time.Minute)
		see("b")
		r = see("b", "c", "a") // a was away for too long
		expect(r, 0, "")
		expect(r, 1, "b")
		expect(r, 2, "c")
		expect(r, 3, "a")
	})
}

// The memory for brokers that appear and vanish, each with a name of its own, does not grow.
func TestPlacesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Places
		for i := range 100 {
			l.Note(&Route{Readers: []Broker{{PB: &rmqpb.Broker{Name: fmt.Sprint("pod-", i)}}}}, time.Minute)
			time.Sleep(time.Minute)
		}
		n := len(l.byName)
		assert.That(t, n <= ForgetAfter+1, "%d places are kept after 100 brokers", n)
	})
}

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
		"unimplemented":     {ctx: alive, op: recall, grpc: codes.Unimplemented, sent: true, code: 50100, class: tidegate.ClassPermanent},
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
			assert.That(t, tt.code != 50100 || strings.Contains(e.Error(), "RocketMQ can from 5.3.0 on"), "%v has no remedy", e)
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

// The texts of RocketMQ's errors about lite topics, as its servers send them, get a remedy.
func TestErrorsOfLiteTopics(t *testing.T) {
	for text, want := range map[string]struct {
		status, code tidegate.Code
		remedy       string
	}{
		`Cannot invoke "org.apache.rocketmq.proxy.service.lite.LiteSubscriptionService.syncLiteSubscription(Object)" because the return value of "getLiteSubscriptionService()" is null`: {50001, 50100, "mode cluster"},
		"null. NotImplementedException. org.apache.rocketmq.proxy.service.message.LocalMessageService.popLiteMessage(LocalMessageService.java:203)":                                      {50001, 50100, "mode cluster"},
		"rpc error: code = InvalidArgument desc = process client telemetryCommand failed. regular group cannot use LITE mode: g":                                                         {40000, 40000, "lite.bind.topic"},
		"org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota exceeded 1":                                                                                         {42902, 42902, "maxLiteSubscriptionCount"},
		"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.":                                                                                                                {42901, 42901, "maxLmqConsumeQueueNum"},
	} {
		e := OfStatus("SyncLiteSubscription", "t", "e", &rmqpb.Status{Code: rmqpb.Code(want.status), Message: text}, nil)
		if e.Code != want.code || !strings.Contains(e.Message, want.remedy) || tidegate.Classify(e) != tidegate.ClassPermanent {
			t.Errorf("%q: %v, want %v with %q", text, e, want.code, want.remedy)
		}
	}
	e := OfStatus("SendMessage", "t", "e", &rmqpb.Status{Code: 42901, Message: "the topic has 3 lite topics; the limit is 3"}, nil)
	assert.That(t, e.Message == "the topic has 3 lite topics; the limit is 3", "the text of another server is changed: %v", e)
}
