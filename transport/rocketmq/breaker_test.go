package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// pair starts two servers of one topic and a client.
func pair(t *testing.T) (c *Client, a, b *server) {
	n := newNetwork()
	a, b = newServer(t, n, testAddr), newServer(t, n, otherAddr)
	a.route = func() *rmqpb.QueryRouteResponse {
		return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: append(queues(testAddr, "a", 4), queues(otherAddr, "b", 4)...)}
	}
	return newClient(t, n, nil), a, b
}

// A server that accepts sends and never responds is excluded after one failure. One
// probe at a time finds out, and no response to other requests admits it again.
//
// RocketMQ: sending retry and throttling: "Can messages be sent if some nodes are faulty?"
func TestBlackHoleIsProbedByOneSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, well, hole := pair(t)
		const normal = 10 * time.Millisecond
		well.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			time.Sleep(normal)
			return sentAll(r), nil
		}
		var dead atomic.Bool
		var now, most atomic.Int64
		hole.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			if !dead.Load() {
				return sentAll(r), nil
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return silent(ctx, r)
		}
		send := func() (tidegate.Receipt, error) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, tidegate.ErrUnavailable)
			defer cancel()
			lane, err := c.Lane(ctx, transport.LaneRequest{Topic: "t"})
			if err != nil {
				return tidegate.Receipt{}, err
			}
			r := c.SendLane(ctx, lane, several(1))[0]
			return r.Receipt, r.Err
		}
		for range 10 {
			if _, err := send(); err != nil {
				t.Fatal(err)
			}
		}
		dead.Store(true)
		for failed := 0; failed == 0; {
			if _, err := send(); err != nil {
				failed++
			}
		}
		most.Store(0)
		// Ten senders for a minute, while the server still responds to a consumer.
		begin := time.Now()
		var sent, failed, changed atomic.Int64
		var wg sync.WaitGroup
		var mu sync.Mutex
		var took []time.Duration
		for range 10 {
			wg.Go(func() {
				for time.Since(begin) < time.Minute {
					start := time.Now()
					switch _, err := send(); {
					case err == nil:
						sent.Add(1)
						mu.Lock()
						took = append(took, time.Since(start))
						mu.Unlock()
					case errors.Is(err, transport.ErrLaneChanged):
						changed.Add(1)
					default:
						failed.Add(1)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Go(func() {
			for time.Since(begin) < time.Minute {
				if _, err := c.ConsumerSettings(t.Context(), "g", "t"); err != nil {
					t.Error(err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		wg.Wait()
		// A probe each 5 s takes a second of patience.
		if failed.Load() < 8 || failed.Load() > 12 || most.Load() != 1 || sent.Load() < 5_000 {
			t.Errorf("%d sends failed, %d at once, %d changed, %d succeeded; want one probe at a time", failed.Load(), most.Load(), changed.Load(), sent.Load())
		}
		slices.Sort(took)
		if p99 := took[len(took)*99/100]; p99 > 2*normal {
			t.Errorf("the p99 of the sends that succeeded is %v, want at most twice %v", p99, normal)
		}
		dead.Store(false)
		time.Sleep(conn.ExcludeFor + conn.ProbeGap)
		got := map[string]int{}
		for range 101 { // the first probes
			r, err := send()
			if err != nil {
				t.Fatal(err)
			}
			got[r.Endpoint]++
		}
		if got[testAddr] < 45 || got[otherAddr] < 45 {
			t.Errorf("after the probe: %v, want both in turn", got)
		}
	})
}

// A lane to a server that failed meanwhile leads elsewhere, if there is another
// server; a message group stays.
func TestLaneToAFailedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a, b := pair(t)
		lanes := map[string]transport.Lane{}
		for len(lanes) < 2 {
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			lanes[lane.Endpoint] = lane
		}
		b.stop()
		synctest.Wait()
		send := func(lane transport.Lane, m *tidegate.Message) error {
			return c.SendLane(t.Context(), lane, []*tidegate.Message{m})[0].Err
		}
		if err := send(lanes[otherAddr], message("1")); !errors.Is(err, tidegate.ErrUnavailable) {
			t.Fatal(err)
		}
		if err := send(lanes[otherAddr], message("2")); !errors.Is(err, transport.ErrLaneChanged) {
			t.Errorf("%v, want ErrLaneChanged", err)
		}
		var group string // of the server that failed
		for i := 0; group == ""; i++ {
			if g := fmt.Sprint("g", i); laneOf(t, c, transport.LaneRequest{Topic: "t", MessageGroup: g}).Endpoint == otherAddr {
				group = g
			}
		}
		b.start()
		if _, err := sendOne(awaiting(t, time.Minute), c, inGroup("3", group)); err != nil {
			t.Errorf("a message group of the server that is back: %v", err)
		}
		for range 10 {
			if lane := laneOf(t, c, transport.LaneRequest{Topic: "t"}); lane.Endpoint != testAddr {
				t.Errorf("%+v so soon after a failure", lane)
			}
		}
		// If both servers fail, the client uses the one that failed last.
		a.stop()
		synctest.Wait()
		if err := send(lanes[testAddr], message("4")); !errors.Is(err, tidegate.ErrUnavailable) {
			t.Errorf("%v, want unavailable", err)
		}
		if err := send(lanes[testAddr], message("5")); !errors.Is(err, tidegate.ErrUnavailable) {
			t.Errorf("%v of the last server, want an attempt", err)
		}
	})
}

// Throttles and messages that are wrong exclude no server.
func TestRejectionsExcludeNoServer(t *testing.T) {
	for _, code := range []rmqpb.Code{rmqpb.Code_TOO_MANY_REQUESTS, rmqpb.Code_MESSAGE_BODY_TOO_LARGE, rmqpb.Code_TOPIC_NOT_FOUND} {
		synctest.Test(t, func(t *testing.T) {
			c, _, b := pair(t)
			b.send = func(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
				return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: code}}, nil
			}
			for range 20 {
				c.Send(t.Context(), several(1))
			}
			if got := len(b.of("SendMessage")); got != 10 {
				t.Errorf("%s: %d of 20 sends, want every other one", code, got)
			}
		})
	}
}
