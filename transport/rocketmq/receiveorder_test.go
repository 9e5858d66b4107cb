package rocketmq_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// After the first message beyond MaxBytes all messages are released, also those that would fit:
// otherwise a message could overtake an earlier one of its message group.
func TestReceiveBeyondItsBytesKeepsTheOrder(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sizes []int // of the bodies, in the order of the response
		want  int   // messages that Receive returns
	}{
		{"a small one behind a large one", []int{1000, 2000, 10}, 1},
		{"a small one before a large one", []int{1000, 10, 2000}, 2},
		{"small ones behind a large one", []int{2000, 2000, 10, 10}, 1},
		{"all fit", []int{1000, 1000, 400}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
					for i, size := range tt.sizes {
						sendMessage(st, zipped(size, fmt.Sprint(i)))
					}
					sendStatus(st, rmqpb.Code_OK)
					return nil
				}
				s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
					return &rmqpb.ChangeInvisibleDurationResponse{Status: ok}
				}
				r := request1
				r.MaxBytes = 2500
				list, err := newClient(t, n, nil).Receive(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				var got, released, want, rest []string
				for _, d := range list {
					got = append(got, d.Handle)
				}
				for _, c := range s.of("ChangeInvisibleDuration") {
					released = append(released, c.req.(*rmqpb.ChangeInvisibleDurationRequest).GetReceiptHandle())
				}
				slices.Sort(released) // the releases are concurrent
				for i := range tt.sizes {
					if i < tt.want {
						want = append(want, fmt.Sprint(i))
					} else {
						rest = append(rest, fmt.Sprint(i))
					}
				}
				if !slices.Equal(got, want) || !slices.Equal(released, rest) {
					t.Errorf("received %q and released %q, want %q and %q", got, released, want, rest)
				}
			})
		})
	}
}

// RocketMQ lets a receive wait for at least 5 s, also if the request has a shorter wait, and uses
// the deadline of the request as its maximum. The request therefore has RequestTimeout in addition
// to these 5 s.
func TestShortReceiveOutlastsTheServersMinimum(t *testing.T) {
	for _, tt := range []struct{ wait, deadline time.Duration }{
		{0, 8 * time.Second}, {time.Second, 8 * time.Second}, {20 * time.Second, 23 * time.Second},
	} {
		t.Run(tt.wait.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				var left atomic.Int64
				s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
					if at, ok := st.Context().Deadline(); ok {
						left.Store(int64(time.Until(at)))
					}
					time.Sleep(max(tt.wait, 5*time.Second))
					sendStatus(st, rmqpb.Code_MESSAGE_NOT_FOUND)
					return nil
				}
				r := request1
				r.Wait = tt.wait
				if list, err := newClient(t, n, nil).Receive(t.Context(), r); err != nil || len(list) != 0 {
					t.Errorf("%d messages, %v; want none", len(list), err)
				}
				if d := time.Duration(left.Load()).Round(10 * time.Millisecond); d != tt.deadline {
					t.Errorf("the request ends after %v, want %v", d, tt.deadline)
				}
			})
		})
	}
}
