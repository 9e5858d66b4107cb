package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/model"
)

// This holds for a stop at any time, with any handlers, and with or without a server. The report
// counts each delivery in hand once, by its outcome. Released messages are visible to other
// consumers at once, and their attempts do not count.
func TestStopReportAddsUp(t *testing.T) {
	total := consumer.StopReport{}
	for range model.Rounds(300) {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 4))
			var mu sync.Mutex
			upTo := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rnd.Int64N(int64(d)))
			}
			s := newServer(t)
			s.caps = ours
			s.settings.FIFO = upTo(4) == 0
			s.settings.MaxAttempts = 1 + int(upTo(3))
			for i := range 200 {
				m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")}
				if s.settings.FIFO {
					m.MessageGroup = fmt.Sprint(i % 20)
				}
				s.add(0, m)
			}
			stopping := make(chan struct{})
			after := map[consumer.Disposition]int{}
			var report consumer.StopReport
			stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
				select {
				case <-time.After(time.Duration(int64(upTo(3)) * int64(upTo(time.Second)))):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				switch upTo(8) {
				case 0:
					return errors.New("failed")
				case 1:
					return consumer.DeadLetterNow(errors.New("hopeless"))
				case 2:
					return consumer.Snooze(time.Minute)
				}
				return nil
			}, consumer.PushOptions{
				Concurrency: 1 + int(upTo(20)), ShutdownTimeout: time.Second, OnStop: func(r consumer.StopReport) { report = r },
				OnDelivery: func(o consumer.Outcome) {
					select {
					case <-stopping:
						mu.Lock()
						defer mu.Unlock()
						after[o.Disposition]++
					default:
					}
				},
			})
			time.Sleep(upTo(5 * time.Second))
			synctest.Wait()
			inHand, released, attempts := s.inHand(), len(s.released), s.attemptsOf()
			if upTo(5) == 0 {
				away := func(*tidegate.Delivery) error { return errors.New("connection lost") }
				s.mu.Lock()
				s.onAck, s.onRetry, s.onChange, s.onDead, s.onSnooze = away, away, away, away, away
				s.mu.Unlock()
			}
			close(stopping)
			begin := time.Now()
			stop()
			took := time.Since(begin)
			want := consumer.StopReport{
				Acked: after[consumer.Acked], Retried: after[consumer.Retried] + after[consumer.DeadLettered] + after[consumer.Snoozed],
				Released: after[consumer.Released] - report.Cancelled, Cancelled: report.Cancelled,
				Unsettled: after[consumer.Unsettled] + after[consumer.LeaseLost] + after[consumer.PerhapsSettled], Took: took,
			}
			sum := report.Acked + report.Retried + report.Released + report.Cancelled + report.Unsettled
			if report != want || sum != inHand || took > time.Second {
				t.Errorf("seed %d: report %+v counts %d of the %d deliveries in hand, outcomes %v; Run took %v", seed, report, sum, inHand, after, took)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, id := range s.released[released:] {
				var i int
				fmt.Sscan(id, &i)
				if e := s.entries[i]; time.Now().Before(e.due) || e.attempt != attempts[i]-1 {
					t.Errorf("seed %d: released message %s has attempt %d after %d, due in %v", seed, id, e.attempt, attempts[i], time.Until(e.due))
				}
			}
			if n := len(s.released) - released; n < report.Released+report.Cancelled {
				t.Errorf("seed %d: the server released %d messages, the report has %d", seed, n, report.Released+report.Cancelled)
			}
			total.Acked += report.Acked
			total.Retried += report.Retried
			total.Released += report.Released
			total.Cancelled += report.Cancelled
			total.Unsettled += report.Unsettled
		})
	}
	if min(total.Acked, total.Retried, total.Released, total.Cancelled, total.Unsettled) < 20 {
		t.Errorf("all reports together: %+v; the test shows too little", total)
	}
}

// attemptsOf returns the number of attempts of each message.
func (s *server) attemptsOf() (attempts []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		attempts = append(attempts, e.attempt)
	}
	return attempts
}

// While there is a backlog, receives are large: 16 messages at least on average, also with
// handlers that take a millisecond.
func TestReceivesAreLargeWithABacklog(t *testing.T) {
	for _, work := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.caps = ours
			const messages = 5000
			s.fill(messages)
			received, receives := 0, 0
			s.onHandOut = func(n int) {
				if n > 0 {
					receives++
					received += n
				}
			}
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
				if work > 0 {
					time.Sleep(work)
				}
				return nil
			}, consumer.PushOptions{Concurrency: 64})
			time.Sleep(time.Minute)
			stop()
			if received != messages || received < 16*receives {
				t.Errorf("handlers of %v: %d messages in %d receives, want 16 or more in each", work, received, receives)
			}
			t.Logf("handlers of %v: %.1f messages a receive", work, float64(received)/float64(receives))
		})
	}
}
