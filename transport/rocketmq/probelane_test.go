package rocketmq

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// A lane that probes a failed server is for one message, also if the server takes many in a
// request: if the probe fails too, only one message has waited for it.
func TestProbeOfAFailedServerIsForOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, well, hole := pair(t)
		well.features, hole.features = "batch", "batch"
		var dead atomic.Bool
		hole.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			if dead.Load() {
				return silent(ctx, r)
			}
			return sentAll(r), nil
		}
		send := func() (lane transport.Lane, err error) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, tidegate.ErrUnavailable)
			defer cancel()
			if lane, err = c.Lane(ctx, transport.LaneRequest{Topic: "t"}); err == nil {
				err = c.SendLane(ctx, lane, several(1))[0].Err
			}
			return lane, err
		}
		for range 20 {
			if _, err := send(); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			if lane := laneOf(t, c, transport.LaneRequest{Topic: "t"}); lane.MaxMessages != maxBatch {
				t.Fatalf("lane %+v of a working server, want one for %d messages", lane, maxBatch)
			}
		}
		dead.Store(true)
		for failed := false; !failed; {
			_, err := send()
			failed = err != nil
		}
		time.Sleep(conn.ExcludeFor + conn.ProbeGap)
		lanes := map[string]int{} // the largest of each server
		for range 20 {
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			lanes[lane.Endpoint] = max(lanes[lane.Endpoint], lane.MaxMessages)
		}
		if lanes[testAddr] != maxBatch || lanes[otherAddr] != 1 {
			t.Errorf("lanes for %v messages, want %d at %s and 1 at the failed %s", lanes, maxBatch, testAddr, otherAddr)
		}
	})
}
