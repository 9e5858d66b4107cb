package rocketmq

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// A push consumer of several topics is one client to the server: its settings announce all
// subscriptions with their filters, as those of official clients do.
func TestSettingsAnnounceAllSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendStatus(st, rmqpb.Code_MESSAGE_NOT_FOUND)
			return nil
		}
		c := newClient(t, n, nil)
		filters := map[string]tidegate.Filter{"orders": {Expression: "paid||refunded"}, "returns": {}, "stock": {Expression: "region = 'eu'", SQL: true}}
		var wg sync.WaitGroup
		for topic, filter := range filters {
			wg.Go(func() { // as the consumer does for each of its topics
				if _, err := c.ConsumerSettings(t.Context(), "g", topic); err != nil {
					t.Error(err)
				}
				if _, err := c.Receive(t.Context(), transport.ReceiveRequest{
					Group: "g", Topic: topic, Queue: transport.AnyQueue, Push: true, Filter: filter, InvisibleDuration: time.Minute,
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		sent := s.of("settings")
		clients := map[string]bool{}
		for _, x := range sent {
			clients[x.md.Get("x-mq-client-id")[0]] = true
		}
		if len(clients) != 1 || len(s.of("Telemetry")) != 1 {
			t.Errorf("the clients %v announce settings on %d streams, want one", slices.Collect(maps.Keys(clients)), len(s.of("Telemetry")))
		}
		got := map[string]string{}
		last := sent[len(sent)-1].req.(*rmqpb.TelemetryCommand).GetSettings()
		for _, e := range last.GetSubscription().GetSubscriptions() {
			got[e.GetTopic().GetName()] = fmt.Sprint(e.GetExpression().GetType(), " ", e.GetExpression().GetExpression())
		}
		want := map[string]string{"orders": "TAG paid||refunded", "returns": "TAG *", "stock": "SQL region = 'eu'"}
		if !maps.Equal(got, want) || last.GetClientType() != rmqpb.ClientType_PUSH_CONSUMER {
			t.Errorf("a %v announces %v, want a push consumer with %v", last.GetClientType(), got, want)
		}
	})
}
