package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// A story runs the steps of the example, prints their results, and collects failed assertions.
type story struct {
	endpoint string // of the broker, gRPC
	admin    *admin.Client
	prefix   string // of the names of this run
	start    time.Time

	mu     sync.Mutex
	out    io.Writer // guarded by mu
	faults []error   // guarded by mu
	made   []made    // guarded by mu: topics and groups to delete at the end
}

// made is a topic or a group that this run has created.
type made struct {
	name   string
	delete func(ctx context.Context, name string) error
}

// A scene is a part of the story that runs beside the other scenes.
type scene struct {
	*story
	name string
}

func (s *story) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2fs  %-11s  %s\n", time.Since(s.start).Seconds(), who, fmt.Sprintf(format, args...))
}

func (s *story) fault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, err)
}

func (s scene) say(format string, args ...any) { s.story.say(s.name, format, args...) }

// assert records a failed assertion unless ok is true.
func (s scene) assert(ok bool, format string, args ...any) {
	if !ok {
		s.fault(fmt.Errorf("%s: expected, but it did not happen: %s", s.name, fmt.Sprintf(format, args...)))
	}
}

// assertEqual records a failed assertion unless the lists are equal.
func assertEqual[T comparable](s scene, what string, got, want []T) {
	s.assert(slices.Equal(got, want), "%s: got %v, want %v", what, got, want)
}

// topic creates a topic with the settings, and returns its name.
func (s scene) topic(ctx context.Context, name string, settings settings.Topic) (string, error) {
	name = s.prefix + name
	if _, err := s.admin.PutTopic(ctx, name, settings); err != nil {
		return "", err
	}
	s.willDelete(made{name, s.admin.DeleteTopic})
	return name, nil
}

// group creates a consumer group with the settings, and returns its name.
func (s scene) group(ctx context.Context, name string, settings settings.Group) (string, error) {
	name = s.prefix + name
	if _, err := s.admin.PutGroup(ctx, name, settings); err != nil {
		return "", err
	}
	s.willDelete(made{name, s.admin.DeleteGroup})
	return name, nil
}

func (s scene) willDelete(m made) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, m)
}

// tidy deletes the topics and groups of this run. A failed deletion, for example because the broker
// is gone, is printed and does not fail the run.
func (s *story) tidy(ctx context.Context) {
	s.mu.Lock()
	made := slices.Clone(s.made)
	s.mu.Unlock()
	for _, m := range made {
		if err := m.delete(ctx, m.name); err != nil {
			s.say("all", "left behind: %v", err)
		}
	}
}

// A progress is how far a group is in a topic, as far as this program looks.
type progress struct{ Acked, Redelivered, DeadLetters int64 }

// settled waits until the broker has nothing left for a group in a topic, and
// asserts how it came to that.
func (s scene) settled(ctx context.Context, group, topic string, want progress) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		g, err := s.admin.Group(ctx, group)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(g.Topics, func(t status.Subscription) bool { return t.Topic == topic })
		if i < 0 {
			return fmt.Errorf("group %s has not received from topic %s", group, topic)
		}
		at := g.Topics[i]
		got := progress{at.Acked, at.Redelivered, at.DeadLetters}
		if at.Backlog.Messages == 0 {
			s.assert(got == want, "the broker's count for group %s: got %+v, want %+v", group, got, want)
			s.say("nothing is left for group %s: acknowledged %d, redelivered %d, dead letters %d",
				group, got.Acked, got.Redelivered, got.DeadLetters)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until nothing is left for group %s, which is at %+v: %w", group, got, context.Cause(ctx))
		}
	}
}

// ladder is the retry schedule of the scene normal; the last step repeats.
var ladder = []time.Duration{time.Second, 2 * time.Second}

// The message that fails once, and the one that always fails.
const (
	flaky  = "order 3"
	poison = "poison"
)

// normal sends NORMAL messages to a push consumer that fails on some.
func (s scene) normal(ctx context.Context) error {
	topic, err := s.topic(ctx, "orders", settings.Topic{Type: settings.TopicNormal, Queues: 4})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "billing", settings.Group{Retry: ladder, MaxAttempts: 4})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	c, deliveries, err := s.pushConsumer(ctx, group, topic, func(d delivery) bool {
		return d.body == poison || d.body == flaky && d.attempt == 1
	})
	if err != nil {
		return err
	}

	sent := map[string]message{}
	ids := map[string]string{}
	for _, body := range []string{"order 1", "order 2", flaky, "order 4", "order 5", poison} {
		m := message{topic: topic, body: body, tag: "paid", keys: []string{body}, properties: map[string]string{"currency": "EUR"}}
		if ids[body], err = send(ctx, p, m); err != nil {
			return err
		}
		sent[body] = m
	}
	s.say("sent %d messages to %s", len(sent), topic)

	const expected = 4 + 2 + 4 // the good ones, the flaky one twice, the poison four times
	seen := map[string][]delivery{}
	for range expected {
		d, err := next(ctx, deliveries)
		if err != nil {
			return fmt.Errorf("%w; so far: %v", err, seen)
		}
		s.say("delivered: %s", d)
		s.checkContent(d, sent[d.body], ids[d.body])
		seen[d.body] = append(seen[d.body], d)
	}
	for body := range sent {
		s.checkAttempts(body, seen[body])
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 5, Redelivered: 1 + 3, DeadLetters: 1}); err != nil {
		return err
	}
	if err := s.readDeadLetter(ctx, group, poison, ids[poison]); err != nil {
		return err
	}
	if err := s.stop(ctx, c, p, message{topic: topic}); err != nil {
		return err
	}
	s.assert(len(deliveries) == 0, "%d deliveries, not %d", expected, expected+len(deliveries))
	return nil
}

func (s scene) checkContent(d delivery, m message, id string) {
	s.assert(d.id == id && d.tag == m.tag && d.group == m.group, "%s as it was sent: %+v, not %+v with ID %s", d, d, m, id)
	assertEqual(s, "keys of "+d.body, d.keys, m.keys)
	for k, v := range m.properties {
		s.assert(d.properties[k] == v, "property %s of %s: got %q, want %q", k, d, d.properties[k], v)
	}
}

// checkAttempts asserts the attempt numbers of a message, and that no retry
// came before its step of the retry schedule was over.
func (s scene) checkAttempts(body string, ds []delivery) {
	want := max(1, map[string]int{flaky: 2, poison: 4}[body])
	s.assert(len(ds) == want, "%d deliveries of %s: %v", want, body, ds)
	for i, d := range ds {
		s.assert(int(d.attempt) == i+1, "attempt %d of %s: %v", i+1, body, ds)
		if i == 0 {
			continue
		}
		step := ladder[min(i, len(ladder))-1]
		waited := d.at.Sub(ds[i-1].at)
		s.assert(waited >= step, "%s not before %v: after %v", d, step, waited)
		s.say("%s came after %.2fs, the schedule has %v", d, waited.Seconds(), step)
	}
}

// readDeadLetter takes the only dead letter of a group with a simple consumer.
func (s scene) readDeadLetter(ctx context.Context, group, body, id string) error {
	deadLetters := "%DLQ%" + group
	s.willDelete(made{deadLetters, s.admin.DeleteTopic})
	auditors, err := s.group(ctx, s.name+"-auditors", settings.Group{})
	if err != nil {
		return err
	}
	c, err := s.simpleConsumer(ctx, auditors, deadLetters)
	if err != nil {
		return err
	}
	defer c.GracefulStop()
	mvs, err := receive(ctx, c, 1)
	if err != nil {
		return fmt.Errorf("receiving a dead letter from %s: %w", deadLetters, err)
	}
	d := deliveryOf(mvs[0])
	s.say("dead letter in %s: %q, because: %s", deadLetters, d.body, d.properties["DLQ_REASON"])
	s.assert(d.body == body && d.id == id && d.properties["DLQ_GROUP"] == group && d.properties["DLQ_REASON"] != "",
		"the dead letter %s with ID %s of group %s, and a reason: %+v", body, id, group, d)
	if err := c.Ack(ctx, mvs[0]); err != nil {
		return err
	}
	return s.settled(ctx, auditors, deadLetters, progress{Acked: 1})
}

// The scene fifo has a retry interval and three messages: one that fails once, one that always
// fails, and one that is sent while the first waits for its retry.
const (
	interval   = 2 * time.Second
	fifoFlaky  = "alice 2"
	fifoPoison = "carol 3"
	fifoLate   = "bob 6"
)

// fifo sends FIFO messages in three message groups to a push consumer that
// fails on some.
//
// The official client makes the retries of FIFO messages itself, at the interval that the broker
// announces. After the last attempt it requests a dead letter. The broker holds the later messages
// of the message group until then.
func (s scene) fifo(ctx context.Context) error {
	topic, err := s.topic(ctx, "tickets", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
	if err != nil {
		return err
	}
	// Before the client starts: it asks whether its group is FIFO only then.
	group, err := s.group(ctx, "support", settings.Group{FIFO: true, FIFORetryInterval: settings.Duration(2 * time.Second), MaxAttempts: 3})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	c, deliveries, err := s.pushConsumer(ctx, group, topic, func(d delivery) bool {
		return d.body == fifoPoison || d.body == fifoFlaky && d.attempt == 1
	})
	if err != nil {
		return err
	}

	customers := []string{"alice", "bob", "carol"}
	ids := map[string]string{}
	post := func(customer string, i int) (err error) {
		body := fmt.Sprintf("%s %d", customer, i)
		ids[body], err = send(ctx, p, message{topic: topic, body: body, group: customer})
		return err
	}
	for i := range 5 {
		for _, customer := range customers {
			if err := post(customer, i+1); err != nil {
				return err
			}
		}
	}
	s.say("sent 5 messages in each of the message groups %s", strings.Join(customers, ", "))

	var seen []delivery
	const expected = 5 + 1 + 5 + 1 + 5 + 2 // bob has one more, one of alice is retried once, one of carol twice
	for range expected {
		d, err := next(ctx, deliveries)
		if err != nil {
			return fmt.Errorf("%w; so far: %v", err, seen)
		}
		s.say("delivered: %s", d)
		s.checkContent(d, message{topic: topic, body: d.body, group: strings.Fields(d.body)[0]}, ids[d.body])
		seen = append(seen, d)
		if d.body == fifoFlaky && d.attempt == 1 {
			if err := post("bob", 6); err != nil {
				return err
			}
		}
	}
	s.checkOrder(seen)
	if err := s.settled(ctx, group, topic, progress{Acked: 5 + 6 + 4, DeadLetters: 1}); err != nil {
		return err
	}
	if err := s.readDeadLetter(ctx, group, fifoPoison, ids[fifoPoison]); err != nil {
		return err
	}
	var wakes []message
	for group := range strings.SplitSeq("abcdefgh", "") {
		wakes = append(wakes, message{topic: topic, group: group})
	}
	if err := s.stop(ctx, c, p, wakes...); err != nil {
		return err
	}
	s.assert(len(deliveries) == 0, "%d deliveries, not %d", expected, expected+len(deliveries))
	return nil
}

// checkOrder asserts that every message group came in order, retries included,
// not before their time, and that others flowed meanwhile.
func (s scene) checkOrder(seen []delivery) {
	order := map[string][]string{
		"alice": {"alice 1 (attempt 1)", "alice 2 (attempt 1)", "alice 2 (attempt 2)", "alice 3 (attempt 1)", "alice 4 (attempt 1)", "alice 5 (attempt 1)"},
		"bob":   {"bob 1 (attempt 1)", "bob 2 (attempt 1)", "bob 3 (attempt 1)", "bob 4 (attempt 1)", "bob 5 (attempt 1)", "bob 6 (attempt 1)"},
		"carol": {
			"carol 1 (attempt 1)", "carol 2 (attempt 1)", "carol 3 (attempt 1)", "carol 3 (attempt 2)", "carol 3 (attempt 3)",
			"carol 4 (attempt 1)", "carol 5 (attempt 1)",
		},
	}
	for customer, want := range order {
		var got []string
		var last delivery
		for _, d := range seen {
			if d.group != customer {
				continue
			}
			got = append(got, d.String())
			if waited := d.at.Sub(last.at); d.attempt > 1 {
				s.assert(waited >= interval, "%s not before %v: after %v", d, interval, waited)
				s.say("%s came after %.2fs, the interval is %v", d, waited.Seconds(), interval)
			}
			last = d
		}
		assertEqual(s, "order of message group "+customer, got, want)
		s.say("in order: message group %s", customer)
	}
	late := slices.IndexFunc(seen, func(d delivery) bool { return d.body == fifoLate })
	retry := slices.IndexFunc(seen, func(d delivery) bool { return d.body == fifoFlaky && d.attempt == 2 })
	s.assert(late >= 0 && late < retry, "%s, sent while %s waited for its retry, before that retry: %v", fifoLate, fifoFlaky, seen)
	s.say("%s came while %s waited for its retry", fifoLate, fifoFlaky)
}

// invisible is how long messages stay with the simple consumer. A broker with
// default settings takes 10 s or more.
const invisible = 15 * time.Second

// simple receives NORMAL messages with a simple consumer, which decides for each message how long
// it stays invisible.
func (s scene) simple(ctx context.Context) error {
	topic, err := s.topic(ctx, "parcels", settings.Topic{Type: settings.TopicNormal, Queues: 2})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "warehouse", settings.Group{})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	c, err := s.simpleConsumer(ctx, group, topic)
	if err != nil {
		return err
	}
	defer c.GracefulStop()

	var sent, received []string
	for i := range 3 {
		id, err := send(ctx, p, message{topic: topic, body: fmt.Sprintf("parcel %d", i+1)})
		if err != nil {
			return err
		}
		sent = append(sent, id)
	}
	mvs, err := receive(ctx, c, 3)
	if err != nil {
		return err
	}
	for _, mv := range mvs {
		received = append(received, mv.GetMessageId())
		s.say("received: %s", deliveryOf(mv))
	}
	slices.Sort(sent)
	slices.Sort(received)
	assertEqual(s, "IDs of the messages received", received, sent)

	if err := c.Ack(ctx, mvs[0]); err != nil {
		return err
	}
	s.say("acknowledged: %s", mvs[0].GetBody())
	if err := s.extend(ctx, c, mvs[1]); err != nil {
		return err
	}
	if err := s.hurry(ctx, c, mvs[2]); err != nil {
		return err
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 3, Redelivered: 1}); err != nil {
		return err
	}

	mvs, err = c.Receive(ctx, 1, invisible)
	s.say("a receive without messages: %v", err)
	s.assert(len(mvs) == 0 && codeOf(err) == codeMessageNotFound, "no message and code %d: %v, %v", codeMessageNotFound, mvs, err)
	return nil
}

// extend keeps a message for longer, and acknowledges it with the handle that
// it got for that. The server rejects the handle that it replaced.
func (s scene) extend(ctx context.Context, c rmq.SimpleConsumer, mv *rmq.MessageView) error {
	stale := *mv
	if err := c.ChangeInvisibleDuration(mv, 2*invisible); err != nil {
		return fmt.Errorf("keeping %s for longer: %w", mv.GetBody(), err)
	}
	s.assert(mv.GetReceiptHandle() != stale.GetReceiptHandle(), "a new receipt handle with a new invisible duration")
	err := c.ChangeInvisibleDuration(&stale, 2*invisible)
	s.assert(codeOf(err) == codeInvalidHandle, "code %d for a stale receipt handle: %v", codeInvalidHandle, err)
	s.say("extended: %s; its old handle is rejected: %v", mv.GetBody(), err)
	return c.Ack(ctx, mv)
}

// hurry makes a message visible again in a second, and receives it once more.
func (s scene) hurry(ctx context.Context, c rmq.SimpleConsumer, mv *rmq.MessageView) error {
	const soon = time.Second
	began := time.Now()
	if err := c.ChangeInvisibleDuration(mv, soon); err != nil {
		return fmt.Errorf("giving %s back: %w", mv.GetBody(), err)
	}
	again, err := receive(ctx, c, 1)
	if err != nil {
		return err
	}
	waited := time.Since(began)
	d := deliveryOf(again[0])
	s.say("released for %v, received after %.2fs: %s", soon, waited.Seconds(), d)
	s.assert(d.id == mv.GetMessageId() && d.attempt == 2 && waited >= soon, "attempt 2 of %s after %v: %s after %v", mv.GetBody(), soon, d, waited)
	return c.Ack(ctx, again[0])
}

// priority sends messages with priorities, and receives those with the highest first.
func (s scene) priority(ctx context.Context) error {
	topic, err := s.topic(ctx, "alerts", settings.Topic{Type: settings.TopicPriority, Queues: 3})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "duty", settings.Group{})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	bodies := []string{"routine", "notice", "critical"}
	for i, body := range bodies {
		if _, err := send(ctx, p, message{topic: topic, body: body, priority: new(int32(i))}); err != nil {
			return err
		}
	}
	s.say("sent %s, with the priorities 0, 1 and 2", strings.Join(bodies, ", "))
	c, err := s.simpleConsumer(ctx, group, topic)
	if err != nil {
		return err
	}
	defer c.GracefulStop()
	var order []string
	for range bodies {
		mvs, err := receive(ctx, c, 1)
		if err != nil {
			return err
		}
		order = append(order, string(mvs[0].GetBody()))
		if err := c.Ack(ctx, mvs[0]); err != nil {
			return err
		}
	}
	s.say("received %s", strings.Join(order, ", "))
	slices.Reverse(bodies)
	assertEqual(s, "the order of the priorities", order, bodies)
	return s.settled(ctx, group, topic, progress{Acked: int64(len(bodies))})
}

// The scene lite has lite topics of three sessions, a message that is suspended once, and one that
// always fails.
const (
	suspended  = "hello 2"
	suspendFor = time.Second
	litePoison = "curse"
)

// lite sends messages to lite topics below a topic. A lite push consumer receives those of the lite
// topics to which it has subscribed.
func (s scene) lite(ctx context.Context) error {
	topic, err := s.topic(ctx, "sessions", settings.Topic{Type: settings.TopicLite})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "agents", settings.Group{
		FIFO: true, FIFORetryInterval: settings.Duration(time.Second), MaxAttempts: 2, Lite: settings.LiteGroup{Topic: topic},
	})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	ids := map[string]string{}
	post := func(lite, body string) (err error) {
		ids[body], err = send(ctx, p, message{topic: topic, lite: lite, body: body})
		return err
	}
	for _, m := range [][2]string{{"session-1", "hello 1"}, {"session-1", suspended}, {"session-1", "hello 3"}, {"session-2", litePoison}} {
		if err := post(m[0], m[1]); err != nil {
			return err
		}
	}
	s.say("sent 3 messages to session-1 and one to session-2")

	deliveries := make(chan delivery, 1000)
	first := true
	listener := &rmq.FuncMessageListener{Consume: func(mv *rmq.MessageView) rmq.ConsumerResult {
		d := deliveryOf(mv)
		if d.body == wakeUp {
			return rmq.SUCCESS
		}
		deliveries <- d
		switch {
		case d.body == litePoison:
			return rmq.FAILURE
		case d.body == suspended && first: // one message of session-1 at a time
			first = false
			return rmq.NewConsumerResultSuspend(suspendFor)
		}
		return rmq.SUCCESS
	}}
	c, err := rmq.NewLitePushConsumer(s.config(group), rmq.NewLitePushConsumerConfig(topic, invisible), rmq.WithPushMessageListener(listener))
	if err != nil {
		return err
	}
	if err := starting(ctx, "lite push consumer of "+topic, c.Start); err != nil {
		return err
	}
	var last delivery
	expect := func(lite, body string, attempt int32) error {
		before := last
		if last, err = next(ctx, deliveries); err != nil {
			return err
		}
		s.say("delivered from %s: %s", last.lite, last)
		s.assert(last.lite == lite && last.body == body && last.attempt == attempt, "attempt %d of %s from %s: %+v", attempt, body, lite, last)
		s.checkContent(last, message{topic: topic, body: last.body}, ids[last.body])
		if body == suspended && before.body == suspended {
			waited := last.at.Sub(before.at)
			s.assert(waited >= suspendFor, "%s came again after %v", body, waited)
			s.say("%s was suspended, and came again with the same attempt after %.2fs", body, waited.Seconds())
		}
		return nil
	}
	if err := c.SubscribeLite("session-1"); err != nil {
		return err
	}
	for _, body := range []string{"hello 1", suspended, suspended, "hello 3"} {
		if err := expect("session-1", body, 1); err != nil {
			return err
		}
	}
	if err := c.SubscribeLite("session-2"); err != nil {
		return err
	}
	for attempt := range int32(2) {
		if err := expect("session-2", litePoison, attempt+1); err != nil {
			return err
		}
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 3, DeadLetters: 1}); err != nil {
		return err
	}
	if err := s.readDeadLetter(ctx, group, litePoison, ids[litePoison]); err != nil {
		return err
	}

	// The consumer unsubscribes from a lite topic, and the broker takes another one from it.
	if err := errors.Join(c.SubscribeLite("session-3"), c.UnSubscribeLite("session-1"), s.admin.DeleteLiteTopic(ctx, topic, "session-2")); err != nil {
		return err
	}
	for _, session := range []string{"session-1", "session-2", "session-3"} {
		if err := post(session, "bye to "+session); err != nil {
			return err
		}
	}
	if err := expect("session-3", "bye to session-3", 1); err != nil {
		return err
	}
	if err := s.stop(ctx, c, p, message{topic: topic, lite: "session-3"}); err != nil {
		return err
	}
	s.assert(len(deliveries) == 0, "no delivery from session-1 and session-2: %d", len(deliveries))
	return nil
}

// The settings of the scene transaction: when the broker asks about a
// transaction first, and how long it waits until it asks again.
const (
	checkAfter    = 2 * time.Second
	checkInterval = time.Second
)

// transaction sends half messages: one is committed, one is rolled back, and one is left
// unresolved, as by a producer that crashed. The broker sends transaction checks for that one. The
// checker returns unknown at first, and then commit.
func (s scene) transaction(ctx context.Context) error {
	topic, err := s.topic(ctx, "transfers", settings.Topic{
		Type: settings.TopicTransaction, Queues: 2, Transaction: settings.Transaction{Timeout: settings.Duration(checkAfter), CheckInterval: settings.Duration(checkInterval)},
	})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "ledger", settings.Group{})
	if err != nil {
		return err
	}
	checks := make(chan delivery, 100)
	var asked atomic.Int32
	checker := &rmq.TransactionChecker{Check: func(mv *rmq.MessageView) rmq.TransactionResolution {
		checks <- deliveryOf(mv)
		if asked.Add(1) == 1 {
			return rmq.UNKNOWN
		}
		return rmq.COMMIT
	}}
	p, err := rmq.NewProducer(s.config(""), rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
	if err != nil {
		return err
	}
	if err := starting(ctx, "producer of "+topic, p.Start); err != nil {
		return err
	}
	defer p.GracefulStop()
	c, err := s.simpleConsumer(ctx, group, topic)
	if err != nil {
		return err
	}
	defer c.GracefulStop()

	sent := map[string]time.Time{}
	ids := map[string]string{}
	begin := func(body string) (rmq.Transaction, error) {
		tx := p.BeginTransaction()
		m := &rmq.Message{Topic: topic, Body: []byte(body)}
		m.SetKeys(body)
		m.AddProperty("currency", "EUR")
		receipts, err := p.SendWithTransaction(ctx, m, tx)
		if err != nil {
			return nil, fmt.Errorf("sending the half message %q: %w", body, err)
		}
		if len(receipts) != 1 || receipts[0].TransactionId == "" {
			return nil, fmt.Errorf("sending the half message %q: want one receipt with a transaction ID, got %+v", body, receipts)
		}
		sent[body], ids[body] = time.Now(), receipts[0].MessageID
		return tx, nil
	}
	const orphan, committed, rolledBack = "transfer 1", "transfer 2", "transfer 3"
	if _, err := begin(orphan); err != nil {
		return err
	}
	txCommitted, err := begin(committed)
	if err != nil {
		return err
	}
	txRolledBack, err := begin(rolledBack)
	if err != nil {
		return err
	}
	if _, err := p.Send(ctx, &rmq.Message{Topic: topic, Body: []byte("not in a transaction")}); err == nil {
		s.assert(false, "the topic takes half messages only")
	}
	s.say("sent 3 half messages to %s", topic)

	if err := txRolledBack.RollBack(); err != nil {
		return err
	}
	if err := txCommitted.Commit(); err != nil {
		return err
	}
	s.say("committed %s, rolled back %s, left %s alone", committed, rolledBack, orphan)
	err = txCommitted.Commit()
	s.assert(codeOf(err) == codeNoTransaction, "a second commit of %s is rejected: %v", committed, err)

	var got []string
	for _, want := range []string{committed, orphan} {
		mvs, err := receive(ctx, c, 1)
		if err != nil {
			return fmt.Errorf("%w; so far: %v", err, got)
		}
		d := deliveryOf(mvs[0])
		got = append(got, d.body)
		s.say("delivered: %s", d)
		s.checkContent(d, message{body: want, keys: []string{want}, properties: map[string]string{"currency": "EUR"}}, ids[want])
		if err := c.Ack(ctx, mvs[0]); err != nil {
			return err
		}
	}
	assertEqual(s, "delivered transactions", got, []string{committed, orphan})

	for i, after := range []time.Duration{checkAfter, checkAfter + checkInterval} {
		d, err := next(ctx, checks)
		if err != nil {
			return fmt.Errorf("waiting for check %d: %w", i+1, err)
		}
		waited := d.at.Sub(sent[orphan])
		s.assert(d.body == orphan && d.id == ids[orphan] && slices.Equal(d.keys, []string{orphan}) && d.properties["currency"] == "EUR" &&
			d.properties["TRANSACTION_CHECK_TIMES"] == fmt.Sprint(i+1), "check %d of %s with all that it has: %+v", i+1, orphan, d)
		// The response to the send arrived a little after the broker began to count.
		s.assert(waited > after-500*time.Millisecond, "check %d not before %v: after %v", i+1, after, waited)
		s.say("asked about %s after %.2fs, for the %d. time", d.body, waited.Seconds(), i+1)
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 2}); err != nil {
		return err
	}
	s.assert(len(checks) == 0, "2 checks, not %d", 2+len(checks))
	return nil
}
