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
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

func (c *Client) known(key string) *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endpoints[key]
}

// Servers that come and go, each with an address and a name of its own: what the
// client keeps of them does not grow, and what one delivered can be settled as
// long as it is invisible.
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
		old := c.known(addr(0)).link.Load()
		counts := func() (endpoints, places int) {
			tp, _, _ := c.route(t.Context(), "test", "t")
			tp.mu.Lock()
			defer tp.mu.Unlock()
			return len(c.allEndpoints()), len(tp.places)
		}
		refreshes := func(n int) {
			for range n {
				at.Add(1)
				counts() // uses the topic
				time.Sleep(30 * time.Second)
			}
		}
		refreshes(100)
		if e, p := counts(); e > 15 || p > 13 || e < 3 {
			t.Errorf("%d endpoints and %d names are kept after 100 servers", e, p)
		}
		if err := c.Ack(t.Context(), ds)[0]; err != nil {
			t.Errorf("a delivery of a server that routes no longer name: %v", err)
		}
		refreshes(200)
		if e, _ := counts(); e > 15 || c.openSessions() != 0 || c.known(addr(0)) != nil {
			t.Errorf("%d endpoints and %d sessions are left", e, c.openSessions())
		}
		if got := old.conn.GetState().String(); got != "SHUTDOWN" {
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

// The number of a queue means one broker's for ever; that of a broker that is
// gone means none.
func TestPlacesAreNotGivenTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tp := &topic{}
		see := func(names ...string) *route {
			r := &route{}
			for _, name := range names {
				r.readers = append(r.readers, broker{pb: &rmqpb.Broker{Name: name}})
			}
			tp.noteBrokers(r, time.Minute)
			return r
		}
		expect := func(r *route, number int, want string) {
			t.Helper()
			if b, id, ok := tp.source(r, number<<brokerShift|7); ok != (want != "") || b.pb.GetName() != want || ok && id != 7 {
				t.Errorf("place %d: broker %q, queue %d, want %q", number, b.pb.GetName(), id, want)
			}
		}
		r := see("a", "b")
		expect(r, 0, "a")
		expect(r, 1, "b")
		r = see("b")
		expect(r, 0, "")
		expect(r, 1, "b")
		time.Sleep(forgetAfter * time.Minute)
		r = see("a", "b") // back, just in time
		expect(r, 0, "a")
		time.Sleep(time.Minute)
		see("b")
		time.Sleep(forgetAfter * time.Minute)
		see("b")
		r = see("b", "c", "a") // a was away for too long
		expect(r, 0, "")
		expect(r, 1, "b")
		expect(r, 2, "c")
		expect(r, 3, "a")
	})
}
