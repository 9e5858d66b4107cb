package rocketmq

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// The remaining time that a message reports counts from its arrival, however far the server's clock
// is behind: a clock 3 s behind would end a lease of 2 s immediately.
func TestReportedInvisibleTimeNeedsNoClock(t *testing.T) {
	for behind, reported := range map[time.Duration]bool{0: true, time.Second: false, 3 * time.Second: true, 4 * time.Second: true, time.Hour: true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
				sendStatus(st, rmqpb.Code_OK)
				sendMessage(st, func(m *rmqpb.Message) {
					if reported {
						m.SystemProperties.InvisibleDuration = durationpb.New(2 * time.Second)
					}
				})
				sendTime(st, time.Now().Add(-behind))
				return nil
			}
			want := 2 * time.Second
			if !reported {
				want -= behind
			}
			r := request1
			r.InvisibleDuration = 2 * time.Second
			ds, err := newClient(t, n, nil).Receive(t.Context(), r)
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			if left := time.Until(ds[0].InvisibleUntil); left != want {
				t.Errorf("clock %v behind, reported %v: %v are left, want %v", behind, reported, left, want)
			}
		})
	}
}

// The invisible time starts with the server's time if the clocks agree or the response was slow.
func TestInvisibleUntil(t *testing.T) {
	const minute = time.Minute
	arrival := time.Unix(1000, 0)
	for _, c := range []struct {
		why      string
		took     time.Duration // from the request to the response
		server   time.Duration // the server's time, after the arrival
		reported time.Duration // remaining time; zero if the server does not report it
		want     time.Duration // after the arrival; the requested duration is a minute
	}{
		{"immediate response", 0, 0, 0, minute},
		{"clock 5 s behind", 0, -5 * time.Second, 0, 55 * time.Second},
		{"clock 6 s behind", 0, -6 * time.Second, 0, minute},
		{"clock ahead", 0, time.Second, 0, minute},
		{"clock ahead, slow response", 20 * time.Second, time.Second, 0, minute},
		{"slow response", 20 * time.Second, -15 * time.Second, 0, 45 * time.Second},
		{"slow response to an immediate delivery", 20 * time.Second, -20 * time.Second, 0, 40 * time.Second},
		{"clock behind by more than the call", 20 * time.Second, -21 * time.Second, 0, minute},
		{"three quarters are over", 50 * time.Second, -45 * time.Second, 0, 15 * time.Second},
		{"more than three quarters are over, or the clock is behind", 50 * time.Second, -46 * time.Second, 0, minute},

		{"immediate response, reported", 0, 0, 8 * time.Second, 8 * time.Second},
		{"clock 3 s behind, reported", 0, -3 * time.Second, 8 * time.Second, 8 * time.Second},
		{"clock ahead, reported", 20 * time.Second, time.Second, 8 * time.Second, 8 * time.Second},
		{"slow response, reported", 20 * time.Second, -6 * time.Second, 8 * time.Second, 2 * time.Second},
		{"the reported time is almost over, or the clock behind", 20 * time.Second, -7 * time.Second, 8 * time.Second, 8 * time.Second},
	} {
		f := collector{
			r:    &transport.ReceiveRequest{InvisibleDuration: minute},
			sent: arrival.Add(-c.took), began: arrival, server: arrival.Add(c.server),
		}
		d := &tidegate.Delivery{}
		if c.reported > 0 {
			d.InvisibleUntil = arrival.Add(c.reported)
		}
		if got := f.invisibleUntil(d).Sub(arrival); got != c.want {
			t.Errorf("%s: %v, want %v", c.why, got, c.want)
		}
	}
	f := collector{r: &transport.ReceiveRequest{InvisibleDuration: minute}, sent: arrival, began: arrival}
	if got := f.invisibleUntil(&tidegate.Delivery{}); !got.Equal(arrival.Add(minute)) {
		t.Errorf("a response without the server's time: %v, want the arrival plus a minute", got)
	}
}
