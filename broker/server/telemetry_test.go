package server_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

type stream = grpc.BidiStreamingClient[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]

func command(s *rmqpb.Settings) *rmqpb.TelemetryCommand {
	return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: s}}
}

// consumer returns the settings of a consumer of the group "g".
func consumer(kind rmqpb.ClientType) *rmqpb.Settings {
	return &rmqpb.Settings{
		ClientType:     &kind,
		RequestTimeout: durationpb.New(3 * time.Second),
		UserAgent:      &rmqpb.UA{Version: "5.0"},
		PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
			Group:              res("g"),
			Subscriptions:      []*rmqpb.SubscriptionEntry{{Topic: res("normal"), Expression: &rmqpb.FilterExpression{Expression: "*"}}},
			LongPollingTimeout: durationpb.New(30 * time.Second),
		}},
	}
}

func producer(topics ...string) *rmqpb.Settings {
	pub := &rmqpb.Publishing{}
	for _, t := range topics {
		pub.Topics = append(pub.Topics, res(t))
	}
	return &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: pub}}
}

// telemetry opens a stream, sends settings and returns the response.
func (e *env) telemetry(ctx context.Context, s *rmqpb.Settings) (stream, *rmqpb.Settings) {
	e.t.Helper()
	st := assert.Value(e.Telemetry(ctx))(e.t)
	assert.Must(e.t, st.Send(command(s)))
	return st, e.settings(st)
}

// settings reads a command that has to be settings.
func (e *env) settings(st stream) *rmqpb.Settings {
	e.t.Helper()
	cmd := assert.Value(st.Recv())(e.t)
	if cmd.GetStatus().GetCode() != rmqpb.Code_OK || cmd.GetSettings() == nil {
		e.t.Fatalf("command %v; want status OK and settings", cmd)
	}
	return cmd.GetSettings()
}

// The settings for each language: RocketMQ's clients differ in the settings that they can read.
func TestTelemetrySettings(t *testing.T) {
	fifo := settings.Group{FIFO: true, MaxAttempts: 4}
	short := settings.Group{Retry: backoff.Steps{time.Second, 5 * time.Second}, MaxAttempts: -1}
	for _, c := range []struct {
		name     string
		language string
		group    *settings.Group
		in       *rmqpb.Settings
		attempts int32
		policy   string
	}{
		{"producer", "GO", nil, producer("normal"), 3, "exponential 1s 2m0s 1.6"},
		{"producer of nothing known", "PYTHON", nil, producer("nowhere"), 3, "exponential 1s 2m0s 1.6"},
		{"Node's producer", "HTTP", nil, producer(), 3, "exponential 1s 2m0s 1.6"},
		{"push", "JAVA", nil, consumer(rmqpb.ClientType_PUSH_CONSUMER), 17, "customized 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"},
		{"simple", "PYTHON", nil, consumer(rmqpb.ClientType_SIMPLE_CONSUMER), 17, "customized 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"},
		{"Node's push", "HTTP", nil, consumer(rmqpb.ClientType_PUSH_CONSUMER), 17, "exponential 10s 2h0m0s 2"},
		{"FIFO", "GO", &fifo, consumer(rmqpb.ClientType_PUSH_CONSUMER), 4, "customized 3s"},
		{"Node's FIFO", "HTTP", &fifo, consumer(rmqpb.ClientType_PUSH_CONSUMER), 4, "exponential 3s 3s 1"},
		{"ladder of its own", "RUST", &short, consumer(rmqpb.ClientType_PUSH_CONSUMER), math.MaxInt32, "customized 1s 5s"},
		{"Node's ladder", "HTTP", &short, consumer(rmqpb.ClientType_PUSH_CONSUMER), math.MaxInt32, "exponential 1s 5s 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			withServer(t, server.Options{}, func(t *testing.T, e *env) {
				if c.group != nil {
					assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", *c.group)))
				}
				_, got := e.telemetry(as(t.Context(), "client", wire.HeaderLanguage, c.language), c.in)
				assert.Equal(t, "max_attempts", got.GetBackoffPolicy().GetMaxAttempts(), c.attempts)
				assert.Equal(t, "backoff", policy(got.GetBackoffPolicy()), c.policy)
				if got.GetMetric() == nil || got.GetMetric().GetOn() {
					t.Errorf("metric %v; want it off", got.GetMetric())
				}
				if got.GetClientType() != c.in.GetClientType() || !proto.Equal(got.GetUserAgent(), c.in.GetUserAgent()) ||
					!proto.Equal(got.GetRequestTimeout(), c.in.GetRequestTimeout()) {
					t.Errorf("settings %v do not echo %v", got, c.in)
				}
				if pub := got.GetPublishing(); pub != nil {
					if pub.GetMaxBodySize() != 4<<20 || !pub.GetValidateMessageType() || len(pub.GetTopics()) != len(c.in.GetPublishing().GetTopics()) {
						t.Errorf("publishing %v", pub)
					}
					return
				}
				sub := got.GetSubscription()
				if sub.GetFifo() != (c.group == &fifo) || sub.Fifo == nil || sub.GetReceiveBatchSize() != 32 ||
					sub.GetLongPollingTimeout().AsDuration() != 20*time.Second || sub.GetGroup().GetName() != "g" || len(sub.GetSubscriptions()) != 1 {
					t.Errorf("subscription %v", sub)
				}
			})
		})
	}
}

func policy(p *rmqpb.RetryPolicy) string {
	if x := p.GetExponentialBackoff(); x != nil {
		return fmt.Sprintf("exponential %v %v %.2g", x.GetInitial().AsDuration(), x.GetMax().AsDuration(), x.GetMultiplier())
	}
	var s backoff.Steps
	for _, d := range p.GetCustomizedBackoff().GetNext() {
		s = append(s, d.AsDuration())
	}
	return "customized " + s.String()
}

// With one of the two options set, producers get the default of the other.
func TestTelemetryProducerOptions(t *testing.T) {
	own := &backoff.Exponential{Initial: 10 * time.Millisecond, Max: time.Second, Multiplier: 2}
	for want, o := range map[string]server.Options{
		"exponential 10ms 1s 2 5":   {ProducerMaxAttempts: 5, ProducerBackoff: own},
		"exponential 1s 2m0s 1.6 7": {ProducerMaxAttempts: 7},
	} {
		withServer(t, o, func(t *testing.T, e *env) {
			_, settings := e.telemetry(e.ctx(), producer())
			got := settings.GetBackoffPolicy()
			assert.Equal(t, "policy and attempts", fmt.Sprint(policy(got), " ", got.GetMaxAttempts()), want)
		})
	}
}

// ended checks that a stream ends with a gRPC code and the text of its last status. Official
// clients show the gRPC status; without one, their errors are "EOF" and "Stream is already
// completed".
func ended(t testing.TB, st stream, code codes.Code, last *rmqpb.Status) {
	t.Helper()
	cmd, err := st.Recv()
	if got := status.Convert(err); got.Code() != code || got.Message() != last.GetMessage() {
		t.Errorf("after the status: %v, %v; want %v: %s", cmd, err, code, last.GetMessage())
	}
}

// A client of a type that the broker does not serve, or does not know, gets the reason at its
// start. Its receives take no message, because they could mean other messages than the broker
// understands.
func TestUnservedClientTypes(t *testing.T) {
	const push, lite = rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_LITE_SIMPLE_CONSUMER
	synctest.Test(t, func(t *testing.T) {
		e := startWeb(t, server.Options{})
		e.send(msg("normal", "1"))
		receive := func(ctx context.Context, code tidegate.Code, words ...string) {
			t.Helper()
			st, got := e.receive(ctx, receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(time.Second) }))
			if refused(t, st, code, words...); code != protocol.CodeOK && len(got) > 0 {
				t.Errorf("a refused client received %v", got)
			}
		}
		open := func(ctx context.Context, in *rmqpb.Settings) stream {
			ctx, cancel := context.WithTimeout(ctx, time.Hour) // a stream that stays silent fails the test
			t.Cleanup(cancel)
			st, err := e.Telemetry(ctx)
			if err == nil {
				err = st.Send(command(in))
			}
			assert.Must(t, err)
			return st
		}
		for _, c := range []struct {
			in    *rmqpb.Settings
			words []string
		}{
			{consumer(rmqpb.ClientType_PULL_CONSUMER), []string{"PULL_CONSUMER", "PUSH_CONSUMER"}},
			{consumer(lite), []string{"LITE_SIMPLE_CONSUMER", "use a LITE_PUSH_CONSUMER"}},
			{consumer(7), []string{"7", "does not know"}},
			{consumer(-1), []string{"-1", "does not know"}},
			{&rmqpb.Settings{ClientType: rmqpb.ClientType(99).Enum(), PubSub: producer("normal").PubSub}, []string{"99", "does not know", "PRODUCER"}},
		} {
			ctx := as(t.Context(), c.in.GetClientType().String())
			parked := make(chan *rmqpb.Status, 1)
			if c.in.GetClientType() == lite { // a receive that waits before the settings arrive
				go func() {
					st, _ := e.receive(ctx, receiveRequest("fifo"))
					parked <- st
				}()
				synctest.Wait()
			}
			st := open(ctx, c.in)
			cmd := assert.Value(st.Recv())(t)
			refused(t, cmd.GetStatus(), tidegate.CodeNotImplemented, c.words...)
			ended(t, st, codes.Unimplemented, cmd.GetStatus())
			receive(ctx, tidegate.CodeNotImplemented, c.words...)
			if c.in.GetClientType() == lite {
				began := time.Now()
				if st := <-parked; st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND || time.Since(began) > 0 {
					t.Errorf("the waiting receive got %v after %v", st, time.Since(began))
				}
			}
			r := assert.Value(e.Heartbeat(as(t.Context(), "beat"+c.in.GetClientType().String()), &rmqpb.HeartbeatRequest{Group: res("g"), ClientType: c.in.GetClientType()}))(t)
			refused(t, r.GetStatus(), tidegate.CodeNotImplemented, c.words...)
			receive(as(t.Context(), "beat"+c.in.GetClientType().String()), tidegate.CodeNotImplemented, c.words...)
		}
		assert.Equal(t, "the list of clients has refused ones", len(e.clients("", "").Clients), 0)

		// The same ID with another type is served, and so is one whose refusal was forgotten.
		ctx := as(t.Context(), lite.String())
		e.settings(open(ctx, consumer(push)))
		receive(ctx, protocol.CodeOK)
		time.Sleep(session.Timeout + time.Minute)
		receive(as(t.Context(), "beat"+lite.String()), protocol.CodeOK)

		// Some official clients leave the type of heartbeats unset.
		for _, kind := range []rmqpb.ClientType{rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED, push, rmqpb.ClientType_SIMPLE_CONSUMER, rmqpb.ClientType_PRODUCER} {
			r := assert.Value(e.Heartbeat(ctx, &rmqpb.HeartbeatRequest{Group: res("g"), ClientType: kind}))(t)
			refused(t, r.GetStatus(), protocol.CodeOK)
		}
	})
}

// Invalid settings end the stream. The server responds to all others, each time.
func TestTelemetryStreams(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for _, c := range []struct {
			name string
			in   *rmqpb.Settings
			code tidegate.Code
			word string
		}{
			{"no pub_sub", &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum()}, tidegate.CodeBadRequest, "publishing or subscription"},
			{"illegal topic", producer("a b"), protocol.CodeIllegalTopic, "a b"},
			{"illegal group", &rmqpb.Settings{PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{Group: res("a b")}}}, protocol.CodeIllegalConsumerGroup, "a b"},
			{"no group", &rmqpb.Settings{PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{}}}, protocol.CodeIllegalConsumerGroup, "empty"},
			{"not of one kind", &rmqpb.Settings{ClientType: rmqpb.ClientType_PUSH_CONSUMER.Enum(), PubSub: producer().PubSub}, tidegate.CodeBadRequest, "PUSH_CONSUMER"},
			{"too large", producer(strings.Repeat("t", 70<<10)), protocol.CodePayloadTooLarge, "65536"},
		} {
			st, err := e.Telemetry(e.ctx())
			assert.Must(t, err)
			assert.Must(t, st.Send(command(c.in)))
			cmd, err := st.Recv()
			assert.MustThat(t, err == nil, "%s: %v; want a status first", c.name, err)
			refused(named{t, c.name}, cmd.GetStatus(), c.code, c.word)
			ended(named{t, c.name}, st, codes.InvalidArgument, cmd.GetStatus())
		}

		st := assert.Value(e.Telemetry(t.Context()))(t)
		cmd := assert.Value(st.Recv())(t)
		refused(t, cmd.GetStatus(), protocol.CodeClientIDRequired)
		ended(t, st, codes.InvalidArgument, cmd.GetStatus())

		// Headers come before the first command: Rust waits for them.
		st = assert.Value(e.Telemetry(e.ctx()))(t)
		if h, err := st.Header(); err != nil || len(h.Get(wire.HeaderFeatures)) != 1 {
			t.Errorf("headers %v, %v", h, err)
		}
		// Commands without settings are ignored; settings get a response every time.
		for _, c := range []*rmqpb.TelemetryCommand{{}, {Command: &rmqpb.TelemetryCommand_ThreadStackTrace{}}} {
			assert.Must(t, st.Send(c))
		}
		for range 3 {
			assert.Must(t, st.Send(command(consumer(rmqpb.ClientType_PUSH_CONSUMER))))
			e.settings(st)
		}
		assert.Must(t, st.CloseSend())
		if _, err := st.Recv(); err != io.EOF {
			t.Errorf("after CloseSend: %v; want EOF", err)
		}
		// The settings outlive the stream.
		if r, err := e.Heartbeat(e.ctx(), &rmqpb.HeartbeatRequest{}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Errorf("heartbeat: %v, %v", r, err)
		}
	})
}

func TestHeartbeat(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		beat := func(id string) *rmqpb.Status {
			r := assert.Value(e.Heartbeat(as(t.Context(), id), &rmqpb.HeartbeatRequest{Group: res("g")}))(t)
			return r.GetStatus()
		}
		refused(t, beat("stranger"), protocol.CodeUnrecognizedClientType, "settings", "stranger")

		goStream, _ := e.telemetry(as(t.Context(), "go", wire.HeaderLanguage, "GO"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		nodeStream, _ := e.telemetry(as(t.Context(), "node", wire.HeaderLanguage, "HTTP"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		var toGo, toNode atomic.Int64
		for st, n := range map[stream]*atomic.Int64{goStream: &toGo, nodeStream: &toNode} {
			go func() {
				for {
					if _, err := st.Recv(); err != nil {
						return
					}
					n.Add(1)
				}
			}()
		}
		refused(t, beat("go"), protocol.CodeOK)
		refused(t, beat("node"), protocol.CodeOK)
		synctest.Wait()
		if toGo.Load() != 0 || toNode.Load() != 1 {
			t.Errorf("settings after a heartbeat: %d for Go, %d for Node; want one for Node alone", toGo.Load(), toNode.Load())
		}
		// Clients get the settings of a changed group at once, after a change by the process of the
		// broker and by the admin, and not again with a heartbeat.
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 5})))
		synctest.Wait()
		if toGo.Load() != 1 || toNode.Load() != 2 {
			t.Errorf("settings after a change: %d for Go, %d for Node; want 1 and 2", toGo.Load(), toNode.Load())
		}
		refused(t, beat("go"), protocol.CodeOK)
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "other", settings.Group{MaxAttempts: 5})))
		synctest.Wait()
		if toGo.Load() != 1 || toNode.Load() != 2 {
			t.Errorf("settings after a heartbeat, and a change of another group: %d for Go, %d for Node; want 1 and 2", toGo.Load(), toNode.Load())
		}
		w := e.serve(httptest.NewRequest("PUT", "/v1/groups/g", strings.NewReader(`{"max_attempts":6}`)))
		assert.MustThat(t, w.Code == http.StatusOK, "%v", w.Body)
		synctest.Wait()
		if toGo.Load() != 2 || toNode.Load() != 3 {
			t.Errorf("settings after PUT: %d for Go, %d for Node; want one more for each", toGo.Load(), toNode.Load())
		}
		// Address settings may concern any group.
		assert.Must(t, assert.Err(e.b.PutAddressSettings(t.Context(), "#", settings.Address{})))
		synctest.Wait()
		assert.Must(t, e.b.DeleteAddressSettings(t.Context(), "#"))
		synctest.Wait()
		if toGo.Load() != 4 || toNode.Load() != 5 {
			t.Errorf("settings after two changes of address settings: %d for Go, %d for Node; want two more for each", toGo.Load(), toNode.Load())
		}
	})
}

// RocketMQ's Go client opens another Telemetry stream only minutes after its
// server ended. Until then a new server does not know its settings.
func TestPushConsumerWithoutSettings(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 1})))
		e.send(msg("normal", "1"))
		m := e.one(e.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.AutoRenew = true }))

		// Heartbeats keep its messages from others.
		for range 3 {
			time.Sleep(50 * time.Second)
			r := assert.Value(e.Heartbeat(e.ctx(), &rmqpb.HeartbeatRequest{Group: res("g")}))(t)
			refused(t, r.GetStatus(), protocol.CodeUnrecognizedClientType)
		}
		// A failure counts as the only attempt, and the message is a dead letter at once.
		r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
			Group: res("g"), Topic: res("normal"), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(), MessageId: "1",
			InvisibleDuration: durationpb.New(time.Hour),
		})
		assert.Must(t, err)
		refused(t, r.GetStatus(), protocol.CodeOK)
		assert.NoError(t, assert.Err(e.b.Topic("%DLQ%g")), "there is no dead letter")
	})
}

// At shutdown streams end without an error, waiting receives return, and then the server ends.
func TestShutdown(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		st, _ := e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		parked := make(chan rmqpb.Code, 1)
		go func() {
			s, _ := e.receive(e.ctx(), receiveRequest("normal"))
			parked <- s.GetCode()
		}()
		synctest.Wait()
		began := time.Now()
		assert.Must(t, e.s.Shutdown(t.Context()))
		if _, err := st.Recv(); err != io.EOF {
			t.Errorf("the stream ended with %v; want EOF", err)
		}
		assert.Equal(t, "the parked receive got", <-parked, rmqpb.Code_MESSAGE_NOT_FOUND)
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
		assert.NoError(t, e.s.Shutdown(t.Context()))
		e.s.Close()
		assert.Is(t, "Serve after Shutdown", e.s.Serve(bufconn.Listen(1)), tidegate.ErrClosed)
	})
}

// A request that does not end is cut off when Shutdown's time is over.
func TestShutdownCutsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{append: func(ctx context.Context, _ []engine.Incoming) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		e := start(t, server.Options{}, f)
		got := make(chan error, 1)
		go func() {
			_, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}})
			got <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := e.s.Shutdown(ctx); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("Shutdown: %v after %v", err, time.Since(began))
		}
		assert.Equal(t, "the request got", status.Code(<-got), codes.Unavailable)
	})
}

// topicNames returns n names of topics that begin with prefix.
func topicNames(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

// subscriber returns the settings of a push consumer of these topics.
func subscriber(topics ...string) *rmqpb.Settings {
	s := consumer(rmqpb.ClientType_PUSH_CONSUMER)
	var list []*rmqpb.SubscriptionEntry
	for _, t := range topics {
		list = append(list, &rmqpb.SubscriptionEntry{Topic: res(t)})
	}
	s.GetSubscription().Subscriptions = list
	return s
}

// Settings name as many topics as have room in 64 KiB, since an SDK names all that
// it ever used. All that are published are remembered, for checks of transactions.
func TestSettingsOfManyTopics(t *testing.T) {
	e := start(t, server.Options{})
	for n, want := range map[int]tidegate.Code{2000: protocol.CodeOK, 5500: protocol.CodeOK, 10_000: protocol.CodePayloadTooLarge} {
		id := fmt.Sprint("client-", n)
		st := assert.Value(e.Telemetry(as(t.Context(), id)))(t)
		assert.Must(t, st.Send(command(producer(topicNames("t", n)...))))
		cmd := assert.Value(st.Recv())(t)
		refused(named{t, id}, cmd.GetStatus(), want)
		if want != protocol.CodeOK {
			continue
		}
		known := 0
		for _, topic := range topicNames("t", n) {
			known += len(e.s.Parts().Sessions.Publishing(topic))
		}
		assert.Equal(t, "topics are known to be published", known, n)
		assert.Must(t, st.CloseSend())
		_, _ = st.Recv()
	}
}

// The settings of a client with a thousand topics are stored in their encoded form, not ten times
// as large.
func TestSettingsAreKeptSmall(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		in := subscriber(topicNames("t", 1000)...)
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		stay := func(i int) { // the stream ends, the session stays
			st, _ := e.telemetry(as(t.Context(), fmt.Sprint("client-", i)), in)
			assert.Must(t, st.CloseSend())
			_, _ = st.Recv()
		}
		stay(0)
		before := heap()
		for i := range 100 {
			stay(i + 1)
		}
		if n := (heap() - before) >> 10; n > 3<<10 {
			t.Errorf("100 clients of 1000 topics have %d KiB", n)
		}
		runtime.KeepAlive(in)
	})
}

// A heartbeat that announces it counts for all clients whose streams announce it and use the same
// connection.
func TestSharedHeartbeats(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		begin := time.Now()
		other := x.dial()
		defer other.Close()
		shares := []string{wire.HeaderFeatures, "packed, watch, heartbeats"}
		for _, id := range []string{"a", "b"} {
			x.telemetry(as(t.Context(), id, shares...), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		}
		x.telemetry(as(t.Context(), "alone"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		st := assert.Value(rmqpb.NewMessagingServiceClient(other).Telemetry(as(t.Context(), "elsewhere", shares...)))(t)
		assert.Must(t, st.Send(command(producer("normal"))))
		x.settings(st)

		expect := func(what string, want map[string]time.Duration) {
			t.Helper()
			got := map[string]time.Duration{}
			for _, c := range x.clients("", "").Clients {
				got[c.ID] = c.LastSeen.Sub(begin)
			}
			assert.That(t, maps.Equal(got, want), "%s: the clients were seen at %v, want %v", what, got, want)
		}
		expect("at first", map[string]time.Duration{"a": 0, "b": 0, "alone": 0, "elsewhere": 0})
		beat := func(id string, features ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			r := assert.Value(x.Heartbeat(as(t.Context(), id, features...), &rmqpb.HeartbeatRequest{Group: res("g")}))(t)
			refused(t, r.GetStatus(), protocol.CodeOK)
		}
		beat("a", wire.HeaderFeatures, "heartbeats")
		expect("a heartbeat for all", map[string]time.Duration{"a": time.Minute, "b": time.Minute, "alone": 0, "elsewhere": 0})
		beat("a")
		expect("a heartbeat for one", map[string]time.Duration{"a": 2 * time.Minute, "b": time.Minute, "alone": 0, "elsewhere": 0})
		beat("b", wire.HeaderFeatures, "heartbeats")
		expect("another one for all", map[string]time.Duration{"a": 3 * time.Minute, "b": 3 * time.Minute, "alone": 0, "elsewhere": 0})
		assert.Equal(t, "were idle for a minute", len(idsOf(x.clients("", "?idle=1m"))), 2)
	})
}

// A client that shares heartbeats is asked for its settings in the stream if a termination, perhaps
// a late one, has removed them. Without settings the broker would treat a push consumer as a simple
// one.
func TestTerminationAsksForSettings(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		end := func(id string) {
			t.Helper()
			if _, err := e.NotifyClientTermination(as(t.Context(), id), &rmqpb.NotifyClientTerminationRequest{Group: res("g")}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a stream that stays silent fails the test
		defer cancel()
		st, _ := e.telemetry(as(ctx, "client", wire.HeaderFeatures, "heartbeats"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		end("client")
		cmd := assert.Value(st.Recv())(t)
		refused(t, cmd.GetStatus(), protocol.CodeUnrecognizedClientType, "settings")
		assert.Must(t, st.Send(command(consumer(rmqpb.ClientType_PUSH_CONSUMER))))
		e.settings(st)
		assert.That(t, e.s.Parts().Sessions.IsPush("client"), "the client is no push consumer after its settings")

		// Other clients learn it from the responses to their heartbeats.
		old, _ := e.telemetry(as(t.Context(), "old"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		end("old")
		sessions := e.s.Parts().Sessions
		sessions.Resend(sessions.Get("old")) // as a change of its group does beside the termination
		read := make(chan *rmqpb.TelemetryCommand, 1)
		go func() {
			if cmd, err := old.Recv(); err == nil {
				read <- cmd
			}
		}()
		synctest.Wait()
		if len(read) > 0 {
			t.Errorf("a client without the feature got %v", <-read)
		}
	})
}

// The consumers of a deleted group get the settings with which their next receive creates the group
// again. If it cannot create the group, their streams remain: the receives report the error.
func TestDeletedGroupPushesSettings(t *testing.T) {
	for _, c := range []struct {
		most   int // auto-created groups
		pushes int
	}{{most: 2, pushes: 1}, {most: 1, pushes: 0}} {
		synctest.Test(t, func(t *testing.T) {
			e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: c.most}, server.Options{})
			assert.Must(t, assert.Err(e.b.Engine().EnsureGroup(t.Context(), "other")))
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{FIFO: true})))
			st, first := e.telemetry(as(t.Context(), "client"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
			assert.MustThat(t, first.GetSubscription().GetFifo(), "the group is no FIFO group")
			var pushed []*rmqpb.TelemetryCommand
			var ended error
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ended == nil {
					cmd, err := st.Recv()
					if ended = err; err == nil {
						pushed = append(pushed, cmd)
					}
				}
			}()
			assert.Must(t, e.b.DeleteGroup(t.Context(), "g"))
			select {
			case <-done:
				t.Fatalf("with %d auto-created groups the stream ended with %v after %v", c.most, ended, pushed)
			case <-ctx.Done():
			}
			synctest.Wait()
			if len(pushed) != c.pushes || c.pushes > 0 && (pushed[0].GetSettings() == nil || pushed[0].GetSettings().GetSubscription().GetFifo()) {
				t.Errorf("with %d auto-created groups the stream got %v, want %d settings without FIFO", c.most, pushed, c.pushes)
			}
		})
	}
}

// A client that invents names of groups creates a bounded number of groups and series, over gRPC
// and over HTTP. The error has the remedy.
func TestInventedGroupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: most}, server.Options{MinLongPolling: 1})
		invent := func(from, to int) (last string) {
			for i := from; i < to; i++ {
				w := httptest.NewRecorder()
				r := httptest.NewRequest("POST", fmt.Sprintf("/v1/groups/web%d/topics/normal/receive", i), strings.NewReader(`{}`))
				r.Header.Set("Content-Type", "application/json")
				e.s.Handler().ServeHTTP(w, r)
				last = fmt.Sprint(w.Code, w.Body)
				q, err := e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{
					Topic: res("normal"), Group: res(fmt.Sprint("grpc", i)),
					Endpoints: &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "127.0.0.1", Port: 1}}},
				})
				if err != nil || q.GetStatus().GetCode() != rmqpb.Code_OK { // it creates no group, so no limit applies
					t.Fatalf("QueryAssignment: %v, %v", q, err)
				}
			}
			return last
		}
		invent(0, most)
		before, _ := scraped(t, e.s)
		last := invent(most, most+20)
		after, _ := scraped(t, e.s)
		assert.Equal(t, "groups", len(e.b.Groups()), most)
		for name := range after {
			if _, ok := before[name]; !ok && strings.Contains(name, "group=") {
				t.Errorf("the series %s is new", name)
			}
		}
		if !strings.HasPrefix(last, "404") || !strings.Contains(last, "PUT /v1/groups/web") || !strings.Contains(last, "max_auto_groups") {
			t.Errorf("the error of a rejected receive is %s", last)
		}
	})
}

// Consumers that only send their settings create no groups, so invented names leave places for
// groups that are received from. They get the settings that their group would have.
func TestTelemetryMakesNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: 1}, server.Options{})
		for i := range 10 {
			in := consumer(rmqpb.ClientType_PUSH_CONSUMER)
			in.GetSubscription().Group = res(fmt.Sprint("invented", i))
			e.telemetry(as(t.Context(), fmt.Sprint("client", i)), in)
		}
		if gs := e.b.Groups(); len(gs) > 0 {
			t.Errorf("there are the groups %+v", gs)
		}
		_, before := e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.receive(e.ctx(), receiveRequest("normal"))
		if gs := e.b.Groups(); len(gs) != 1 || gs[0].Name != "g" {
			t.Errorf("after a receive there are the groups %+v, want g", gs)
		}
		if _, after := e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER)); !proto.Equal(before, after) {
			t.Errorf("the settings were %v before the first receive, and %v after it", before, after)
		}
	})
}

// Telemetry too reports that there is no such group: with gRPC's Unavailable clients would repeat
// it without end. The stream ends, and opens once the group is created.
func TestTelemetryOfOneGroupTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: 1}, server.Options{})
		assert.Must(t, assert.Err(e.b.Engine().EnsureGroup(t.Context(), "first")))
		st := assert.Value(e.Telemetry(e.ctx()))(t)
		assert.Must(t, st.Send(command(consumer(rmqpb.ClientType_PUSH_CONSUMER))))
		cmd := assert.Value(st.Recv())(t)
		refused(t, cmd.GetStatus(), protocol.CodeConsumerGroupNotFound, "max_auto_groups", "PUT /v1/groups/g")
		ended(t, st, codes.NotFound, cmd.GetStatus())
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{})))
		e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
	})
}
