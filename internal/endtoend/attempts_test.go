package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// MaxAttempts is the total number of deliveries, for unordered and FIFO groups and each kind of
// failure. A retry schedule of the consumer does not change it. The broker alone counts and
// retries: there are as many deliveries as attempts, and the dead letter is there at once after the
// last.
func TestMaxAttemptsAreDeliveries(t *testing.T) {
	ways := map[string]consumer.Handler{
		"error":   func(context.Context, *tidegate.Delivery) error { return errors.New("out of stock") },
		"panic":   func(context.Context, *tidegate.Delivery) error { panic("out of stock") },
		"timeout": func(ctx context.Context, _ *tidegate.Delivery) error { <-ctx.Done(); return context.Cause(ctx) },
	}
	for way, fail := range ways {
		for _, fifo := range []bool{false, true} {
			for most := 1; most <= 4; most++ {
				t.Run(fmt.Sprintf("%s, fifo %v, %d", way, fifo, most), onBroker(func(t *testing.T, b *brokertest.Broker) {
					topic := settings.Topic{}
					if fifo {
						topic.Type = settings.TopicFIFO
					}
					b.CreateTopic("orders", topic)
					b.CreateGroup("billing", settings.Group{MaxAttempts: most, FIFO: fifo})
					var attempts []int
					var last time.Time
					var seen outcomes
					stop := runPush(t, b.Client(), func(ctx context.Context, d *tidegate.Delivery) error {
						attempts = append(attempts, d.Attempt)
						if way == "timeout" { // it fails when the broker's lease ends
							last = time.Now().Add(30 * time.Second)
							return fail(ctx, d)
						}
						last = time.Now()
						return fail(ctx, d)
					}, consumer.PushOptions{InvisibleDuration: 30 * time.Second, MaxExtension: -1, OnDelivery: seen.Add})
					m := Order(1)
					if fifo {
						m.MessageGroup = "customer 7"
					}
					b.Send(m)
					l := b.WaitDeadLetter("billing")
					synctest.Wait()
					// No request wakes the receive at the end of a lease: it checks every
					// second.
					if took := time.Since(last); took > 50*time.Millisecond && way != "timeout" || took > 2*time.Second {
						t.Errorf("the dead letter was there %v after the last failure", took)
					}
					stop()
					var want []int
					for n := range most {
						want = append(want, n+1)
					}
					assert.That(t, slices.Equal(attempts, want) && l.Origin.Attempts == most, "deliveries with attempts %v, the dead letter after %d; want %v", attempts, l.Origin.Attempts, want)
					if why := l.Origin.Reason; way != "timeout" && !strings.Contains(why, "out of stock") || why == "" {
						t.Errorf("the reason of the dead letter is %q", why)
					}
					list := seen.All()
					assert.That(t, way == "timeout" || list[most-1].Disposition == consumer.DeadLettered, "outcomes %+v", list)
				}))
			}
		}
	}
}

// The broker and its consumer restart at each attempt: after the failure of the attempt, or from
// the second attempt on while the handler works. (The first attempt is on disk once it has failed.)
// The message keeps its place and never has a second copy. It becomes a dead letter after exactly
// MaxAttempts deliveries.
func TestAttemptsSurviveRestarts(t *testing.T) {
	const most = 6
	for _, restartWhile := range []string{"waiting", "handled"} {
		t.Run(restartWhile, inBubble(func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{MaxAttempts: most})
			b.Send(Order(1))
			var first tidegate.Delivery
			for n := range most {
				began, returned := make(chan *tidegate.Delivery, 1), make(chan struct{}, 1)
				wire := &cable{Broker: b}
				client := b.ClientWith(rocketmq.Options{Dialer: wire.Dial})
				stop := runPush(t, client, func(ctx context.Context, d *tidegate.Delivery) error {
					began <- d
					if restartWhile == "handled" && d.Attempt > 1 {
						<-ctx.Done()
					}
					return errors.New("failed")
				}, consumer.PushOptions{InvisibleDuration: 10 * time.Second, ShutdownTimeout: time.Second, OnDelivery: func(consumer.Outcome) { returned <- struct{}{} }})
				d := <-began
				if n == 0 {
					first = *d
				}
				if d.Attempt != n+1 || d.ID != first.ID || d.Queue != first.Queue || d.Offset != first.Offset {
					t.Errorf("delivery %d: attempt %d of message %s at %d/%d, want that of %s at %d/%d", n+1,
						d.Attempt, d.ID, d.Queue, d.Offset, first.ID, first.Queue, first.Offset)
				}
				if restartWhile == "waiting" || n == 0 {
					<-returned
				}
				if s := b.Stats("billing", "orders"); n < most-1 && (s.Backlog.Messages != 1 || s.DeadLetters != 0) {
					t.Errorf("attempt %d: %d messages are left, %d dead letters", n+1, s.Backlog.Messages, s.DeadLetters)
				}
				wire.Cut() // or the consumer would release the message as it stops
				b.Restart()
				stop()
				client.Close()
			}
			l := b.WaitDeadLetter("billing")
			assert.That(t, l.Origin.Attempts == most && l.Origin.MessageID == first.ID, "dead letter %+v", l.Origin)
			s := b.Stats("billing", "orders")
			assert.That(t, s.Backlog.Messages == 0, "%d messages are left beside the dead letter", s.Backlog.Messages)
		}))
	}
}

// Failures that a handler expects are logged at debug level, dead letters as one warning each.
func TestExpectedFailuresDoNotFloodTheLog(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		var log bytes.Buffer
		stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
			switch {
			case string(d.Body) == "7":
				return consumer.DeadLetterNow(errors.New("no such customer"))
			case d.Attempt <= 2:
				return consumer.RetryIn(time.Second, errors.New("429 Too Many Requests"))
			}
			return nil
		}, consumer.PushOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for n := range 500 {
			b.Send(Order(n))
		}
		b.WaitIdle("billing", "orders")
		stop()
		text := log.String()
		if strings.Contains(text, "Too Many Requests") || strings.Count(text, "level=WARN") != 1 || strings.Count(text, "no such customer") != 1 {
			t.Errorf("a thousand expected failures and a dead letter are logged as %d lines: %.500s", strings.Count(text, "\n"), text)
		}
	})
}
