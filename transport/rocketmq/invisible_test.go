package rocketmq_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/internal/rmqpb"
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
