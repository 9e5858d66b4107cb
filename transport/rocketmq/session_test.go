package rocketmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func times(calls []got) []time.Duration {
	var list []time.Duration
	for _, c := range calls {
		list = append(list, c.at)
	}
	return list
}

func expectTimes(t *testing.T, what string, calls []got, want ...time.Duration) {
	t.Helper()
	if got := times(calls); !slices.Equal(got, want) {
		t.Errorf("%s at %v, want %v", what, got, want)
	}
}

func TestSettings(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.Namespace = "ns" })
		// The settings that RocketMQ 5.2 pushes, adapted: no backoff shorter than the default,
		// and a fixed interval for ordered messages (RocketMQ: consumption retry).
		p, err := c.ProducerSettings(t.Context(), "t")
		want := (transport.ProducerSettings{MaxAttempts: 3, MaxBodySize: 4 << 20})
		assert.That(t, err == nil && p == want, "producer: %+v, %v, want %+v", p, err, want)
		for range 2 { // the second call makes no request
			g, err := c.ConsumerSettings(t.Context(), "g", "t")
			steps, _ := g.Retry.(backoff.Steps)
			g.Retry = nil
			if want := (transport.ConsumerSettings{FIFO: true, MaxAttempts: 17, ReceiveBatchSize: 32, LongPolling: 20 * time.Second}); err != nil || g != want ||
				!slices.Equal(steps, backoff.Steps{3 * time.Second}) {
				t.Errorf("consumer: %+v, %v, %v, want %+v", g, steps, err, want)
			}
		}
		sent := s.of("settings")
		assert.MustEqual(t, "settings", len(sent), 2)
		producer := sent[0].req.(*rmqpb.TelemetryCommand).GetSettings()
		consumer := sent[1].req.(*rmqpb.TelemetryCommand).GetSettings()
		if producer.GetClientType() != rmqpb.ClientType_PRODUCER || producer.GetPublishing().GetTopics()[0].GetName() != "t" {
			t.Errorf("producer sent %v", producer)
		}
		sub := consumer.GetSubscription()
		if consumer.GetClientType() != rmqpb.ClientType_PUSH_CONSUMER || sub.GetGroup().GetName() != "g" ||
			sub.GetGroup().GetResourceNamespace() != "ns" || len(sub.GetSubscriptions()) != 1 ||
			consumer.GetAccessPoint().GetAddresses()[0].GetPort() != 8081 || consumer.GetUserAgent().GetLanguage() != rmqpb.Language_GOLANG {
			t.Errorf("consumer sent %v", consumer)
		}
		a, b := sent[0].md.Get("x-mq-client-id"), sent[1].md.Get("x-mq-client-id")
		assert.That(t, a[0] != b[0], "producer and consumer have one client ID: %v", a)
		// The client announces another topic at once, on the same stream.
		assert.NoError(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "u")))
		synctest.Wait()
		sent = s.of("settings")
		if len(sent) != 3 || len(sent[2].req.(*rmqpb.TelemetryCommand).GetSettings().GetSubscription().GetSubscriptions()) != 2 {
			t.Errorf("after another topic: %v", sent)
		}
		assert.Equal(t, "streams", len(s.of("Telemetry")), 2)
	})
}

// The client repeats its settings every 5 min. It sends heartbeats when the session opens and every
// 10 s.
func TestCadence(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		for _, d := range []time.Duration{9 * time.Minute, 2*time.Minute - time.Second} {
			assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
			time.Sleep(d)
		}
		expectTimes(t, "settings", s.of("settings"), 0, 5*time.Minute, 10*time.Minute)
		beats := s.of("Heartbeat")
		assert.MustEqual(t, "heartbeats", len(beats), 66)
		for i, b := range beats {
			r := b.req.(*rmqpb.HeartbeatRequest)
			if b.at != time.Duration(i)*10*time.Second || r.GetGroup().GetName() != "g" || r.GetClientType() != rmqpb.ClientType_PUSH_CONSUMER {
				t.Errorf("heartbeat %d at %v: %v", i, b.at, r)
			}
		}
	})
}

// If the response to a heartbeat reports an unknown client, the client sends its settings again.
func TestHeartbeatForgotten(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.heartbeat = func() *rmqpb.Status {
			if time.Since(s.began) == 10*time.Second {
				return &rmqpb.Status{Code: rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE}
			}
			return ok
		}
		assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), "t")))
		time.Sleep(time.Minute)
		expectTimes(t, "settings", s.of("settings"), 0, 10*time.Second)
		g := s.of("Heartbeat")[0].req.(*rmqpb.HeartbeatRequest)
		assert.That(t, g.Group == nil && g.GetClientType() == rmqpb.ClientType_PRODUCER, "heartbeat of a producer: %v", g)
	})
}

// The client also sends them at once if the response to a receive or an acknowledgement reports an
// unknown client: a lease may end before the next heartbeat.
func TestRequestForgotten(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		forgotten := &rmqpb.Status{Code: rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE}
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			return st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: forgotten}})
		}
		s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
			return &rmqpb.AckMessageResponse{Status: forgotten}
		}
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		time.Sleep(time.Second)
		_, err := c.Receive(t.Context(), request1)
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && e.Code == protocol.CodeUnrecognizedClientType, "%v", err)
		time.Sleep(time.Second)
		if err := c.Ack(t.Context(), []*tidegate.Delivery{{ConsumerGroup: "g", Message: tidegate.Message{Topic: "t"}, Handle: "h", Endpoint: testAddr}})[0]; err == nil {
			t.Error("acknowledged")
		}
		time.Sleep(time.Second)
		list := times(s.of("settings"))
		if n := len(list); n < 3 || list[n-2] != time.Second || list[n-1] != 2*time.Second {
			t.Errorf("settings at %v, want them after the receive and after the acknowledgement, at 1s and 2s", list)
		}
	})
}

// The largest duration means "for ever": it does not overflow to a time in the past.
func TestForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const always = time.Duration(math.MaxInt64)
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.receive = empty
		c := newClient(t, n, func(o *rocketmq.Options) {
			o.RequestTimeout, o.HeartbeatInterval, o.RouteRefresh, o.SettingsSync = always, always, always, always
			o.MaxReceiveSize = math.MaxInt
		})
		sent(t, c, message("x"))
		r := request1
		r.Wait = always
		assert.NoError(t, assert.Err(c.Receive(t.Context(), r)))
		s.stop()
		time.Sleep(time.Minute)
		s.start()
		time.Sleep(5 * time.Minute)
		assert.Equal(t, "sessions", s.openSessions(), 1)
	})
}

// If a server does not respond to settings, the client waits for 3 s and the request timeout.
func TestSettingsTimeout(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			<-st.Context().Done()
			return nil
		}
		begin := time.Now()
		_, err := c.ConsumerSettings(t.Context(), "g", "t")
		if took := time.Since(begin); took != 6*time.Second || !errors.Is(err, tidegate.ErrUnavailable) {
			t.Errorf("%v after %v, want unavailable after 6s", err, took)
		}
		synctest.Wait() // that attempt is over
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGone)
		defer cancel()
		assert.Is(t, "err", assert.Err(c.ConsumerSettings(ctx, "g", "t")), errGone)
	})
}

// A server that rejects the settings is quoted at once.
func TestSettingsRejected(t *testing.T) {
	for name, tt := range map[string]struct {
		telemetry func(rmqpb.MessagingService_TelemetryServer) error
		want      tidegate.Code
	}{
		"command": {func(st rmqpb.MessagingService_TelemetryServer) error {
			st.Send(&rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_CLIENT_ID_REQUIRED}})
			<-st.Context().Done()
			return nil
		}, protocol.CodeClientIDRequired},
		"stream": {func(rmqpb.MessagingService_TelemetryServer) error {
			return status.Error(codes.InvalidArgument, "no")
		}, tidegate.CodeBadRequest},
		"end": {func(rmqpb.MessagingService_TelemetryServer) error { return nil }, 0},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			n := newNetwork()
			newServer(t, n, testAddr).telemetry = tt.telemetry
			c := newClient(t, n, nil)
			begin := time.Now()
			_, err := c.ConsumerSettings(t.Context(), "g", "t")
			e, isErr := errors.AsType[*tidegate.Error](err)
			if !isErr || e.Code != tt.want || time.Since(begin) != 0 || errors.Is(err, tidegate.ErrUnavailable) != (tt.want == 0) {
				t.Errorf("%v after %v, want code %d at once", err, time.Since(begin), tt.want)
			}
		})
	}
}

// A lockedBuffer takes the logs of goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Lost streams are opened again with the backoff, which starts again after a
// stream that worked; a caller that waits has to wait a second at most.
func TestSessionReopened(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		var broken atomic.Bool
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			if broken.Load() {
				return status.Error(codes.Unavailable, "broken")
			}
			go func() { // it works for 10 s
				time.Sleep(10 * time.Second)
				broken.Store(true)
			}()
			cmd, err := st.Recv()
			if err != nil {
				return nil
			}
			st.Send(serverSettings(cmd.GetSettings()))
			time.Sleep(10 * time.Second)
			return nil
		}
		var log lockedBuffer
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		synctest.Wait()
		assert.That(t, !strings.Contains(log.String(), "session restored"),
			"the first session is logged as one that is back: %s", log.String())
		sec := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
		time.Sleep(19 * time.Second)
		expectTimes(t, "streams", s.of("Telemetry"), 0, sec(11), sec(12.6), sec(15.16)) // 1 s, 1.6 s, 2.56 s, then 4.096 s
		_, err := c.ConsumerSettings(t.Context(), "g", "t")                             // requests an attempt now
		assert.That(t, errors.Is(err, tidegate.ErrUnavailable) && time.Since(s.began) == sec(19), "at %v: %v", time.Since(s.began), err)
		broken.Store(false)
		if _, err := c.ConsumerSettings(t.Context(), "g", "t"); err != nil || time.Since(s.began) != sec(20) {
			t.Errorf("at %v: %v; want settings a second after the last attempt", time.Since(s.began), err)
		}
		synctest.Wait()
		n := strings.Count(log.String(), "session restored")
		assert.That(t, n == 1, "%d times logged that the session restored, want 1: %s", n, log.String())
		time.Sleep(12 * time.Second) // ends at 30 s, and the backoff is 1 s again
		list := times(s.of("Telemetry"))
		assert.That(t, list[len(list)-1] == sec(31), "streams at %v, want the last at 31s", list)
	})
}

// A session survives a restart of the server. An unused session stops connecting to a dead server.
func TestSessionRestartAndIdle(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		s.stop()
		time.Sleep(10 * time.Second)
		assert.Is(t, "server down", assert.Err(c.ConsumerSettings(t.Context(), "g", "t")), tidegate.ErrUnavailable)
		s.start()
		time.Sleep(30 * time.Second)
		assert.Equal(t, "settings after the restart", len(s.of("settings")), 2)
		s.stop()
		time.Sleep(15 * time.Minute)
		s.start()
		time.Sleep(5 * time.Minute)
		assert.Equal(t, "sessions", s.openSessions(), 0)
		c.ResetConnectBackoff()
		synctest.Wait()
		assert.NoError(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")), "a new session")
	})
}

// A counted connection counts its end.
type counted struct {
	net.Conn
	once   sync.Once
	closed *atomic.Int64
}

func (c *counted) Close() error {
	c.once.Do(func() { c.closed.Add(1) })
	return c.Conn.Close()
}

// The client handles each command that a server may send on the stream.
func TestCommands(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		s.features = "batch"
		asked := false
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			if !asked {
				asked = true
				go func() {
					time.Sleep(time.Second)
					st.Send(&rmqpb.TelemetryCommand{})
					st.Send(&rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_BAD_REQUEST}})
					st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{}})
					st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_PrintThreadStackTraceCommand{
						PrintThreadStackTraceCommand: &rmqpb.PrintThreadStackTraceCommand{Nonce: "n1"}}})
					st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_VerifyMessageCommand{
						VerifyMessageCommand: &rmqpb.VerifyMessageCommand{Nonce: "n2"}}})
					time.Sleep(time.Second)
					st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{
						ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{}}})
				}()
			}
			return s.answerSettings(st)
		}
		var dials, closed atomic.Int64
		c := newClient(t, s.net, func(o *rocketmq.Options) {
			o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
				dials.Add(1)
				c, err := s.net.dial(ctx, addr)
				return &counted{Conn: c, closed: &closed}, err
			}
		})
		assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), "t")))
		time.Sleep(5 * time.Second)
		answers := s.of("command")
		assert.MustEqual(t, "responses", len(answers), 2)
		// The codes are those of the table in RocketMQ's StatusCode.md.
		trace, verified := answers[0].req.(*rmqpb.TelemetryCommand), answers[1].req.(*rmqpb.TelemetryCommand)
		assert.That(t, trace.GetThreadStackTrace().GetNonce() == "n1" && trace.GetStatus().GetCode() == rmqpb.Code_NOT_IMPLEMENTED, "response 1: %v", trace)
		assert.That(t, verified.GetVerifyMessageResult().GetNonce() == "n2" && verified.GetStatus().GetCode() == rmqpb.Code_FAILED_TO_CONSUME_MESSAGE, "response 2: %v", verified)
		expectTimes(t, "streams", s.of("Telemetry"), 0, 3*time.Second)
		assert.Equal(t, "connections; the first one was not replaced", dials.Load(), 2)
		time.Sleep(2 * time.Minute)
		assert.Equal(t, "connections are closed", closed.Load(), 1)
	})
}

// A push consumer of several topics is one client to the server: its settings announce all
// subscriptions with their filters, as those of official clients do.
func TestSettingsAnnounceAllSubscriptions(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendStatus(st, rmqpb.Code_MESSAGE_NOT_FOUND)
			return nil
		}
		filters := map[string]tidegate.Filter{"orders": {Expression: "paid||refunded"}, "returns": {}, "stock": {Expression: "region = 'eu'", SQL: true}}
		var wg sync.WaitGroup
		for topic, filter := range filters {
			wg.Go(func() { // as the consumer does for each of its topics
				assert.NoError(t, assert.Err(c.ConsumerSettings(t.Context(), "g", topic)))
				assert.NoError(t, assert.Err(c.Receive(t.Context(), transport.ReceiveRequest{
					Group: "g", Topic: topic, Queue: transport.AnyQueue, Push: true, Filter: filter, InvisibleDuration: time.Minute,
				})))
			})
		}
		wg.Wait()
		synctest.Wait()
		sent := s.of("settings")
		clients := map[string]bool{}
		for _, x := range sent {
			clients[x.md.Get("x-mq-client-id")[0]] = true
		}
		assert.That(t, len(clients) == 1 && len(s.of("Telemetry")) == 1,
			"the clients %v announce settings on %d streams, want one", slices.Collect(maps.Keys(clients)), len(s.of("Telemetry")))
		got := map[string]string{}
		last := sent[len(sent)-1].req.(*rmqpb.TelemetryCommand).GetSettings()
		for _, e := range last.GetSubscription().GetSubscriptions() {
			got[e.GetTopic().GetName()] = fmt.Sprint(e.GetExpression().GetType(), " ", e.GetExpression().GetExpression())
		}
		want := map[string]string{"orders": "TAG paid||refunded", "returns": "TAG *", "stock": "SQL region = 'eu'"}
		assert.That(t, maps.Equal(got, want) && last.GetClientType() == rmqpb.ClientType_PUSH_CONSUMER,
			"a %v announces %v, want a push consumer with %v", last.GetClientType(), got, want)
	})
}

// A server that asks every session for a new connection gets one.
func TestReconnectOnceForAllSessions(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		asked := time.Now().Add(time.Minute)
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			if left := time.Until(asked); left > 0 {
				time.AfterFunc(left, func() {
					st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{
						ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{}}})
				})
			}
			return s.answerSettings(st)
		}
		var dials atomic.Int64
		c := newClient(t, s.net, func(o *rocketmq.Options) {
			o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
				dials.Add(1)
				return s.net.dial(ctx, addr)
			}
		})
		const groups = 5
		for i := range groups {
			assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), fmt.Sprint("g", i), "t")))
		}
		time.Sleep(5 * time.Minute)
		assert.Equal(t, "connections", dials.Load(), 2)
		assert.Equal(t, "streams: each opened once more", len(s.of("Telemetry")), 2*groups)
	})
}

// A server that sends messages without a handle, or more than the request asked for, does not fill
// the log. The number of skipped lines is in the log.
func TestBrokenMessagesDoNotFillTheLog(t *testing.T) {
	for name, tt := range map[string]struct {
		broken func(*rmqpb.Message)
		number int
		line   string
	}{
		"no handle": {func(m *rmqpb.Message) { m.SystemProperties.ReceiptHandle = nil }, 32, "message not received"},
		"too many":  {nil, 33, "more messages than the receive requested"},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t, newNetwork(), testAddr)
			var log bytes.Buffer
			c := newClient(t, s.net, func(o *rocketmq.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
				time.Sleep(10 * time.Millisecond)
				st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: ok}})
				for range tt.number {
					st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: delivered(tt.broken)}})
				}
				return nil
			}
			r := request1
			r.Max = 32
			for begin := time.Now(); time.Since(begin) < 4*time.Second; {
				assert.Must(t, assert.Err(c.Receive(t.Context(), r)))
			}
			got := log.String()
			if lines := strings.Count(got, "\n"); lines < 4*32-1 || lines > 5*32 || !strings.Contains(got, tt.line) || !strings.Contains(got, "skipped_lines=") {
				t.Errorf("%d lines in 4 s, want about 32 a second: %.500s", lines, got)
			}
		})
	}
}

// Servers that a route names and that are never used cost neither goroutines nor time at Close.
func TestUnusedServersCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const servers = 5000
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.route = func() *rmqpb.QueryRouteResponse {
			res := &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(testAddr, "a", 1)}
			for i := range servers {
				res.MessageQueues = append(res.MessageQueues, queues(fmt.Sprintf("10.0.%d.%d:8081", i/250, i%250+1), fmt.Sprint("b", i), 1)...)
			}
			return res
		}
		c := newClient(t, n, nil)
		before := runtime.NumGoroutine()
		if queues, err := c.Queues(t.Context(), "g", "orders"); err != nil || len(queues) != servers+1 {
			t.Fatalf("%d queues, %v; want one of each server of the route", len(queues), err)
		}
		synctest.Wait()
		more := runtime.NumGoroutine() - before
		assert.That(t, more <= 100, "%d goroutines for %d servers without a request", more, servers)
	})
}

// openGroups opens the sessions of so many groups.
func openGroups(t *testing.T, c *rocketmq.Client, n int) {
	t.Helper()
	for i := range n {
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), fmt.Sprint("g", i), "t")))
	}
}

// sinceStart returns the times 0, step, 2*step and so on up to last.
func sinceStart(step, last time.Duration) (list []time.Duration) {
	for at := time.Duration(0); at <= last; at += step {
		list = append(list, at)
	}
	return list
}

// On another server each session sends its own. So it does if the next connection leads to one.
func TestHeartbeatsOnOtherServers(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "heartbeats"
		openGroups(t, c, 5)
		time.Sleep(15 * time.Second)
		s.stop()
		synctest.Wait()
		s.features = ""
		s.start()
		time.Sleep(17 * time.Second) // not at a multiple of 10 s, when a heartbeat may be due
		before := len(s.of("Heartbeat"))
		time.Sleep(time.Minute)
		if got := len(s.of("Heartbeat")) - before; got != 30 {
			t.Errorf("%d heartbeats of 5 sessions in a minute without the feature, want 30", got)
		}
		got := s.of("Heartbeat")[before].md.Get(wire.HeaderFeatures)
		assert.That(t, got == nil, "a heartbeat announces %v", got)
		s.stop()
		synctest.Wait()
		s.features = "heartbeats"
		s.start()
		time.Sleep(17 * time.Second) // not at a multiple of 10 s, when a heartbeat may be due
		before = len(s.of("Heartbeat"))
		time.Sleep(time.Minute)
		assert.Equal(t, "heartbeats of 5 sessions in a minute with the feature", (len(s.of("Heartbeat")) - before), 6)
	})
}

// Sessions with one server that announces it take turns: one heartbeat in 10 s is enough. They go
// on when a session ends, also the one whose turn it is, and after a failure. A session ends after
// 30 s without use.
func TestHeartbeatTurnsEnd(t *testing.T) {
	for turn := range 5 { // of the session that ends
		serving(t, func(t *testing.T, s *fakeServer) {
			s.features = "heartbeats"
			s.heartbeat = func() *rmqpb.Status {
				if time.Since(s.began) == 20*time.Second {
					return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR}
				}
				return ok
			}
			c := newClient(t, s.net, func(o *rocketmq.Options) { o.SettingsSync = 15 * time.Second })
			for at := range 70 {
				for g := range 5 {
					if g == turn && at > 5 {
						continue
					}
					assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), fmt.Sprint("g", g), "t")))
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			beats, groups := s.of("Heartbeat"), map[string]bool{}
			expectTimes(t, "heartbeats", beats, sinceStart(10*time.Second, 70*time.Second)...)
			for _, b := range beats {
				groups[b.req.(*rmqpb.HeartbeatRequest).GetGroup().GetName()] = true
				assert.Slices(t, "a heartbeat announces", b.md.Get(wire.HeaderFeatures), []string{"heartbeats"})
			}
			assert.That(t, len(groups) >= 3, "heartbeats of %v, want those of several groups", groups)
		})
	}
}

// A server that takes shared heartbeats asks for lost settings in the stream. On other servers the
// same status must not lead to further settings, because it may be the response to settings.
func TestServerAsksForSettings(t *testing.T) {
	for features, want := range map[string]int{"heartbeats": 2, "batch": 1} {
		serving(t, func(t *testing.T, s *fakeServer) {
			s.features = features
			var asked atomic.Bool
			s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
				go func() {
					time.Sleep(time.Second)
					if asked.CompareAndSwap(false, true) {
						st.Send(&rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE}})
					}
				}()
				return s.answerSettings(st)
			}
			openGroups(t, newClient(t, s.net, nil), 1)
			time.Sleep(time.Minute)
			got := len(s.of("settings"))
			assert.That(t, got == want, "with the feature %s, %d settings; want %d", features, got, want)
		})
	}
}

// The session of a group without consumers terminates, although the server is healthy. A
// later consumer gets a new session.
func TestUnusedSessionEnds(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		ask := func(name string) {
			t.Helper()
			assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), name)))
			assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", name)))
		}
		ask("t")
		time.Sleep(15 * time.Minute)
		assert.MustEqual(t, "sessions are left", s.openSessions(), 0)
		bye, beats := s.of("NotifyClientTermination"), s.of("Heartbeat")
		groups := []string{}
		for _, b := range bye {
			groups = append(groups, b.req.(*rmqpb.NotifyClientTerminationRequest).GetGroup().GetName())
		}
		if slices.Sort(groups); !slices.Equal(groups, []string{"", "g"}) {
			t.Errorf("good-byes for %q, want the producer and g", groups)
		}
		if last := beats[len(beats)-1].at; last > bye[0].at {
			t.Errorf("a heartbeat at %v, after the good-bye at %v", last, bye[0].at)
		}
		ask("t")
		time.Sleep(10 * time.Second)
		assert.That(t, len(s.of("Heartbeat")) > len(beats), "no heartbeats of the new session")
	})
}

// A server gets another address, and keeps the old one for a while. The session with the old
// address ends without a termination, because that would end the session with the new address too.
// Later the last session of each role sends the termination.
func TestMovedSessionSendsNoTermination(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.net.mu.Lock()
		s.net.ports[otherAddr] = s.net.ports[testAddr]
		s.net.mu.Unlock()
		s.receive = empty
		poll := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
				assert.Must(t, assert.Err(c.Receive(t.Context(), request1)))
				assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), "t")))
			}
		}
		poll(time.Minute)
		synctest.Wait() // for the questions for routes that are under way
		s.route = routed(queues(otherAddr, "broker-a", 1))
		poll(time.Minute)
		assert.MustEqual(t, "sessions", s.openSessions(), 4)
		poll(16 * time.Minute)
		assert.Equal(t, "sessions", s.openSessions(), 2)
		assert.Equal(t, "good-byes while the sessions live", len(s.of("NotifyClientTermination")), 0)
		time.Sleep(16 * time.Minute)
		if got, bye := s.openSessions(), s.of("NotifyClientTermination"); got != 0 || len(bye) != 2 {
			t.Errorf("%d sessions and %d good-byes in the end", got, len(bye))
		}
	})
}

// A consumer that starts during the termination gets a session that was opened after it.
func TestSessionWantedDuringGoodbye(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.goodbye = func() { time.Sleep(time.Second / 2) }
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		time.Sleep(10*time.Minute + 100*time.Millisecond)
		assert.MustEqual(t, "good-byes", len(s.of("NotifyClientTermination")), 1)
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "u")))
		expectTimes(t, "streams", s.of("Telemetry"), 0, 10*time.Minute+time.Second/2)
		assert.Equal(t, "sessions", s.openSessions(), 1)
	})
}

// A session stays as long as something that it received can be settled: with
// it, servers forget whose deliveries they were.
func TestSessionStaysForDeliveries(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendTime(st, time.Now())
			sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.InvisibleDuration = durationpb.New(time.Hour) })
			sendStatus(st, rmqpb.Code_OK)
			return nil
		}
		s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
			return &rmqpb.ChangeInvisibleDurationResponse{Status: ok, ReceiptHandle: "new"}
		}
		r := request1
		r.InvisibleDuration = time.Hour
		ds, err := c.Receive(t.Context(), r)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		time.Sleep(50 * time.Minute)
		assert.Must(t, assert.Err(c.Extend(t.Context(), ds[0], time.Hour, false)))
		time.Sleep(59 * time.Minute)
		assert.That(t, s.openSessions() == 1 && len(s.of("Telemetry")) == 1,
			"%d sessions after %d streams, want the first one", s.openSessions(), len(s.of("Telemetry")))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, "the session is still there", s.openSessions(), 0)
	})
}

// A receive that waits for longer than a session is kept without use keeps it.
func TestSessionStaysForReceive(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = func(r *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
			time.Sleep(time.Hour)
			return empty(r, st)
		}
		r := request1
		r.Wait = time.Hour
		assert.Must(t, assert.Err(c.Receive(t.Context(), r)))
		assert.Equal(t, "good-byes during the receive", len(s.of("NotifyClientTermination")), 0)
	})
}

// A topic for each job: settings forget earlier topics, and never name more topics than a tidegate
// broker accepts, at any rate of new topics.
func TestManyTopicsInTurn(t *testing.T) {
	for name, tt := range map[string]struct {
		topics, named int // how many, and how many the settings name at most
		pace          time.Duration
		filter        int // bytes of each topic's, so that few topics are enough
	}{
		"slowly":  {60, 31, 20 * time.Second, 1}, // those of 10 min
		"at once": {100, 50, 0, 1000},
	} {
		servedAs(t, name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = empty
			last := 0
			s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
				for {
					cmd, err := st.Recv()
					if err != nil {
						return nil
					}
					if size := proto.Size(cmd); size > 64<<10 {
						return status.Errorf(codes.InvalidArgument, "settings: they have %d bytes", size)
					}
					last = len(cmd.GetSettings().GetSubscription().GetSubscriptions())
					st.Send(serverSettings(&rmqpb.Settings{PubSub: cmd.GetSettings().GetPubSub()}))
				}
			}
			r := request1
			r.Wait = 0
			r.Filter.Expression = strings.Repeat("x", tt.filter)
			for i := range tt.topics {
				r.Topic = fmt.Sprintf("job-%d", i)
				assert.Must(t, assert.Err(c.Receive(t.Context(), r)), "topic %d", i)
				time.Sleep(tt.pace)
			}
			r.Topic = fmt.Sprintf("job-%d", 0)
			assert.Must(t, assert.Err(c.Receive(t.Context(), r)), "the first topic again")
			synctest.Wait()
			assert.That(t, last <= tt.named && last >= 2, "the last settings name %d topics, want at most %d", last, tt.named)
			assert.Equal(t, "streams", len(s.of("Telemetry")), 1)
		})
	}
}
