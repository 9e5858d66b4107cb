package server_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
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
	if err != nil || a.GetStatus().GetCode() != rmqpb.Code_OK {
		e.t.Fatalf("ack: %v, %v", a, err)
	}
}

func batch(n int32) func(*rmqpb.ReceiveMessageRequest) {
	return func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = n }
}

func TestAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		e.send(msg("normal", "1"), msg("normal", "2"))
		_, ms := e.receive(e.ctx(), receiveRequest("normal"))
		handle := func(i int) string { return ms[i].GetSystemProperties().GetReceiptHandle() }
		try := func(group, topic string, handles ...string) *rmqpb.AckMessageResponse {
			r := &rmqpb.AckMessageRequest{Group: res(group), Topic: res(topic)}
			for i, h := range handles {
				r.Entries = append(r.Entries, &rmqpb.AckMessageEntry{MessageId: fmt.Sprint("m", i), ReceiptHandle: h})
			}
			a, err := e.AckMessage(e.ctx(), r)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		refused(t, try("g", "normal").GetStatus(), tidegate.CodeBadRequest, "entries")
		refused(t, try("", "normal", "x").GetStatus(), tidegate.CodeIllegalConsumerGroup, "consumer group", "120")
		refused(t, try("g", "a b", "x").GetStatus(), tidegate.CodeIllegalTopic, "a b")
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
			synctest.Test(t, func(t *testing.T) {
				e := start(t, server.Options{})
				if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{MaxAttempts: 1}); err != nil {
					t.Fatal(err)
				}
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
				if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK || r.GetReceiptHandle() == "" {
					t.Fatalf("%v, %v", r, err)
				}
				if changed := r.GetReceiptHandle() != old; changed == c.retry {
					t.Errorf("the handle changed: %v", changed)
				}
				// Attempt 1 of 1: a failure makes it a dead letter at once.
				_, err = e.b.Topic("%DLQ%g")
				if isDead := err == nil; isDead != c.retry {
					t.Errorf("dead letter: %v; want %v", isDead, c.retry)
				}
				if told := trailer.Get(wire.TrailerRetry); c.retry != slices.Equal(told, []string{"dead-letter"}) || !c.retry && len(told) > 0 {
					t.Errorf("the trailer is %q", told)
				}
			})
		})
	}
}

// A push consumer sends the interval of its settings, for any length.
func TestLongRetryIntervalOfAPushConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{Retry: []time.Duration{24 * time.Hour}}); err != nil {
			t.Fatal(err)
		}
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
			if err != nil || r.GetStatus().GetCode() != c.want {
				t.Errorf("suspend %v: %v, %v", c.suspend, r, err)
			}
		}
	})
}

// The number with which the engine's callers leave the interval to it is no time that a client may
// send: it is as negative as -1.
func TestByScheduleIsNoDurationOfAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		x.telemetry(x.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		x.send(msg("normal", "1"))
		h := x.one(x.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
		for _, d := range []*durationpb.Duration{
			durationpb.New(transport.BySchedule), durationpb.New(-1), {Seconds: -315_576_000_000}, // the protocol's least
		} {
			r, err := x.ChangeInvisibleDuration(x.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), ReceiptHandle: h, MessageId: "1", InvisibleDuration: d,
			})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, r.GetStatus(), tidegate.CodeIllegalInvisibleTime)
		}
		x.failed("/v1/groups/g/retry", `{"handle":"`+h+`","after":"`+time.Duration(math.MinInt64).String()+`"}`, 400, 40011)
		if err := x.b.Ack(t.Context(), []*tidegate.Delivery{{Message: tidegate.Message{Topic: "normal"}, ConsumerGroup: "g", Handle: h}})[0]; err != nil {
			t.Errorf("after the refused failures: %v", err)
		}
	})
}

func TestChangeInvisibleDurationRejections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		e.send(msg("normal", "1"))
		h := e.one(e.ctx(), receiveRequest("normal")).GetSystemProperties().GetReceiptHandle()
		for _, c := range []struct {
			d     *durationpb.Duration
			h     string
			code  tidegate.Code
			words []string
		}{
			{nil, h, tidegate.CodeIllegalInvisibleTime, []string{"invisible_duration", "missing"}},
			{durationpb.New(-1), h, tidegate.CodeIllegalInvisibleTime, []string{"-1ns", "12h"}},
			{durationpb.New(12*time.Hour + 1), h, tidegate.CodeIllegalInvisibleTime, []string{"invisible duration", "12h0m0.000000001s", "12h0m0s"}},
			{durationpb.New(time.Second), "garbage", tidegate.CodeInvalidReceiptHandle, []string{"receipt handle"}},
		} {
			r, err := e.ChangeInvisibleDuration(e.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
				Group: res("g"), Topic: res("normal"), ReceiptHandle: c.h, InvisibleDuration: c.d,
			})
			if err != nil {
				t.Fatal(err)
			}
			refused(t, r.GetStatus(), c.code, c.words...)
			if r.GetReceiptHandle() != c.h {
				t.Errorf("handle %q; want the old one", r.GetReceiptHandle())
			}
		}
	})
}

// Forwarding is idempotent, and the letter has its origin.
func TestForwardToDeadLetterQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		e.send(msg("normal", "1", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"mine": "x"} }))
		m := e.one(e.ctx(), receiveRequest("normal"))
		req := &rmqpb.ForwardMessageToDeadLetterQueueRequest{
			Group: res("g"), Topic: res("normal"), MessageId: "1", DeliveryAttempt: 1, MaxDeliveryAttempts: 17,
			ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
		}
		for i := range 3 {
			r, err := e.ForwardMessageToDeadLetterQueue(as(t.Context(), "client", wire.HeaderReason, "it%20is%20%C3%BCbel"), req)
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatalf("call %d: %v, %v", i, r, err)
			}
		}
		_, letters := e.receive(e.ctx(), receiveRequest("%DLQ%g"))
		if len(letters) != 1 {
			t.Fatalf("%d dead letters; want 1", len(letters))
		}
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
