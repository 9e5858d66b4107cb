package server_test

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

type ask = func(*rmqpb.ReceiveMessageRequest)

func polling(d time.Duration) ask {
	return func(r *rmqpb.ReceiveMessageRequest) { r.LongPollingTimeout = durationpb.New(d) }
}

func invisible(d time.Duration) ask {
	return func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(d) }
}

func queue(n int32) ask { return func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Id = n } }

func autoRenew(r *rmqpb.ReceiveMessageRequest) { r.AutoRenew, r.InvisibleDuration = true, nil }

// Every field of a message arrives.
func TestReceivedMessage(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		born := time.Now().Add(-time.Hour)
		payload := []byte("some body")
		e.send(msg("fifo", "id-1", body(zipped(payload)), func(m *rmqpb.Message) {
			m.UserProperties = map[string]string{"a": "b"}
			m.SystemProperties = &rmqpb.SystemProperties{
				MessageId: "id-1", Tag: new("tag"), Keys: []string{"k1", "k2"}, MessageGroup: new("mg"),
				BornTimestamp: timestamppb.New(born), BornHost: "host", TraceContext: new("trace"),
				BodyEncoding: rmqpb.Encoding_GZIP,
			}
		}))
		time.Sleep(time.Second)
		r := receiveRequest("fifo")
		r.MessageQueue.Topic.ResourceNamespace = "ns"
		m := e.one(e.ctx(), r)
		p := m.GetSystemProperties()
		want := &rmqpb.Message{
			Topic:          &rmqpb.Resource{ResourceNamespace: "ns", Name: "fifo"},
			UserProperties: map[string]string{"a": "b", "__SHARDINGKEY": "mg"},
			Body:           payload,
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: "id-1", Tag: new("tag"), Keys: []string{"k1", "k2"}, MessageGroup: new("mg"),
				BornTimestamp: timestamppb.New(born), BornHost: "host", TraceContext: new("trace"),
				BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_FIFO,
				BodyDigest:     &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: fmt.Sprintf("%X", md5.Sum(payload))},
				StoreTimestamp: timestamppb.New(time.Now().Add(-time.Second)), StoreHost: p.GetStoreHost(),
				ReceiptHandle: p.ReceiptHandle, QueueId: p.GetQueueId(), QueueOffset: proto.Int64(0), DeliveryAttempt: proto.Int32(1),
				InvisibleDuration: durationpb.New(time.Minute),
			},
		}
		assert.That(t, proto.Equal(m, want) && p.GetStoreHost() != "" && p.GetReceiptHandle() != "", "got  %v\nwant %v", m, want)
	})
}

// An empty receive returns 40401 at the end of the time that longPoll computes.
func TestReceiveTiming(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for _, c := range []struct {
			name     string
			deadline time.Duration
			ask      []ask
			want     time.Duration
			code     tidegate.Code
		}{
			{"short poll", 9 * time.Second, []ask{polling(time.Second)}, 5 * time.Second, protocol.CodeMessageNotFound},
			{"long poll", 33 * time.Second, []ask{polling(30 * time.Second)}, 20 * time.Second, protocol.CodeMessageNotFound},
			{"the deadline is nearer", 7 * time.Second, []ask{polling(10 * time.Second)}, 6500 * time.Millisecond, protocol.CodeMessageNotFound},
			{"no wish", 10 * time.Second, nil, 8500 * time.Millisecond, protocol.CodeMessageNotFound},
			{"neither wish nor deadline", 0, nil, 20 * time.Second, protocol.CodeMessageNotFound},
			{"too little time", 4 * time.Second, []ask{polling(time.Second)}, 0, protocol.CodeIllegalPollingTime},
		} {
			ctx, cancel := e.ctx(), func() {}
			if c.deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
			}
			began := time.Now()
			st, ms := e.receive(ctx, receiveRequest("normal", c.ask...))
			if d := time.Since(began); d != c.want || len(ms) != 0 {
				t.Errorf("%s: %d messages after %v; want none after %v", c.name, len(ms), d, c.want)
			}
			refused(named{t, c.name}, st, c.code)
			cancel()
		}
		// A client of before 5.0.3 does not know ILLEGAL_POLLING_TIME.
		ctx, cancel := context.WithTimeout(as(t.Context(), "old", wire.HeaderClientVersion, "5.0.0"), time.Second)
		defer cancel()
		st, _ := e.receive(ctx, receiveRequest("normal"))
		refused(t, st, tidegate.CodeBadRequest, "5s")
	})
}

func TestReceiveRejections(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.telemetry(as(t.Context(), "push"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		filter := func(k rmqpb.FilterType, x string) ask {
			return func(r *rmqpb.ReceiveMessageRequest) {
				r.FilterExpression = &rmqpb.FilterExpression{Type: k, Expression: x}
			}
		}
		for _, c := range []struct {
			name   string
			client string
			ask    ask
			code   tidegate.Code
			words  []string
		}{
			{"no client ID", "", func(*rmqpb.ReceiveMessageRequest) {}, protocol.CodeClientIDRequired, []string{"x-mq-client-id"}},
			{"unknown topic", "c", func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Topic.Name = "nowhere" }, tidegate.CodeTopicNotFound, []string{"nowhere"}},
			{"no queue", "c", func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue = nil }, protocol.CodeIllegalTopic, nil},
			{"no group", "c", func(r *rmqpb.ReceiveMessageRequest) { r.Group = nil }, protocol.CodeIllegalConsumerGroup, []string{"120"}},
			{"group too long", "c", func(r *rmqpb.ReceiveMessageRequest) { r.Group.Name = strings.Repeat("g", 121) }, protocol.CodeIllegalConsumerGroup, []string{"121", "120"}},
			{"batch", "c", batch(-1), tidegate.CodeBadRequest, []string{"batch_size", "-1", "32"}},
			{"queue", "push", queue(-2), tidegate.CodeBadRequest, []string{"message_queue.id", "-2"}},
			{"SQL", "c", filter(rmqpb.FilterType_SQL, "a > > 1"), protocol.CodeIllegalFilterExpression, []string{"'>'", "character 5", "a > > 1"}},
			{"unknown filter", "c", filter(7, "*"), protocol.CodeIllegalFilterExpression, []string{"7"}},
			{"bad tags", "c", filter(rmqpb.FilterType_TAG, " || "), protocol.CodeIllegalFilterExpression, []string{"\" || \""}},
			{"no invisible duration", "c", func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = nil }, protocol.CodeIllegalInvisibleTime, []string{"invisible_duration", "auto_renew"}},
			{"invisible for too short", "c", invisible(0), protocol.CodeIllegalInvisibleTime, []string{"0s", "1ns"}},
			{"invisible for too long", "c", invisible(12*time.Hour + time.Millisecond), protocol.CodeIllegalInvisibleTime, []string{"12h0m0.001s", "12h0m0s"}},
			{"negative poll", "c", polling(-time.Second), protocol.CodeIllegalPollingTime, []string{"long_polling_timeout", "-1s"}},
		} {
			ctx := t.Context()
			if c.client != "" {
				ctx = as(ctx, c.client)
			}
			st, ms := e.receive(ctx, receiveRequest("normal", c.ask))
			refused(named{t, c.name}, st, c.code, c.words...)
			assert.That(t, len(ms) == 0, "%s: %d messages", c.name, len(ms))
		}
	})
}

// More than 32 are never given, and tags filter for the group.
func TestReceiveBatchAndFilter(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		var ms []*rmqpb.Message
		for i := range 40 {
			ms = append(ms, msg("normal", fmt.Sprint(i), func(m *rmqpb.Message) { m.SystemProperties.Tag = new([]string{"A", "B"}[i%2]) }))
		}
		e.send(ms...)
		if _, got := e.receive(e.ctx(), receiveRequest("normal", batch(1000))); len(got) != 32 {
			t.Errorf("%d messages; want 32", len(got))
		}
		other := func(r *rmqpb.ReceiveMessageRequest) {
			r.Group.Name, r.FilterExpression.Expression = "tagged", "A || C"
		}
		var tags []string
		for range 2 {
			_, got := e.receive(e.ctx(), receiveRequest("normal", other))
			for _, m := range got {
				tags = append(tags, m.GetSystemProperties().GetTag())
			}
		}
		assert.That(t, len(tags) == 20 && !slices.Contains(tags, "B"), "%d messages with tags %v; want 20 with A", len(tags), tags)
	})
}

// Simple consumers name one queue and want all; push consumers mean it.
func TestReceiveQueue(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.telemetry(as(t.Context(), "push"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.telemetry(as(t.Context(), "simple"), consumer(rmqpb.ClientType_SIMPLE_CONSUMER))
		for client, want := range map[string]int{"push": 2, "simple": 4, "stranger": 4} {
			other := func(r *rmqpb.ReceiveMessageRequest) { r.Group.Name = client }
			e.send(msg("normal", "1"), msg("normal", "2"), msg("normal", "3"), msg("normal", "4")) // 2 for each queue
			_, got := e.receive(as(t.Context(), client), receiveRequest("normal", other, queue(1)))
			if client == "push" {
				for _, m := range got {
					assert.Equal(t, "a message of queue", m.GetSystemProperties().GetQueueId(), 1)
				}
			}
			assert.That(t, len(got)%want == 0 && len(got) != 0, "%s: %d messages; want a multiple of %d", client, len(got), want)
		}
	})
}

// A timeout of a push consumer's delivery follows the retry schedule, one of a simple consumer's
// does not.
func TestReceivePushTimeout(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.telemetry(as(t.Context(), "push"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.send(msg("normal", "1"))
		for client, want := range map[string]time.Duration{"push": 15 * time.Second, "simple": 5 * time.Second} {
			other := func(r *rmqpb.ReceiveMessageRequest) { r.Group.Name = client }
			e.one(as(t.Context(), client), receiveRequest("normal", other, invisible(5*time.Second)))
			began := time.Now()
			m := e.one(as(t.Context(), client), receiveRequest("normal", other))
			if d := time.Since(began); d != want || m.GetSystemProperties().GetDeliveryAttempt() != 2 {
				t.Errorf("%s: attempt %d after %v; want 2 after %v", client, m.GetSystemProperties().GetDeliveryAttempt(), d, want)
			}
		}
	})
}

// With auto_renew the message stays invisible while its client sends heartbeats. It is redelivered
// a second after the termination of its client.
func TestReceiveAutoRenew(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.telemetry(as(t.Context(), "owner"), consumer(rmqpb.ClientType_SIMPLE_CONSUMER))
		e.send(msg("normal", "1"))
		e.one(as(t.Context(), "owner"), receiveRequest("normal", autoRenew))
		for range 30 {
			time.Sleep(10 * time.Second)
			if r, err := e.Heartbeat(as(t.Context(), "owner"), &rmqpb.HeartbeatRequest{}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
		}
		if st, _ := e.receive(as(t.Context(), "other"), receiveRequest("normal", polling(5*time.Second))); st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			t.Errorf("redelivered although its owner lives: %v", st)
		}
		assert.Must(t, assert.Err(e.NotifyClientTermination(as(t.Context(), "owner"), &rmqpb.NotifyClientTerminationRequest{})))
		began := time.Now()
		e.one(as(t.Context(), "other"), receiveRequest("normal"))
		if d := time.Since(began); d > time.Second {
			t.Errorf("redelivered %v after its owner's end; want 1s", d)
		}
	})
}

// The messages of a cancelled receive go to the next client, and the cancelled delivery does not
// count.
func TestReceiveCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polled := make(chan struct{})
		f := &faulty{}
		e := start(t, server.Options{}, f)
		// Parked, then cancelled, then a message.
		ctx, cancel := context.WithCancel(e.ctx())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		if _, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal"))); status.Code(err) != codes.Canceled {
			t.Errorf("cancelled: %v", err)
		}
		e.send(msg("normal", "1"))
		began := time.Now()
		m := e.one(e.ctx(), receiveRequest("normal"))
		if d := time.Since(began); d != 0 || m.GetSystemProperties().GetDeliveryAttempt() != 1 {
			t.Errorf("attempt %d after %v; want 1 at once", m.GetSystemProperties().GetDeliveryAttempt(), d)
		}
		e.ack(m)
		synctest.Wait() // the receives before have ended

		// Cancelled between the engine's result and the first frame.
		ctx, cancel = context.WithCancel(e.ctx())
		f.after = func(ds []*tidegate.Delivery) {
			if len(ds) > 0 {
				cancel()
				time.Sleep(time.Second) // the cancellation arrives
				f.after = nil
				close(polled)
			}
		}
		e.send(msg("normal", "2"))
		if _, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal"))); status.Code(err) != codes.Canceled {
			t.Errorf("cancelled: %v", err)
		}
		<-polled
		began = time.Now()
		m = e.one(e.ctx(), receiveRequest("normal"))
		if d := time.Since(began); d > time.Second || m.GetSystemProperties().GetDeliveryAttempt() != 1 {
			t.Errorf("attempt %d after %v; want 1 at once", m.GetSystemProperties().GetDeliveryAttempt(), d)
		}
	})
}

func TestReceiveSurvivesTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{poll: func(context.Context) error { panic("ouch") }}
		e := start(t, server.Options{}, f)
		st, _ := e.receive(e.ctx(), receiveRequest("normal"))
		refused(t, st, tidegate.CodeInternalServerError, "ouch")
		f.poll = func(context.Context) error { return errors.New("odd") }
		st, _ = e.receive(e.ctx(), receiveRequest("normal"))
		refused(t, st, tidegate.CodeInternalServerError, "odd")
		time.Sleep(2 * session.Timeout) // a client with a poll would stay
		assert.Equal(t, "clients have polls that are still registered", e.s.Parts().Sessions.Len(), 0)
	})
}

// Rejected receives under ever new names leave nothing behind.
func TestRejectedReceivesAreForgotten(t *testing.T) {
	e := start(t, server.Options{})
	for i := range 50 {
		for topic, edit := range map[string]func(*rmqpb.ReceiveMessageRequest){
			"nowhere": func(*rmqpb.ReceiveMessageRequest) {},
			"normal":  func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = -1 },
		} {
			st, _ := e.receive(as(t.Context(), fmt.Sprint("client-", i)), receiveRequest(topic, edit))
			assert.MustThat(t, st.GetCode() != rmqpb.Code_OK && st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND, "%s: %v", topic, st)
		}
	}
	assert.Equal(t, "clients are remembered", e.s.Parts().Sessions.Len(), 0)
}

// A client that announces it gets its messages packed into one frame. Any other one gets them as
// RocketMQ sends them, a frame each. A client that receives none sees no difference.
func TestPackedOnlyOnRequest(t *testing.T) {
	for announced, want := range map[string]struct{ frames, packed int }{
		"": {5, 0}, "packed": {1, 3}, "other, packed": {1, 3}, "unpacked": {5, 0},
	} {
		withServer(t, server.Options{}, func(t *testing.T, e *env) {
			for i := range 3 {
				e.send(msg("normal", fmt.Sprint(i)))
			}
			ctx := e.ctx()
			if announced != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, announced)
			}
			for range 2 { // with messages, and without
				fs, err := frames(e.ReceiveMessage(ctx, receiveRequest("normal")))
				assert.MustThat(t, err == nil || errors.Is(err, io.EOF), "%v", err)
				packed := 0
				for _, f := range fs {
					packed += len(f.GetPacked())
				}
				if len(fs) != want.frames || packed != want.packed {
					t.Errorf("%q: %d frames with %d packed messages, want %+v", announced, len(fs), packed, want)
				}
				if fs[0].GetStatus() == nil {
					t.Errorf("%q: the first frame is %v", announced, fs[0])
				}
				want.frames, want.packed = 2, 0
			}
		})
	}
}

// The header bounds the messages of a receive together.
func TestMaxBytesOnTheWire(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		for i := range 6 {
			e.send(msg("normal", fmt.Sprint(i), body(make([]byte, 100))))
		}
		with := func(text string) (*rmqpb.Status, []*rmqpb.Message) {
			return e.receive(metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderMaxBytes, text), receiveRequest("normal"))
		}
		for _, c := range []struct {
			text string
			want int
		}{{"1", 1}, {"250", 2}, {"0", 3}} {
			if st, ms := with(c.text); len(ms) != c.want {
				t.Errorf("max bytes %s: %v, %d messages; want %d", c.text, st, len(ms), c.want)
			}
		}
		for _, text := range []string{"-1", "1 KiB", "99999999999999999999"} {
			st, _ := with(text)
			refused(t, st, tidegate.CodeBadRequest, wire.HeaderMaxBytes)
		}
	})
}

// Digests are of the kind that the client reads: CRC32 in the form of RocketMQ's Go client, MD5 for
// all others, which disagree about the form of a CRC32.
func TestDigestByLanguage(t *testing.T) {
	e := start(t, server.Options{})
	for _, language := range []string{"GO", "JAVA", "HTTP", ""} {
		e.send(msg("normal", "id", body([]byte("tide 302")))) // a CRC32 that begins with zeros
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderLanguage, language)
		d := e.one(ctx, receiveRequest("normal")).GetSystemProperties().GetBodyDigest()
		assert.That(t, language != "GO" || d.GetType() == rmqpb.DigestType_CRC32 && d.GetChecksum() == "2F6FC0", "%q: %v", language, d)
		if sum := md5.Sum([]byte("tide 302")); language != "GO" && (d.GetType() != rmqpb.DigestType_MD5 || d.GetChecksum() != fmt.Sprintf("%X", sum)) {
			t.Errorf("%q: %v", language, d)
		}
	}
}

// An acknowledgement that succeeded has no entries in its response for a client that announces that
// it needs none; a partly failed response has all of them.
func TestBriefAcknowledgements(t *testing.T) {
	e := start(t, server.Options{})
	brief := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderFeatures, "packed, brief")
	ack := func(ctx context.Context, handles ...string) *rmqpb.AckMessageResponse {
		t.Helper()
		r := &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal")}
		for _, h := range handles {
			r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: h})
		}
		out := assert.Value(e.AckMessage(ctx, r))(t)
		return out
	}
	receive := func() string {
		e.send(msg("normal", tidegate.NewMessageID()))
		return e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
	}
	done := receive()
	if r := ack(brief, done); r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetEntries()) != 0 {
		t.Errorf("all succeeded: %v", r)
	}
	if r := ack(brief, receive(), done); r.GetStatus().GetCode() != rmqpb.Code_MULTIPLE_RESULTS || len(r.GetEntries()) != 2 ||
		r.GetEntries()[0].GetStatus().GetCode() != rmqpb.Code_OK || r.GetEntries()[1].GetStatus().GetCode() != rmqpb.Code_INVALID_RECEIPT_HANDLE {
		t.Errorf("one failed: %v", r)
	}
	if r := ack(e.ctx(), receive()); r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetEntries()) != 1 {
		t.Errorf("to a client that announces nothing: %v", r)
	}
}

// The broker asks a client that reads packed deliveries to receive more of them at a time, and
// delivers them, also after a heartbeat.
func TestPackedReceivesAreLarger(t *testing.T) {
	for announced, want := range map[string]int{"": refusal.MaxReceive, "packed": server.PackedBatchSize} {
		withServer(t, server.Options{}, func(t *testing.T, e *env) {
			for i := range server.PackedBatchSize + 1 {
				e.send(msg("normal", fmt.Sprint(i)))
			}
			ctx := e.ctx()
			if announced != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, announced)
			}
			st, got := e.telemetry(ctx, consumer(rmqpb.ClientType_PUSH_CONSUMER))
			if n := got.GetSubscription().GetReceiveBatchSize(); int(n) != want {
				t.Errorf("%q: the settings have %d messages in a receive, want %d", announced, n, want)
			}
			if r, err := e.Heartbeat(e.ctx(), &rmqpb.HeartbeatRequest{}); err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
			fs := assert.Value(frames(e.ReceiveMessage(ctx, receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1000 }))))(t)
			n := 0
			for _, f := range fs {
				if n += len(f.GetPacked()); f.GetMessage() != nil {
					n++
				}
			}
			assert.That(t, n == want, "%q: a receive brought %d messages, want %d", announced, n, want)
			assert.Must(t, st.CloseSend())
			if cmd, err := st.Recv(); !errors.Is(err, io.EOF) { // the heartbeat changed no settings
				t.Errorf("%q: %v, %v after the settings", announced, cmd, err)
			}
		})
	}
}

func attempt(id string) ask { return func(r *rmqpb.ReceiveMessageRequest) { r.AttemptId = &id } }

// repeating marks the receive as a repetition.
func repeating(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, wire.HeaderRepeat, "true")
}

// A client cancels its receive at a random instant around the delivery, repeats
// it with the same attempt ID, and releases the messages that the repetition brings. No message is
// lost in between: at once afterwards another client receives each as attempt 1.
func TestCancelledReceiveSwallowsNothing(t *testing.T) {
	for topic, fifo := range map[string]bool{"normal": false, "fifo": true} {
		withServer(t, server.Options{}, func(t *testing.T, e *env) {
			assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{FIFO: fifo})))
			e.telemetry(as(t.Context(), "leaver"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
			unread, repeated := 0, 0
			for i := range model.Rounds(400) {
				id := fmt.Sprintf("%s-%d", topic, i)
				attemptID := attempt(strconv.Itoa(i))
				ctx, cancel := context.WithCancel(as(t.Context(), "leaver"))
				ended := make(chan []*rmqpb.ReceiveMessageResponse)
				go func() {
					fs, _ := frames(e.ReceiveMessage(ctx, receiveRequest(topic, attemptID)))
					ended <- fs
				}()
				synctest.Wait()
				go func() {
					for range rand.IntN(100) {
						runtime.Gosched()
					}
					cancel()
				}()
				e.send(msg(topic, id, func(m *rmqpb.Message) {
					if fifo {
						m.SystemProperties.MessageGroup = new("mg")
					}
				}))
				if fs := <-ended; len(fs) < 3 {
					unread++
				}
				began := time.Now()
				_, ms := e.receive(repeating(as(t.Context(), "leaver")), receiveRequest(topic, attemptID))
				if took := time.Since(began); took != 0 {
					t.Fatalf("%s: the repetition took %v", id, took)
				}
				repeated += len(ms)
				for _, m := range ms {
					r, err := e.ChangeInvisibleDuration(as(t.Context(), "leaver"), &rmqpb.ChangeInvisibleDurationRequest{
						Group: res("g"), Topic: res(topic), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
						MessageId: m.GetSystemProperties().GetMessageId(), InvisibleDuration: durationpb.New(0), Suspend: new(true),
					})
					assert.MustThat(t, err == nil && r.GetStatus().GetCode() == rmqpb.Code_OK, "%s: released: %v, %v", id, r, err)
				}
				st, next := e.receive(as(t.Context(), "other"), receiveRequest(topic))
				if len(next) != 1 || next[0].GetSystemProperties().GetMessageId() != id || next[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
					t.Fatalf("%s: the next client receives %v, %v; want the message as attempt 1", id, st, next)
				}
				e.ack(next[0])
			}
			t.Logf("%s: %d receives ended without their message, %d messages came with a repetition", topic, unread, repeated)
		})
	}
}

// streaming announces that the client uses messages before the receive ends.
func streaming(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, wire.HeaderFeatures, wire.FeaturePacked+", "+wire.FeatureStream)
}

// A receive goes on after its first messages for a client that announces it. Each part comes at
// once in a frame without a status. The status comes with the end of the wait.
func TestStreamOnTheWire(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		stream := assert.Value(e.ReceiveMessage(streaming(e.ctx()), receiveRequest("normal")))(t)
		begin := time.Now()
		for _, id := range []string{"1", "2"} {
			time.Sleep(time.Second)
			e.send(msg("normal", id))
			sent := time.Now()
			f := assert.Value(stream.Recv())(t)
			assert.That(t, len(f.GetPacked()) == 1 && f.GetPacked()[0].GetSystemProperties().GetMessageId() == id && f.GetStatus() == nil && f.GetDeliveryTimestamp() != nil,
				"the part with message %s is %v", id, f)
			r := wire.Fields(f.ProtoReflect().GetUnknown())
			assert.That(t, r.Next() && r.Tag == wire.TagResponseWaited && time.Duration(r.Number())*time.Microsecond == sent.Sub(begin),
				"the part with message %s says that it waited %d µs, want %v", id, r.Number(), sent.Sub(begin))
			synctest.Wait()
			assert.Equal(t, "bytes held for a part that the client has", e.s.Parts().Bodies.Held(), 0)
		}
		f := assert.Value(stream.Recv())(t)
		assert.That(t, f.GetStatus().GetCode() == rmqpb.Code_OK && len(f.GetPacked()) == 0, "the last frame is %v", f)
		assert.Is(t, "the end", assert.Err(stream.Recv()), io.EOF)
		ctx := metadata.AppendToOutgoingContext(e.ctx(), wire.HeaderArrived, "many")
		st, _ := e.receive(ctx, receiveRequest("normal"))
		refused(t, st, tidegate.CodeBadRequest, wire.HeaderArrived)
	})
}

// While a receive waits for further messages, the broker keeps nothing of the parts that the client
// has: it would be in no budget.
func TestStreamKeepsNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept weak.Pointer[byte]
		e := start(t, server.Options{}, &faulty{part: func() []*tidegate.Delivery {
			body := make([]byte, 1<<20)
			kept = weak.Make(&body[0])
			return []*tidegate.Delivery{{Message: tidegate.Message{ID: "1", Topic: "normal", Body: body}, Handle: "h"}}
		}})
		stream := assert.Value(e.ReceiveMessage(streaming(e.ctx()), receiveRequest("normal")))(t)
		assert.Equal(t, "messages", len(assert.Value(stream.Recv())(t).GetPacked()), 1)
		synctest.Wait()
		for range 3 {
			runtime.GC()
		}
		assert.That(t, kept.Value() == nil, "the body of a part is kept")
		f := assert.Value(stream.Recv())(t)
		assert.That(t, f.GetStatus() != nil, "the last frame is %v", f)
	})
}

// A part from the group's retry topic is no last part either, and a receive that shall not wait has
// one part.
func TestStreamOfRetries(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})))
		e.send(msg("normal", "1"))
		ds := e.lease(1, transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
		assert.Must(t, assert.Err(e.b.Engine().Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})))
		stream := assert.Value(e.ReceiveMessage(streaming(e.ctx()), receiveRequest("normal")))(t)
		f := assert.Value(stream.Recv())(t)
		assert.That(t, len(f.GetPacked()) == 1 && f.GetStatus() == nil, "the part with the retry is %v", f)
		e.send(msg("normal", "2"))
		f = assert.Value(stream.Recv())(t)
		assert.That(t, len(f.GetPacked()) == 1 && f.GetStatus() == nil, "the next part is %v", f)
		assert.Must(t, assert.Err(frames(stream, nil)))
		e.send(msg("normal", "3"))
		begin := time.Now()
		fs, err := frames(e.ReceiveMessage(streaming(e.ctx()), receiveRequest("normal", polling(0))))
		assert.That(t, err == nil && len(fs) == 1 && fs[0].GetStatus() != nil && time.Since(begin) == 0, "%v, %v after %v", fs, err, time.Since(begin))
	})
}

// With middleware a receive has one response, which the middleware decides about.
func TestNoStreamThroughMiddleware(t *testing.T) {
	calls := 0
	withServer(t, server.Options{Intercept: func(ctx context.Context, call server.Call, next func(context.Context) error) error {
		if call.Op == "ReceiveMessage" {
			calls++
		}
		return next(ctx)
	}}, func(t *testing.T, e *env) {
		e.send(msg("normal", "1"))
		fs, err := frames(e.ReceiveMessage(streaming(e.ctx()), receiveRequest("normal")))
		assert.That(t, err == nil && calls == 1 && len(fs) == 1 && len(fs[0].GetPacked()) == 1 && fs[0].GetStatus() != nil, "%d calls, %v, %v", calls, fs, err)
	})
}

// A client cancels a stream at a random instant around a part, and repeats the receive with the
// number of parts that it has read. Each message is in one of the two responses, and the handles of
// both are valid.
func TestCancelledStreamSwallowsNothing(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.telemetry(as(t.Context(), "leaver"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		arrived, repeated := 0, 0
		for i := range model.Rounds(400) {
			ctx, cancel := context.WithCancel(as(t.Context(), "leaver"))
			ended := make(chan []*rmqpb.ReceiveMessageResponse)
			attemptID := attempt(strconv.Itoa(i))
			go func() {
				fs, _ := frames(e.ReceiveMessage(streaming(ctx), receiveRequest("normal", attemptID)))
				ended <- fs
			}()
			synctest.Wait()
			go func() {
				for range rand.IntN(200) {
					runtime.Gosched()
				}
				cancel()
			}()
			want := []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")}
			for _, id := range want {
				e.send(msg("normal", id))
			}
			var got []*rmqpb.Message
			parts := <-ended
			for _, f := range parts {
				got = append(got, f.GetPacked()...)
			}
			arrived += len(got)
			again := metadata.AppendToOutgoingContext(repeating(as(t.Context(), "leaver")), wire.HeaderArrived, strconv.Itoa(len(parts)))
			_, ms := e.receive(again, receiveRequest("normal", attemptID))
			repeated += len(ms)
			for got = append(got, ms...); len(got) < len(want); {
				_, ms = e.receive(as(t.Context(), "other"), receiveRequest("normal"))
				if len(ms) == 0 {
					break
				}
				got = append(got, ms...)
			}
			var ids []string
			for _, m := range got {
				ids = append(ids, m.GetSystemProperties().GetMessageId())
				e.ack(m)
			}
			slices.Sort(ids)
			assert.MustEqual(t, "messages", fmt.Sprint(ids), fmt.Sprint(want))
		}
		assert.That(t, arrived > 0, "no message came before the cancellation")
		t.Logf("%d messages came before the cancellation, %d with the repetition", arrived, repeated)
	})
}

func TestRepetitionNamesItsReceive(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		st, _ := e.receive(repeating(e.ctx()), receiveRequest("normal"))
		refused(t, st, tidegate.CodeBadRequest, "attempt ID")
		e.send(msg("normal", "1"))
		if st, ms := e.receive(repeating(e.ctx()), receiveRequest("normal", attempt("never used"))); len(ms) != 0 || st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			t.Errorf("the repetition of nothing brings %v, %d messages; want 40401", st, len(ms))
		}
	})
}
