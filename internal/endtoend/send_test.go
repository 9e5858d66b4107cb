package endtoend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// RocketMQ: sending retry and throttling: a throttled send is retried "at intervals specified in
// the exponential backoff"; here by a broker whose backlog is at its limit of 1 000.
// RocketMQ: sending retry and throttling: "Upon receiving these, the client retries the message
// according to the exponential backoff protocol"
// RocketMQ: sending retry and throttling: "When throttling is triggered, a producer client receives
// the following error message and an exception"
func TestThrottledProducerBacksOffAndArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 1000}})
		filler := b.Client()
		for range 10 {
			batch := make([]*tidegate.Message, 100)
			for i := range batch {
				batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}
			}
			for _, r := range filler.Send(t.Context(), batch) {
				assert.MustThat(t, r.Err == nil, "%v", r.Err)
			}
		}

		var mu sync.Mutex
		var attempts []producer.Attempt
		var times []time.Time
		opts := producer.Options{MaxAttempts: 100, OnAttempt: func(a producer.Attempt) {
			mu.Lock()
			defer mu.Unlock()
			attempts, times = append(attempts, a), append(times, time.Now())
		}}

		// With a deadline, the call ends when the next wait would be too long for it.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		start := time.Now()
		_, err := NewProducer(t, b, opts).Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("impatient")})
		cancel()
		e, ok := errors.AsType[*producer.SendError](err)
		assert.MustThat(t, ok && e.Reason == producer.StopDeadline && errors.Is(err, context.DeadlineExceeded) && errors.Is(err, tidegate.ErrThrottled), "got %v", err)
		if took := time.Since(start); took+e.Remaining != 10*time.Second || e.Needed <= e.Remaining {
			t.Errorf("the call ended after %v, its ctx after 10s: %+v", took, e)
		}

		mu.Lock()
		attempts, times = nil, nil
		mu.Unlock()
		drain := time.AfterFunc(8*time.Second, func() {
			c, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "g", Topic: "orders"}, consumer.SimpleOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 {
				ds, err := c.Receive(t.Context(), 32)
				assert.NoError(t, err)
				for _, d := range ds {
					assert.NoError(t, c.Ack(t.Context(), d))
				}
			}
		})
		defer drain.Stop()
		receipt := assert.Value(NewProducer(t, b, opts).Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("patient")}))(t)
		assert.That(t, receipt.Attempts >= 4 && receipt.Attempts == len(attempts), "%d attempts, %d observed", receipt.Attempts, len(attempts))
		for i := 1; i < len(times); i++ {
			lo, hi := backoff.Default().Range(i - 1)
			gap := times[i].Sub(times[i-1])
			assert.That(t, gap >= lo && gap <= hi, "gap %d is %v, not in Range(%d) = %v to %v", i, gap, i-1, lo, hi)
		}
		for i, a := range attempts[:len(attempts)-1] {
			e, _ := errors.AsType[*tidegate.Error](a.Err)
			if a.Class != tidegate.ClassThrottled || !errors.Is(a.Err, tidegate.ErrThrottled) || e.ReplyCode() != 530 || !strings.Contains(e.Error(), "TOO_MANY_REQUESTS") {
				t.Errorf("attempt %d: %v, %v", i+1, a.Class, a.Err)
			}
		}
	})
}

// The node ends before it responds to a send. The producer sends the message again at once to the
// node that replaces it. Without a replacement the producer uses all its attempts and reports the
// failure.
//
// RocketMQ: sending retry and throttling: "The connection is closed because the broker node is shut
// down or being restarted"
// RocketMQ: sending retry and throttling: "Apache RocketMQ provides built-in logic in the client
// SDK to retry failed requests until the requests succeed"
func TestSendSurvivesARestart(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			old, next := brokertest.New(t), brokertest.New(t)
			old.CreateTopic("orders", settings.Topic{})
			next.CreateTopic("orders", settings.Topic{})
			var dial atomic.Pointer[func(context.Context, string) (net.Conn, error)]
			dial.Store(new(old.Dial))
			closed := make(chan error, 1)
			remove := old.Intercept(func(ctx context.Context, call server.Call, h func(context.Context) error) error {
				if call.Op != "SendMessage" {
					return h(ctx)
				}
				dial.Store(new(next.Dial))
				if !restarted {
					dial.Store(new(func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }))
				}
				go func() { closed <- old.Close() }()
				<-ctx.Done()
				return context.Cause(ctx)
			})
			defer remove()
			c, err := rocketmq.New(old.Address(), rocketmq.Options{
				Dialer: func(ctx context.Context, addr string) (net.Conn, error) { return (*dial.Load())(ctx, addr) },
			})
			assert.Must(t, err)
			defer c.Close()
			var attempts []producer.Attempt
			p := assert.Value(producer.New(c, producer.Options{OnAttempt: func(a producer.Attempt) { attempts = append(attempts, a) }}))(t)
			defer p.Close()
			start := time.Now()
			r, err := p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
			assert.NoError(t, <-closed)
			if attempts[0].Class != tidegate.ClassTransient || attempts[0].Delay != 0 {
				t.Errorf("the connection that was closed is %+v", attempts[0])
			}
			if !restarted {
				e, ok := errors.AsType[*producer.SendError](err)
				took := time.Since(start)
				if !ok || !e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) || took < 2*time.Minute || took > 2*time.Minute+5*time.Second {
					t.Errorf("while there is none: %+v, %v after %v; want an error after 2 min", r, err, took)
				}
				return
			}
			if info, e := next.Topic("orders"); err != nil || e != nil || info.StoredMessages != 1 || r.Attempts < 2 || time.Since(start) > 2*time.Second {
				t.Errorf("%+v, %v after %v; the node has %d messages, %v", r, err, time.Since(start), info.StoredMessages, e)
			}
		})
	}
}

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

// added are the properties that retries through a retry topic and dead letters add. Further ones of
// dead letters begin with DLQ_.
var added = []string{
	protocol.PropertyRealTopic, protocol.PropertyOriginMessageID, protocol.PropertyRetryTopic, protocol.PropertyReconsumeTimes,
}

// whole checks that a delivery is of the message that was sent: with all of its parts, and with no
// others than those that the way adds. born is the time of the send, zero if the way makes a new
// message.
func whole(t *testing.T, way string, sent *tidegate.Message, d *tidegate.Delivery, born time.Time) {
	t.Helper()
	got := d.Message
	if !bytes.Equal(got.Body, sent.Body) || got.Tag != sent.Tag || !slices.Equal(got.Keys, sent.Keys) ||
		got.MessageGroup != sent.MessageGroup || got.TraceContext != sent.TraceContext {
		t.Errorf("%s: delivered %+v, want %+v", way, got, *sent)
	}
	id := cmp.Or(got.Properties[protocol.PropertyOriginMessageID], got.ID) // a retry topic has new messages
	assert.That(t, born.IsZero() || id == sent.ID && d.BornAt.Equal(born), "%s: delivered message %s of %v, want %s of %v", way, id, d.BornAt, sent.ID, born)
	for name, value := range sent.Properties {
		assert.That(t, got.Properties[name] == value, "%s: property %q is %q, want %q", way, name, got.Properties[name], value)
	}
	for name := range got.Properties {
		assert.That(t, sent.Properties[name] != "" || strings.HasPrefix(name, "DLQ_") || slices.Contains(added, name), "%s: property %q was added", way, name)
	}
}

// A message keeps its body, tag, keys, message group, trace context, properties, ID and time of
// birth on every way back to a consumer: after each verdict of a handler, through a retry topic, as
// a dead letter, and sent back from there. A retry topic has its first ID as a property.
func TestMessagesStayWhole(t *testing.T) {
	failure := errors.New("no such customer")
	for name, tt := range map[string]struct {
		topic    settings.TopicType
		group    settings.Group
		verdicts []error // the last one makes the dead letter
	}{
		"message group": {settings.TopicFIFO, settings.Group{FIFO: true}, []error{
			failure, consumer.Snooze(time.Second), consumer.RetryIn(time.Second, failure), consumer.DeadLetterNow(failure),
		}},
		"own topic": {settings.TopicNormal, settings.Group{}, []error{
			failure, consumer.RetryIn(5*time.Second, failure), consumer.Snooze(time.Second), consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: time.Second}, failure), consumer.DeadLetterNow(failure),
		}},
		"retry topic": {settings.TopicNormal, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}, []error{
			consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second}, failure), consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 1}, failure), failure, consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, failure), consumer.DeadLetterNow(failure),
		}},
	} {
		t.Run(name, onBroker(func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{Type: tt.topic})
			b.CreateGroup("billing", tt.group)
			sent := &tidegate.Message{
				ID: "01-order", Topic: "orders", Tag: "größe", Keys: []string{"k1", "k 2"}, Body: []byte{0, 1, 0xff, '\n'},
				Properties: map[string]string{"currency": "€", "empty space": " x "}, TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			}
			if tt.topic == settings.TopicFIFO {
				sent.MessageGroup = "customer 7"
			}
			var mu sync.Mutex
			var seen []*tidegate.Delivery
			verdicts := tt.verdicts
			consume := func(sub consumer.Subscription) (stop func()) {
				return Consume(t, b, sub, func(_ context.Context, d *tidegate.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, d)
					if len(verdicts) == 0 {
						return nil
					}
					v := verdicts[0]
					verdicts = verdicts[1:]
					return v
				})
			}
			take := func(way string, n int) (list []*tidegate.Delivery) {
				t.Helper()
				<-time.After(2 * time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if list, seen = seen, nil; len(list) != n {
					t.Fatalf("%s: %d deliveries, want %d", way, len(list), n)
				}
				return list
			}
			stop := consume(consumer.Subscription{Group: "billing", Topic: "orders"})
			MustSend(t, NewProducer(t, b, producer.Options{}), sent)
			list := take("verdicts", len(tt.verdicts))
			born := list[0].BornAt
			for i, d := range list {
				way := "sent"
				if i > 0 {
					way = "after " + tt.verdicts[i-1].Error()
				}
				whole(t, way, sent, d, born)
			}

			g, err := b.Group("billing")
			assert.MustThat(t, err == nil && len(g.DeadLetterTopics) == 1, "dead letter topics of %+v, %v", g, err)
			letters := g.DeadLetterTopics[0]
			stopLetters := consume(consumer.Subscription{Group: "undertaker", Topic: letters})
			letter := take("dead letter", 1)[0]
			whole(t, "dead letter", sent, letter, born)
			l, ok := letter.DeadLetter()
			assert.That(t, ok && l.Reason == failure.Error(), "the dead letter's origin is %+v, %v", l, ok)
			stopLetters()

			verdicts = []error{consumer.DeadLetterNow(failure)}
			if done, err := b.RedriveDeadLetters(t.Context(), "billing", status.DeadLetterSelection{In: letters}); err != nil || done.Redriven != 1 {
				t.Fatalf("redrive: %+v, %v", done, err)
			}
			whole(t, "redriven by the broker", sent, take("redriven by the broker", 1)[0], born)
			if letters != tidegate.DeadLetterTopic("billing") { // a Queue receives from that one alone
				stop()
				return
			}
			report, err := deadletter.Redrive(t.Context(), deadletter.Queue{Transport: b.Client(), Group: "billing", As: "clerk", Lease: time.Hour},
				deadletter.Options{Sender: b.Client(), Journal: filepath.Join(t.TempDir(), "journal")})
			assert.MustThat(t, err == nil && report.Redriven == 1, "redrive: %+v, %v", report, err)
			anew := take("sent anew", 1)[0]
			whole(t, "sent anew", sent, anew, time.Time{})
			assert.That(t, anew.ID == "01-order.redrive-2", "sent anew as %s", anew.ID)
			stop()
		}))
	}
}

// inBubble returns a subtest that is f in a bubble of package synctest.
func inBubble(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// onBroker returns a subtest that is f with a broker, as brokertest.Run runs it.
func onBroker(f func(t *testing.T, b *brokertest.Broker)) func(t *testing.T) {
	return func(t *testing.T) { brokertest.Run(t, f) }
}
