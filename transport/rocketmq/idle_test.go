package rocketmq_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The session of a group without consumers terminates, although the server is healthy. A
// later consumer gets a new session.
func TestUnusedSessionEnds(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		ask := func(name string) {
			t.Helper()
			assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), name)))
			assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", name)))
		}
		ask("t")
		time.Sleep(15 * time.Minute)
		assert.MustEqual(t, "sessions are left", s.openSessions(), 0)
		bye, beats := s.of("NotifyClientTermination"), s.of("Heartbeat")
		groups := []string{}
		for _, b := range bye {
			groups = append(groups, b.req.(*rmqpb.NotifyClientTerminationRequest).GetGroup().GetName())
		}
		if slices.Sort(groups); !slices.Equal(groups, []string{"", "g"}) {
			t.Errorf("good-byes for %q, want the producer and g", groups)
		}
		if last := beats[len(beats)-1].at; last > bye[0].at {
			t.Errorf("a heartbeat at %v, after the good-bye at %v", last, bye[0].at)
		}
		ask("t")
		time.Sleep(10 * time.Second)
		assert.That(t, len(s.of("Heartbeat")) > len(beats), "no heartbeats of the new session")
	})
}

// A server gets another address, and keeps the old one for a while. The session with the old
// address ends without a termination, because that would end the session with the new address too.
// Later the last session of each role sends the termination.
func TestMovedSessionSendsNoTermination(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.net.mu.Lock()
		s.net.ports[otherAddr] = s.net.ports[testAddr]
		s.net.mu.Unlock()
		s.receive = empty
		poll := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
				assert.Must(t, assert.Err(c.Receive(t.Context(), request1)))
				assert.Must(t, assert.Err(c.ProducerSettings(t.Context(), "t")))
			}
		}
		poll(time.Minute)
		synctest.Wait() // for the questions for routes that are under way
		s.route = routed(queues(otherAddr, "broker-a", 1))
		poll(time.Minute)
		assert.MustEqual(t, "sessions", s.openSessions(), 4)
		poll(16 * time.Minute)
		assert.Equal(t, "sessions", s.openSessions(), 2)
		assert.Equal(t, "good-byes while the sessions live", len(s.of("NotifyClientTermination")), 0)
		time.Sleep(16 * time.Minute)
		if got, bye := s.openSessions(), s.of("NotifyClientTermination"); got != 0 || len(bye) != 2 {
			t.Errorf("%d sessions and %d good-byes in the end", got, len(bye))
		}
	})
}

// A consumer that starts during the termination gets a session that was opened after it.
func TestSessionWantedDuringGoodbye(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.goodbye = func() { time.Sleep(time.Second / 2) }
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "t")))
		time.Sleep(10*time.Minute + 100*time.Millisecond)
		assert.MustEqual(t, "good-byes", len(s.of("NotifyClientTermination")), 1)
		assert.Must(t, assert.Err(c.ConsumerSettings(t.Context(), "g", "u")))
		expectTimes(t, "streams", s.of("Telemetry"), 0, 10*time.Minute+time.Second/2)
		assert.Equal(t, "sessions", s.openSessions(), 1)
	})
}

// A session stays as long as something that it received can be settled: with
// it, servers forget whose deliveries they were.
func TestSessionStaysForDeliveries(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = func(_ *rmqpb.ReceiveMessageRequest, st receiveStream) error {
			sendTime(st, time.Now())
			sendMessage(st, func(m *rmqpb.Message) { m.SystemProperties.InvisibleDuration = durationpb.New(time.Hour) })
			sendStatus(st, rmqpb.Code_OK)
			return nil
		}
		s.change = func(*rmqpb.ChangeInvisibleDurationRequest) *rmqpb.ChangeInvisibleDurationResponse {
			return &rmqpb.ChangeInvisibleDurationResponse{Status: ok, ReceiptHandle: "new"}
		}
		r := request1
		r.InvisibleDuration = time.Hour
		ds, err := c.Receive(t.Context(), r)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		time.Sleep(50 * time.Minute)
		assert.Must(t, assert.Err(c.Extend(t.Context(), ds[0], time.Hour, false)))
		time.Sleep(59 * time.Minute)
		assert.That(t, s.openSessions() == 1 && len(s.of("Telemetry")) == 1,
			"%d sessions after %d streams, want the first one", s.openSessions(), len(s.of("Telemetry")))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, "the session is still there", s.openSessions(), 0)
	})
}

// A receive that waits for longer than a session is kept without use keeps it.
func TestSessionStaysForReceive(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.receive = func(r *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
			time.Sleep(time.Hour)
			return empty(r, st)
		}
		r := request1
		r.Wait = time.Hour
		assert.Must(t, assert.Err(c.Receive(t.Context(), r)))
		assert.Equal(t, "good-byes during the receive", len(s.of("NotifyClientTermination")), 0)
	})
}

// A topic for each job: settings forget earlier topics, and never name more topics than a tidegate
// broker accepts, at any rate of new topics.
func TestManyTopicsInTurn(t *testing.T) {
	for name, tt := range map[string]struct {
		topics, named int // how many, and how many the settings name at most
		pace          time.Duration
		filter        int // bytes of each topic's, so that few topics are enough
	}{
		"slowly":  {60, 31, 20 * time.Second, 1}, // those of 10 min
		"at once": {100, 50, 0, 1000},
	} {
		servedAs(t, name, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = empty
			last := 0
			s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
				for {
					cmd, err := st.Recv()
					if err != nil {
						return nil
					}
					if size := proto.Size(cmd); size > 64<<10 {
						return status.Errorf(codes.InvalidArgument, "settings: they have %d bytes", size)
					}
					last = len(cmd.GetSettings().GetSubscription().GetSubscriptions())
					st.Send(serverSettings(&rmqpb.Settings{PubSub: cmd.GetSettings().GetPubSub()}))
				}
			}
			r := request1
			r.Wait = 0
			r.Filter.Expression = strings.Repeat("x", tt.filter)
			for i := range tt.topics {
				r.Topic = fmt.Sprintf("job-%d", i)
				assert.Must(t, assert.Err(c.Receive(t.Context(), r)), "topic %d", i)
				time.Sleep(tt.pace)
			}
			r.Topic = fmt.Sprintf("job-%d", 0)
			assert.Must(t, assert.Err(c.Receive(t.Context(), r)), "the first topic again")
			synctest.Wait()
			assert.That(t, last <= tt.named && last >= 2, "the last settings name %d topics, want at most %d", last, tt.named)
			assert.Equal(t, "streams", len(s.of("Telemetry")), 1)
		})
	}
}
