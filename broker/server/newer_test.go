package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/rmqpb/newer"
	"github.com/tidegate/tidegate/internal/wire"
)

// A newer client can send enums and fields that this broker does not know. The tests in this file
// change each place of each request. A new place in the contract fails them until a newerUse has
// it, and a new enum until its outcome is listed.

// A newerUse is a use of a method. Its requests have as many places of the contract as the broker
// accepts.
type newerUse struct {
	method, name string

	// use makes the requests, each passed through edit, and returns the outcome for the client.
	use func(e *env, edit func(proto.Message)) string

	// enums has the outcomes of unknown values by place. An empty one is that without a change.
	// Otherwise it is the code, and a word of the text.
	enums map[string]string
}

// outcomeOf describes a status.
func outcomeOf(st *rmqpb.Status) string { return fmt.Sprint(int32(st.GetCode()), " ", st.GetMessage()) }

// unary makes an RPC with a request that was edited.
func unary[Req proto.Message, Res statused](e *env, edit func(proto.Message), req Req, call func(context.Context, Req) (Res, error)) Res {
	e.t.Helper()
	edit(req)
	return assert.Value(call(e.ctx(), req))(e.t)
}

// invoke is unary for a method whose response is only a status.
func invoke(method string, request func(e *env) proto.Message) func(*env, func(proto.Message)) string {
	return func(e *env, edit func(proto.Message)) string {
		req := request(e)
		edit(req)
		m := rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods()
		kind := assert.Value(protoregistry.GlobalTypes.FindMessageByName(m.ByName(protoreflect.Name(method)).Output().FullName()))(e.t)
		res := kind.New().Interface()
		assert.Must(e.t, e.conn.Invoke(e.ctx(), "/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/"+method, req, res))
		return outcomeOf(res.(statused).GetStatus())
	}
}

// fullQueue is a queue of a topic with all fields.
func fullQueue(topic string) *rmqpb.MessageQueue {
	q := &rmqpb.MessageQueue{
		Topic: res(topic), Id: -1, Permission: rmqpb.Permission_READ_WRITE,
		Broker: &rmqpb.Broker{Name: "b", Endpoints: someEndpoints()}, AcceptMessageTypes: []rmqpb.MessageType{rmqpb.MessageType_NORMAL},
	}
	return q
}

func someEndpoints() *rmqpb.Endpoints {
	return &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "10.0.0.7", Port: 9000}}}
}

// fullMessage has all fields that are messages, except for the delivery time.
func fullMessage(id string) *rmqpb.Message {
	return msg("normal", id, sys(func(p *rmqpb.SystemProperties) {
		p.BodyEncoding, p.MessageType, p.Tag, p.Keys = rmqpb.Encoding_IDENTITY, rmqpb.MessageType_NORMAL, new("tag"), []string{"k"}
		p.BodyDigest = &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: "5d41402abc4b2a76b9719d911017c592"}
		p.BornTimestamp, p.StoreTimestamp = timestamppb.Now(), timestamppb.Now()
		p.InvisibleDuration, p.OrphanedTransactionRecoveryDuration = durationpb.New(time.Minute), durationpb.New(time.Minute)
		p.DeadLetterQueue = &rmqpb.DeadLetterQueue{Topic: "t", MessageId: "1"}
	}), func(m *rmqpb.Message) { m.UserProperties = map[string]string{"p": "v"} })
}

// sentAndReceived returns the outcome of a send, and the message as it is received.
func sentAndReceived(m func(e *env) *rmqpb.Message) func(*env, func(proto.Message)) string {
	return func(e *env, edit func(proto.Message)) string {
		sent := m(e)
		topic := sent.GetTopic().GetName()
		r := unary(e, edit, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{sent}}, func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return e.SendMessage(ctx, r)
		})
		if r.GetStatus().GetCode() != rmqpb.Code_OK {
			return outcomeOf(r.GetStatus())
		}
		time.Sleep(time.Hour)
		got := e.one(e.ctx(), receiveRequest(topic, polling(0)))
		p := got.GetSystemProperties()
		return fmt.Sprint(outcomeOf(r.GetEntries()[0].GetStatus()), got.GetTopic(), got.GetUserProperties(), string(got.GetBody()),
			p.GetMessageId(), p.GetTag(), p.GetKeys(), p.GetMessageType(), p.GetBodyEncoding(), p.GetBornTimestamp(), len(got.ProtoReflect().GetUnknown()))
	}
}

// about returns a request about a delivery of the message "1".
func about(f func(handle string) proto.Message) func(*env) proto.Message {
	return func(e *env) proto.Message {
		e.send(msg("normal", "1"))
		return f(e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle())
	}
}

// completed is a request about a feature that the broker does not have, with all places.
func completed(m proto.Message) func(*env) proto.Message {
	return func(*env) proto.Message {
		m := proto.Clone(m)
		newer.Complete(m)
		return m
	}
}

// newSettings adds to the settings of a client the messages that no test needs otherwise.
func newSettings(s *rmqpb.Settings) *rmqpb.Settings {
	s.AccessPoint, s.BackoffPolicy, s.RequestTimeout = someEndpoints(), &rmqpb.RetryPolicy{}, durationpb.New(3*time.Second)
	s.UserAgent, s.Metric = &rmqpb.UA{Language: rmqpb.Language_GOLANG}, &rmqpb.Metric{Endpoints: someEndpoints()}
	s.ClientProperties = map[string]string{"team": "billing"}
	return s
}

// told sends settings, and returns the parts of the response that the broker decides about.
func told(in func() *rmqpb.Settings, more ...*rmqpb.TelemetryCommand) func(*env, func(proto.Message)) string {
	return func(e *env, edit func(proto.Message)) string {
		st := assert.Value(e.Telemetry(e.ctx()))(e.t)
		for _, cmd := range append(slices.Clone(more), command(in())) {
			cmd = proto.CloneOf(cmd)
			if cmd.GetSettings() == nil {
				newer.Complete(cmd)
			}
			edit(cmd)
			assert.Must(e.t, st.Send(cmd))
		}
		cmd := assert.Value(st.Recv())(e.t)
		if cmd.GetSettings() == nil {
			return outcomeOf(cmd.GetStatus())
		}
		s := cmd.GetSettings()
		return fmt.Sprint(outcomeOf(cmd.GetStatus()), policy(s.GetBackoffPolicy()), s.GetBackoffPolicy().GetMaxAttempts(), s.GetMetric().GetOn(),
			s.GetPublishing().GetMaxBodySize(), s.GetSubscription().GetReceiveBatchSize(), s.GetSubscription().GetGroup().GetName())
	}
}

// settingsEnums are the outcomes of unknown enums in settings.
var settingsEnums = map[string]string{
	"status.code": "", "settings.client_type": "50100 does not know",
	"settings.access_point.scheme": "", "settings.user_agent.language": "", "settings.metric.endpoints.scheme": "",
	"settings.subscription.subscriptions.expression.type": "", // its receives are rejected
	"ready.permission": "", "ready.broker.endpoints.scheme": "", "ready.accept_message_types": "",
}

// ignoredCommands are the outcomes of unknown enums in commands that the broker does not read.
var ignoredCommands = map[string]string{
	"status.code": "", "ready.permission": "", "ready.broker.endpoints.scheme": "", "ready.accept_message_types": "",
	"settings.client_type": "50100 does not know", // of the settings after them

	"recover_orphaned_transaction_command.message.system_properties.body_digest.type": "",
	"recover_orphaned_transaction_command.message.system_properties.body_encoding":    "",
	"recover_orphaned_transaction_command.message.system_properties.message_type":     "",

	"verify_message_command.message.system_properties.body_digest.type": "",
	"verify_message_command.message.system_properties.body_encoding":    "",
	"verify_message_command.message.system_properties.message_type":     "",
}

var newerUses = []newerUse{
	{method: "QueryRoute", use: func(e *env, edit func(proto.Message)) string {
		r := unary(e, edit, &rmqpb.QueryRouteRequest{Topic: res("normal"), Endpoints: someEndpoints()}, func(ctx context.Context, r *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
			return e.QueryRoute(ctx, r)
		})
		q := r.GetMessageQueues()[0]
		return fmt.Sprint(outcomeOf(r.GetStatus()), len(r.GetMessageQueues()), q.GetTopic().GetName(), q.GetBroker().GetEndpoints().GetScheme(), q.GetBroker().GetEndpoints().GetAddresses()[0].GetHost())
	}, enums: map[string]string{"endpoints.scheme": ""}},
	{method: "QueryAssignment", use: func(e *env, edit func(proto.Message)) string {
		r := unary(e, edit, &rmqpb.QueryAssignmentRequest{Topic: res("normal"), Group: res("g"), Endpoints: someEndpoints()}, func(ctx context.Context, r *rmqpb.QueryAssignmentRequest) (*rmqpb.QueryAssignmentResponse, error) {
			return e.QueryAssignment(ctx, r)
		})
		q := r.GetAssignments()[0].GetMessageQueue()
		return fmt.Sprint(outcomeOf(r.GetStatus()), q.GetId(), q.GetTopic().GetName(), q.GetBroker().GetEndpoints().GetScheme())
	}, enums: map[string]string{"endpoints.scheme": ""}},
	{method: "SendMessage", use: sentAndReceived(func(*env) *rmqpb.Message { return fullMessage("1") }), enums: map[string]string{
		"messages.system_properties.body_digest.type": "40016 77",
		"messages.system_properties.body_encoding":    "40016 77",
		"messages.system_properties.message_type":     "40014 77",
	}},
	{method: "SendMessage", name: "with a delivery time", use: sentAndReceived(func(e *env) *rmqpb.Message {
		assert.Must(e.t, assert.Err(e.b.PutTopic(e.t.Context(), "delay", settings.Topic{Type: settings.TopicDelay, Queues: 1})))
		return msg("delay", "1", sys(func(p *rmqpb.SystemProperties) { p.DeliveryTimestamp = timestamppb.New(time.Now().Add(time.Minute)) }))
	}), enums: map[string]string{
		"messages.system_properties.body_encoding": "40016 77",
		"messages.system_properties.message_type":  "40014 77",
	}},
	{method: "ReceiveMessage", use: func(e *env, edit func(proto.Message)) string {
		e.send(msg("normal", "1"))
		req := receiveRequest("normal", polling(0), func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue = fullQueue("normal") })
		edit(req)
		st, ms := e.receive(e.ctx(), req)
		return fmt.Sprint(outcomeOf(st), len(ms))
	}, enums: map[string]string{
		"message_queue.permission": "", "message_queue.broker.endpoints.scheme": "", "message_queue.accept_message_types": "",
		"filter_expression.type": "40010 77",
	}},
	{method: "AckMessage", use: invoke("AckMessage", about(func(handle string) proto.Message {
		return &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("normal"), Entries: []*rmqpb.AckMessageEntry{{MessageId: "1", ReceiptHandle: handle}}}
	}))},
	{method: "ForwardMessageToDeadLetterQueue", use: invoke("ForwardMessageToDeadLetterQueue", about(func(handle string) proto.Message {
		return &rmqpb.ForwardMessageToDeadLetterQueueRequest{Group: res("g"), Topic: res("normal"), MessageId: "1", ReceiptHandle: handle}
	}))},
	{method: "ChangeInvisibleDuration", use: invoke("ChangeInvisibleDuration", about(func(handle string) proto.Message {
		return &rmqpb.ChangeInvisibleDurationRequest{Group: res("g"), Topic: res("normal"), MessageId: "1", ReceiptHandle: handle, InvisibleDuration: durationpb.New(time.Minute)}
	}))},
	{method: "EndTransaction", use: invoke("EndTransaction", func(e *env) proto.Message {
		assert.Must(e.t, assert.Err(e.b.PutTopic(e.t.Context(), "tx", settings.Topic{Type: settings.TopicTransaction, Queues: 2})))
		return &rmqpb.EndTransactionRequest{
			Topic: res("tx"), MessageId: "1", TransactionId: e.half("1"), Resolution: commit, Source: rmqpb.TransactionSource_SOURCE_CLIENT,
		}
	}), enums: map[string]string{"resolution": "40000 77", "source": ""}},
	{method: "RecallMessage", use: invoke("RecallMessage", func(e *env) proto.Message {
		assert.Must(e.t, assert.Err(e.b.PutTopic(e.t.Context(), "delay", settings.Topic{Type: settings.TopicDelay, Queues: 1})))
		m := msg("delay", "1", sys(func(p *rmqpb.SystemProperties) { p.DeliveryTimestamp = timestamppb.New(time.Now().Add(time.Minute)) }))
		return &rmqpb.RecallMessageRequest{Topic: res("delay"), RecallHandle: e.send(m).GetEntries()[0].GetRecallHandle()}
	})},
	{method: "Heartbeat", use: invoke("Heartbeat", func(e *env) proto.Message {
		e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		return &rmqpb.HeartbeatRequest{Group: res("g"), ClientType: rmqpb.ClientType_PUSH_CONSUMER}
	}), enums: map[string]string{"client_type": "50100 does not know"}},
	{method: "NotifyClientTermination", use: invoke("NotifyClientTermination", func(*env) proto.Message {
		return &rmqpb.NotifyClientTerminationRequest{Group: res("g")}
	})},

	{method: "SyncLiteSubscription", use: invoke("SyncLiteSubscription", func(e *env) proto.Message {
		assert.Must(e.t, assert.Err(e.b.PutTopic(e.t.Context(), "parent", settings.Topic{Type: settings.TopicLite})))
		return &rmqpb.SyncLiteSubscriptionRequest{
			Topic: res("parent"), Group: res("lite"), LiteTopicSet: []string{"a"}, OffsetOption: &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Policy_{}},
		}
	}), enums: map[string]string{"action": "40000 77", "offset_option.policy": "40000 77"}},

	// The broker rejects these, whatever they contain.
	{method: "UpdateOffset", use: invoke("UpdateOffset", completed(&rmqpb.UpdateOffsetRequest{})), enums: map[string]string{
		"message_queue.permission": "", "message_queue.broker.endpoints.scheme": "", "message_queue.accept_message_types": ""}},
	{method: "GetOffset", use: invoke("GetOffset", completed(&rmqpb.GetOffsetRequest{})), enums: map[string]string{
		"message_queue.permission": "", "message_queue.broker.endpoints.scheme": "", "message_queue.accept_message_types": ""}},
	{method: "QueryOffset", use: invoke("QueryOffset", completed(&rmqpb.QueryOffsetRequest{})), enums: map[string]string{
		"message_queue.permission": "", "message_queue.broker.endpoints.scheme": "", "message_queue.accept_message_types": "", "query_offset_policy": ""}},
	{method: "PullMessage", use: func(e *env, edit func(proto.Message)) string {
		req := &rmqpb.PullMessageRequest{}
		newer.Complete(req)
		edit(req)
		return outcomeOf(assert.Value(firstFrame(e.PullMessage(e.ctx(), req)))(e.t).GetStatus())
	}, enums: map[string]string{
		"message_queue.permission": "", "message_queue.broker.endpoints.scheme": "", "message_queue.accept_message_types": "", "filter_expression.type": ""}},

	{method: "Telemetry", name: "producer", enums: settingsEnums, use: told(func() *rmqpb.Settings {
		s := newSettings(producer("normal"))
		s.BackoffPolicy.Strategy = &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &rmqpb.ExponentialBackoff{Initial: durationpb.New(1), Max: durationpb.New(1)}}
		return s
	})},
	{method: "Telemetry", name: "consumer", enums: settingsEnums, use: told(func() *rmqpb.Settings {
		s := newSettings(consumer(rmqpb.ClientType_SIMPLE_CONSUMER))
		s.BackoffPolicy.Strategy = &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: []*durationpb.Duration{durationpb.New(1)}}}
		return s
	})},
	// Responses to commands that the broker never sends, and commands that only servers send.
	{method: "Telemetry", name: "other commands", enums: ignoredCommands, use: told(func() *rmqpb.Settings { return producer("normal") },
		&rmqpb.TelemetryCommand{Status: wire.OK, Command: &rmqpb.TelemetryCommand_ThreadStackTrace{ThreadStackTrace: &rmqpb.ThreadStackTrace{}}},
		&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_VerifyMessageResult{VerifyMessageResult: &rmqpb.VerifyMessageResult{}}},
		&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{RecoverOrphanedTransactionCommand: &rmqpb.RecoverOrphanedTransactionCommand{}}},
		&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_PrintThreadStackTraceCommand{PrintThreadStackTraceCommand: &rmqpb.PrintThreadStackTraceCommand{}}},
		&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_VerifyMessageCommand{VerifyMessageCommand: &rmqpb.VerifyMessageCommand{}}},
		&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{}}},
		&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_NotifyUnsubscribeLiteCommand{NotifyUnsubscribeLiteCommand: &rmqpb.NotifyUnsubscribeLiteCommand{}}},
	)},
}

// with returns the outcome of the use, with a change of the requests, and whether a request had its
// place.
func (u newerUse) with(t *testing.T, change *newer.Change) (outcome string, applied bool) {
	synctest.Test(t, func(t *testing.T) {
		outcome = u.use(start(t, server.Options{MinLongPolling: 1}), func(m proto.Message) {
			if change != nil {
				applied = change.Apply(m, 77) || applied
			}
		})
	})
	return outcome, applied
}

// Unknown fields change nothing, wherever they are. An unknown value of an enum has the outcome that
// is listed for its place.
func TestRequestsOfANewerClient(t *testing.T) {
	methods := rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		method := string(methods.Get(i).Name())
		kind := assert.Value(protoregistry.GlobalTypes.FindMessageByName(methods.Get(i).Input().FullName()))(t)
		list, found := newer.Changes(kind.New().Interface()), map[string]bool{}
		for _, u := range newerUses {
			if u.method != method {
				continue
			}
			t.Run(strings.TrimSuffix(method+", "+u.name, ", "), func(t *testing.T) {
				base, _ := u.with(t, nil)
				for _, c := range list {
					got, applied := u.with(t, &c)
					if !applied {
						continue
					}
					found[c.Place] = true
					want, listed := u.enums[c.Place]
					code, word, _ := strings.Cut(want, " ")
					switch {
					case c.Enum != "" && !listed:
						t.Errorf("%s, an enum %s, has no listed outcome; a value of 77 has %q", c.Place, c.Enum, got)
					case want == "":
						assert.Equal(t, c.Place, got, base)
					default:
						assert.That(t, strings.HasPrefix(got, code+" ") && strings.Contains(got, word), "%s: %s, want code %s and %q", c.Place, got, code, word)
					}
				}
			})
		}
		for _, c := range list {
			assert.That(t, found[c.Place], "no request of %s has the place %s; add it to the requests of a newerUse", method, c.Place)
		}
	}
}

// A client of a language that the broker does not know is served as one of RocketMQ's: it can read
// digests of the kind MD5, and a list of delays.
func TestUnknownLanguage(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		ctx := as(t.Context(), "newer", wire.HeaderLanguage, "ZIG", wire.HeaderClientVersion, "77.x")
		_, got := e.telemetry(ctx, consumer(rmqpb.ClientType_PUSH_CONSUMER))
		assert.That(t, strings.HasPrefix(policy(got.GetBackoffPolicy()), "customized 10s 30s"), "policy %v", got.GetBackoffPolicy())
		e.send(msg("normal", "1"))
		m := e.one(ctx, receiveRequest("normal"))
		assert.Equal(t, "digest", m.GetSystemProperties().GetBodyDigest().GetType(), rmqpb.DigestType_MD5)
	})
}

// A request that only a newer server has fails as gRPC defines it.
func TestUnknownMethod(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		err := e.conn.Invoke(e.ctx(), "/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/Future", &rmqpb.HeartbeatRequest{}, &rmqpb.HeartbeatResponse{})
		assert.Equal(t, "code", status.Code(err), codes.Unimplemented)
	})
}
