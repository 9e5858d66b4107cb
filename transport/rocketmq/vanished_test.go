package rocketmq

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

func (c *Client) known(key string) *conn.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endpoints[key]
}

// Servers come and go, each with an address and a name of its own. The client's memory of them does
// not grow. The deliveries of a server can be settled until their leases end.
func TestVanishedServersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		addr := func(i int) string { return fmt.Sprintf("10.0.%d.%d:8081", i/250, i%250+1) }
		var at atomic.Int64
		s.route = func() *rmqpb.QueryRouteResponse {
			i := int(at.Load())
			return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(addr(i), fmt.Sprint("pod-", i), 2)}
		}
		first := newServer(t, n, addr(0))
		first.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendTime(st, time.Now())
			sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.InvisibleDuration = durationpb.New(2 * time.Hour) })
			sendStatus(st, rmqpb.Code_OK)
			return nil
		}
		first.ack = func(r *rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
			return &rmqpb.AckMessageResponse{Status: ok}
		}
		c := newClient(t, n, nil)
		r := request1
		r.InvisibleDuration = 2 * time.Hour
		ds, err := c.Receive(t.Context(), r)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		old := c.known(addr(0)).Link.Load()
		count := func() (endpoints int) {
			_, _, _ = c.route(t.Context(), "test", "t") // uses the topic
			return len(c.allEndpoints())
		}
		refreshes := func(n int) {
			for range n {
				at.Add(1)
				count()
				time.Sleep(30 * time.Second)
			}
		}
		refreshes(100)
		if e := count(); e > 15 || e < 3 {
			t.Errorf("%d endpoints are kept after 100 servers", e)
		}
		if err := c.Ack(t.Context(), ds)[0]; err != nil {
			t.Errorf("a delivery of a server that routes no longer name: %v", err)
		}
		refreshes(200)
		if e := count(); e > 15 || c.openSessions() != 0 || c.known(addr(0)) != nil {
			t.Errorf("%d endpoints and %d sessions are left", e, c.openSessions())
		}
		if got := old.State().String(); got != "SHUTDOWN" {
			t.Errorf("the connection to the first server is %s", got)
		}
		if err := c.Ack(t.Context(), ds)[0]; !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("a delivery of long ago: %v, want that its server is not known", err)
		}
		if _, err := sendOne(t.Context(), c, message("x")); err == nil || c.known(testAddr) == nil {
			t.Errorf("%v; want an error of the last server, and the client's own address kept", err)
		}
	})
}
