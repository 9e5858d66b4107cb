package brokertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// quiet is the interval of the requests by which an idle client shows that it is alive and asks
	// for changes, and the longest wait of a receive. Inside one process the end of a wait has no
	// effect, and these requests would be nearly all of the cost of hours of virtual time.
	quiet = 5 * time.Minute

	// waitLimit bounds WaitIdle and WaitDeadLetter. The longest legal delay of a
	// message is 24 h; the default retry schedule takes less than 5 h.
	waitLimit = 25 * time.Hour

	// unreachedLimit ends them earlier if no request has reached the broker for so long, and the
	// state that they wait for has not changed. Each client sends a request every 5 min.
	unreachedLimit = time.Hour

	// waitPoll is the shortest interval at which they check for changes without a request, such as
	// the end of an invisible duration.
	waitPoll = time.Second

	// pollShare bounds the number of checks: the interval is at least this share of the time
	// waited.
	pollShare = 256
)

// Send stores messages in the broker directly, not through gRPC, and returns their receipts. A
// message without an ID gets one; msgs are not changed. It fails the test if the broker rejects a
// message. To test a producer, use [Broker.Client]; the embedded engine's own method is
// Broker.Broker.Send.
func (b *Broker) Send(msgs ...*tidegate.Message) []tidegate.Receipt {
	b.tb.Helper()
	receipts := make([]tidegate.Receipt, len(msgs))
	for i, m := range msgs {
		stored := *m
		if stored.ID == "" {
			stored.ID = tidegate.NewMessageID()
		}
		r := b.Broker.Send(b.tb.Context(), []*tidegate.Message{&stored})[0]
		if r.Err != nil {
			b.tb.Fatalf("brokertest: send message %d of %d to %s: %v", i+1, len(msgs), m.Topic, r.Err)
		}
		receipts[i] = r.Receipt
	}
	return receipts
}

// Consume starts a push consumer with default options, through gRPC, and returns at once. The
// consumer stops when stop is called or the test ends; stop returns when every handler has
// returned. It may be called several times. An error of the consumer fails the test, and so does a
// topic that does not exist, except the dead-letter topic of a group, which the first dead letter
// creates. A handler that has not returned after 30 s of real time is reported on the standard
// error. For options, use [consumer.NewPush] with [Broker.Client].
func (b *Broker) Consume(group, topic string, handle consumer.Handler) (stop func()) {
	b.tb.Helper()
	if _, err := b.Topic(topic); err != nil && !strings.HasPrefix(topic, protocol.DeadLetterPrefix) {
		b.tb.Fatalf("brokertest: consume %s as %s: %v; the topics are %s; call CreateTopic before Consume", topic, group, err, b.topicNames())
	}
	if handle != nil {
		handle = b.watched(group, handle)
	}
	c, err := consumer.NewPush(b.Client(), consumer.Subscription{Group: group, Topic: topic}, handle, consumer.PushOptions{})
	if err != nil {
		b.tb.Fatalf("brokertest: consume %s as %s: %v", topic, group, err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // of its own: cleanups stop it before the client closes
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			b.tb.Errorf("brokertest: consume %s as %s: %v", topic, group, err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	b.tb.Cleanup(stop)
	return stop
}

// watched reports the calls of a handler to handlers.
func (b *Broker) watched(group string, handle consumer.Handler) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		defer handlers.begin(b.address, group, d)()
		return handle(ctx, d)
	}
}

// topicNames lists the topics, at most ten of them.
func (b *Broker) topicNames() string {
	const most = 10
	var names []string
	for _, t := range b.Topics() {
		names = append(names, t.Name)
	}
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// WaitIdle waits until the group has received from the topic at least once, and no message is
// ready, in flight or waiting for a retry in any topic of the group. Parked messages, and delayed
// messages whose delivery time has not come, do not count. In a bubble this lets the time of all
// retries pass. It fails the test after 25 h, which are virtual in a bubble, or after an hour in
// which no client has reached the broker and the state of the group has not changed. A change
// without a request, such as the end of an invisible duration, is noticed after up to a second or
// 1/256 of the wait.
func (b *Broker) WaitIdle(group, topic string) {
	b.tb.Helper()
	b.wait(func() bool {
		g, err := b.Group(group)
		if err != nil {
			return false
		}
		seen := false
		for _, s := range g.Topics {
			seen = seen || s.Topic == topic
			if s.Ready+s.Inflight+s.WaitingRetry > 0 {
				return false
			}
		}
		return seen
	}, func() string {
		return fmt.Sprintf("wait until group %s is idle in %s: %s", group, topic, b.state(group, topic))
	})
}

// state describes the progress of a group for the error of a wait. topic is the topic that the
// group has to receive from, empty if any will do.
func (b *Broker) state(group, topic string) string {
	g, err := b.Group(group)
	if err != nil {
		return "the group has not received yet; does a consumer run?"
	}
	var parts []string
	seen := topic == ""
	for _, s := range g.Topics {
		seen = seen || s.Topic == topic
		part := fmt.Sprintf("topic %s: %d ready, %d in flight, %d waiting for a retry, %d acknowledged, %d dead letters",
			s.Topic, s.Ready, s.Inflight, s.WaitingRetry, s.Acked, s.DeadLetters)
		if s.ParkedGroups+s.BlockedGroups > 0 {
			part += fmt.Sprintf(", %d parked and %d blocked message groups", s.ParkedGroups, s.BlockedGroups)
		}
		if s.Ready > 0 && s.Inflight == 0 {
			part += "; does a consumer run?"
		}
		parts = append(parts, part)
	}
	if !seen {
		parts = append(parts, fmt.Sprintf("it has not received from %s; the topics are %s", topic, b.topicNames()))
	}
	if len(parts) == 0 {
		parts = append(parts, "it has not received yet; does a consumer run?")
	}
	return strings.Join(parts, "; ") + handlers.of(b.address, group)
}

// WaitDeadLetter waits until the group has a dead letter in %DLQ%group that no earlier call has
// returned, and returns the oldest of these. In a bubble this lets the time of all retries pass. It
// fails the test after 25 h, which are virtual in a bubble. The dead letter stays in its topic.
func (b *Broker) WaitDeadLetter(group string) status.DeadLetter {
	b.tb.Helper()
	var letter status.DeadLetter
	var last error
	b.wait(func() (found bool) {
		letter, found, last = b.nextDeadLetter(group)
		return found
	}, func() string {
		why := "there is no other one"
		if last != nil {
			why = last.Error()
		}
		return fmt.Sprintf("wait for a dead letter of group %s: %s; %s", group, why, b.state(group, ""))
	})
	return letter
}

// nextDeadLetter returns the oldest dead letter that it has not returned before.
func (b *Broker) nextDeadLetter(group string) (l status.DeadLetter, found bool, err error) {
	for q := (status.DeadLetterQuery{Bodies: true}); ; {
		page, err := b.DeadLetters(group, q)
		if err != nil {
			return l, false, err
		}
		for _, l := range page.DeadLetters {
			if key := fmt.Sprint(group, " ", l.Queue, l.Offset); b.returned(key) {
				return l, true, nil
			}
		}
		if q.After = page.Next; q.After == "" {
			return l, false, nil
		}
	}
}

// returned notes that the dead letter is returned, and reports whether it is so for the first time.
func (b *Broker) returned(key string) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first = !b.letters[key]
	b.letters[key] = true
	return first
}

// wait returns when done returns true, and fails the test after waitLimit.
func (b *Broker) wait(done func() bool, state func() string) {
	b.tb.Helper()
	start := time.Now()
	last, since := "", start // the state, and since when it is so
	for {
		changed := b.changes()
		if done() {
			return
		}
		waited := time.Since(start)
		if waited >= waitLimit {
			b.tb.Fatalf("brokertest: %s (waited %v)", state(), waited)
		}
		if now := state(); now != last {
			last, since = now, time.Now()
		}
		if quiet := b.unreachedFor(since); quiet >= unreachedLimit {
			b.tb.Fatalf("brokertest: %s (no client has reached the broker for %v%s)", last, quiet.Truncate(time.Minute), b.lastFault())
		}
		poll := time.NewTimer(min(max(waitPoll, waited/pollShare), waitLimit-waited))
		select {
		case <-changed:
		case <-poll.C:
		case <-b.tb.Context().Done():
			poll.Stop()
			b.tb.Fatalf("brokertest: %s when the test ended", state())
		}
		poll.Stop()
	}
}

// unreachedFor returns how long no request has reached the broker, at most since a time. It is zero
// while a request is under way, or a receive of the engine waits.
func (b *Broker) unreachedFor(since time.Time) time.Duration {
	b.mu.Lock()
	under, at := b.requests, b.requested
	b.mu.Unlock()
	if under > 0 {
		return 0
	}
	if at.Before(since) {
		at = since
	}
	quiet := time.Since(at)
	if quiet < unreachedLimit {
		return quiet
	}
	for _, g := range b.Broker.Engine().Survey().Groups {
		if g.Waiting > 0 {
			return 0
		}
	}
	return quiet
}

// lastFault returns a text about the last connection that failed or request that returned an error.
// It is empty if there was none.
func (b *Broker) lastFault() string {
	if err := b.network.wires.fault(); err != nil {
		return "; the last connection failed: " + err.Error()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil {
		return "; the last failed request: " + b.failed.Error()
	}
	return ""
}

// changes returns a channel that is closed after the next request.
func (b *Broker) changes() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

// requestBegun notes a request that has reached the broker.
func (b *Broker) requestBegun() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
}

// requestServed notes the end of a request, and wakes the calls that wait for a change.
func (b *Broker) requestServed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests--
	b.requested = time.Now()
	if err != nil {
		b.failed = err
	}
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}
