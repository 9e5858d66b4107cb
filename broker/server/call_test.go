package server

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A Call has the fields of its request.
func TestCallOf(t *testing.T) {
	t.Parallel()
	topic, group := &rmqpb.Resource{Name: "t"}, &rmqpb.Resource{Name: "g"}
	queue := &rmqpb.MessageQueue{Topic: topic}
	message := func(id string) *rmqpb.Message {
		return &rmqpb.Message{Topic: topic, SystemProperties: &rmqpb.SystemProperties{MessageId: id}}
	}
	for op, c := range map[string]struct {
		req  proto.Message
		want Call
	}{
		"QueryRoute":              {&rmqpb.QueryRouteRequest{Topic: topic}, Call{Topic: "t"}},
		"QueryAssignment":         {&rmqpb.QueryAssignmentRequest{Topic: topic, Group: group}, Call{Topic: "t", Group: "g"}},
		"Heartbeat":               {&rmqpb.HeartbeatRequest{Group: group}, Call{Group: "g"}},
		"NotifyClientTermination": {&rmqpb.NotifyClientTerminationRequest{Group: group}, Call{Group: "g"}},
		"SendMessage": {
			&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("1"), message("2")}},
			Call{Topic: "t", Messages: 2, MessageIDs: []string{"1", "2"}},
		},
		"ReceiveMessage": {&rmqpb.ReceiveMessageRequest{MessageQueue: queue, Group: group, BatchSize: 7}, Call{Topic: "t", Group: "g", Messages: 7}},
		"AckMessage": {
			&rmqpb.AckMessageRequest{Topic: topic, Group: group, Entries: []*rmqpb.AckMessageEntry{{MessageId: "1"}, {MessageId: "2"}}},
			Call{Topic: "t", Group: "g", Messages: 2, MessageIDs: []string{"1", "2"}},
		},
		"RecallMessage": {&rmqpb.RecallMessageRequest{Topic: topic}, Call{Topic: "t"}},
		"ChangeInvisibleDuration": {
			&rmqpb.ChangeInvisibleDurationRequest{Topic: topic, Group: group, MessageId: "1"},
			Call{Topic: "t", Group: "g", Messages: 1, MessageIDs: []string{"1"}},
		},
		"ForwardMessageToDeadLetterQueue": {
			&rmqpb.ForwardMessageToDeadLetterQueueRequest{Topic: topic, Group: group, MessageId: "1"},
			Call{Topic: "t", Group: "g", Messages: 1, MessageIDs: []string{"1"}},
		},
		"EndTransaction":       {&rmqpb.EndTransactionRequest{Topic: topic, MessageId: "1"}, Call{Topic: "t", MessageIDs: []string{"1"}}},
		"SyncLiteSubscription": {&rmqpb.SyncLiteSubscriptionRequest{Topic: topic, Group: group}, Call{Topic: "t", Group: "g"}},
		"UpdateOffset":         {&rmqpb.UpdateOffsetRequest{MessageQueue: queue, Group: group}, Call{Topic: "t", Group: "g"}},
		"GetOffset":            {&rmqpb.GetOffsetRequest{MessageQueue: queue, Group: group}, Call{Topic: "t", Group: "g"}},
		"QueryOffset":          {&rmqpb.QueryOffsetRequest{MessageQueue: queue}, Call{Topic: "t"}},
		"PullMessage":          {&rmqpb.PullMessageRequest{MessageQueue: queue, Group: group}, Call{Topic: "t", Group: "g"}},
	} {
		c.want.Op, c.want.ClientID = op, "client"
		if got := callOf(op, "client", c.req); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s is described as %+v, want %+v", op, got, c.want)
		}
	}
}

// A rejection is in the field status of the response, whose form does not matter.
func TestStatusOnly(t *testing.T) {
	t.Parallel()
	st := &rmqpb.Status{Code: rmqpb.Code_TOO_MANY_REQUESTS, Message: "full"}
	for _, c := range []struct{ got, want proto.Message }{
		{statusOnly[*rmqpb.SendMessageResponse](st), &rmqpb.SendMessageResponse{Status: st}},
		{statusOnly[*rmqpb.PullMessageResponse](st), &rmqpb.PullMessageResponse{Content: &rmqpb.PullMessageResponse_Status{Status: st}}},
	} {
		assert.That(t, proto.Equal(c.got, c.want), "%v, want %v", c.got, c.want)
	}
}

// Every RPC of the public contract is described.
func TestDescriptionIsComplete(t *testing.T) {
	of := func(d *grpc.ServiceDesc) map[string]grpc.StreamDesc {
		out := map[string]grpc.StreamDesc{}
		for _, m := range d.Methods {
			out[m.MethodName] = grpc.StreamDesc{}
		}
		for _, s := range d.Streams {
			s.Handler = nil
			out[s.StreamName] = s
		}
		return out
	}
	ours, want := of(&description), of(&rmqpb.MessagingService_ServiceDesc)
	assert.That(t, fmt.Sprint(ours) == fmt.Sprint(want), "the RPCs are\n%v, want\n%v", ours, want)
}

func TestLongPoll(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		asked, left, request, lo, hi time.Duration
		want                         time.Duration
		ok                           bool
	}{
		{asked: 1 * s, left: 9 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 5 * s, ok: true},
		{asked: 30 * s, left: 33 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 20 * s, ok: true},
		{asked: 40 * s, left: 40 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 20 * s, ok: true}, // Rust
		{asked: 10 * s, left: 7 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 6500 * time.Millisecond, ok: true},
		{asked: 1 * s, left: 4 * s, request: 3 * s, lo: 5 * s, hi: 20 * s},
		{asked: -1, left: 3 * s, request: 3 * s, lo: 5 * s, hi: 20 * s},
		{asked: -1, left: 10 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 8500 * time.Millisecond, ok: true},
		{asked: -1, left: -1, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 20 * s, ok: true},
		{asked: 7 * s, left: -1, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 7 * s, ok: true},
		{asked: 5 * s, left: 5 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 4500 * time.Millisecond, ok: true},
		{asked: 0, left: 3 * s, request: 3 * s, lo: 1, hi: 20 * s, want: 1, ok: true},
		{asked: 20 * s, left: 100 * time.Millisecond, request: 3 * s, lo: 1, hi: 20 * s, want: 90 * time.Millisecond, ok: true},
		{asked: 20 * s, left: 0, request: 3 * s, lo: 1, hi: 20 * s},
	} {
		got, ok := longPoll(c.asked, c.left, c.request, c.lo, c.hi)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("longPoll(%v, %v, %v, %v, %v) = %v, %v; want %v, %v", c.asked, c.left, c.request, c.lo, c.hi, got, ok, c.want, c.ok)
		}
	}
}

func TestFitMemory(t *testing.T) {
	const body = 4 << 20
	for _, c := range []struct {
		name    string
		in      Options
		memory  int64
		want    Options
		refused string
	}{
		{"512 MiB", Options{}, 410 << 20, Options{MaxTransitBytes: 410 << 18, MaxParkedBytes: 410 << 17, MaxReceiveSize: 410<<16 - requests.StreamWindow}, ""},
		{"no limit", Options{}, 1<<63 - 1, Options{MaxTransitBytes: 256 << 20, MaxParkedBytes: 128 << 20, MaxReceiveSize: defaultMaxReceiveSize}, ""},
		{"a large machine", Options{}, 1 << 40, Options{MaxTransitBytes: 1 << 30, MaxParkedBytes: 1 << 30, MaxReceiveSize: defaultMaxReceiveSize}, ""},
		{"a tiny one", Options{}, 64 << 20, Options{MaxTransitBytes: 64 << 20, MaxParkedBytes: 8 << 20, MaxReceiveSize: 16<<20 - requests.StreamWindow}, ""},
		{"too little", Options{MaxTransitBytes: 63 << 20}, 1 << 30, Options{}, "MaxTransitBytes is 66060288"},
		{"too little for one receive", Options{MaxParkedBytes: 1 << 10}, 1 << 30, Options{}, "MaxParkedBytes is 1024"},
		{"too large a request", Options{MaxReceiveSize: 17 << 20}, 64 << 20, Options{}, "MaxReceiveSize is 17825792"},
	} {
		got := c.in
		err := got.fitMemory(c.memory, body)
		if c.refused != "" {
			assert.That(t, err != nil && strings.Contains(err.Error(), c.refused), "%s: %v", c.name, err)
			continue
		}
		if err != nil || got.MaxTransitBytes != c.want.MaxTransitBytes || got.MaxParkedBytes != c.want.MaxParkedBytes || got.MaxReceiveSize != c.want.MaxReceiveSize {
			t.Errorf("%s: %d, %d, %d, %v", c.name, got.MaxTransitBytes, got.MaxParkedBytes, got.MaxReceiveSize, err)
		}
	}
	if err := (Options{MaxTransitBytes: 64 << 20, MaxReceiveSize: 17 << 20}).Validate(); err == nil || !strings.Contains(err.Error(), "MaxReceiveSize is 17825792") {
		t.Errorf("both set: %v", err)
	}
}
