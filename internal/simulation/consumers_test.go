package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
)

// A groupPlan is a consumer group of one topic.
type groupPlan struct {
	name, topic string
	fifo        bool
	maxAttempts int
	retry       time.Duration // first interval of the retry schedule
	consumers   []consumerPlan
	inbox       bool // of push consumers alone

	// The shares of messages by the reaction of the handlers.
	failing, poison, panicking, slow float64
}

// A consumerPlan is one consumer of a group.
type consumerPlan struct {
	name        string
	kind        string // push, batch or simple
	client      int
	concurrency int
	buffered    int
	invisible   time.Duration
	killSwitch  bool
	stops       []span // when it does not run
	wide        bool   // it also subscribes to the idle topics, so that its receives leave watches
}

// mostAttempts is the largest maximum of attempts of a group.
const mostAttempts = 6

// A span is a part of the first phase.
type span struct{ from, to time.Duration }

// idleTopics are topics without messages. With them a consumer has more than 16 topics.
var idleTopics = func() (names []string) {
	for i := range 19 {
		names = append(names, fmt.Sprint("idle", i))
	}
	return names
}()

func (p *plan) newGroup(d dice, t topicPlan) groupPlan {
	g := groupPlan{
		name: fmt.Sprintf("group%d", len(p.groups)), topic: t.name, fifo: t.kind == settings.TopicFIFO && d.chance(0.8),
		maxAttempts: d.between(2, mostAttempts), retry: d.span(100*time.Millisecond, 5*time.Second),
		failing: pick(d, 0, 0.1, 0.3), poison: pick(d, 0, 0, 0.05, 0.2), panicking: pick(d, 0, 0.05), slow: pick(d, 0, 0.02),
	}
	g.inbox = d.chance(0.2)
	for range d.between(1, 2) {
		c := consumerPlan{
			name: fmt.Sprintf("consumer%d", len(g.consumers)), kind: pick(d, "push", "push", "push", "batch", "simple"), client: d.IntN(len(p.clients)), concurrency: pick(d, 0, 1, 4), buffered: pick(d, 0, -1, 10),
			invisible: d.span(2*time.Second, 30*time.Second), killSwitch: d.chance(0.3),
		}
		if d.chance(0.3) {
			from := time.Duration(d.Int64N(int64(p.duration)))
			c.stops = append(c.stops, span{from, from + d.span(10*time.Millisecond, 10*time.Second)})
		}
		wide := newDice(p.seed, fmt.Sprint("wide ", len(p.groups), len(g.consumers)))
		c.wide = c.kind != "simple" && wide.chance(0.2) // by dice of their own: the rest of the plan stays
		if c.kind == "simple" {                         // a failure takes the whole invisible time
			g.poison, g.failing, c.invisible = 0, min(g.failing, 0.1), min(c.invisible, 5*time.Second)
		}
		g.inbox = g.inbox && c.kind == "push"
		g.consumers = append(g.consumers, c)
	}
	return g
}

func (g groupPlan) config() settings.Group {
	return settings.Group{
		FIFO: g.fifo, MaxAttempts: g.maxAttempts, FIFORetryInterval: settings.Duration(g.retry),
		Retry: backoff.Steps{g.retry, 2 * g.retry, 4 * g.retry},
	}
}

// A reaction is the behaviour of a group's handlers for a message.
type reaction struct {
	failures int // before the first success; -1: always
	panics   bool
	slow     time.Duration
	verdict  error // of a failure
	snoozes  int   // before anything else; not of simple consumers
}

// reactionTo returns the reaction to a message. It is a pure function.
func (g groupPlan) reactionTo(seed uint64, name string) (r reaction) {
	d := newDice(seed, g.name+" "+name)
	switch {
	case d.chance(g.poison):
		r.failures = -1
	case d.chance(g.failing):
		r.failures = d.between(1, g.maxAttempts-1)
	}
	r.panics = d.chance(g.panicking)
	if d.chance(g.slow) {
		r.slow = d.span(time.Millisecond, 40*time.Second)
	}
	d = newDice(seed, "verdict "+g.name+" "+name)
	r.verdict = pick(d, errHandler, errHandler, errHandler, consumer.RetryIn(d.span(time.Millisecond, 3*time.Second), errHandler), consumer.DeadLetterNow(errHandler))
	if d.chance(0.05) {
		r.snoozes = d.between(1, 2)
	}
	return r
}

// A reader is a running consumer of a plan.
type reader struct {
	consumerPlan
	group groupPlan
	w     *world
	inbox *inbox.Memory // of the group
}

var errHandler = errors.New("the handler fails, by the simulation")

// handle is the handler. It reacts to messages by the plan.
func (r *reader) handle(ctx context.Context, d *tidegate.Delivery) (err error) {
	end := r.w.book.handle(r.group.name, r.name, d)
	defer func() {
		if p := recover(); p != nil {
			end(fmt.Errorf("panic: %v", p))
			panic(p)
		}
		end(err)
	}()
	re := r.group.reactionTo(r.w.plan.seed, d.ID)
	if r.kind != "simple" && r.w.book.calls(r.group.name, d) <= re.snoozes {
		return consumer.Snooze(time.Duration(re.snoozes) * time.Second)
	}
	if re.slow > 0 {
		if wait(ctx, re.slow); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if re.failures < 0 || d.Attempt <= re.failures || r.w.handlersOut(r.group.name) {
		if re.panics {
			panic(fmt.Sprintf("the handler panics, by the simulation (seed %d)", r.w.plan.seed))
		}
		return re.verdict
	}
	return nil
}

// handlersOut reports whether the handlers of the group fail at present.
func (w *world) handlersOut(group string) bool {
	for _, f := range w.plan.faults {
		if f.kind == handlersOut && f.group == group && f.active(w.now()) {
			return true
		}
	}
	return false
}

// run runs the consumer until ctx ends, except in its stops.
func (r *reader) run(ctx context.Context) {
	for _, s := range r.stops {
		r.consume(ctx, s.from)
		wait(ctx, s.to-r.w.now())
	}
	r.consume(ctx, 0)
}

// consume runs the consumer until a time of the plan, or until ctx ends if the time is 0.
func (r *reader) consume(ctx context.Context, until time.Duration) {
	if until > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, until-r.w.now())
		defer cancel()
	}
	if ctx.Err() != nil {
		return
	}
	if r.kind == "simple" {
		r.receive(ctx)
		return
	}
	o := consumer.PushOptions{
		Concurrency: r.concurrency, MaxBuffered: r.buffered, InvisibleDuration: r.invisible, ShutdownTimeout: shutdownTimeout,
		LongPolling: 20 * time.Second, // as in production: brokertest's default is longer
		OnDelivery: func(o consumer.Outcome) {
			r.w.book.note("%s of %s: %s, attempt %d, is %v, delay %v (%v; %v)", r.name, r.group.name, o.Delivery.ID, o.Delivery.Attempt, o.Disposition, o.Delay, o.Err, o.SettleErr)
		},
		OnReceiveFailure: func(f consumer.ReceiveFailure) {
			r.w.book.note("%s of %s: receive failed, next in %v: %v", r.name, r.group.name, f.RetryIn, f.Err)
		},
	}
	if r.killSwitch {
		o.KillSwitch = consumer.KillSwitch{FailureRatio: 0.5, MinMessages: 4, Probe: 2 * time.Second}
	}
	sub := consumer.Subscription{Group: r.group.name, Topic: r.group.topic}
	if r.wide {
		sub.Topics = map[string]tidegate.Filter{}
		for _, name := range idleTopics {
			sub.Topics[name] = tidegate.Filter{}
		}
	}
	handle := r.handle
	if r.group.inbox {
		handle = r.inbox.Handler(r.handle)
	}
	c, err := consumer.NewPush(r.w.clients[r.client].Transport, sub, handle, o)
	if r.kind == "batch" {
		o.Batch = consumer.BatchOptions{MaxMessages: 10}
		c, err = consumer.NewBatch(r.w.clients[r.client].Transport, sub, r.handleBatch, o)
	}
	if err != nil {
		r.w.t.Error(err)
		return
	}
	r.w.book.note("%s of %s begins", r.name, r.group.name)
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case err = <-done:
		if ctx.Err() == nil {
			r.w.book.fail("%s of %s ended by itself: %v", r.name, r.group.name, err)
		}
	case <-ctx.Done():
		ended := time.Now()
		if err = <-done; time.Since(ended) > shutdownTimeout+lastTry+returnLimit {
			r.w.book.fail("%s of %s ended %v after its ctx; ShutdownTimeout is %v", r.name, r.group.name, time.Since(ended), shutdownTimeout)
		}
	}
	r.w.book.note("%s of %s ends: %v", r.name, r.group.name, err)
}

// shutdownTimeout is that of all consumers.
const shutdownTimeout = 5 * time.Second

// lastTry is the time for a last attempt of each settlement after the shutdown timeout.
const lastTry = time.Second

// handleBatch reacts to each message of a batch like handle, one after the other.
func (r *reader) handleBatch(ctx context.Context, ds []*tidegate.Delivery) error {
	result := make(consumer.BatchResult, len(ds))
	for i, d := range ds {
		result[i] = r.handle(consumer.BatchContext(ctx, i), d)
	}
	return result
}

// receive runs a simple consumer until ctx ends. It acknowledges a message that its reaction
// accepts, and lets the others time out.
func (r *reader) receive(ctx context.Context) {
	c, err := consumer.NewSimple(r.w.clients[r.client].Transport, consumer.Subscription{Group: r.group.name, Topic: r.group.topic},
		consumer.SimpleOptions{InvisibleDuration: r.invisible, LongPolling: 5 * time.Second})
	if err != nil {
		r.w.t.Error(err)
		return
	}
	for ctx.Err() == nil {
		ds, err := c.Receive(ctx, 1+r.concurrency)
		if err != nil && ctx.Err() == nil {
			r.w.book.note("%s of %s: receive failed: %v", r.name, r.group.name, err)
			wait(ctx, time.Second)
		}
		for _, d := range ds {
			r.work(ctx, c, d)
		}
	}
}

// work handles one delivery of a simple consumer within its invisible time.
func (r *reader) work(ctx context.Context, c *consumer.Simple, d *tidegate.Delivery) {
	work, cancel := context.WithDeadline(ctx, d.InvisibleUntil)
	defer cancel()
	if work.Err() != nil {
		return
	}
	failed := r.try(work, d) != nil
	if dice := newDice(r.w.plan.seed, fmt.Sprint("change ", r.name, d.ID, d.Attempt)); dice.chance(0.2) {
		_ = c.ChangeInvisibleDuration(work, d, dice.span(time.Second, r.invisible)) // not repeated
	}
	if failed {
		return // the message is delivered again when its invisible time has ended
	}
	for range 3 {
		if err := c.Ack(work, d); err == nil || work.Err() != nil {
			return
		}
		wait(work, 100*time.Millisecond)
	}
}

// try is handle with an error for a panic.
func (r *reader) try(ctx context.Context, d *tidegate.Delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return r.handle(ctx, d)
}
