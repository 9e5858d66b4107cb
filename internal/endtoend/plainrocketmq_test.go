package endtoend

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A plainRocketMQ is a server that announces no features and pushes the settings of a RocketMQ 5.2
// with default options. It throttles every send. It has one message, which it delivers again at the
// time that the consumer asked for.
type plainRocketMQ struct {
	rmqpb.UnimplementedMessagingServiceServer

	mu      sync.Mutex
	sends   []time.Time
	due     time.Time // of the message
	attempt int32
	delays  []time.Duration // that the consumer asked for
}

var plainOK = &rmqpb.Status{Code: rmqpb.Code_OK}

func newPlainRocketMQ(t *testing.T) (*plainRocketMQ, *rocketmq.Client) {
	t.Helper()
	s := new(plainRocketMQ)
	lis := bufconn.Listen(plainBuffer)
	g := grpc.NewServer()
	rmqpb.RegisterMessagingServiceServer(g, s)
	go g.Serve(lis)
	t.Cleanup(g.Stop)
	c, err := rocketmq.New("127.0.0.1:8081", rocketmq.Options{
		Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

const plainBuffer = 64 << 10

func (s *plainRocketMQ) queue() *rmqpb.MessageQueue {
	return &rmqpb.MessageQueue{Permission: rmqpb.Permission_READ_WRITE, Broker: &rmqpb.Broker{Name: "broker-a", Endpoints: &rmqpb.Endpoints{
		Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "127.0.0.1", Port: 8081}},
	}}}
}

func (s *plainRocketMQ) QueryRoute(context.Context, *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	return &rmqpb.QueryRouteResponse{Status: plainOK, MessageQueues: []*rmqpb.MessageQueue{s.queue()}}, nil
}

func (s *plainRocketMQ) QueryAssignment(context.Context, *rmqpb.QueryAssignmentRequest) (*rmqpb.QueryAssignmentResponse, error) {
	q := s.queue()
	q.Id = -1
	return &rmqpb.QueryAssignmentResponse{Status: plainOK, Assignments: []*rmqpb.Assignment{{MessageQueue: q}}}, nil
}

func (s *plainRocketMQ) Heartbeat(context.Context, *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	return &rmqpb.HeartbeatResponse{Status: plainOK}, nil
}

func (s *plainRocketMQ) NotifyClientTermination(context.Context, *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	return &rmqpb.NotifyClientTerminationResponse{Status: plainOK}, nil
}

func (s *plainRocketMQ) Telemetry(st rmqpb.MessagingService_TelemetryServer) error {
	for {
		cmd, err := st.Recv()
		if err != nil {
			return nil
		}
		out := cmd.GetSettings()
		if p := out.GetPublishing(); p != nil {
			p.MaxBodySize = 4 << 20
			out.BackoffPolicy = &rmqpb.RetryPolicy{MaxAttempts: 3, Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{
				ExponentialBackoff: &rmqpb.ExponentialBackoff{
					Initial: durationpb.New(10 * time.Millisecond), Max: durationpb.New(time.Second), Multiplier: 2,
				}}}
		} else if sub := out.GetSubscription(); sub != nil {
			sub.Fifo, sub.ReceiveBatchSize, sub.LongPollingTimeout = new(false), new(int32(32)), durationpb.New(20*time.Second)
			table := new(rmqpb.CustomizedBackoff)
			for _, s := range []int64{1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200} {
				table.Next = append(table.Next, &durationpb.Duration{Seconds: s})
			}
			out.BackoffPolicy = &rmqpb.RetryPolicy{MaxAttempts: 17, Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: table}}
		}
		if err := st.Send(&rmqpb.TelemetryCommand{Status: plainOK, Command: &rmqpb.TelemetryCommand_Settings{Settings: out}}); err != nil {
			return nil
		}
	}
}

func (s *plainRocketMQ) SendMessage(context.Context, *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sends = append(s.sends, time.Now())
	return &rmqpb.SendMessageResponse{Status: &rmqpb.Status{
		Code: rmqpb.Code_TOO_MANY_REQUESTS, Message: "[OVERLOAD]system busy, start flow control for a while",
	}}, nil
}

func (s *plainRocketMQ) ReceiveMessage(r *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
	s.mu.Lock()
	wait := max(0, time.Until(s.due))
	if poll := r.GetLongPollingTimeout().AsDuration(); wait > poll {
		s.mu.Unlock()
		if err := backoff.Sleep(st.Context(), poll); err != nil {
			return err
		}
		return st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{
			Status: &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND}}})
	}
	s.attempt++
	s.due = time.Now().Add(wait + r.GetInvisibleDuration().AsDuration())
	attempt := s.attempt
	s.mu.Unlock()
	if err := backoff.Sleep(st.Context(), wait); err != nil {
		return err
	}
	for _, frame := range []*rmqpb.ReceiveMessageResponse{
		{Content: &rmqpb.ReceiveMessageResponse_Status{Status: plainOK}},
		{Content: &rmqpb.ReceiveMessageResponse_Message{Message: &rmqpb.Message{
			Topic: r.GetMessageQueue().GetTopic(), Body: []byte("x"),
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: "id", ReceiptHandle: new("handle"), DeliveryAttempt: &attempt, BodyEncoding: rmqpb.Encoding_IDENTITY,
			},
		}}},
	} {
		if err := st.Send(frame); err != nil {
			return err
		}
	}
	return nil
}

func (s *plainRocketMQ) ChangeInvisibleDuration(_ context.Context, r *rmqpb.ChangeInvisibleDurationRequest) (*rmqpb.ChangeInvisibleDurationResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := r.GetInvisibleDuration().AsDuration()
	s.delays = append(s.delays, d)
	s.due = time.Now().Add(min(d, time.Minute)) // the test looks at the delays asked for
	return &rmqpb.ChangeInvisibleDurationResponse{Status: plainOK, ReceiptHandle: "handle"}, nil
}

// A real RocketMQ pushes 10 ms, doubled up to 1 s, for retries of every kind.
// A throttled send waits for the backoff of the rule nevertheless (RocketMQ: sending retry and
// throttling).
func TestThrottledByPlainRocketMQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newPlainRocketMQ(t)
		p, err := producer.New(c, producer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_, err = p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
		if !errors.Is(err, tidegate.ErrThrottled) || len(s.sends) != 3 {
			t.Fatalf("%d attempts: %v", len(s.sends), err)
		}
		for i := range 2 {
			lo, hi := backoff.Default().Range(i)
			if gap := s.sends[i+1].Sub(s.sends[i]); gap < lo || gap > hi {
				t.Errorf("gap %d is %v, want %v to %v", i+1, gap, lo, hi)
			}
		}
		if e, err := p.Effective(t.Context(), "orders"); err != nil || e.BackoffFrom != "default" || e.MaxAttemptsFrom != "server" {
			t.Errorf("effective settings %+v, %v", e, err)
		}
		// A producer with a shorter backoff of its own is faster.
		own, err := producer.New(c, producer.Options{Backoff: backoff.Steps{time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		start := time.Now()
		if _, err := own.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")}); err == nil || time.Since(start) != 2*time.Millisecond {
			t.Errorf("with a backoff of 1 ms: %v after %v", err, time.Since(start))
		}
	})
}

// It pushes its whole table of delays, which begins with 1 s and 5 s. A failed
// message follows the retry schedule of the rule nevertheless (RocketMQ: consumption retry).
func TestLadderOnPlainRocketMQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newPlainRocketMQ(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ladder := backoff.RetryLadder()
		handle := func(_ context.Context, d *tidegate.Delivery) error {
			if d.Attempt > len(ladder) {
				cancel()
			}
			return errors.New("not today")
		}
		push, err := consumer.NewPush(c, consumer.Subscription{Group: "billing", Topic: "orders"}, handle, consumer.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := push.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if len(s.delays) < len(ladder) {
			t.Fatalf("delays %v", s.delays)
		}
		for i, want := range ladder {
			if s.delays[i] != want {
				t.Errorf("retry %d after %v, want %v", i+1, s.delays[i], want)
			}
		}
	})
}
