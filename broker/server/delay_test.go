package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A delayed message is delivered at its time with its delivery_timestamp. A recalled message is not
// delivered.
func TestDelayAndRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MinLongPolling: 1})
		if _, err := e.b.PutTopic(t.Context(), "delay", settings.Topic{Type: settings.TopicDelay}); err != nil {
			t.Fatal(err)
		}
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
			r, err := e.RecallMessage(e.ctx(), &rmqpb.RecallMessageRequest{Topic: res("delay"), RecallHandle: handles[1]})
			if err != nil {
				t.Fatal(err)
			}
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
