package endtoend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// A sequence has the deliveries of FIFO message groups, in the order of their handlers.
type sequence struct {
	mu      sync.Mutex
	bodies  map[string][]string // message group → bodies of handled messages
	done    map[string]time.Duration
	running map[string]int
	most    int // handlers at the same time
	overlap int
	begin   time.Time
}

func newSequence() *sequence {
	return &sequence{bodies: map[string][]string{}, done: map[string]time.Duration{}, running: map[string]int{}, begin: time.Now()}
}

// start notes that a handler has d; the returned function that it consumed d, or did not.
func (s *sequence) start(d *tidegate.Delivery) (end func(consumed bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	group, body := d.MessageGroup, string(d.Body)
	if s.running[group]++; s.running[group] > 1 {
		s.overlap++
	}
	all := 0
	for _, n := range s.running {
		all += n
	}
	s.most = max(s.most, all)
	return func(consumed bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running[group]--
		if consumed {
			s.bodies[group] = append(s.bodies[group], body)
			s.done[group] = time.Since(s.begin)
		}
	}
}

// sendGroups sends each messages of each of the message groups, in turns.
func sendGroups(b *brokertest.Broker, groups, each int) {
	for n := range each {
		for g := range groups {
			m := Order(n)
			m.MessageGroup = fmt.Sprint("customer ", g)
			b.Send(m)
		}
	}
}

// After the last attempt of its head a message group blocks, continues after a dead letter, or is
// parked. The outcome of the delivery reports which. Of 50 groups 5 are poisoned; the others are
// not delayed.
func TestExhaustedMessagesOfAFIFOGroup(t *testing.T) {
	const groups, each = 50, 4
	for policy, want := range map[settings.OnExhausted]struct {
		consumed []string // of a poisoned group
		last     consumer.Disposition
		letters  int64
	}{
		settings.OnExhaustedBlock:      {[]string{"0"}, consumer.Retried, 0},
		settings.OnExhaustedDeadLetter: {[]string{"0", "2", "3"}, consumer.DeadLettered, 5},
		settings.OnExhaustedPark:       {[]string{"0"}, consumer.Parked, 0},
	} {
		t.Run(string(policy), onBroker(func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
			b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: 3, FIFORetryInterval: settings.Duration(time.Minute), OnExhausted: policy})
			sendGroups(b, groups, each)
			s := newSequence()
			var seen outcomes
			poisoned := func(d *tidegate.Delivery) bool {
				var g int
				fmt.Sscanf(d.MessageGroup, "customer %d", &g)
				return g%10 == 0 && string(d.Body) == "1"
			}
			var mu sync.Mutex
			healed := false
			stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
				end := s.start(d)
				<-time.After(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				failed := poisoned(d) && !healed
				end(!failed)
				if failed {
					return errors.New("poison")
				}
				return nil
			}, consumer.PushOptions{Concurrency: 50, OnDelivery: seen.Add})
			<-time.After(10 * time.Minute)
			for g := range groups {
				name := fmt.Sprint("customer ", g)
				expect := []string{"0", "1", "2", "3"}
				if g%10 == 0 {
					expect = want.consumed
				} else if took := s.done[name]; took > 2*time.Second {
					t.Errorf("%s was done after %v, though only others are poisoned", name, took)
				}
				got := s.bodies[name]
				assert.That(t, slices.Equal(got, expect), "%s: consumed %v, want %v", name, got, expect)
			}
			ends := map[consumer.Disposition]int{}
			for _, o := range seen.All() {
				if o.Delivery.Attempt >= 3 {
					ends[o.Disposition]++
				}
			}
			assert.That(t, ends[want.last] >= 5 && len(ends) == 1, "outcomes of the third and later attempts: %v, want 5 or more %v", ends, want.last)
			assert.Equal(t, "dead letters", b.Stats("billing", "orders").DeadLetters, want.letters)
			mu.Lock()
			healed = true
			mu.Unlock()
			if policy == settings.OnExhaustedPark {
				assert.NoError(t, assert.Err(b.RedriveParked(t.Context(), "billing", status.ParkedSelection{})))
			}
			b.WaitIdle("billing", "orders")
			stop()
			for g := 0; g < groups && policy != settings.OnExhaustedDeadLetter; g += 10 {
				if got := s.bodies[fmt.Sprint("customer ", g)]; !slices.Equal(got, []string{"0", "1", "2", "3"}) {
					t.Errorf("customer %d after the cure: consumed %v, want its order kept", g, got)
				}
			}
			assert.That(t, s.overlap == 0, "%d handlers had the same message group as another", s.overlap)
		}))
	}
}

// A handler requests a dead letter in the last attempt. The outcome reports the action that the
// broker took instead, also if the response was lost and the request was repeated.
func TestOutcomeOfADeadLetterInAFIFOGroup(t *testing.T) {
	for policy, want := range map[settings.OnExhausted]consumer.Disposition{
		settings.OnExhaustedBlock: consumer.Retried, settings.OnExhaustedDeadLetter: consumer.DeadLettered, settings.OnExhaustedPark: consumer.Parked,
	} {
		for _, lost := range []bool{false, true} {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
				b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: 2, FIFORetryInterval: settings.Duration(time.Minute), OnExhausted: policy})
				sendGroups(b, 1, 1)
				requests := 0
				b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
					err := next(ctx)
					if call.Op != "ForwardMessageToDeadLetterQueue" {
						return err
					}
					if requests++; lost && requests == 1 {
						return brokertest.ErrConnectionLost
					}
					return err
				})
				var seen outcomes
				stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
					switch d.Attempt {
					case 1:
						return errors.New("failed")
					case 2:
						return consumer.DeadLetterNow(errors.New("hopeless"))
					}
					return nil // of a group that blocks
				}, consumer.PushOptions{OnDelivery: seen.Add})
				b.WaitIdle("billing", "orders")
				stop()
				list := seen.All()
				assert.MustThat(t, len(list) >= 2 && list[1].Disposition == want && list[1].SettleErr == nil, "%s, a response lost: %v: outcomes %+v, want the second one %v", policy, lost, list, want)
				if delay := list[1].Delay; want == consumer.Retried && (delay > time.Minute || delay < 59*time.Second) || want != consumer.Retried && delay != 0 {
					t.Errorf("%s: delay %v", policy, delay)
				}
				assert.That(t, !lost || requests == 2, "%s: %d requests, want 2", policy, requests)
			})
		}
	}
}
