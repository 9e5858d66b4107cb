package rocketmq_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// accepting returns a queue of a topic that takes messages of the types.
func accepting(kinds ...rmqpb.MessageType) *rmqpb.QueryRouteResponse {
	mqs := queues(testAddr, "b", 1)
	mqs[0].AcceptMessageTypes = kinds
	return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: mqs}
}

// A message of a type that the topic does not take is rejected before the wire; its
// neighbours are sent.
func TestWrongTypeIsRejectedBeforeTheWire(t *testing.T) {
	const normal, fifo, delay = rmqpb.MessageType_NORMAL, rmqpb.MessageType_FIFO, rmqpb.MessageType_DELAY
	late := message("late")
	late.DeliverAt = time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC) // an hour ahead in a bubble
	for _, tt := range []struct {
		takes  []rmqpb.MessageType
		msg    *tidegate.Message
		remedy string // empty: it is sent
	}{
		{[]rmqpb.MessageType{normal}, message("m"), ""},
		{[]rmqpb.MessageType{delay}, message("m"), "set DeliverAt"},
		{[]rmqpb.MessageType{fifo}, message("m"), "set MessageGroup"},
		{[]rmqpb.MessageType{normal}, late, "create the topic as DELAY"},
		{[]rmqpb.MessageType{normal}, inGroup("m", "g"), "create the topic as FIFO"},
		{[]rmqpb.MessageType{rmqpb.MessageType_TRANSACTION}, message("m"), "transaction"},
		{[]rmqpb.MessageType{normal, fifo, delay, rmqpb.MessageType_TRANSACTION}, late, ""},
		{[]rmqpb.MessageType{rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED}, late, ""},
		{nil, inGroup("m", "g"), ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.route = func() *rmqpb.QueryRouteResponse { return accepting(tt.takes...) }
			c := newClient(t, n, nil)
			lane := laneOf(t, c, transport.LaneRequest{Topic: "t"})
			for _, r := range []transport.SendResult{c.Send(t.Context(), []*tidegate.Message{tt.msg})[0], c.SendLane(t.Context(), lane, []*tidegate.Message{tt.msg})[0]} {
				e, isErr := errors.AsType[*tidegate.Error](r.Err)
				if isErr != (tt.remedy != "") {
					t.Errorf("%v takes: %v", tt.takes, r.Err)
				}
				if isErr && (e.Code != tidegate.CodeMessagePropertyConflict || e.Endpoint != "" || e.MaybeStored || !strings.Contains(e.Message, tt.remedy) || !strings.Contains(e.Message, wire.TypeOf(tt.msg).String())) {
					t.Errorf("%v takes: %+v, want %q", tt.takes, e, tt.remedy)
				}
			}
			if got := len(s.of("SendMessage")); (got == 0) != (tt.remedy != "") {
				t.Errorf("%v takes: %d requests", tt.takes, got)
			}
		})
	}
}

func TestWrongTypeAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = "batch"
		kind := rmqpb.MessageType_NORMAL
		s.route = func() *rmqpb.QueryRouteResponse { return accepting(kind) }
		c := newClient(t, n, nil)
		msgs := []*tidegate.Message{message("0"), inGroup("1", "g"), message("2")}
		for i, r := range c.SendLane(t.Context(), laneOf(t, c, transport.LaneRequest{Topic: "t"}), msgs) {
			if (r.Err != nil) != (i == 1) || i != 1 && r.Receipt.MessageID != msgs[i].ID {
				t.Errorf("message %d: %+v", i, r)
			}
		}
		// The topic's type changes: the next message of the new type finds out.
		kind = rmqpb.MessageType_FIFO
		time.Sleep(2 * time.Second)
		if _, err := sendOne(t.Context(), c, msgs[1]); err != nil {
			t.Errorf("%v after the topic's type has changed", err)
		}
	})
}

// The client requests the route of a topic again if a server denied the topic, or if the topic has
// no queue to write to. It does so before the next attempt that can wait, because attempts at once
// would all fail by one route.
func TestLostRouteIsQueriedBeforeTheNextAttempt(t *testing.T) {
	for name, denied := range map[string]bool{"denied": true, "no queue": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				var broken atomic.Bool
				s.send = func(_ context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
					if denied && broken.Load() {
						return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: rmqpb.Code_TOPIC_NOT_FOUND}}, nil
					}
					return sentAll(r), nil
				}
				s.route = func() *rmqpb.QueryRouteResponse {
					mqs := queues(testAddr, "b", 1)
					if !denied && broken.Load() {
						mqs[0].Permission = rmqpb.Permission_READ
					}
					return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: mqs}
				}
				c := newClient(t, n, nil)
				broken.Store(true)
				begin := time.Now()
				if _, err := sendOne(t.Context(), c, message("1")); err == nil || time.Since(begin) > 0 {
					t.Fatalf("%v after %v, want a failure at once", err, time.Since(begin))
				}
				routes := len(s.of("QueryRoute"))
				time.AfterFunc(time.Second/2, func() { broken.Store(false) })
				if _, err := sendOne(awaiting(t, time.Minute), c, message("1")); err != nil {
					t.Errorf("the next attempt: %v", err)
				}
				if took := time.Since(begin); took != time.Second || len(s.of("QueryRoute")) != routes+1 {
					t.Errorf("after %v and %d questions more, want one after 1s", took, len(s.of("QueryRoute"))-routes)
				}
				// The wait is part of the attempt, and ends with it.
				broken.Store(true)
				ctx, cancel := context.WithTimeoutCause(transport.AwaitConnection(t.Context()), time.Second/2, errGone)
				defer cancel()
				if !denied {
					time.Sleep(30 * time.Second) // until the refresh of the route
					synctest.Wait()
				}
				sendOne(t.Context(), c, message("2"))
				begin = time.Now()
				if _, err := sendOne(ctx, c, message("2")); !errors.Is(err, errGone) || err.MaybeStored {
					t.Errorf("%+v after %v, want the cause of the attempt's end", err, time.Since(begin))
				}
			})
		})
	}
}
