package rocketmq_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// openGroups opens the sessions of so many groups.
func openGroups(t *testing.T, c *rocketmq.Client, n int) {
	t.Helper()
	for i := range n {
		if _, err := c.ConsumerSettings(t.Context(), fmt.Sprint("g", i), "t"); err != nil {
			t.Fatal(err)
		}
	}
}

// sinceStart returns the times 0, step, 2*step and so on up to last.
func sinceStart(step, last time.Duration) (list []time.Duration) {
	for at := time.Duration(0); at <= last; at += step {
		list = append(list, at)
	}
	return list
}

// Sessions with one server that announces it take turns: one heartbeat in 10 s is enough.
func TestSessionsShareHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = "heartbeats"
		openGroups(t, newClient(t, n, nil), 5)
		time.Sleep(time.Minute)
		synctest.Wait()
		beats := s.of("Heartbeat")
		expectTimes(t, "heartbeats", beats, sinceStart(10*time.Second, time.Minute)...)
		groups := map[string]bool{}
		for _, b := range beats {
			groups[b.req.(*rmqpb.HeartbeatRequest).GetGroup().GetName()] = true
			if got := b.md.Get(wire.HeaderFeatures); !slices.Equal(got, []string{"heartbeats"}) {
				t.Errorf("a heartbeat announces %v", got)
			}
		}
		if len(groups) != 5 {
			t.Errorf("heartbeats of %v, want one of each group", groups)
		}
	})
}

// On another server each session sends its own. So it does if the next connection leads to one.
func TestHeartbeatsOnOtherServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.features = "heartbeats"
		c := newClient(t, n, nil)
		openGroups(t, c, 5)
		time.Sleep(15 * time.Second)
		s.stop()
		synctest.Wait()
		s.features = ""
		s.start()
		time.Sleep(15 * time.Second)
		before := len(s.of("Heartbeat"))
		time.Sleep(time.Minute)
		if got := len(s.of("Heartbeat")) - before; got != 30 {
			t.Errorf("%d heartbeats of 5 sessions in a minute without the feature, want 30", got)
		}
		if got := s.of("Heartbeat")[before].md.Get(wire.HeaderFeatures); got != nil {
			t.Errorf("a heartbeat announces %v", got)
		}
		s.stop()
		synctest.Wait()
		s.features = "heartbeats"
		s.start()
		time.Sleep(15 * time.Second)
		before = len(s.of("Heartbeat"))
		time.Sleep(time.Minute)
		if got := len(s.of("Heartbeat")) - before; got != 6 {
			t.Errorf("%d heartbeats of 5 sessions in a minute with the feature, want 6", got)
		}
	})
}

// The heartbeats go on when a session ends, also the one whose turn it is, and after a failure. A
// session ends after 30 s without use.
func TestHeartbeatTurnsEnd(t *testing.T) {
	for turn := range 5 { // of the session that ends
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.features = "heartbeats"
			s.heartbeat = func() *rmqpb.Status {
				if time.Since(s.began) == 20*time.Second {
					return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR}
				}
				return ok
			}
			c := newClient(t, n, func(o *rocketmq.Options) { o.SettingsSync = 15 * time.Second })
			for at := range 70 {
				for g := range 5 {
					if g == turn && at > 5 {
						continue
					}
					if _, err := c.ConsumerSettings(t.Context(), fmt.Sprint("g", g), "t"); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			expectTimes(t, "heartbeats", s.of("Heartbeat"), sinceStart(10*time.Second, 70*time.Second)...)
		})
	}
}

// A server that takes shared heartbeats asks for lost settings in the stream. On other servers the
// same status must not lead to further settings, because it may be the response to settings.
func TestServerAsksForSettings(t *testing.T) {
	for features, want := range map[string]int{"heartbeats": 2, "batch": 1} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			s := newServer(t, n, testAddr)
			s.features = features
			var asked atomic.Bool
			s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
				go func() {
					time.Sleep(time.Second)
					if asked.CompareAndSwap(false, true) {
						st.Send(&rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE}})
					}
				}()
				return s.answerSettings(st)
			}
			openGroups(t, newClient(t, n, nil), 1)
			time.Sleep(time.Minute)
			if got := len(s.of("settings")); got != want {
				t.Errorf("with the feature %s, %d settings; want %d", features, got, want)
			}
		})
	}
}
