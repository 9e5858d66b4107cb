package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/rmqpb/newer"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A newer server can send codes, other enums and fields that this version does not know. The tests
// in this file change each place of each response that the client reads. A new place in the
// contract fails them until a use has it, and a new enum until its outcome is listed.

// A use is a use of a response of a method. Its outcome is what the caller gets, in lines.
type use struct {
	method  string
	name    string // of one of several uses of a method
	changes bool   // the request can store or settle something, so an unclear code leaves that open
	prepare func(s *fakeServer)
	outcome func(t *testing.T, s *fakeServer, c *rocketmq.Client) string

	// only, if not nil, selects the responses that are changed.
	only func(proto.Message) bool

	// enums has the outcomes of unknown values by place, made from the outcome without a change. An
	// enum of another type than Code must be listed. A Code that is not listed is that of the result,
	// whose outcome depends on its value (see codeOutcomes).
	enums map[string]func(same string) string
}

func same(text string) string { return text }

// lineless returns the text without one of its lines, which are separated by newlines.
func lineless(n int) func(string) string {
	return func(text string) string {
		lines := strings.Split(text, "\n")
		return strings.Join(append(lines[:n:n], lines[n+1:]...), "\n")
	}
}

// blank is lineless for a line that remains without its text.
func blank(n int) func(string) string {
	return func(text string) string {
		lines := strings.Split(text, "\n")
		lines[n] = ""
		return strings.Join(lines, "\n")
	}
}

func exactly(text string) func(string) string { return func(string) string { return text } }

// outcomeOf describes an error.
func outcomeOf(err error) string {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return fmt.Sprint(err)
	}
	text := fmt.Sprintf("%d %v", e.Code, tidegate.Classify(err))
	if e.MaybeStored {
		text += ", maybe stored"
	}
	if e.Code == 0 {
		text += ": " + e.Message
	}
	return text
}

// codeOutcomes has codes that RocketMQ does not have, and their outcomes by the range of the code:
// those of HTTP, whose statuses RocketMQ's codes extend by two digits. An empty one is that of OK.
// With open, the server may have carried out the request.
var codeOutcomes = map[int32]struct {
	outcome string
	open    bool
}{
	20077: {}, 20177: {},
	40077: {outcome: "permanent"}, 40177: {outcome: "permanent"}, 40277: {outcome: "permanent"}, 40377: {outcome: "permanent"},
	40477: {outcome: "permanent"}, 40877: {outcome: "transient"}, 41377: {outcome: "permanent"}, 42877: {outcome: "permanent"},
	42977: {outcome: "throttled"}, 43177: {outcome: "permanent"}, 45077: {outcome: "permanent"},
	50077: {outcome: "transient", open: true}, 50177: {outcome: "permanent"}, 50377: {outcome: "transient", open: true},
	50477: {outcome: "transient", open: true}, 50577: {outcome: "permanent"}, 51177: {outcome: "transient", open: true},
	77: {outcome: "transient", open: true}, -77: {outcome: "transient", open: true}, 31077: {outcome: "transient", open: true},
	60077: {outcome: "transient", open: true}, 70077: {outcome: "transient", open: true},
}

// fullQueue has all fields of a queue.
func fullQueue() *rmqpb.MessageQueue {
	q := queues(testAddr, "broker-a", 1)[0]
	q.Topic, q.AcceptMessageTypes = &rmqpb.Resource{Name: "t"}, []rmqpb.MessageType{rmqpb.MessageType_NORMAL}
	return q
}

// full returns a delivered message with all fields.
func full(id string) *rmqpb.Message {
	return delivered(func(m *rmqpb.Message) {
		p := m.SystemProperties
		p.MessageId, p.ReceiptHandle = id, new("h-"+id)
		p.InvisibleDuration, p.OrphanedTransactionRecoveryDuration = durationpb.New(time.Second), durationpb.New(time.Second)
		p.DeadLetterQueue = &rmqpb.DeadLetterQueue{Topic: "from", MessageId: "first"}
		p.LiteTopic, p.Priority = new("lite"), new(int32(1))
	})
}

func fullEndpoints() *rmqpb.Endpoints { return fullQueue().GetBroker().GetEndpoints() }

// fullSettings has all fields of a server's settings except for pub_sub.
func fullSettings(exponential bool) *rmqpb.Settings {
	x := &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PRODUCER.Enum(), AccessPoint: fullEndpoints(), RequestTimeout: durationpb.New(time.Second),
		BackoffPolicy: wireLadder(7, 1, 2), UserAgent: &rmqpb.UA{Language: rmqpb.Language_JAVA}, Metric: &rmqpb.Metric{Endpoints: fullEndpoints()},
		ClientProperties: map[string]string{"team": "billing"},
	}
	if exponential {
		x.BackoffPolicy = &rmqpb.RetryPolicy{MaxAttempts: 7, Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{
			ExponentialBackoff: &rmqpb.ExponentialBackoff{Initial: durationpb.New(2 * time.Second), Max: durationpb.New(time.Hour), Multiplier: 3}}}
	}
	return x
}

// respondWith makes the server respond to each settings of a client with others.
func (s *fakeServer) respondWith(settings func() *rmqpb.Settings) {
	s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
		for {
			if _, err := st.Recv(); err != nil {
				return nil
			}
			st.Send(&rmqpb.TelemetryCommand{Status: ok, Command: &rmqpb.TelemetryCommand_Settings{Settings: settings()}})
		}
	}
}

// settingsEnums are the enums in settings. The client reads none of them.
var settingsEnums = map[string]func(string) string{
	"settings.client_type": same, "settings.access_point.scheme": same, "settings.user_agent.language": same,
	"settings.metric.endpoints.scheme": same, "settings.subscription.subscriptions.expression.type": same,
}

func describe(ds []*tidegate.Delivery) string {
	var lines []string
	for _, d := range ds {
		lines = append(lines, fmt.Sprintf("%+v", *d))
	}
	return strings.Join(lines, "\n")
}

func sendM(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
	r := c.Send(t.Context(), []*tidegate.Message{message("m")})[0]
	if r.Err != nil {
		return outcomeOf(r.Err)
	}
	return fmt.Sprintf("%+v", r.Receipt)
}

func settle(v transport.VerdictKind) func(*testing.T, *fakeServer, *rocketmq.Client) string {
	return func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
		res, err := c.Settle(t.Context(), delivery("1", testAddr), transport.Verdict{Kind: v, Delay: time.Second})
		return fmt.Sprint(res, " ", outcomeOf(err))
	}
}

var uses = []use{
	{
		method:  "QueryRoute",
		prepare: func(s *fakeServer) { s.route = routed([]*rmqpb.MessageQueue{fullQueue()}) },
		outcome: sendM,
		enums: map[string]func(string) string{
			"message_queues.permission":              exactly(`0 transient: the route has no queue on a master that can be written or read: queue 0 of broker "broker-a" has the permission 77, which this version does not know; update the client`),
			"message_queues.broker.endpoints.scheme": same, // host and port suffice
			"message_queues.accept_message_types":    exactly("40014 permanent"),
		},
	},
	{
		method: "QueryAssignment",
		prepare: func(s *fakeServer) {
			s.assign = func() *rmqpb.QueryAssignmentResponse {
				return &rmqpb.QueryAssignmentResponse{Status: ok, Assignments: []*rmqpb.Assignment{{MessageQueue: fullQueue()}}}
			}
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			numbers, err := c.Queues(t.Context(), "g", "t")
			return fmt.Sprint(numbers, " ", outcomeOf(err))
		},
		enums: map[string]func(string) string{ // the route decides about them
			"assignments.message_queue.permission": same, "assignments.message_queue.broker.endpoints.scheme": same,
			"assignments.message_queue.accept_message_types": same,
		},
	},
	{
		method: "SendMessage", changes: true,
		outcome: sendM,
		enums:   map[string]func(string) string{"status.code": same}, // the entries have statuses of their own
	},
	{
		method: "SendMessage", name: "a response without the status of the message", changes: true,
		prepare: func(s *fakeServer) {
			s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				return &rmqpb.SendMessageResponse{Status: ok, Entries: []*rmqpb.SendResultEntry{{MessageId: "m"}}}, nil
			}
		},
		outcome: sendM,
	},
	{
		method: "ReceiveMessage",
		prepare: func(s *fakeServer) {
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				sendStatus(st, rmqpb.Code_OK)
				st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: full("1")}})
				sendTime(st, time.Now().Add(-time.Second))
				return st.Send(&rmqpb.ReceiveMessageResponse{Packed: []*rmqpb.Message{full("2")}})
			}
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			ds, err := c.Receive(t.Context(), request1)
			if err != nil {
				return outcomeOf(err)
			}
			return describe(ds)
		},
		enums: map[string]func(string) string{
			"message.system_properties.body_digest.type": same, "packed.system_properties.body_digest.type": same, // it proves nothing
			"message.system_properties.message_type": same, "packed.system_properties.message_type": same, // it follows from other fields
			// The body cannot be read: the message is logged, skipped, and delivered again.
			"message.system_properties.body_encoding": lineless(0), "packed.system_properties.body_encoding": lineless(1),
		},
	},
	{
		method: "AckMessage", changes: true,
		prepare: func(s *fakeServer) {
			s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
				return &rmqpb.AckMessageResponse{Status: ok, Entries: []*rmqpb.AckMessageResultEntry{{MessageId: "m-1", ReceiptHandle: "1", Status: ok}}}
			}
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			return outcomeOf(c.Ack(t.Context(), []*tidegate.Delivery{delivery("1", testAddr)})[0])
		},
		enums: map[string]func(string) string{"status.code": same}, // as of a send
	},
	{
		method: "AckMessage", name: "a response without entries", changes: true,
		prepare: func(s *fakeServer) {
			s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse { return &rmqpb.AckMessageResponse{Status: ok} }
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			return outcomeOf(c.Ack(t.Context(), []*tidegate.Delivery{delivery("1", testAddr)})[0])
		},
	},
	{method: "ForwardMessageToDeadLetterQueue", changes: true, outcome: settle(transport.DeadLetter)},
	{method: "ChangeInvisibleDuration", changes: true, outcome: settle(transport.Retry)},
	{
		method: "ChangeInvisibleDuration", name: "an extension", changes: true,
		prepare: func(s *fakeServer) {
			s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
				return &rmqpb.ChangeInvisibleDurationResponse{Status: ok, ReceiptHandle: "next"}
			}
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			handle, err := c.Extend(t.Context(), delivery("1", testAddr), time.Minute, false)
			return handle + " " + outcomeOf(err)
		},
	},
	{
		method: "EndTransaction", changes: true,
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			tx := transport.Transaction{ID: "tx", MessageID: "1", Topic: "t", Endpoint: testAddr}
			return outcomeOf(c.EndTransaction(t.Context(), tx, transport.Commit))
		},
	},
	{
		method: "RecallMessage",
		prepare: func(s *fakeServer) {
			s.recall = func(context.Context) (*rmqpb.RecallMessageResponse, error) {
				return &rmqpb.RecallMessageResponse{Status: ok, MessageId: "m"}, nil
			}
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			id, err := c.Recall(t.Context(), "t", "handle")
			return id + " " + outcomeOf(err)
		},
	},
	{
		method: "SyncLiteSubscription",
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			return outcomeOf(c.SyncLite(t.Context(), transport.LiteSync{LiteConsumer: liteConsumer1, Action: transport.LiteAdd, Topics: []string{"l"}}))
		},
	},
	{
		method: "Heartbeat",
		outcome: func(t *testing.T, s *fakeServer, c *rocketmq.Client) string {
			_, err := c.ConsumerSettings(t.Context(), "g", "t")
			time.Sleep(25 * time.Second)
			return fmt.Sprint(len(s.of("Heartbeat")), " heartbeats, ", len(s.of("settings")), " settings, ", outcomeOf(err))
		},
		enums: map[string]func(string) string{"status.code": same}, // it is logged
	},
	{
		method: "NotifyClientTermination",
		outcome: func(t *testing.T, s *fakeServer, c *rocketmq.Client) string {
			_, err := c.ConsumerSettings(t.Context(), "g", "t")
			return fmt.Sprint(outcomeOf(err), " ", outcomeOf(c.Close()), " ", len(s.of("NotifyClientTermination")))
		},
		enums: map[string]func(string) string{"status.code": same}, // nothing follows it
	},
	{
		method: "Telemetry", name: "the settings of a producer",
		prepare: func(s *fakeServer) {
			s.respondWith(func() *rmqpb.Settings {
				x := fullSettings(true)
				x.PubSub = &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{Topics: []*rmqpb.Resource{{Name: "t"}}, MaxBodySize: 5}}
				return x
			})
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			p, err := c.ProducerSettings(t.Context(), "t")
			return fmt.Sprintf("%+v %s", p, outcomeOf(err))
		},
		enums: settingsEnums,
	},
	{
		method: "Telemetry", name: "the settings of a consumer",
		prepare: func(s *fakeServer) {
			s.respondWith(func() *rmqpb.Settings {
				x := fullSettings(false)
				x.PubSub = &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
					Group: &rmqpb.Resource{Name: "g"}, ReceiveBatchSize: new(int32(9)), LongPollingTimeout: durationpb.New(time.Second),
					Subscriptions: []*rmqpb.SubscriptionEntry{{Topic: &rmqpb.Resource{Name: "t"}, Expression: tags("*")}},
				}}
				return x
			})
		},
		outcome: func(t *testing.T, _ *fakeServer, c *rocketmq.Client) string {
			p, err := c.ConsumerSettings(t.Context(), "g", "t")
			return fmt.Sprintf("%+v %s", p, outcomeOf(err))
		},
		enums: settingsEnums,
	},
	{
		method: "Telemetry", name: "the end of a lite topic",
		outcome: liteEnded,
		only:    func(m proto.Message) bool { return m.(*rmqpb.TelemetryCommand).GetSettings() == nil },
	},
	{
		method: "Telemetry", name: "commands",
		prepare: func(s *fakeServer) { s.features, s.receive = "watch, repeat", (&watched{}).leave },
		outcome: commanded,
		only:    func(m proto.Message) bool { return m.(*rmqpb.TelemetryCommand).GetSettings() == nil },
		enums: map[string]func(string) string{
			"status.code": blank(0), // the command is logged as rejected; here it was a transaction check

			"recover_orphaned_transaction_command.message.system_properties.body_digest.type": same,
			"recover_orphaned_transaction_command.message.system_properties.message_type":     same,
			// The check is logged, and the server repeats it.
			"recover_orphaned_transaction_command.message.system_properties.body_encoding": blank(0),

			"verify_message_command.message.system_properties.body_digest.type": same, // the message is not read
			"verify_message_command.message.system_properties.message_type":     same,
			"verify_message_command.message.system_properties.body_encoding":    same,

			"ready.permission": same, "ready.broker.endpoints.scheme": same, "ready.accept_message_types": same,
		},
	},
}

// liteEnded is the outcome of a report that a lite topic has been taken from the consumer.
func liteEnded(t *testing.T, s *fakeServer, c *rocketmq.Client) string {
	streams := s.liteStreams()
	if err := c.SyncLite(t.Context(), transport.LiteSync{LiteConsumer: liteConsumer1, Topics: []string{"l"}}); err != nil {
		return outcomeOf(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended []string
	go func() {
		(<-streams).Send(endOf("l"))
		synctest.Wait()
		cancel()
	}()
	err := c.ServeLite(ctx, liteConsumer1, func(name string) { ended = append(ended, name) })
	return fmt.Sprint(ended, " ", outcomeOf(err))
}

func tags(expression string) *rmqpb.FilterExpression {
	return &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: expression}
}

// commanded is the outcome of one command of each kind: a line for the check of a transaction, for
// the responses, for the watch and for the streams. Only the check has a status, which servers can
// omit.
func commanded(t *testing.T, s *fakeServer, c *rocketmq.Client) string {
	var mu sync.Mutex
	var stream rmqpb.MessagingService_TelemetryServer // of the consumer
	s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
		for {
			cmd, err := st.Recv()
			if err != nil {
				return nil
			}
			in := cmd.GetSettings()
			if in == nil {
				s.note(st.Context(), "/apache.rocketmq.v2.MessagingService/command", cmd)
				continue
			}
			if in.GetSubscription() != nil {
				mu.Lock()
				stream = st
				mu.Unlock()
			}
			st.Send(serverSettings(in))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var checked string
	go c.ServeChecks(ctx, []string{"t"}, func(_ context.Context, q transport.TransactionCheck) transport.Resolution {
		checked = fmt.Sprintf("check %s of %+v", q.Transaction.ID, *q.Message)
		return transport.ResolutionUnknown
	})
	_, ready, err := c.ReceiveOrWatch(ctx, of("t"))
	assert.MustThat(t, err == nil && ready != nil, "no watch: %v", err)

	before := s.openSessions()
	queue := fullQueue()
	queue.Id = -1
	for _, cmd := range []*rmqpb.TelemetryCommand{
		{Status: ok, Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{
			RecoverOrphanedTransactionCommand: &rmqpb.RecoverOrphanedTransactionCommand{Message: full("half"), TransactionId: "tx"}}},
		{Command: &rmqpb.TelemetryCommand_PrintThreadStackTraceCommand{PrintThreadStackTraceCommand: &rmqpb.PrintThreadStackTraceCommand{Nonce: "n1"}}},
		{Command: &rmqpb.TelemetryCommand_VerifyMessageCommand{VerifyMessageCommand: &rmqpb.VerifyMessageCommand{Nonce: "n2", Message: full("verify")}}},
		// This consumer has no lite topics, and the last two are not for clients.
		{Command: &rmqpb.TelemetryCommand_NotifyUnsubscribeLiteCommand{NotifyUnsubscribeLiteCommand: &rmqpb.NotifyUnsubscribeLiteCommand{LiteTopic: "l"}}},
		{Command: &rmqpb.TelemetryCommand_ThreadStackTrace{ThreadStackTrace: &rmqpb.ThreadStackTrace{Nonce: "n3"}}},
		{Command: &rmqpb.TelemetryCommand_VerifyMessageResult{VerifyMessageResult: &rmqpb.VerifyMessageResult{Nonce: "n4"}}},
		{}, // a command that this version does not know has only unknown fields
		{Ready: []*rmqpb.MessageQueue{queue}},
	} {
		mu.Lock()
		assert.Must(t, stream.Send(cmd))
		mu.Unlock()
		synctest.Wait()
	}
	var answers []string
	for _, g := range s.of("command") {
		cmd := g.req.(*rmqpb.TelemetryCommand)
		answers = append(answers, fmt.Sprint(cmd.GetStatus().GetCode(), cmd.GetThreadStackTrace().GetNonce(), cmd.GetVerifyMessageResult().GetNonce()))
	}
	watch := "not ready"
	select {
	case <-ready:
		watch = "ready"
	default:
	}
	streams := fmt.Sprint("sessions: ", before, ", then ", s.openSessions())
	mu.Lock()
	assert.Must(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{}}}))
	mu.Unlock()
	time.Sleep(5 * time.Second)
	return fmt.Sprintf("%s\n%v\nthe watch is %s\n%s, after a new connection %d of %d streams", checked, answers, watch, streams, s.openSessions(), len(s.of("Telemetry")))
}

// with returns the outcome of the use, with a change of the server's responses, and whether a
// response had its place.
func (u use) with(t *testing.T, change *newer.Change, value int32) (outcome string, applied bool) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newNetwork(), testAddr)
		if u.method != "Heartbeat" {
			// A heartbeat that succeeds before the request shows that the server accepts the credentials,
			// and a code of 401xx is then transient. It may also be later.
			s.heartbeat = func() *rmqpb.Status { return &rmqpb.Status{Code: rmqpb.Code_NOT_IMPLEMENTED} }
		}
		if u.prepare != nil {
			u.prepare(s)
		}
		var mu sync.Mutex
		s.rewrite = func(method string, m proto.Message) {
			if method == u.method && change != nil && (u.only == nil || u.only(m)) {
				mu.Lock()
				defer mu.Unlock()
				applied = change.Apply(m, value) || applied
			}
		}
		outcome = u.outcome(t, s, newClient(t, s.net, nil))
	})
	return outcome, applied
}

// responseOf returns a response of a method.
func responseOf(t *testing.T, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	kind := assert.Value(protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName()))(t)
	return kind.New().Interface()
}

var methods = rmqpb.File_tidegate_rmq_v2_service_proto.Services().Get(0).Methods()

// neverCalled are the methods that the client does not call.
var neverCalled = map[string]bool{"PullMessage": true, "UpdateOffset": true, "GetOffset": true, "QueryOffset": true}

// Unknown fields change nothing, wherever they are. An unknown value of an enum has the outcome that
// is listed for its place.
func TestResponsesOfANewerServer(t *testing.T) {
	found := map[string]bool{} // the places of the responses
	for i := range methods.Len() {
		m := methods.Get(i)
		if neverCalled[string(m.Name())] {
			continue
		}
		list := newer.Changes(responseOf(t, m))
		for _, u := range uses {
			if u.method != string(m.Name()) {
				continue
			}
			t.Run(strings.TrimSuffix(u.method+", "+u.name, ", "), func(t *testing.T) {
				base, _ := u.with(t, nil, 0)
				for _, c := range list {
					want := same
					if c.Enum != "" {
						listed := u.enums[c.Place]
						if listed == nil && c.Enum == "Code" {
							u.tryCodes(t, c, base, found)
							continue
						}
						want = listed
					}
					got, applied := u.with(t, &c, 77)
					if !applied {
						continue
					}
					found[u.method+" "+c.Place] = true
					if want == nil {
						t.Errorf("%s, an enum %s, has no listed outcome; a value of 77 has %q", c.Place, c.Enum, got)
						continue
					}
					assert.Equal(t, c.Place, got, want(base))
				}
			})
		}
		for _, c := range list {
			assert.That(t, found[string(m.Name())+" "+c.Place], "no response of %s has the place %s; add it to the responses of a use", m.Name(), c.Place)
		}
	}
}

// tryCodes tries all codes of codeOutcomes.
func (u use) tryCodes(t *testing.T, c newer.Change, base string, found map[string]bool) {
	t.Helper()
	for code, want := range codeOutcomes {
		got, applied := u.with(t, &c, code)
		if !applied {
			return
		}
		found[u.method+" "+c.Place] = true
		text := fmt.Sprintf("%d %s", code, want.outcome)
		if u.changes && want.open {
			text += ", maybe stored"
		}
		switch {
		case want.outcome == "":
			assert.Equal(t, fmt.Sprint("code ", code, " at ", c.Place), got, base)
		case !strings.HasSuffix(got, text):
			t.Errorf("code %d at %s: %s, want %s", code, c.Place, got, text)
		}
	}
}

// A code of 300xx refers to the entries, as MULTIPLE_RESULTS does.
func TestUnknownDividedResults(t *testing.T) {
	divided := &rmqpb.Status{Code: 30077}
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "batch"
		sent(t, c, message("first")) // so that it knows the features
		s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			res := sentAll(r)
			res.Status, res.Entries[1].Status = divided, &rmqpb.Status{Code: 40077}
			return res, nil
		}
		s.ack = func(*rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
			return &rmqpb.AckMessageResponse{Status: divided, Entries: []*rmqpb.AckMessageResultEntry{{Status: ok}, {Status: &rmqpb.Status{Code: 40077}}}}
		}
		rs := c.Send(t.Context(), []*tidegate.Message{message("1"), message("2")})
		assert.That(t, rs[0].Err == nil && outcomeOf(rs[1].Err) == "40077 permanent", "sends: %v, %v", rs[0].Err, rs[1].Err)
		errs := c.Ack(t.Context(), []*tidegate.Delivery{delivery("1", testAddr), delivery("2", testAddr)})
		assert.That(t, errs[0] == nil && outcomeOf(errs[1]) == "40077 permanent", "acknowledgements: %v", errs)
		s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: divided}, nil
		}
		_, err := sendOne(t.Context(), c, message("3"))
		assert.Equal(t, "a send without a result", outcomeOf(err), "50001 transient, maybe stored")
	})
}

// The server of a transaction is found by its addresses also if they are of a kind that only a newer
// server has.
func TestTransactionOnAServerWithAddressesOfSeveralKinds(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		q := fullQueue()
		q.AcceptMessageTypes = []rmqpb.MessageType{rmqpb.MessageType_TRANSACTION, 77}
		q.Broker.Endpoints = &rmqpb.Endpoints{Scheme: 77, Addresses: []*rmqpb.Address{{Host: "127.0.0.1", Port: 8081}, {Host: "mq.example", Port: 8081}}}
		s.route = routed([]*rmqpb.MessageQueue{q})
		r := c.SendHalf(t.Context(), message("half"))
		assert.Must(t, r.Err)
		assert.NoError(t, c.EndTransaction(t.Context(), transport.Transaction{ID: "tx", MessageID: "half", Topic: "t", Endpoint: r.Receipt.Endpoint}, transport.Commit))
		assert.Equal(t, "requests", len(s.of("EndTransaction")), 1)
	})
}

// A throttle by a code that this version does not know has the time of the trailer.
func TestUnknownThrottle(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			st.SetTrailer(metadata.Pairs(wire.TrailerPushBack, "700"))
			sendStatus(st, 42977)
			return nil
		}
		_, err := c.Receive(t.Context(), request1)
		assert.That(t, errors.Is(err, tidegate.ErrThrottled) && tidegate.RetryAfter(err) == 700*time.Millisecond, "%+v", err)
	})
}

// Delays by a strategy that this version does not know are those of the client. The number of
// attempts holds.
func TestUnknownBackoffStrategy(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		policy := &rmqpb.RetryPolicy{MaxAttempts: 7}
		s.respondWith(func() *rmqpb.Settings { return &rmqpb.Settings{BackoffPolicy: policy} })
		root := newer.Changes(policy)[0]
		assert.MustThat(t, root.Place == "*" && root.Apply(policy, 0), "%v", root)
		p, err := c.ProducerSettings(t.Context(), "t")
		assert.That(t, err == nil && p == transport.ProducerSettings{MaxAttempts: 7}, "producer: %+v, %v", p, err)
		g, err := c.ConsumerSettings(t.Context(), "g", "t")
		assert.That(t, err == nil && g == transport.ConsumerSettings{MaxAttempts: 7}, "consumer: %+v, %v", g, err)
	})
}

// Features and trailers that this version does not know change nothing.
func TestUnknownFeaturesAndTrailers(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "future, repeat, , future=2"
		s.changeTrailer = metadata.Pairs(wire.TrailerRetry, "elsewhere", "x-tidegate-future", "1")
		res, err := c.Settle(t.Context(), delivery("1", testAddr), transport.Verdict{Kind: transport.Retry})
		assert.That(t, err == nil && res == transport.RetryResult{}, "%+v, %v", res, err)
		assert.Equal(t, "capabilities", c.Capabilities(testAddr), transport.Capabilities{RepeatReceive: true, RepeatChange: true})
	})
}
