package server_test

import (
	"context"
	"crypto/md5"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

func res(name string) *rmqpb.Resource { return &rmqpb.Resource{Name: name} }

// ack acknowledges messages of the group "g" and fails the test if it cannot.
func (e *env) ack(ms ...*rmqpb.Message) {
	e.t.Helper()
	r := &rmqpb.AckMessageRequest{Group: res("g"), Topic: ms[0].GetTopic()}
	for _, m := range ms {
		r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{
			MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
		})
	}
	a, err := e.AckMessage(e.ctx(), r)
	assert.MustThat(e.t, err == nil && a.GetStatus().GetCode() == rmqpb.Code_OK, "ack: %v, %v", a, err)
}

func batch(n int32) func(*rmqpb.ReceiveMessageRequest) {
	return func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = n }
}

func TestAck(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.send(msg("normal", "1"), msg("normal", "2"))
		_, ms := e.receive(e.ctx(), receiveRequest("normal"))
		handle := func(i int) string { return ms[i].GetSystemProperties().GetReceiptHandle() }
		try := func(group, topic string, handles ...string) *rmqpb.AckMessageResponse {
			r := &rmqpb.AckMessageRequest{Group: res(group), Topic: res(topic)}
			for i, h := range handles {
				r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{MessageId: fmt.Sprint("m", i), ReceiptHandle: h})
			}
			a := assert.Value(e.AckMessage(e.ctx(), r))(t)
			return a
		}
		refused(t, try("g", "normal").GetStatus(), tidegate.CodeBadRequest, "entries")
		refused(t, try("", "normal", "x").GetStatus(), protocol.CodeIllegalConsumerGroup, "consumer group", "120")
		refused(t, try("g", "a b", "x").GetStatus(), protocol.CodeIllegalTopic, "a b")
		for _, garbage := range []string{"", "x", strings.Repeat("A", 31), "0 1795254480637 10000 1 0 broker-a 2 0 38834434"} {
			a := try("g", "normal", garbage)
			refused(t, a.GetStatus(), tidegate.CodeInvalidReceiptHandle)
			if len(a.GetEntries()) != 1 || a.GetEntries()[0].GetReceiptHandle() != garbage || a.GetEntries()[0].GetMessageId() != "m0" {
				t.Errorf("entries %v", a.GetEntries())
			}
		}
		refused(t, try("other", "normal", handle(0)).GetStatus(), tidegate.CodeInvalidReceiptHandle, "other")
		mixed := try("g", "normal", handle(0), "x", handle(1))
		refused(t, mixed.GetStatus(), protocol.CodeMultipleResults)
		for i, want := range []rmqpb.Code{rmqpb.Code_OK, rmqpb.Code_INVALID_RECEIPT_HANDLE, rmqpb.Code_OK} {
			if got := mixed.GetEntries()[i].GetStatus().GetCode(); got != want {
				t.Errorf("entry %d: %v; want %v", i, got, want)
			}
		}
		refused(t, try("g", "normal", handle(0)).GetStatus(), tidegate.CodeInvalidReceiptHandle, "acknowledged")
	})
}

// A ChangeInvisibleDuration of a push consumer means failure, except with suspend.
func TestChangeInvisibleDuration(t *testing.T) {
	for _, c := range []struct {
		name    string
		push    bool
		suspend *bool
		retry   bool // the change is a failure
	}{
		{"simple", false, nil, false},
		{"push", true, nil, true},
		{"push, no suspend", true, new(false), true},
		{"push, suspend", true, new(true), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			withServer(t, server.Options{}, func(t *testing.T, e *env) {
				assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 1})))
				if c.push {
					e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
				}
				e.send(msg("normal", "1"))
				old := e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
				var trailer metadata.MD
				r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
					Group: res("g"), Topic: res("normal"), ReceiptHandle: old, MessageId: "1",
					InvisibleDuration: durationpb.New(3 * time.Second), Suspend: c.suspend,
				}, grpc.Trailer(&trailer))
				assert.MustThat(t, err == nil && r.GetStatus().GetCode() == rmqpb.Code_OK && r.GetReceiptHandle() != "", "%v, %v", r, err)
				if changed := r.GetReceiptHandle() != old; changed == c.retry {
					t.Errorf("the handle changed: %v", changed)
				}
				// Attempt 1 of 1: a failure makes it a dead letter at once.
				_, err = e.b.Topic("%DLQ%g")
				assert.Equal(t, "dead letter", err == nil, c.retry)
				if told := trailer.Get(wire.TrailerRetry); c.retry != slices.Equal(told, []string{"dead-letter"}) || !c.retry && len(told) > 0 {
					t.Errorf("the trailer is %q", told)
				}
			})
		})
	}
}

// A push consumer sends the interval of its settings, for any length.
func TestLongRetryIntervalOfAPushConsumer(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutGroup(t.Context(), "g", settings.Group{Retry: []time.Duration{24 * time.Hour}})))
		e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.send(msg("normal", "1"))
		h := e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
		for _, c := range []struct {
			suspend bool
			want    rmqpb.Code
		}{{true, rmqpb.Code_ILLEGAL_INVISIBLE_TIME}, {false, rmqpb.Code_OK}} {
			r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), ReceiptHandle: h, MessageId: "1", InvisibleDuration: durationpb.New(24 * time.Hour), Suspend: new(c.suspend),
			})
			assert.That(t, err == nil && r.GetStatus().GetCode() == c.want, "suspend %v: %v, %v", c.suspend, r, err)
		}
	})
}

// The number with which the engine's callers leave the interval to it is no time that a client may
// send: it is as negative as -1.
func TestByScheduleIsNoDurationOfAClient(t *testing.T) {
	withWeb(t, server.Options{}, func(t *testing.T, x *webEnv) {
		x.telemetry(x.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		x.send(msg("normal", "1"))
		h := x.one(x.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
		for _, d := range []*durationpb.Duration{
			nil, durationpb.New(transport.BySchedule), durationpb.New(-1), {Seconds: -315_576_000_000}, // the protocol's least
		} {
			r, err := x.ChangeInvisibleDuration(x.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), ReceiptHandle: h, MessageId: "1", InvisibleDuration: d,
			})
			assert.Must(t, err)
			refused(t, r.GetStatus(), protocol.CodeIllegalInvisibleTime)
			assert.Equal(t, "handle", r.GetReceiptHandle(), h)
		}
		x.failed("/v1/groups/g/retry", `{"handle":"`+h+`","after":"`+time.Duration(math.MinInt64).String()+`"}`, 400, 40011)
		if err := x.b.Ack(t.Context(), []*tidegate.Delivery{{Message: tidegate.Message{Topic: "normal"}, ConsumerGroup: "g", Handle: h}})[0]; err != nil {
			t.Errorf("after the refused failures: %v", err)
		}
	})
}

// Forwarding is idempotent, and the letter has its origin.
func TestForwardToDeadLetterQueue(t *testing.T) {
	withServer(t, server.Options{}, func(t *testing.T, e *env) {
		e.send(msg("normal", "1", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"mine": "x"} }))
		m := e.one(e.ctx(), receiveRequest("normal"))
		req := &rmqpb.ForwardMessageToDeadLetterQueueRequest{
			Group: res("g"), Topic: res("normal"), MessageId: "1", DeliveryAttempt: 1, MaxDeliveryAttempts: 17,
			ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
		}
		for i := range 3 {
			r, err := e.ForwardMessageToDeadLetterQueue(as(t.Context(), "client", wire.HeaderReason, "it%20is%20%C3%BCbel"), req)
			assert.MustThat(t, err == nil && r.GetStatus().GetCode() == rmqpb.Code_OK, "call %d: %v, %v", i, r, err)
		}
		_, letters := e.receive(e.ctx(), receiveRequest("%DLQ%g"))
		assert.MustEqual(t, "dead letters", len(letters), 1)
		d := letters[0]
		if q := d.GetSystemProperties().GetDeadLetterQueue(); q.GetTopic() != "normal" || q.GetMessageId() != "1" {
			t.Errorf("dead_letter_queue %v", q)
		}
		want := map[string]string{
			"mine": "x", "DLQ_ORIGIN_QUEUE": fmt.Sprint(m.GetSystemProperties().GetQueueId()), "DLQ_ORIGIN_OFFSET": "0",
			"DLQ_GROUP": "g", "DLQ_ATTEMPTS": "1", "DLQ_REASON": "it is übel",
		}
		if got := d.GetUserProperties(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("properties %v; want %v", got, want)
		}
		// RocketMQ's clients would repeat it without end; ours gets the result.
		req.ReceiptHandle = "garbage"
		if r, _ := e.ForwardMessageToDeadLetterQueue(e.ctx(), req); r.GetStatus().GetCode() != rmqpb.Code_OK {
			t.Errorf("stale handle from RocketMQ's client: %v", r)
		}
		r, _ := e.ForwardMessageToDeadLetterQueue(as(t.Context(), "client", wire.HeaderReason, ""), req)
		refused(t, r.GetStatus(), tidegate.CodeInvalidReceiptHandle)
	})
}

// withTransactions makes an env with a topic "tx" of type TRANSACTION.
func withTransactions(t *testing.T, o server.Options) *env {
	t.Helper()
	o.MinLongPolling = 1
	e := start(t, o)
	assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "tx", settings.Topic{Type: settings.TopicTransaction, Queues: 2})))
	return e
}

// half sends a half message and returns its transaction ID.
func (e *env) half(id string, edit ...edit) string {
	e.t.Helper()
	edit = append(edit, sys(func(p *rmqpb.SystemProperties) { p.MessageType = rmqpb.MessageType_TRANSACTION }))
	r := e.send(msg("tx", id, edit...)).GetEntries()[0]
	assert.MustThat(e.t, r.GetMessageId() == id && r.GetTransactionId() != "", "the response to a half message is %v", r)
	return r.GetTransactionId()
}

func (e *env) endTransaction(ctx context.Context, messageID, transactionID string, how rmqpb.TransactionResolution) *rmqpb.Status {
	e.t.Helper()
	r, err := e.EndTransaction(ctx, &rmqpb.EndTransactionRequest{
		Topic: res("tx"), MessageId: messageID, TransactionId: transactionID, Resolution: how, Source: rmqpb.TransactionSource_SOURCE_CLIENT,
	})
	assert.Must(e.t, err)
	return r.GetStatus()
}

const (
	commit   = rmqpb.TransactionResolution_COMMIT
	rollback = rmqpb.TransactionResolution_ROLLBACK
)

// The broker delivers only the committed messages of a producer's transactions. The codes are those
// of a real server: 40008 without an ID, 50001 for a transaction that no longer exists.
func TestEndTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := withTransactions(t, server.Options{})
		ok := func(st *rmqpb.Status) {
			t.Helper()
			refused(t, st, protocol.CodeOK)
		}
		committed, gone := e.half("kept"), e.half("gone")
		if st, ms := e.receive(e.ctx(), receiveRequest("tx")); len(ms) != 0 || st.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			t.Errorf("before the end: %v, %v", st, ms)
		}
		ok(e.endTransaction(e.ctx(), "kept", committed, 0))
		ok(e.endTransaction(e.ctx(), "gone", gone, rollback))
		ok(e.endTransaction(e.ctx(), "kept", committed, commit))
		for id, transaction := range map[string]string{"kept": committed, "gone": gone} {
			refused(t, e.endTransaction(e.ctx(), id, transaction, commit), tidegate.CodeInternalServerError, "transaction", `"tx"`, "ended")
		}
		refused(t, e.endTransaction(e.ctx(), "x", "x", commit), tidegate.CodeInternalServerError, "transaction")
		refused(t, e.endTransaction(e.ctx(), "x", "", commit), protocol.CodeInvalidTransactionID, "transaction ID", "empty")
		refused(t, e.endTransaction(e.ctx(), "kept", committed, 7), tidegate.CodeBadRequest, "resolution", "7")
		m := e.one(e.ctx(), receiveRequest("tx"))
		if p := m.GetSystemProperties(); p.GetMessageId() != "kept" || p.GetDeliveryAttempt() != 1 {
			t.Errorf("delivered %v", m)
		}
		e.ack(m)
		r := assert.Value(e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("tx", "plain")}}))(t)
		refused(t, r.GetStatus(), protocol.CodeMessagePropertyConflict, "TRANSACTION", "NORMAL")
	})
}

// next reads a command that has to be a check.
func (e *env) check(st stream) *rmqpb.RecoverOrphanedTransactionCommand {
	e.t.Helper()
	cmd := assert.Value(st.Recv())(e.t)
	if cmd.GetRecoverOrphanedTransactionCommand() == nil || cmd.GetStatus().GetCode() != rmqpb.Code_OK {
		e.t.Fatalf("command %v; want a check", cmd)
	}
	return cmd.GetRecoverOrphanedTransactionCommand()
}

// The broker checks an unresolved transaction on the Telemetry stream of a producer of the topic,
// with the complete message. The first check comes after the time that the message sets or 6 s,
// later ones every 30 s. The response ends the transaction.
func TestOrphanedTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := withTransactions(t, server.Options{})
		e.telemetry(as(t.Context(), "consumer"), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.telemetry(as(t.Context(), "stranger"), producer("normal"))
		began := time.Now()
		id := e.half("m", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"k": "v"} }, sys(func(p *rmqpb.SystemProperties) {
			p.Tag = new("T")
			p.Keys, p.TraceContext, p.BornHost = []string{"a", "b"}, new("trace"), "host"
			p.OrphanedTransactionRecoveryDuration = durationpb.New(2 * time.Second)
		}))
		time.Sleep(3 * time.Second) // no producer can be asked at 2 s
		settings := producer("tx")
		settings.GetPublishing().Topics[0].ResourceNamespace = "ns"
		st, _ := e.telemetry(as(t.Context(), "producer"), settings)
		for i, after := range []time.Duration{32 * time.Second, 62 * time.Second} {
			c := e.check(st)
			assert.Equal(t, "it was asked after", time.Since(began), after)
			m, p := c.GetMessage(), c.GetMessage().GetSystemProperties()
			digest := strings.ToUpper(fmt.Sprintf("%x", md5.Sum([]byte("hello"))))
			if c.GetTransactionId() != id || m.GetTopic().GetName() != "tx" || m.GetTopic().GetResourceNamespace() != "ns" || string(m.GetBody()) != "hello" ||
				p.GetMessageId() != "m" || p.GetTag() != "T" || len(p.GetKeys()) != 2 || p.GetTraceContext() != "trace" || p.GetBornHost() != "host" ||
				p.GetBodyEncoding() != rmqpb.Encoding_IDENTITY || p.GetBodyDigest().GetChecksum() != digest || p.GetMessageType() != rmqpb.MessageType_TRANSACTION ||
				!p.GetStoreTimestamp().AsTime().Equal(began) || !p.GetBornTimestamp().AsTime().Equal(began) ||
				m.GetUserProperties()["k"] != "v" || m.GetUserProperties()["TRANSACTION_CHECK_TIMES"] != fmt.Sprint(i+2) || m.GetUserProperties()["__transactionId__"] != id {
				t.Errorf("check %v", c)
			}
		}
		refused(t, e.endTransaction(as(t.Context(), "producer"), "m", id, commit), protocol.CodeOK)
		m := e.one(e.ctx(), receiveRequest("tx"))
		if u := m.GetUserProperties(); len(u) != 2 || u["k"] != "v" || u["__transactionId__"] != id {
			t.Errorf("delivered with the properties %v", u)
		}
		stats := e.b.Engine().Stats().Topics
		for _, s := range stats {
			if s.Name == "tx" && *s.Transactions != (engine.TransactionStats{Committed: 1, Checks: 2, Unheard: 1}) {
				t.Errorf("counts %+v", *s.Transactions)
			}
		}
	})
}

// A client that sends half messages is asked even if its settings did not name the topic. One that
// has terminated, or whose stream is gone, is not.
func TestReceiversOfTransactionChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := withTransactions(t, server.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		st, _ := e.telemetry(as(ctx, "client"), producer())
		id := e.half("m")
		for range 2 { // once more after other settings
			assert.Equal(t, "check", e.check(st).GetTransactionId(), id)
			assert.Must(t, st.Send(command(producer("tx", "normal"))))
			e.settings(st)
		}
		streams := func(want int) {
			t.Helper()
			synctest.Wait()
			assert.Equal(t, "streams can be asked", len(e.s.Parts().Sessions.Publishing("tx")), want)
		}
		streams(1)
		other, _ := e.telemetry(as(t.Context(), "other"), producer("tx"))
		streams(2)
		cancel()
		streams(1)
		assert.Equal(t, "check", e.check(other).GetTransactionId(), id)
		e.s.Parts().Sessions.Terminate("other")
		streams(0)
	})
}

// A delayed message is delivered at its time with its delivery_timestamp. A recalled message is not
// delivered.
func TestDelayAndRecall(t *testing.T) {
	withServer(t, server.Options{MinLongPolling: 1}, func(t *testing.T, e *env) {
		assert.Must(t, assert.Err(e.b.PutTopic(t.Context(), "delay", settings.Topic{Type: settings.TopicDelay})))
		at := time.Now().Add(time.Hour)
		var handles []string
		for _, id := range []string{"kept", "recalled"} {
			r, err := e.SendMessage(e.ctx(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{
				msg("delay", id, sys(func(p *rmqpb.SystemProperties) {
					p.DeliveryTimestamp, p.MessageType = timestamppb.New(at), rmqpb.MessageType_DELAY
				})),
			}})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK || r.GetEntries()[0].GetRecallHandle() == "" {
				t.Fatal(r, err)
			}
			handles = append(handles, r.GetEntries()[0].GetRecallHandle())
		}
		recall := func() *rmqpb.RecallMessageResponse {
			r := assert.Value(e.RecallMessage(e.ctx(), &rmqpb.RecallMessageRequest{Topic: res("delay"), RecallHandle: handles[1]}))(t)
			return r
		}
		if r := recall(); r.GetStatus().GetCode() != rmqpb.Code_OK || r.GetMessageId() != "recalled" {
			t.Errorf("recall: %v", r)
		}
		refused(t, recall().GetStatus(), protocol.CodeMessageNotFound, "recall handle")
		<-time.After(time.Hour)
		synctest.Wait()
		m := e.one(e.ctx(), receiveRequest("delay", polling(0)))
		if p := m.GetSystemProperties(); p.GetMessageId() != "kept" || !p.GetDeliveryTimestamp().AsTime().Equal(at) || p.GetMessageType() != rmqpb.MessageType_DELAY {
			t.Errorf("delivered %v", m)
		}
		e.ack(m)
	})
}

// A send that its client cancels while the disk is waited for is no fault of the broker:
// nothing is logged as an error. A failure of the disk at that time is.
func TestCancelledSendIsNoError(t *testing.T) {
	for _, wire := range []string{"gRPC", "HTTP"} {
		for _, disk := range []bool{false, true} {
			if disk && wire == "HTTP" {
				continue // it looks at nothing but the client's end
			}
			synctest.Test(t, func(t *testing.T) {
				log, lines := testLog()
				f := &faulty{append: func(ctx context.Context, _ []engine.Incoming) error {
					<-ctx.Done()
					cause := context.Cause(ctx)
					if disk {
						cause = http.ErrHandlerTimeout // any other one
					}
					return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: cause, Message: "the broker could not write"}
				}}
				x := startWeb(t, server.Options{Logger: log}, f)
				ctx, cancel := context.WithCancel(as(t.Context(), "client"))
				time.AfterFunc(time.Second, cancel) // a deadline would end at both ends at once
				if wire == "gRPC" {
					_, err := x.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{msg("normal", "1")}})
					assert.That(t, status.Code(err) == codes.Canceled, "%s: %v", wire, err)
				} else if resp, err := x.client.Do(x.request(ctx, "POST", "/v1/topics/normal/messages", strings.NewReader(`{"body":"eA=="}`), "Content-Type", server.TypeJSON)); err == nil {
					resp.Body.Close()
					t.Errorf("%s: status %d for a client that gave up", wire, resp.StatusCode)
				}
				synctest.Wait()
				if got := strings.Contains(lines.String(), "level=ERROR"); got != disk {
					t.Errorf("%s, disk fails %v: logged %q", wire, disk, lines.String())
				}
			})
		}
	}
}

// The engine bounds the invisible duration, over gRPC and over HTTP: neither has a limit or a
// default of its own that the engine does not accept.
func TestInvisibleBoundsAreTheEngines(t *testing.T) {
	for name, c := range map[string]struct {
		least, most, preset time.Duration
	}{
		"longer than RocketMQ's": {0, 24 * time.Hour, 30 * time.Second},
		"shorter than ours":      {0, 20 * time.Second, 20 * time.Second},
		"longer than ours":       {time.Minute, 0, time.Minute},
		"as it is":               {0, 0, 30 * time.Second},
	} {
		subtest(t, name, func(t *testing.T) {
			x := startWebWith(t, broker.Options{MinInvisibleDuration: c.least, MaxInvisibleDuration: c.most}, server.Options{})
			_, most := x.b.Engine().InvisibleBounds()
			x.send(msg("normal", "a"), msg("normal", "b"))

			ds := x.take("normal", `{}`, 1)
			assert.Equal(t, "nothing was asked for, and the message is invisible for", time.Duration(ds[0].InvisibleFor), c.preset)
			change := func(d time.Duration) string {
				return `{"handle":"` + ds[0].Handle + `","invisible_duration":"` + d.String() + `"}`
			}
			x.failed("/v1/groups/g/change-invisible-duration", change(most+1), 400, 40011, most.String())
			x.ok("/v1/groups/g/change-invisible-duration", change(most), nil)

			m := x.one(x.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(most) }))
			request := &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), MessageId: m.GetSystemProperties().GetMessageId(),
				ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
			}
			for d, want := range map[time.Duration]tidegate.Code{
				-1: protocol.CodeIllegalInvisibleTime, most + 1: protocol.CodeIllegalInvisibleTime, most: protocol.CodeOK,
			} {
				request.InvisibleDuration = durationpb.New(d)
				r := assert.Value(x.ChangeInvisibleDuration(x.ctx(), request))(t)
				if want == protocol.CodeOK {
					refused(t, r.GetStatus(), want)
				} else {
					refused(t, r.GetStatus(), want, most.String())
				}
			}
		})
	}
}
