package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// Requests and responses take up to 40 s each, at random, and every fifth response is lost. Two
// consumers work on the same messages for up to three minutes each. When a lease is lost, the
// handler's ctx ends with ErrLeaseLost before the broker delivers the message again: no two
// handlers have one message at the same time.
func TestNoTwoHandlersAtAnyNetworkDelay(t *testing.T) {
	lost, acked := 0, 0
	// With the first seed two handlers overlapped in one of three runs: a response reported a
	// remaining time of zero for a lease that had ended, and the consumer handled the message.
	for _, seed := range []uint64{3569062755271691894, rand.Uint64(), rand.Uint64()} {
		brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			var mu sync.Mutex
			upTo := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rnd.Int64N(int64(d)))
			}
			slowest := 1 + upTo(40*time.Second)
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{MaxAttempts: -1})
			restore := b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				if call.Op != "ReceiveMessage" && call.Op != "ChangeInvisibleDuration" && call.Op != "AckMessage" {
					return next(ctx)
				}
				sleep(ctx, upTo(slowest)/2)
				err := next(context.WithoutCancel(ctx))
				sleep(ctx, upTo(slowest)/2)
				if upTo(5) == 0 {
					return brokertest.ErrConnectionLost
				}
				return err
			})
			var seen outcomes
			var working sync.Map // bodies
			var overlap atomic.Int64
			handler := func(ctx context.Context, d *tidegate.Delivery) error {
				if _, other := working.Swap(string(d.Body), true); other {
					overlap.Add(1)
				}
				defer working.Delete(string(d.Body))
				select {
				case <-time.After(upTo(3 * time.Minute)):
					return nil
				case <-ctx.Done():
					if cause := context.Cause(ctx); !errors.Is(cause, consumer.ErrLeaseLost) && !errors.Is(cause, consumer.ErrShutdown) {
						t.Errorf("the handler's context ended because of %v", cause)
					}
					return context.Cause(ctx)
				}
			}
			o := consumer.PushOptions{Concurrency: 4, ShutdownTimeout: 10 * time.Second, OnDelivery: seen.Add}
			stop1, stop2 := runPush(t, b.Client(), handler, o), runPush(t, b.Client(), handler, o)
			for n := range 20 {
				b.Send(Order(n))
			}
			<-time.After(10 * time.Minute)
			restore()
			b.WaitIdle("billing", "orders")
			stop1()
			stop2()
			for _, o := range seen.All() {
				switch o.Disposition {
				case consumer.LeaseLost:
					lost++
				case consumer.Acked:
					acked++
				}
			}
			if n := b.Stats("billing", "orders").Acked; n != 20 || overlap.Load() != 0 {
				t.Errorf("seed %d, delays up to %v: %d of 20 messages were handled, %d handlers began while another one had the message", seed, slowest, n, overlap.Load())
			}
		})
	}
	assert.That(t, lost >= 3 && acked >= 6, "%d leases were lost and %d messages acknowledged: the test shows nothing", lost, acked)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// The broker carries out an extension, but its response is lost, so the consumer has a replaced
// handle. Neither the next extension nor an earlier settlement may treat this as the loss of the
// lease.
func TestLostResponsesToExtensions(t *testing.T) {
	failed := errors.New("out of stock")
	for name, tt := range map[string]struct {
		lost  int64 // changes of the invisible duration whose responses are lost
		works time.Duration
		err   error
		stop  time.Duration // of the consumer; 0: after the settlement
		want  consumer.Disposition
	}{
		"one, and others follow":             {1, 25 * time.Second, nil, 0, consumer.Acked},
		"three":                              {3, 40 * time.Second, nil, 0, consumer.Acked},
		"one, and the handler returns":       {1, 14 * time.Second, nil, 0, consumer.Acked},
		"two, of which one is after that":    {2, 14 * time.Second, nil, 0, consumer.Acked},
		"one, and the handler fails":         {1, 14 * time.Second, failed, 0, consumer.Retried},
		"one, and it wants a dead letter":    {1, 14 * time.Second, consumer.DeadLetterNow(failed), 0, consumer.DeadLettered},
		"one, and the consumer has no time":  {1, time.Minute, failed, 12 * time.Second, consumer.Released},
		"all, and the lease ends in the end": {1000, 2 * time.Minute, nil, 0, consumer.LeaseLost},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{})
			var lost atomic.Int64
			defer b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				err := next(ctx)
				if call.Op == "ChangeInvisibleDuration" && lost.Add(1) <= tt.lost {
					return server.ErrNoAnswer
				}
				return err
			})()
			var mu sync.Mutex
			var outcomes []consumer.Outcome
			settled := make(chan struct{}, 100)
			c := assert.Value(consumer.NewPush(b.Client(), consumer.Subscription{Topic: "orders", Group: "billing"},
				func(ctx context.Context, _ *tidegate.Delivery) error {
					select {
					case <-time.After(tt.works):
						return tt.err
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}, consumer.PushOptions{ShutdownTimeout: time.Second, OnDelivery: func(o consumer.Outcome) {
					mu.Lock()
					defer mu.Unlock()
					outcomes = append(outcomes, o)
					settled <- struct{}{}
				}}))(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "orders", Body: []byte("x")})
			go func() { done <- c.Run(ctx) }()
			if tt.stop > 0 {
				time.AfterFunc(tt.stop, cancel)
			}
			<-settled
			cancel()
			assert.NoError(t, <-done)
			mu.Lock()
			defer mu.Unlock()
			if o := outcomes[0]; o.Delivery.Attempt != 1 || o.Disposition != tt.want || tt.want != consumer.LeaseLost && o.SettleErr != nil {
				t.Errorf("%+v, want %v", o, tt.want)
			}
			s := b.Stats("billing", "orders")
			if left := s.Backlog.Messages; (left == 0) != (tt.want == consumer.Acked || tt.want == consumer.DeadLettered) || s.Redelivered != 0 {
				t.Errorf("%d messages are left, and the broker reports %+v", left, s)
			}
		}))
	}
}

// A lag is a network to a broker that takes a while, in both directions.
type lag struct {
	b     *brokertest.Broker
	delay time.Duration
}

// dial has the form of rocketmq.Options.Dialer.
func (l *lag) dial(ctx context.Context, addr string) (net.Conn, error) {
	far, err := l.b.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	near, middle := net.Pipe()
	go l.carry(middle, far)
	go l.carry(far, middle)
	return near, nil
}

// carry copies bytes in their order, each as late as the network was slow when it was read.
func (l *lag) carry(from, to net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 1<<10)
	go func() {
		for c := range chunks {
			if wait := time.Until(c.due); wait > 0 {
				<-time.After(wait)
			}
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		from.Close()
		to.Close()
		for range chunks { // they are lost
		}
	}()
	defer close(chunks)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			chunks <- chunk{append([]byte(nil), buf[:n]...), time.Now().Add(l.delay)}
		}
		if err != nil {
			return
		}
	}
}

// Sends succeed at most two seconds after each of twenty restarts under load, and the broker has
// each accepted message once.
func TestTwentyRestarts(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		p := NewProducer(t, b, producer.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var sent atomic.Int64
		var mu sync.Mutex
		ids := map[string]bool{} // guarded by mu: of the accepted messages
		var senders sync.WaitGroup
		for range 8 {
			senders.Go(func() {
				for ctx.Err() == nil {
					call, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					r, err := p.Send(call, &tidegate.Message{Topic: "orders", Body: []byte("x")})
					assert.NoError(t, err)
					cancel()
					mu.Lock()
					ids[r.MessageID] = true
					mu.Unlock()
					sent.Add(1)
					time.Sleep(200 * time.Millisecond)
				}
			})
		}
		for round := range 20 {
			time.Sleep(time.Second)
			b.Disconnect()
			time.Sleep(time.Duration(round) * 200 * time.Millisecond)
			b.Reconnect()
			b.Restart()
			before := sent.Load()
			time.Sleep(2 * time.Second)
			got := sent.Load() - before
			assert.That(t, got >= 8, "restart %d: %d messages were sent in the two seconds after it", round, got)
		}
		cancel()
		senders.Wait()
		if info, err := b.Topic("orders"); err != nil || info.StoredMessages != int64(len(ids)) {
			t.Errorf("%d messages were accepted, the broker has %d, %v", len(ids), info.StoredMessages, err)
		}
	})
}

// A group consumes its topic and its own dead letters, and fails in both. Each message is delivered
// as often as the group allows in the topic, and once more so often as a dead letter. Then it stays
// among the dead letters, from where an operator can send it back: dead letters do not go round.
func TestDeadLettersDoNotLoop(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		settings *settings.Address
		letters  string         // the topic of the dead letters
		want     map[string]int // deliveries
	}{
		"failures":        {errors.New("no"), nil, "%DLQ%billing", map[string]int{"orders": 2, "%DLQ%billing": 2}},
		"the handler's":   {consumer.DeadLetterNow(errors.New("no")), nil, "%DLQ%billing", map[string]int{"orders": 1, "%DLQ%billing": 1}},
		"without address": {consumer.DeadLetterNow(errors.New("no")), &settings.Address{MaxDeliveryAttempts: new(3)}, "%DLQ%billing", map[string]int{"orders": 1, "%DLQ%billing": 1}},
		"an address": {
			errors.New("no"), &settings.Address{MaxDeliveryAttempts: new(3), DeadLetterAddress: new("DLA")}, "DLA",
			map[string]int{"orders": 3, "DLA": 3},
		},
	} {
		t.Run(name, onBroker(func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{})
			b.CreateTopic(tt.letters, settings.Topic{})
			b.CreateGroup("billing", settings.Group{MaxAttempts: 2, Retry: backoff.Steps{time.Second}})
			if tt.settings != nil {
				assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "#", *tt.settings)))
			}
			var mu sync.Mutex
			got := map[string]int{}
			sub := consumer.Subscription{Group: "billing", Topics: map[string]tidegate.Filter{"orders": {}, tt.letters: {}}}
			stop := Consume(t, b, sub, func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				got[d.Topic]++
				return tt.err
			})
			b.Send(&tidegate.Message{Topic: "orders", Body: []byte("x")})
			time.Sleep(5 * time.Minute)
			stop()
			assert.That(t, fmt.Sprint(got) == fmt.Sprint(tt.want), "deliveries %v, want %v", got, tt.want)
			page, err := b.DeadLetters("billing", status.DeadLetterQuery{})
			assert.MustThat(t, err == nil && len(page.DeadLetters) == 1 && page.DeadLetters[0].Origin.Reason == "no", "dead letters %+v, %v, want one", page, err)
			s := b.Stats("billing", tt.letters)
			assert.That(t, s.Ready+s.Inflight+s.WaitingRetry == 0 && s.Discarded == 0, "the group's dead letters are %+v", s)
			done, err := b.RedriveDeadLetters(t.Context(), "billing", status.DeadLetterSelection{})
			assert.That(t, err == nil && done.Redriven == 1 && b.Stats("billing", "orders").Ready == 1,
				"redrive: %+v, %v, with %+v", done, err, b.Stats("billing", "orders"))
		}))
	}
}
