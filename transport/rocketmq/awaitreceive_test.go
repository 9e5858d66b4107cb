package rocketmq

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// A receive that waits for a connection gets its message soon after the return of the server, after
// an outage of any length.
func TestReceiveAwaitsConnection(t *testing.T) {
	for _, outage := range []time.Duration{3 * time.Second, 20 * time.Second, 3 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			c := newClient(t, n, nil)
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
				st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: ok}})
				return st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: delivered(nil)}})
			}
			if _, err := c.Receive(t.Context(), request1); err != nil {
				t.Fatal(err)
			}
			s.stop()
			time.Sleep(outage / 2)
			short, cancel := context.WithTimeoutCause(transport.AwaitConnection(t.Context()), time.Second, errGone)
			defer cancel()
			_, err := c.Receive(short, request1)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.NotConnected || !errors.Is(err, errGone) {
				t.Errorf("%#v during the outage, want the cause of ctx and NotConnected", err)
			}
			time.Sleep(outage/2 - time.Second)
			back := time.Now().Add(time.Second)
			time.AfterFunc(time.Second, s.start)
			if ds, err := c.Receive(awaiting(t, time.Minute), request1); err != nil || len(ds) != 1 || time.Since(back) > 2500*time.Millisecond {
				t.Errorf("outage of %v: %d deliveries, %v, %v after its end; want one within 2.5s", outage, len(ds), err, time.Since(back))
			}
		})
	}
}
