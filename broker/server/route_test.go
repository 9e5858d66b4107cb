package server_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

func TestRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		at := &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "10.0.0.7", Port: 9000}}}
		for name, kind := range map[string]settings.TopicType{"delay": settings.TopicDelay, "transaction": settings.TopicTransaction} {
			if _, err := e.b.PutTopic(t.Context(), name, settings.Topic{Type: kind, Queues: 2}); err != nil {
				t.Fatal(err)
			}
		}
		for topic, kind := range map[string]rmqpb.MessageType{
			"normal": rmqpb.MessageType_NORMAL, "fifo": rmqpb.MessageType_FIFO, "delay": rmqpb.MessageType_DELAY, "transaction": rmqpb.MessageType_TRANSACTION,
		} {
			r, err := e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: &rmqpb.Resource{ResourceNamespace: "ns", Name: topic}, Endpoints: at})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK || len(r.GetMessageQueues()) != 2 {
				t.Fatal(r, err)
			}
			for i, q := range r.GetMessageQueues() {
				want := &rmqpb.MessageQueue{
					Topic: &rmqpb.Resource{ResourceNamespace: "ns", Name: topic}, Id: int32(i), Permission: rmqpb.Permission_READ_WRITE,
					Broker: &rmqpb.Broker{Name: "tidegate", Endpoints: at}, AcceptMessageTypes: []rmqpb.MessageType{kind},
				}
				if !proto.Equal(q, want) {
					t.Errorf("queue %v; want %v", q, want)
				}
			}
		}
		unknown, err := e.QueryRoute(e.ctx(), &rmqpb.QueryRouteRequest{Topic: res("nowhere")})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, unknown.GetStatus(), tidegate.CodeTopicNotFound, "nowhere")

		if _, err := e.b.PutGroup(t.Context(), "ordered", settings.Group{FIFO: true}); err != nil {
			t.Fatal(err)
		}
		for group, want := range map[string][]int32{"g": {-1}, "ordered": {0, 1}} {
			r, err := e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("normal"), Group: res(group), Endpoints: at})
			if err != nil || r.GetStatus().GetCode() != rmqpb.Code_OK {
				t.Fatal(r, err)
			}
			var got []int32
			for _, a := range r.GetAssignments() {
				got = append(got, a.GetMessageQueue().GetId())
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: queues %v; want %v", group, got, want)
			}
		}
		a, err := e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("nowhere"), Group: res("g")})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, a.GetStatus(), tidegate.CodeTopicNotFound, "nowhere")
		a, err = e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{Topic: res("normal"), Group: res("a b")})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, a.GetStatus(), tidegate.CodeIllegalConsumerGroup, "a b")
	})
}

// The response to a call that this broker does not support is a status, not a broken call.
func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		ctx := e.ctx()
		check := func(name string, a interface{ GetStatus() *rmqpb.Status }, err error, code tidegate.Code) {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			refused(named{t, name}, a.GetStatus(), code)
		}
		lite, err := e.SyncLiteSubscription(ctx, &rmqpb.SyncLiteSubscriptionRequest{})
		check("SyncLiteSubscription", lite, err, tidegate.CodeNotImplemented)
		update, err := e.UpdateOffset(ctx, &rmqpb.UpdateOffsetRequest{})
		check("UpdateOffset", update, err, tidegate.CodeNotImplemented)
		get, err := e.GetOffset(ctx, &rmqpb.GetOffsetRequest{})
		check("GetOffset", get, err, tidegate.CodeNotImplemented)
		query, err := e.QueryOffset(ctx, &rmqpb.QueryOffsetRequest{})
		check("QueryOffset", query, err, tidegate.CodeNotImplemented)
		pull, err := e.PullMessage(ctx, &rmqpb.PullMessageRequest{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := pull.Recv()
		check("PullMessage", f, err, tidegate.CodeNotImplemented)
	})
}
