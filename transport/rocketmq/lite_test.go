package rocketmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

var liteConsumer1 = transport.LiteConsumer{Group: "g", Topic: "t", ID: "one"}

// syncOf returns a change for liteConsumer1.
func syncOf(action transport.LiteAction, start transport.LiteStart, names ...string) transport.LiteSync {
	return transport.LiteSync{LiteConsumer: liteConsumer1, Action: action, Start: start, Topics: names}
}

// syncs describes the requests with changes of lite topics.
func (s *fakeServer) syncs() (list []string) {
	for _, g := range s.of("SyncLiteSubscription") {
		r := g.req.(*rmqpb.SyncLiteSubscriptionRequest)
		text := fmt.Sprintf("%v %v", r.GetAction(), r.GetLiteTopicSet())
		if o := r.GetOffsetOption(); o != nil {
			text += " " + strings.ReplaceAll(o.String(), "  ", " ") // protobuf varies its spaces
		}
		list = append(list, text)
	}
	return list
}

// liteStreams makes the server respond to settings, and returns its streams with consumers of lite
// topics.
func (s *fakeServer) liteStreams() <-chan rmqpb.MessagingService_TelemetryServer {
	streams := make(chan rmqpb.MessagingService_TelemetryServer, 10)
	s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
		for first := true; ; first = false {
			cmd, err := st.Recv()
			if err != nil {
				return nil
			}
			s.note(st.Context(), "/apache.rocketmq.v2.MessagingService/settings", cmd)
			in := cmd.GetSettings()
			st.Send(serverSettings(in))
			if first && in.GetClientType() == rmqpb.ClientType_LITE_PUSH_CONSUMER {
				streams <- st
			}
		}
	}
	return streams
}

func endOf(name string) *rmqpb.TelemetryCommand {
	return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_NotifyUnsubscribeLiteCommand{
		NotifyUnsubscribeLiteCommand: &rmqpb.NotifyUnsubscribeLiteCommand{LiteTopic: name}}}
}

func codeOf(err error) tidegate.Code {
	e, _ := errors.AsType[*tidegate.Error](err)
	if e == nil {
		return 0
	}
	return e.Code
}

// The changes of a consumer are requests of RocketMQ, which takes a start only for lite topics that
// are added one by one, and moves the group also in one that the consumer has. A tidegate broker gets
// each change in one request.
func TestSyncLite(t *testing.T) {
	const set, add, remove = transport.LiteSet, transport.LiteAdd, transport.LiteRemove
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	none, oldest := transport.LiteStart{}, transport.LiteStart{Oldest: true}
	cases := []struct {
		change          transport.LiteSync
		plain, tidegate []string // the requests; nil means that the client rejects the change
	}{
		{syncOf(set, none), []string{"COMPLETE_ADD []"}, []string{"COMPLETE_ADD []"}},
		{syncOf(add, none, "a", "b"), []string{"PARTIAL_ADD [a b]"}, []string{"PARTIAL_ADD [a b]"}},
		{syncOf(add, oldest, "b", "c", "c"), []string{"PARTIAL_ADD [c] policy:MIN", "PARTIAL_ADD [b]"}, []string{"PARTIAL_ADD [b c] policy:MIN"}},
		{syncOf(remove, oldest, "a", "x"), []string{"PARTIAL_REMOVE [a x]"}, []string{"PARTIAL_REMOVE [a x]"}},
		{syncOf(set, none, "b", "c"), []string{"COMPLETE_ADD [b c]"}, []string{"COMPLETE_ADD [b c]"}},
		{syncOf(set, transport.LiteStart{Newest: true}, "b", "d"), []string{"PARTIAL_ADD [d] policy:MAX", "COMPLETE_ADD [b d]"}, []string{"COMPLETE_ADD [b d] policy:MAX"}},
		{syncOf(set, none, "b", "e"), []string{"PARTIAL_ADD [e]", "COMPLETE_ADD [b e]"}, []string{"COMPLETE_ADD [b e]"}},
		{syncOf(add, transport.LiteStart{Offset: 7}, "d"), []string{"PARTIAL_ADD [d] offset:7"}, []string{"PARTIAL_ADD [d] offset:7"}},
		{syncOf(add, transport.LiteStart{Last: 3}, "f"), nil, []string{"PARTIAL_ADD [f] tail_n:3"}},
		{syncOf(add, transport.LiteStart{Time: at}, "g"), nil, []string{"PARTIAL_ADD [g] timestamp:1767323045006"}},
	}
	for _, features := range []string{"", "repeat"} {
		servedAs(t, "features "+features, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.features = features
			var version int64
			for _, tt := range cases {
				before, want := len(s.syncs()), tt.plain
				if features != "" {
					want = tt.tidegate
				}
				err := c.SyncLite(t.Context(), tt.change)
				assert.That(t, (err == nil) == (want != nil) && (err == nil || codeOf(err) == tidegate.CodeNotImplemented), "%+v: %v", tt.change, err)
				got := s.syncs()[before:]
				assert.That(t, slices.Equal(got, want), "%+v: requests %q, want %q", tt.change, got, want)
			}
			for _, g := range s.of("SyncLiteSubscription") {
				r := g.req.(*rmqpb.SyncLiteSubscriptionRequest)
				if r.GetGroup().GetName() != "g" || r.GetTopic().GetName() != "t" || r.GetVersion() <= version {
					t.Errorf("after version %d: %v", version, r)
				}
				version = r.GetVersion()
			}
		})
	}
}

// A consumer of lite topics is a client of its own with one session, which servers know as
// LITE_PUSH_CONSUMER. Its receives and settlements use it, and name the lite topic.
func TestLiteConsumer(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "repeat"
		s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse { return &rmqpb.AckMessageResponse{Status: ok} }
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendStatus(st, rmqpb.Code_OK)
			sendMessage(st, func(m *rmqpb.Message) {
				m.SystemProperties.LiteTopic, m.SystemProperties.MessageGroup = new("l"), nil
				m.UserProperties["INNER_MULTI_DISPATCH"] = "%LMQ%$t$l" // RocketMQ's own
			})
			return nil
		}
		assert.Must(t, c.SyncLite(t.Context(), syncOf(transport.LiteSet, transport.LiteStart{}, "l")))
		r := request1
		r.LiteConsumer = "one"
		ds, err := c.Receive(t.Context(), r)
		assert.MustThat(t, err == nil && len(ds) == 1, "%v, %v", ds, err)
		d := ds[0]
		assert.That(t, d.LiteTopic == "l" && d.Topic == "t" && len(d.Properties) == 1 && d.Properties["p"] == "v", "%+v", d)
		assert.NoError(t, c.Ack(t.Context(), ds)[0])
		assert.NoError(t, second(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})))
		assert.NoError(t, second(c.Extend(t.Context(), d, time.Minute, false)))
		assert.NoError(t, second(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})))
		synctest.Wait()

		in := s.of("receive")[0].req.(*rmqpb.ReceiveMessageRequest)
		assert.That(t, in.GetFilterExpression().GetExpression() == "*" && in.GetMessageQueue().GetTopic().GetName() == "t", "received by %v", in)
		lite := []string{s.of("AckMessage")[0].req.(*rmqpb.AckMessageRequest).GetEntries()[0].GetLiteTopic()}
		for _, g := range s.of("ChangeInvisibleDuration") {
			lite = append(lite, g.req.(*rmqpb.ChangeInvisibleDurationRequest).GetLiteTopic())
		}
		lite = append(lite, s.of("ForwardMessageToDeadLetterQueue")[0].req.(*rmqpb.ForwardMessageToDeadLetterQueueRequest).GetLiteTopic())
		assert.That(t, slices.Equal(lite, []string{"l", "l", "l", "l"}), "the lite topics of the settlements are %q", lite)

		sent := s.of("settings")
		assert.MustEqual(t, "settings", len(sent), 1)
		own := sent[0].req.(*rmqpb.TelemetryCommand).GetSettings()
		if sub := own.GetSubscription(); own.GetClientType() != rmqpb.ClientType_LITE_PUSH_CONSUMER || sub.GetGroup().GetName() != "g" ||
			len(sub.GetSubscriptions()) != 1 || sub.GetSubscriptions()[0].GetTopic().GetName() != "t" || sub.GetSubscriptions()[0].GetExpression().GetExpression() != "*" {
			t.Errorf("settings %v", own)
		}
		beat := s.of("Heartbeat")[0].req.(*rmqpb.HeartbeatRequest)
		assert.That(t, beat.GetClientType() == rmqpb.ClientType_LITE_PUSH_CONSUMER && beat.GetGroup().GetName() == "g", "heartbeat %v", beat)
		id := sent[0].md.Get("x-mq-client-id")[0]
		for _, method := range []string{"SyncLiteSubscription", "receive", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue", "Heartbeat"} {
			got := s.of(method)[0].md.Get("x-mq-client-id")[0]
			assert.That(t, got == id, "%s has the client ID %s, want %s", method, got, id)
		}
		other := syncOf(transport.LiteSet, transport.LiteStart{}, "l")
		other.ID = "two"
		assert.Must(t, c.SyncLite(t.Context(), other))
		two := s.of("settings")[1].md.Get("x-mq-client-id")[0]
		assert.That(t, two != id, "both consumers have the client ID %s", id)
	})
}

// A dead letter is in a queue of the dead letter topic, and not in the lite topic of its origin. On
// RocketMQ, a message of a lite topic must not become one.
func TestSettleDeadLettersOfLiteTopics(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse { return &rmqpb.AckMessageResponse{Status: ok} }
		d := delivery("1", testAddr)
		d.LiteTopic = "l"
		_, err := c.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})
		assert.That(t, codeOf(err) == tidegate.CodeNotImplemented && len(s.of("ForwardMessageToDeadLetterQueue")) == 0, "%v", err)
		d.Topic = tidegate.DeadLetterTopic("g")
		assert.NoError(t, second(c.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})))
		assert.NoError(t, c.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		entry := s.of("AckMessage")[0].req.(*rmqpb.AckMessageRequest).GetEntries()[0]
		assert.That(t, entry.LiteTopic == nil, "acknowledged with %v", entry)
	})
}

// RocketMQ delivers a dead letter of a lite topic from that lite topic too. It is logged with the
// remedy and not returned, because nothing can acknowledge it.
func TestDeadLetterInItsLiteTopic(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		var log bytes.Buffer
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendStatus(st, rmqpb.Code_OK)
			for _, topic := range []string{tidegate.DeadLetterTopic("g"), "t"} {
				sendMessage(st, func(m *rmqpb.Message) {
					m.Topic.Name, m.SystemProperties.LiteTopic, m.SystemProperties.MessageId = topic, new("l"), topic
				})
			}
			return nil
		}
		r := request1
		r.LiteConsumer = "one"
		ds, err := c.Receive(t.Context(), r)
		assert.That(t, err == nil && len(ds) == 1 && ds[0].ID == "t", "%v, %v", ds, err)
		assert.That(t, strings.Contains(log.String(), "message_id="+tidegate.DeadLetterTopic("g")) && strings.Contains(log.String(), "retryMaxTimes"), "logged %s", log.String())
		r = request1
		ds, err = c.Receive(t.Context(), r)
		assert.That(t, err == nil && len(ds) == 2, "a consumer of other topics: %v, %v", ds, err)
	})
}

// Faults of a change, and changes beyond the limits that the server has pushed, are errors without a
// request. They leave the set as it is.
func TestSyncLiteRejects(t *testing.T) {
	long := strings.Repeat("l", 64)
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.respondWith(func() *rmqpb.Settings {
			return &rmqpb.Settings{PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
				LiteSubscriptionQuota: new(int32(3)), MaxLiteTopicSize: new(int32(63)),
			}}}
		})
		assert.Must(t, c.SyncLite(t.Context(), syncOf(transport.LiteSet, transport.LiteStart{}, "a", "b")))
		before := len(s.syncs())
		with := func(change func(*transport.LiteSync)) transport.LiteSync {
			x := syncOf(transport.LiteAdd, transport.LiteStart{}, "c")
			change(&x)
			return x
		}
		for name, tt := range map[string]struct {
			change transport.LiteSync
			code   tidegate.Code
			text   string
		}{
			"too many":         {syncOf(transport.LiteAdd, transport.LiteStart{}, "b", "c", "d"), protocol.CodeLiteSubscriptionQuotaExceeded, "would have 4 lite topics; the limit of group \"g\" is 3"},
			"too many at once": {syncOf(transport.LiteSet, transport.LiteStart{}, "c", "d", "e", "f"), protocol.CodeLiteSubscriptionQuotaExceeded, "would have 4"},
			"long name":        {syncOf(transport.LiteAdd, transport.LiteStart{}, long), protocol.CodeIllegalLiteTopic, "has 64 bytes; the limit of the server is 63"},
			"longer name":      {syncOf(transport.LiteAdd, transport.LiteStart{}, long+"l"), protocol.CodeIllegalLiteTopic, "65 bytes"},
			"blank name":       {syncOf(transport.LiteSet, transport.LiteStart{}, " "), protocol.CodeIllegalLiteTopic, "blank"},
			"two starts":       {syncOf(transport.LiteAdd, transport.LiteStart{Oldest: true, Last: 1}, "c"), tidegate.CodeBadRequest, "2 fields are set; set one"},
			"negative offset":  {syncOf(transport.LiteAdd, transport.LiteStart{Offset: -1}, "c"), tidegate.CodeBadRequest, "Offset is -1"},
			"no ID":            {with(func(x *transport.LiteSync) { x.ID = "" }), tidegate.CodeBadRequest, "128 printable ASCII characters"},
			"line in ID":       {with(func(x *transport.LiteSync) { x.ID = "a\nb" }), tidegate.CodeBadRequest, "printable"},
			"no group":         {with(func(x *transport.LiteSync) { x.Group = "" }), protocol.CodeIllegalConsumerGroup, ""},
			"no topic":         {with(func(x *transport.LiteSync) { x.Topic = "" }), protocol.CodeIllegalTopic, ""},
			"other topic":      {with(func(x *transport.LiteSync) { x.Topic = "u" }), tidegate.CodeBadRequest, "has lite topics of \"t\""},
		} {
			err := c.SyncLite(t.Context(), tt.change)
			assert.That(t, codeOf(err) == tt.code && strings.Contains(err.Error(), tt.text), "%s: %v, want %d and %q", name, err, tt.code, tt.text)
		}
		assert.That(t, len(s.syncs()) == before, "the server got %q", s.syncs()[before:])
		assert.NoError(t, c.SyncLite(t.Context(), syncOf(transport.LiteAdd, transport.LiteStart{}, "b", "c"))) // the third
		assert.NoError(t, c.SyncLite(t.Context(), syncOf(transport.LiteRemove, transport.LiteStart{}, "a")))
		assert.NoError(t, c.SyncLite(t.Context(), syncOf(transport.LiteAdd, transport.LiteStart{}, "d")))
	})
}

// ServeLite reports each lite topic that the server takes, once, and none that the consumer does not
// have.
func TestServeLite(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		streams := s.liteStreams()
		assert.Must(t, c.SyncLite(t.Context(), syncOf(transport.LiteSet, transport.LiteStart{}, "a", "b", "c")))
		st := <-streams
		assert.Must(t, st.Send(endOf("a"))) // before ServeLite
		synctest.Wait()
		var ended []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- c.ServeLite(ctx, liteConsumer1, func(name string) { ended = append(ended, name) })
		}()
		for _, name := range []string{"b", "x", "a", "b"} {
			assert.Must(t, st.Send(endOf(name)))
		}
		synctest.Wait()
		assert.That(t, slices.Equal(ended, []string{"a", "b"}), "ended %q, want a and b", ended)
		assert.Must(t, c.SyncLite(t.Context(), syncOf(transport.LiteAdd, transport.LiteStart{}, "b")))
		assert.Must(t, st.Send(endOf("b"))) // it has been added again
		synctest.Wait()
		assert.That(t, slices.Equal(ended, []string{"a", "b", "b"}), "ended %q, want b once more", ended)
		cancel()
		assert.NoError(t, <-done)

		go func() { done <- c.ServeLite(t.Context(), liteConsumer1, func(string) {}) }()
		synctest.Wait()
		c.Close()
		assert.Is(t, "ServeLite of a closed client", <-done, tidegate.ErrClosed)
		assert.Is(t, "SyncLite of a closed client", c.SyncLite(t.Context(), syncOf(transport.LiteSet, transport.LiteStart{})), tidegate.ErrClosed)
	})
}

// RocketMQ forgets the set of a consumer with its stream. The client sends the set when the session
// is open again, after the settings, and without the lite topics that the server has taken.
func TestLiteSetIsRestored(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		streams := s.liteStreams()
		assert.Must(t, c.SyncLite(t.Context(), syncOf(transport.LiteSet, transport.LiteStart{Newest: true}, "b", "a", "c")))
		assert.Must(t, (<-streams).Send(endOf("c")))
		synctest.Wait()
		s.stop()
		time.Sleep(time.Second)
		s.start()
		before := len(s.syncs())
		time.Sleep(10 * time.Second)
		got := s.syncs()[before:]
		assert.That(t, slices.Equal(got, []string{"COMPLETE_ADD [a b]"}), "the server got %q", got)
		settings, syncs := s.of("settings"), s.of("SyncLiteSubscription")
		assert.That(t, len(settings) == 2 && settings[1].at <= syncs[before].at, "settings at %v, changes at %v", times(settings), times(syncs))
	})
}

// The calls for a consumer run one after the other, so that servers get the changes in their order.
func TestLiteChangesKeepTheirOrder(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		release := make(chan struct{})
		s.lite = func(*rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
			<-release
			return &rmqpb.SyncLiteSubscriptionResponse{Status: ok}, nil
		}
		done := make(chan error, 2)
		go func() { done <- c.SyncLite(t.Context(), syncOf(transport.LiteAdd, transport.LiteStart{}, "a")) }()
		synctest.Wait()
		go func() { done <- c.SyncLite(t.Context(), syncOf(transport.LiteRemove, transport.LiteStart{}, "a")) }()
		synctest.Wait()
		assert.Equal(t, "requests while the first is under way", len(s.syncs()), 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.Is(t, "a change that waits", c.SyncLite(ctx, syncOf(transport.LiteSet, transport.LiteStart{})), context.DeadlineExceeded)
		close(release)
		assert.NoError(t, <-done)
		assert.NoError(t, <-done)
		assert.That(t, slices.Equal(s.syncs(), []string{"PARTIAL_ADD [a]", "PARTIAL_REMOVE [a]"}), "requests %q", s.syncs())
	})
}

// The settings of a group that receives from lite topics are those of a consumer of lite topics:
// RocketMQ accepts no other kind of client.
func TestSettingsOfALiteGroup(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.route = func() *rmqpb.QueryRouteResponse { return accepting(rmqpb.MessageType_LITE) }
		g, err := c.ConsumerSettings(t.Context(), "g", "t")
		assert.That(t, err == nil && g.MaxAttempts == 17, "%+v, %v", g, err)
		assert.Must(t, c.SyncLite(t.Context(), syncOf(transport.LiteSet, transport.LiteStart{}, "a")))
		assert.NoError(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		for _, x := range s.of("settings") {
			kind := x.req.(*rmqpb.TelemetryCommand).GetSettings().GetClientType()
			assert.That(t, kind == rmqpb.ClientType_LITE_PUSH_CONSUMER, "settings of a %v", kind)
		}
	})
}

// A server without lite topics has no RPC for them, or rejects the type of the client, as RocketMQ
// 5.2 to 5.4 do.
func TestServerWithoutLiteTopics(t *testing.T) {
	for name, prepare := range map[string]func(s *fakeServer){
		"no RPC": func(s *fakeServer) {
			s.lite = func(*rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
				return nil, status.Error(codes.Unimplemented, "Method not found")
			}
		},
		"RocketMQ 5.2.0": func(s *fakeServer) {
			s.telemetry = func(rmqpb.MessagingService_TelemetryServer) error {
				return status.Error(codes.Internal, "process client telemetryCommand failed. Client type is not consumer, type: UNRECOGNIZED")
			}
		},
	} {
		servedAs(t, name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			prepare(s)
			err := c.SyncLite(t.Context(), syncOf(transport.LiteAdd, transport.LiteStart{}, "a"))
			if codeOf(err) != tidegate.CodeNotImplemented || tidegate.Classify(err) != tidegate.ClassPermanent || errors.Is(err, tidegate.ErrUnavailable) ||
				!strings.Contains(err.Error(), "5.5.0") || !strings.Contains(err.Error(), "enableLmq") || !strings.Contains(err.Error(), "enableMultiDispatch") {
				t.Errorf("%+v", err)
			}
		})
	}
}
