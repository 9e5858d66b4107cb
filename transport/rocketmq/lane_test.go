package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

func laneOf(t *testing.T, c *Client, r transport.LaneRequest) transport.Lane {
	t.Helper()
	lane, err := c.Lane(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return lane
}

func several(n int) []*tidegate.Message {
	var msgs []*tidegate.Message
	for i := range n {
		msgs = append(msgs, message(fmt.Sprint(i)))
	}
	return msgs
}

// sizes returns the number of messages of each send that the server received.
func (s *server) sizes() (list []int) {
	for _, g := range s.of("SendMessage") {
		list = append(list, len(g.req.(*rmqpb.SendMessageRequest).GetMessages()))
	}
	return list
}

func TestLane(t *testing.T) {
	for _, tt := range []struct {
		features string
		most     int
		can      transport.Capabilities
	}{{"", 1, transport.Capabilities{}}, {"pushback,batch", maxBatch, transport.Capabilities{PushBack: true, Batch: true}}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.features = tt.features
			c := newClient(t, n, nil)
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			if want := (transport.Lane{Endpoint: testAddr, MaxMessages: tt.most, MaxBytes: maxBatchBytes}); lane != want {
				t.Errorf("%q: %+v, want %+v", tt.features, lane, want)
			}
			msgs := several(min(10, tt.most))
			for i, r := range c.SendLane(t.Context(), lane, msgs) {
				if want := (tidegate.Receipt{MessageID: msgs[i].ID, Topic: "t", Queue: -1, Offset: int64(40 + i), Endpoint: testAddr}); r.Err != nil || r.Receipt != want {
					t.Errorf("%q: message %d: %+v, want %+v", tt.features, i, r, want)
				}
			}
			if got := s.sizes(); !slices.Equal(got, []int{len(msgs)}) {
				t.Errorf("%q: requests of %v messages", tt.features, got)
			}
			if got := c.Capabilities(testAddr); got != tt.can {
				t.Errorf("%q: capabilities %+v", tt.features, got)
			}
			if got := c.Capabilities("unknown:1"); got != (transport.Capabilities{}) {
				t.Errorf("capabilities %+v of a server that is not known", got)
			}
		})
	}
}

// Lanes take servers in turn, avoid the requested servers if there are others, and keep a message
// group on its server.
func TestLaneAvoids(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		newServer(t, n, otherAddr)
		s.route = func() *rmqpb.QueryRouteResponse {
			return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: append(queues(testAddr, "a", 2), queues(otherAddr, "b", 2)...)}
		}
		c := newClient(t, n, nil)
		count := func(r transport.LaneRequest) map[string]int {
			r.Topic = "t"
			m := map[string]int{}
			for range 10 {
				m[laneOf(t, c, r).Endpoint]++
			}
			return m
		}
		if got := count(transport.LaneRequest{}); got[testAddr] != 5 || got[otherAddr] != 5 {
			t.Errorf("in turn: %v", got)
		}
		if got := count(transport.LaneRequest{Avoid: []string{testAddr}}); got[otherAddr] != 10 {
			t.Errorf("one avoided: %v", got)
		}
		if got := count(transport.LaneRequest{Avoid: []string{testAddr, otherAddr}}); got[testAddr]+got[otherAddr] != 10 {
			t.Errorf("both avoided: %v", got)
		}
		home := laneOf(t, c, transport.LaneRequest{Topic: "t", MessageGroup: "g"}).Endpoint
		if got := count(transport.LaneRequest{MessageGroup: "g", Avoid: []string{home}}); got[home] != 10 {
			t.Errorf("a message group left %s: %v", home, got)
		}
		// A route that leads the group elsewhere changes its lane.
		other := map[string]string{testAddr: otherAddr, otherAddr: testAddr}[home]
		for _, r := range c.SendLane(t.Context(), transport.Lane{Endpoint: other}, []*tidegate.Message{message("1"), inGroup("2", "g")}) {
			if e, isErr := errors.AsType[*tidegate.Error](r.Err); !isErr || !errors.Is(e, transport.ErrLaneChanged) || e.MaybeStored {
				t.Errorf("%v, want ErrLaneChanged", r.Err)
			}
		}
		if err := c.SendLane(t.Context(), transport.Lane{Endpoint: "gone:1"}, several(1))[0].Err; !errors.Is(err, transport.ErrLaneChanged) {
			t.Errorf("a server that the route does not name: %v", err)
		}
		if len(s.of("SendMessage")) != 0 {
			t.Error("something was sent")
		}
	})
}

// A server with features is replaced, at the same address, by one without between
// planning and writing. It never receives several messages in one request.
func TestBatchNeverReachesAPlainServer(t *testing.T) {
	setup := func(t *testing.T) (c *Client, ours, plain *server) {
		n := newNetwork()
		ours = newServer(t, n, testAddr)
		ours.features = "batch"
		c = newClient(t, n, nil)
		if _, err := sendOne(t.Context(), c, message("first")); err != nil {
			t.Fatal(err)
		}
		ours.stop()
		plain = newServer(t, n, testAddr)
		synctest.Wait()
		return c, ours, plain
	}
	check := func(t *testing.T, plain *server, want int) {
		t.Helper()
		got := plain.sizes()
		if len(got) != want || slices.ContainsFunc(got, func(n int) bool { return n > 1 }) {
			t.Errorf("the plain server received requests of %v messages, want %d of 1", got, want)
		}
	}
	t.Run("SendLane", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			ours := newServer(t, n, testAddr)
			ours.features = "batch"
			c := newClient(t, n, nil)
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			if lane.MaxMessages != maxBatch {
				t.Fatalf("%+v", lane)
			}
			ours.stop()
			plain := newServer(t, n, testAddr)
			synctest.Wait()
			for i, r := range c.SendLane(t.Context(), lane, several(5)) {
				if e, isErr := errors.AsType[*tidegate.Error](r.Err); !isErr || !errors.Is(e, transport.ErrLaneChanged) || e.MaybeStored || e.Endpoint != testAddr {
					t.Errorf("message %d: %+v, want ErrLaneChanged", i, r)
				}
			}
			if lane = laneOf(t, c, transport.LaneRequest{Topic: "t"}); lane.MaxMessages != 1 {
				t.Errorf("%+v after the change, want a lane for one message", lane)
			}
			if r := c.SendLane(t.Context(), lane, several(1))[0]; r.Err != nil {
				t.Error(r.Err)
			}
			check(t, plain, 1)
			if c.Capabilities("").Batch {
				t.Error("the plain server announces batches")
			}
		})
	})
	t.Run("Send", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _, plain := setup(t)
			for i, r := range c.Send(t.Context(), several(20)) {
				if r.Err != nil || r.Receipt.MessageID != fmt.Sprint(i) {
					t.Errorf("message %d: %+v", i, r)
				}
			}
			check(t, plain, 20)
		})
	})
	t.Run("while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			ours := newServer(t, n, testAddr)
			ours.features = "batch"
			c := newClient(t, n, nil)
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			ours.stop()
			plain := newServer(t, n, testAddr)
			plain.stop()
			synctest.Wait()
			time.AfterFunc(5*time.Second, plain.start)
			ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), time.Minute)
			defer cancel()
			for i, r := range c.SendLane(ctx, lane, several(5)) {
				if !errors.Is(r.Err, transport.ErrLaneChanged) {
					t.Errorf("message %d: %+v, want ErrLaneChanged", i, r)
				}
			}
			check(t, plain, 0)
		})
	})
	t.Run("and back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _, plain := setup(t)
			if _, err := sendOne(t.Context(), c, message("x")); err != nil {
				t.Fatal(err)
			}
			plain.stop()
			again := newServer(t, plain.net, testAddr)
			again.features = "batch"
			synctest.Wait()
			for _, r := range c.Send(t.Context(), several(20)) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			}
			for _, r := range c.Send(t.Context(), several(20)) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			}
			if got := again.sizes(); got[len(got)-1] != 20 {
				t.Errorf("requests of %v messages, want the last of 20", got)
			}
		})
	})
}
