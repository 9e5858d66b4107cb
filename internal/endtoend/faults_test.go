package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// Every sixth request, of any kind, is delayed, rejected, throttled, or carried out without a
// response. Every tenth handler fails. No message may be lost or become a dead letter. In a FIFO
// group no message may overtake another one, or run at the same time. RocketMQ: consumption retry:
// "You can ensure that every message is processed" RocketMQ: sending retry and throttling: "Apache
// RocketMQ provides built-in logic in the client SDK to retry failed requests until the requests
// succeed"
func TestNothingIsLostAmongFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), inBubble(func(t *testing.T) {
			f := &faulty{t: t, fifo: seed%2 == 0, rnd: rand.New(rand.NewPCG(seed, 0)), done: map[string]map[int]bool{}, running: map[string]int{}}
			f.run()
		}))
	}
}

const (
	faultyGroups   = 6
	faultyMessages = 15 // of each message group
)

type faulty struct {
	t    *testing.T
	fifo bool

	mu      sync.Mutex
	rnd     *rand.Rand              // guarded by mu
	done    map[string]map[int]bool // guarded by mu; by message group and number
	running map[string]int          // guarded by mu
	trace   []string                // guarded by mu; the events, for the analysis of a failure
}

func (f *faulty) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = append(f.trace, fmt.Sprintf("%s ", time.Now().Format("15:04:05.000000"))+fmt.Sprintf(format, args...))
}

func (f *faulty) roll(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.IntN(n)
}

func (f *faulty) middleware(ctx context.Context, call server.Call, next func(context.Context) error) (err error) {
	roll := f.roll(30)
	f.note("begin %d %+v", roll, call)
	defer func() { f.note("end %d %+v: %v", roll, call, err) }()
	switch roll {
	case 0:
		_ = next(ctx)
		return brokertest.ErrNoAnswer
	case 1:
		return brokertest.ErrConnectionLost
	case 2:
		_ = next(ctx)
		return brokertest.ErrConnectionLost
	case 3:
		return brokertest.Throttled(time.Duration(f.roll(3)) * time.Second)
	case 4:
		if err := backoff.Sleep(ctx, time.Duration(f.roll(4000))*time.Millisecond); err != nil {
			return err
		}
	}
	return next(ctx)
}

func (f *faulty) handle(ctx context.Context, d *tidegate.Delivery) error {
	var group string
	var number int
	if _, err := fmt.Sscan(string(d.Body), &group, &number); err != nil {
		f.t.Error(err)
	}
	f.mu.Lock()
	if f.fifo {
		for before := range number {
			if !f.done[group][before] {
				f.t.Errorf("%s: %d begins before %d was done", group, number, before)
			}
		}
		if f.running[group] > 0 {
			f.t.Errorf("%s: %d begins beside another", group, number)
		}
	}
	f.running[group]++
	f.mu.Unlock()
	f.note("handler of %s %d, attempt %d, %q begins", group, number, d.Attempt, d.ID)
	err := backoff.Sleep(ctx, time.Duration(f.roll(20_000))*time.Millisecond)
	f.note("handler of %s %d ends: %v, %v", group, number, err, context.Cause(ctx))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running[group]--
	if err == nil && f.rnd.IntN(10) == 0 {
		err = errors.New("out of stock")
	}
	if err == nil {
		f.done[group][number] = true
	}
	return err
}

func (f *faulty) run() {
	b := brokertest.New(f.t)
	topic := settings.Topic{Queues: 4}
	if f.fifo {
		topic.Type = settings.TopicFIFO
	}
	b.CreateTopic("orders", topic)
	b.CreateGroup("billing", settings.Group{FIFO: f.fifo, MaxAttempts: 100, Retry: backoff.Steps{time.Second}})
	defer b.Intercept(f.middleware)()

	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	var wg, sends sync.WaitGroup
	for range 2 {
		c, err := consumer.NewPush(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, f.handle,
			consumer.PushOptions{InvisibleDuration: 20 * time.Second})
		if err != nil {
			f.t.Fatal(err)
		}
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				f.t.Error(err)
			}
		})
	}
	p := NewProducer(f.t, b, producer.Options{MaxAttempts: 50})
	for g := range faultyGroups {
		group := fmt.Sprint("group", g)
		f.mu.Lock()
		f.done[group] = map[int]bool{}
		f.mu.Unlock()
		sends.Go(func() {
			for number := range faultyMessages {
				m := &tidegate.Message{Topic: "orders", Body: fmt.Append(nil, group, " ", number)}
				if f.fifo {
					m.MessageGroup = group
				}
				if _, err := p.Send(ctx, m); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	sends.Wait()
	// An empty backlog alone is no proof: it is also empty before the first receive.
	for end := time.Now().Add(time.Hour); (f.left() > 0 || b.Stats("billing", "orders").Backlog.Messages > 0) && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	cancel()
	wg.Wait()

	f.mu.Lock()
	defer f.mu.Unlock()
	for group, done := range f.done {
		if len(done) != faultyMessages {
			f.t.Errorf("%s: %d of %d messages were consumed", group, len(done), faultyMessages)
		}
	}
	if s := b.Stats("billing", "orders"); s.Backlog.Messages != 0 || s.DeadLetters != 0 {
		f.t.Errorf("in the end the broker reports %+v", s)
	}
	if f.t.Failed() {
		f.t.Log(strings.Join(f.trace, "\n"))
	}
}

// left is how many messages no handler was content with yet.
func (f *faulty) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := faultyGroups * faultyMessages
	for _, done := range f.done {
		n -= len(done)
	}
	return n
}
