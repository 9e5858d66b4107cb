package rocketmq

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A server that keeps the queues of groups is asked for them once for each content of a route and
// each setting FIFO. Other servers are asked after each refresh of the route.
func TestQueuesAreKept(t *testing.T) {
	for features, want := range map[string][4]int{"queues": {2, 2, 4, 5}, "batch": {2, 42, 62, 83}} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
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
			c := newClient(t, n, nil)
			ask := func(d time.Duration) {
				t.Helper()
				for range d / (10 * time.Second) {
					openGroups(t, c, 2)
					for g := range 2 {
						if _, err := c.Queues(t.Context(), fmt.Sprint("g", g), "t"); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(10 * time.Second)
				}
			}
			expect := func(what string, want int) {
				t.Helper()
				if got := len(s.of("QueryAssignment")); got != want {
					t.Errorf("%s: %s: %d requests, want %d", features, what, got, want)
				}
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
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = ""
		c := newClient(t, n, nil)
		ask := func() {
			t.Helper()
			openGroups(t, c, 1)
			if _, err := c.Queues(t.Context(), "g0", "t"); err != nil {
				t.Fatal(err)
			}
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
		if got := len(s.of("QueryAssignment")); got != 2 {
			t.Errorf("%d requests for queues, want one to each server", got)
		}
	})
}

// A program may use a new group each minute. Those that it does not use any more take no memory.
func TestQueuesOfOldGroupsAreForgotten(t *testing.T) {
	for _, features := range []string{"queues", "batch"} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			newServer(t, n, testAddr).features = features
			c := newClient(t, n, nil)
			for g := range 100 {
				for range 6 {
					for _, group := range []string{fmt.Sprint("g", g), "always"} {
						if _, err := c.Queues(t.Context(), group, "t"); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(10 * time.Second)
				}
			}
			c.mu.Lock()
			tp := c.topics["t"]
			c.mu.Unlock()
			tp.mu.Lock()
			defer tp.mu.Unlock()
			if _, ok := tp.groups["always"]; !ok || len(tp.groups) > 12 {
				t.Errorf("%s: queues of %d groups are stored after 100 minutes, want at most 12; of the group in use: %t", features, len(tp.groups), ok)
			}
		})
	}
}
