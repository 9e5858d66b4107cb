package server_test

import (
	"context"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// A throttled receive has the time to wait in the trailer.
func TestThrottledReceivePushesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{poll: func(context.Context) error {
			return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: 700 * time.Millisecond, Message: "enough"}
		}}
		e := start(t, server.Options{}, f)
		s, err := e.ReceiveMessage(e.ctx(), receiveRequest("normal"))
		fs, err := frames(s, err)
		if err != nil || len(fs) != 2 {
			t.Fatalf("%v, %v", fs, err)
		}
		refused(t, fs[0].GetStatus(), tidegate.CodeTooManyRequests)
		if got := s.Trailer().Get("grpc-retry-pushback-ms"); len(got) != 1 || got[0] != "700" {
			t.Errorf("push-back %q, want 700", got)
		}
	})
}

// The duration that means the broker's own interval within the program is an invalid one on the
// wire, where a header has that meaning.
func TestNoDurationMeansTheBrokersInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.send(msg("normal", "1"))
		m := e.one(e.ctx(), receiveRequest("normal"))
		r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
			Group: res("g"), Topic: res("normal"), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
			InvisibleDuration: durationpb.New(math.MinInt64),
		})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.GetStatus(), tidegate.CodeIllegalInvisibleTime, "too small")
		e.ack(m) // the delivery continues
	})
}

// With one of the two options set, producers get the default of the other.
func TestProducersPolicyWithMaxAttemptsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{ProducerMaxAttempts: 7})
		_, got := e.telemetry(e.ctx(), producer("normal"))
		p := got.GetBackoffPolicy()
		b := p.GetExponentialBackoff()
		if p.GetMaxAttempts() != 7 || b.GetInitial().AsDuration() != time.Second || b.GetMax().AsDuration() != 2*time.Minute || b.GetMultiplier() != 1.6 {
			t.Errorf("policy %v; want 7 attempts, 1 s to 2 min by 1.6", p)
		}
	})
}

// A negative wait is rejected, over HTTP and by the engine.
func TestNegativeWait(t *testing.T) {
	x := startWeb(t, server.Options{})
	x.failed("/v1/groups/g/topics/normal/receive", `{"wait":"-1s"}`, 400, 40018, "-1s")
	var problem server.Problem
	resp := x.do("/v1/groups/g/topics/normal/receive", `{"wait":"-1s"}`, &problem, "Accept", server.TypeNDJSON) // a stream, which would end at once
	if resp.Body.Close(); resp.StatusCode != 400 || problem.Code != 40018 {
		t.Errorf("a stream: %d %+v; want 400 and 40018", resp.StatusCode, problem)
	}
	var p engine.Request
	p.Group, p.Topic, p.Queue, p.InvisibleDuration, p.Wait = "g", "normal", -1, time.Minute, -1
	if _, err := x.b.Engine().Poll(t.Context(), p); refusal.CodeOf(err) != protocol.CodeIllegalPollingTime {
		t.Errorf("the engine: %v; want 40018", err)
	}
}

// Two times in a request, of which a proxy may have looked at the other one, are no credentials,
// on either wire.
func TestTwoTimesAreRejected(t *testing.T) {
	x := startWeb(t, server.Options{Access: someAccess()})
	once := signed(t.Context(), "producer")
	out, _ := metadata.FromOutgoingContext(once)
	twice := metadata.AppendToOutgoingContext(once, wire.HeaderDateTime, out.Get(wire.HeaderDateTime)[0])
	for _, c := range []struct {
		times int
		ctx   context.Context
		want  tidegate.Code
	}{{1, once, protocol.CodeOK}, {2, twice, tidegate.CodeUnauthorized}} {
		ctx := c.ctx
		r, err := x.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")})
		if err != nil || tidegate.Code(r.GetStatus().GetCode()) != c.want {
			t.Errorf("%d over gRPC: %v, %v; want %d", c.times, r, err, c.want)
		}
		if c.times == 2 {
			refused(t, r.GetStatus(), c.want, "malformed")
		}
		out, _ := metadata.FromOutgoingContext(ctx)
		req := x.request(t.Context(), "POST", "/v1/topics/normal/messages", strings.NewReader(`{"body":"eA=="}`), "Content-Type", server.TypeJSON,
			wire.HeaderAuthorization, out.Get(wire.HeaderAuthorization)[0])
		for _, at := range out.Get(wire.HeaderDateTime) {
			req.Header.Add(wire.HeaderDateTime, at)
		}
		resp, err := x.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if ok := resp.StatusCode == http.StatusOK; ok != (c.times == 1) || !ok && resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%d over HTTP: %s", c.times, resp.Status)
		}
	}
}

// A ping detects a client that vanished without closing its connection. The server sends it after a
// minute, and the client has 20 s to respond. A client that responds stays.
func TestKeepaliveFindsLostClients(t *testing.T) {
	for name, answers := range map[string]bool{"lost": false, "there": true} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, server.Options{})
			c, err := e.lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			began, lost := time.Now(), make(chan time.Duration, 1)
			go func() {
				// The preface and empty settings.
				io.WriteString(c, http2.ClientPreface)
				fr := http2.NewFramer(c, c)
				fr.WriteSettings()
				for {
					f, err := fr.ReadFrame()
					if err != nil {
						lost <- time.Since(began)
						return
					}
					if p, ok := f.(*http2.PingFrame); ok && answers && !p.IsAck() {
						fr.WritePing(true, p.Data)
					}
				}
			}()
			time.Sleep(90 * time.Second)
			select {
			case after := <-lost:
				if answers || after != 80*time.Second {
					t.Errorf("%s: the connection was closed after %v", name, after)
				}
			default:
				if !answers {
					t.Errorf("%s: the connection is open", name)
				}
			}
		})
	}
}
