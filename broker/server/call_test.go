package server

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

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
		if !proto.Equal(c.got, c.want) {
			t.Errorf("%v, want %v", c.got, c.want)
		}
	}
}
