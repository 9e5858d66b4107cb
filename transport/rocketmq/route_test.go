package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

const otherAddr = "127.0.0.2:8081"

// Concurrent calls share one request for a route. The client refreshes the routes of topics in use
// every 30 s, and no others.
func TestRouteRefresh(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { sent(t, c, message(fmt.Sprint(i))) })
		}
		wg.Wait()
		expectTimes(t, "routes", s.of("QueryRoute"), 0)
		time.Sleep(20 * time.Second)
		sendOne(t.Context(), c, message("x"))
		time.Sleep(35 * time.Second)
		sendOne(t.Context(), c, message("y")) // at 55 s, with the route of 30 s
		time.Sleep(10 * time.Minute)
		expectTimes(t, "routes", s.of("QueryRoute"), 0, 30*time.Second, time.Minute)
		sendOne(t.Context(), c, message("z")) // the client has forgotten the route
		expectTimes(t, "routes", s.of("QueryRoute"), 0, 30*time.Second, time.Minute, 10*time.Minute+55*time.Second)
	})
}

// A route stays in use if its refresh fails. If a request that uses the route fails, the client
// queries the route again, at most once a second.
func TestRouteKept(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		sent(t, c, message("0"))
		s.route = func() *rmqpb.QueryRouteResponse {
			return &rmqpb.QueryRouteResponse{Status: &rmqpb.Status{Code: rmqpb.Code_TOPIC_NOT_FOUND}}
		}
		good := s.send
		s.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE}}, nil
		}
		time.Sleep(10 * time.Second)
		for range 5 {
			_, err := sendOne(t.Context(), c, message("1"))
			assert.That(t, err != nil && err.Code == protocol.CodeMessagePropertyConflict, "%v", err)
		}
		synctest.Wait()
		expectTimes(t, "routes", s.of("QueryRoute"), 0, 10*time.Second)
		s.send = good
		_, err := sendOne(t.Context(), c, message("2"))
		assert.That(t, err == nil, "with the old route: %v", err)
		if r := c.Send(t.Context(), []*tidegate.Message{{ID: "x", Topic: "unknown", Body: []byte("x")}}); !errors.Is(r[0].Err, tidegate.ErrTopicNotFound) {
			t.Errorf("unknown topic: %v", r[0].Err)
		}
	})
}

// Messages without a group take all writable queues in turn, over the brokers, and skip a queue
// whose server failed; those of a group stay where they are.
func TestQueueChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a, b := newServer(t, n, testAddr), newServer(t, n, otherAddr)
		a.route = func() *rmqpb.QueryRouteResponse {
			mqs := append(queues(testAddr, "a", 4), queues(otherAddr, "b", 4)...)
			mqs[0].Permission = rmqpb.Permission_READ
			mqs[5].Permission = rmqpb.Permission_NONE
			copied := queues("127.0.0.9:1", "a", 4)
			for _, q := range copied {
				q.Broker.Id = 1
			}
			return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: append(copied, mqs...)}
		}
		c := newClient(t, n, nil)
		count := func() map[string]int {
			m := map[string]int{}
			for _, s := range []*fakeServer{a, b} {
				for _, g := range s.of("SendMessage") {
					id := g.req.(*rmqpb.SendMessageRequest).GetMessages()[0].GetSystemProperties().GetQueueId()
					m[fmt.Sprintf("%s/%d", s.addr, id)]++
				}
				s.calls = nil
			}
			return m
		}
		for range 60 {
			sent(t, c, message("x"))
		}
		m := count()
		assert.That(t, len(m) == 6 && m[testAddr+"/0"] == 0 && m[otherAddr+"/1"] == 0 && m[testAddr+"/3"] == 10, "in turn: %v", m)
		used := map[string]bool{}
		for g := range 50 {
			for range 5 {
				sent(t, c, inGroup("x", fmt.Sprint("group", g)))
			}
			m := count()
			assert.That(t, len(m) == 1, "group %d: %v", g, m)
			for q := range m {
				used[q] = true
			}
		}
		assert.That(t, len(used) == 6, "50 groups use %v, want all six", used)
		b.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			return nil, status.Error(codes.Unavailable, "broken")
		}
		failures := 0
		for range 20 {
			if _, err := sendOne(t.Context(), c, message("x")); err != nil {
				failures++
			}
		}
		assert.Equal(t, "failures", failures, 1)
	})
}

// A route without a queue is not the server's rejection: a master that is down or
// starts is left out, while its copies are named.
func TestBadRoutes(t *testing.T) {
	copied := queues(testAddr, "b", 1)
	copied[0].Broker.Id = 1
	for name, mqs := range map[string][]*rmqpb.MessageQueue{
		"none":   nil,
		"copies": copied,
		"no address": {{Permission: rmqpb.Permission_READ_WRITE, Broker: &rmqpb.Broker{Name: "b",
			Endpoints: &rmqpb.Endpoints{Addresses: []*rmqpb.Address{{Host: "", Port: 0}}}}}},
		"no permission": {{Broker: &rmqpb.Broker{Name: "b"}}},
	} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = empty
			s.route = func() *rmqpb.QueryRouteResponse {
				return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: mqs}
			}
			expectAll(t, c, name, func(err error) bool {
				return errors.Is(err, tidegate.ErrUnavailable) && tidegate.Classify(err) == tidegate.ClassTransient
			})
			mqs = queues(testAddr, "b", 1)
			expectAll(t, c, name, func(err error) bool { return err == nil })
			c.Close()
			expectAll(t, c, name, func(err error) bool { return errors.Is(err, tidegate.ErrClosed) })
		})
	}
}

// A topic that can only be read, or only be written, has a route, which serves
// one half. The other queries a new one, at most once a second.
func TestHalfRoutes(t *testing.T) {
	for _, perm := range []rmqpb.Permission{rmqpb.Permission_READ, rmqpb.Permission_WRITE} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = empty
			mqs := queues(testAddr, "b", 1)
			mqs[0].Permission = perm
			s.route = func() *rmqpb.QueryRouteResponse {
				return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: mqs}
			}
			half := map[string]bool{"Send": perm == rmqpb.Permission_WRITE, "ProducerSettings": perm == rmqpb.Permission_WRITE}
			for _, r := range allOf(t, c) {
				want := half[r.op] || !r.sends && perm == rmqpb.Permission_READ
				if (r.err == nil) != want || !want && tidegate.Classify(r.err) == tidegate.ClassPermanent && !errors.Is(r.err, tidegate.ErrNotFound) {
					t.Errorf("%s with the permission %s: %v", r.op, perm, r.err)
				}
			}
			mqs = queues(testAddr, "b", 1)
			time.Sleep(time.Second)
			allOf(t, c) // queries the route
			synctest.Wait()
			expectAll(t, c, perm.String(), func(err error) bool { return err == nil })
		})
	}
}

type outcome struct {
	op    string
	sends bool
	err   error
}

// allOf makes all calls that need a route.
func allOf(t *testing.T, c *rocketmq.Client) []outcome {
	return []outcome{
		{"Send", true, c.Send(t.Context(), []*tidegate.Message{message("x")})[0].Err},
		{"ProducerSettings", true, second(c.ProducerSettings(t.Context(), "t"))},
		{"ConsumerSettings", false, second(c.ConsumerSettings(t.Context(), "g", "t"))},
		{"Queues", false, second(c.Queues(t.Context(), "g", "t"))},
		{"Receive", false, second(c.Receive(t.Context(), request1))},
	}
}

func expectAll(t *testing.T, c *rocketmq.Client, name string, good func(error) bool) {
	t.Helper()
	for _, r := range allOf(t, c) {
		assert.That(t, good(r.err), "%s: %s: %v", name, r.op, r.err)
	}
}

func TestFixedEndpoint(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		s.route = routed(queues("10.0.0.1:9", "b", 1))
		c := newClient(t, s.net, func(o *rocketmq.Options) { o.FixedEndpoint = true })
		if r, err := sendOne(t.Context(), c, message("x")); err != nil || r.Endpoint != testAddr {
			t.Error(r, err)
		}
	})
}

func TestQueues(t *testing.T) {
	assign := func(name string, ids ...int32) []*rmqpb.Assignment {
		var list []*rmqpb.Assignment
		for _, id := range ids {
			list = append(list, &rmqpb.Assignment{MessageQueue: &rmqpb.MessageQueue{Id: id, Broker: &rmqpb.Broker{Name: name}}})
		}
		return list
	}
	for name, tt := range map[string]struct {
		brokers []string
		assign  []*rmqpb.Assignment
		want    []int
		names   []string // broker and id of each
	}{
		"any queue":   {[]string{"a"}, assign("a", -1), []int{transport.AnyQueue}, []string{"a/-1"}},
		"FIFO":        {[]string{"a"}, assign("a", 2, 0, 1), []int{0, 1, 2}, []string{"a/0", "a/1", "a/2"}},
		"two brokers": {[]string{"a", "b"}, append(assign("a", -1), assign("b", -1)...), []int{-3, -2}, []string{"b/-1", "a/-1"}},
		"two brokers, FIFO": {[]string{"a", "b"}, append(assign("a", 0), assign("b", 0)...),
			[]int{0, 1 << 20}, []string{"a/0", "b/0"}},
		"unknown broker": {[]string{"a"}, assign("x", 0), nil, nil},
	} {
		servedAs(t, name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.route = func() *rmqpb.QueryRouteResponse {
				r := &rmqpb.QueryRouteResponse{Status: ok}
				for _, b := range tt.brokers {
					r.MessageQueues = append(r.MessageQueues, queues(testAddr, b, 2)...)
				}
				return r
			}
			s.assign = func() *rmqpb.QueryAssignmentResponse {
				return &rmqpb.QueryAssignmentResponse{Status: ok, Assignments: tt.assign}
			}
			s.receive = empty
			got, err := c.Queues(t.Context(), "g", "t")
			if !slices.Equal(got, tt.want) || (err == nil) != (tt.want != nil) || tidegate.Classify(err) == tidegate.ClassPermanent {
				t.Fatalf("%v, %v, want %v", got, err, tt.want)
			}
			var names []string
			for _, q := range got {
				assert.NoError(t, assert.Err(c.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: q})))
			}
			for _, g := range s.of("receive") {
				mq := g.req.(*rmqpb.ReceiveMessageRequest).GetMessageQueue()
				names = append(names, fmt.Sprintf("%s/%d", mq.GetBroker().GetName(), mq.GetId()))
			}
			assert.Slices(t, "received from", names, tt.names)
		})
	}
}

// A call that waits for the route returns ErrClosed when the client is closed, as every other call
// does.
func TestCloseWhileAskingForTheRoute(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		release := make(chan struct{})
		s.route = func() *rmqpb.QueryRouteResponse {
			<-release
			return &rmqpb.QueryRouteResponse{Status: ok}
		}
		errs := make(chan error, 2)
		go func() {
			errs <- c.Send(t.Context(), []*tidegate.Message{{ID: "1", Topic: "orders", Body: []byte("x")}})[0].Err
		}()
		go func() {
			_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue})
			errs <- err
		}()
		synctest.Wait()
		c.Close()
		for range 2 {
			assert.Is(t, "err", <-errs, tidegate.ErrClosed)
		}
		close(release)
	})
}

// A server that keeps the queues of groups is asked for them once for each content of a route and
// each setting FIFO. Other servers are asked after each refresh of the route.
func TestQueuesAreKept(t *testing.T) {
	for features, want := range map[string][4]int{"queues": {2, 2, 4, 5}, "batch": {2, 42, 62, 83}} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.features = features
			var count atomic.Int64
			count.Store(1)
			s.route = func() *rmqpb.QueryRouteResponse {
				return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(testAddr, "broker-a", int(count.Load()))}
			}
			noFIFO := make(chan struct{})
			s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
				cmd, err := st.Recv()
				if err != nil {
					return nil
				}
				st.Send(serverSettings(cmd.GetSettings()))
				if cmd.GetSettings().GetSubscription().GetGroup().GetName() == "g1" {
					select {
					case <-noFIFO:
					case <-st.Context().Done():
					}
					push := serverSettings(cmd.GetSettings())
					push.GetSettings().GetSubscription().Fifo = new(false)
					st.Send(push)
				}
				<-st.Context().Done()
				return nil
			}
			ask := func(d time.Duration) {
				t.Helper()
				for range d / (10 * time.Second) {
					openGroups(t, c, 2)
					for g := range 2 {
						assert.Must(t, assert.Err(c.Queues(t.Context(), fmt.Sprint("g", g), "t")))
					}
					time.Sleep(10 * time.Second)
				}
			}
			expect := func(what string, want int) {
				t.Helper()
				got := len(s.of("QueryAssignment"))
				assert.That(t, got == want, "%s: %s: %d requests, want %d", features, what, got, want)
			}
			time.Sleep(5 * time.Second)
			ask(20 * time.Second)
			expect("at first", want[0])
			ask(10 * time.Minute)
			expect("while nothing changes", want[1])
			count.Store(2)
			ask(5 * time.Minute)
			expect("after a change of the route", want[2])
			close(noFIFO)
			synctest.Wait()
			ask(5 * time.Minute)
			expect("after a change of the group", want[3])
		})
	}
}

// Queues that another server assigned at the address are not kept, also if the route remains: a
// RocketMQ assigns them by the consumers of the group.
func TestQueuesOfAnotherServerAreNotKept(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = ""
		ask := func() {
			t.Helper()
			openGroups(t, c, 1)
			assert.Must(t, assert.Err(c.Queues(t.Context(), "g0", "t")))
		}
		ask()
		s.stop()
		synctest.Wait()
		s.features = "queues"
		s.start()
		for range 4 {
			time.Sleep(time.Minute)
			ask()
		}
		assert.Equal(t, "requests for queues", len(s.of("QueryAssignment")), 2)
	})
}

// A program may use a new group each minute. Those that it does not use any more take no memory.
func TestQueuesOfOldGroupsAreForgotten(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.features = "queues"
		ask := func(group string) { assert.Must(t, assert.Err(c.Queues(t.Context(), group, "t"))) }
		const groups = 100
		for g := range groups {
			for range 6 {
				ask(fmt.Sprint("g", g))
				ask("always")
				time.Sleep(10 * time.Second)
			}
		}
		before := len(s.of("QueryAssignment"))
		assert.Equal(t, "requests for the queues groups", before, groups+1)
		ask("always")
		for g := range groups {
			ask(fmt.Sprint("g", g))
		}
		if got := len(s.of("QueryAssignment")) - before; got < groups-12 || got > groups {
			t.Errorf("the queues of %d of %d groups were requested again, want at least %d, and not those of the group in use", got, groups, groups-12)
		}
	})
}

// Servers come and go, each with an address and a name of its own. The client's memory of them does
// not grow. The deliveries of a server can be settled until their leases end.
func TestVanishedServersAreForgotten(t *testing.T) {
	serving(t, func(t *testing.T, s *fakeServer) {
		addr := func(i int) string { return fmt.Sprintf("10.0.%d.%d:8081", i/250, i%250+1) }
		var at atomic.Int64
		s.route = func() *rmqpb.QueryRouteResponse {
			i := int(at.Load())
			return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(addr(i), fmt.Sprint("pod-", i), 2)}
		}
		first := newServer(t, s.net, addr(0))
		first.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendTime(st, time.Now())
			sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.InvisibleDuration = durationpb.New(2 * time.Hour) })
			sendStatus(st, rmqpb.Code_OK)
			return nil
		}
		first.ack = func(r *rmqpb.AckMessageRequest) *rmqpb.AckMessageResponse {
			return &rmqpb.AckMessageResponse{Status: ok}
		}
		var closed atomic.Int64 // connections to the first server
		c := newClient(t, s.net, func(o *rocketmq.Options) {
			o.Dialer = func(ctx context.Context, to string) (net.Conn, error) {
				conn, err := s.net.dial(ctx, to)
				if err == nil && to == addr(0) {
					conn = &counted{Conn: conn, closed: &closed}
				}
				return conn, err
			}
		})
		r := request1
		r.InvisibleDuration = 2 * time.Hour
		ds, err := c.Receive(t.Context(), r)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		knows := func(i int) bool {
			return !errors.Is(c.Ack(t.Context(), []*tidegate.Delivery{delivery("h", addr(i))})[0], tidegate.ErrInvalid)
		}
		known := func() (servers int) {
			for i := range int(at.Load()) + 1 {
				if knows(i) {
					servers++
				}
			}
			return servers
		}
		refreshes := func(n int) {
			for range n {
				at.Add(1)
				_, _ = c.Lane(t.Context(), transport.LaneRequest{Topic: "t"}) // uses the topic
				time.Sleep(30 * time.Second)
			}
		}
		refreshes(100)
		n := known()
		assert.That(t, n <= 15 && n >= 2, "%d servers are known after 100", n)
		assert.NoError(t, c.Ack(t.Context(), ds)[0], "a delivery of a server that routes no longer name")
		refreshes(200)
		if n := known(); n > 15 || first.openSessions() != 0 || knows(0) {
			t.Errorf("%d servers are known, and %d sessions are left", n, first.openSessions())
		}
		assert.Equal(t, "connections to the first server are closed", closed.Load(), 1)
		assert.Is(t, "a delivery of long ago", c.Ack(t.Context(), ds)[0], tidegate.ErrInvalid)
		if _, err := sendOne(t.Context(), c, message("x")); err == nil {
			t.Errorf("%v; want an error of the last server", err)
		}
	})
}
