package simulation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// A producerPlan is a producer and its callers.
type producerPlan struct {
	name, topic   string
	client        int
	mode          string        // send, async, batch, transaction or delay
	callers       int           // goroutines
	messages      int           // of each caller
	gap           time.Duration // between two calls of a caller
	timeout       time.Duration // of a call; 0: none
	messageGroups int           // 0: none
	stop          string        // shutdown or close
	stopAt        time.Duration // 0: when everything is idle

	maxAttempts     int
	maxThrottles    int
	maxThrottleTime time.Duration
	attemptTimeout  time.Duration
	maxPending      int
	backoff         time.Duration // the longest; 0: the default
	whenFull        producer.FullPolicy
	limiter         string // "", rate or adaptive
	budget          bool
	spool           bool
}

func (p *plan) newProducer(d dice, t topicPlan) producerPlan {
	x := producerPlan{
		name: fmt.Sprintf("producer%d", len(p.producers)), topic: t.name, client: d.IntN(len(p.clients)),
		mode: pick(d, "send", "send", "async", "batch"), callers: pick(d, 1, 4, 20, 100, 300), stop: pick(d, "shutdown", "shutdown", "close"),
		maxAttempts: pick(d, 0, 0, 1, 5, 16), maxThrottles: pick(d, 0, 0, 20, producer.UntilContextEnds, producer.UntilContextEnds),
		attemptTimeout: pick(d, 0, 0, 500*time.Millisecond), maxPending: pick(d, 0, 0, 8), budget: d.chance(0.2),
		limiter: pick(d, "", "", "", "rate", "adaptive"), backoff: pick(d, 0, time.Second, 5*time.Second),
	}
	if t.kind == settings.TopicFIFO {
		x.messageGroups = pick(d, 1, 3, 10)
	}
	if d.chance(0.1) {
		x.maxThrottleTime = d.span(time.Second, time.Minute)
	}
	if d.chance(0.6) {
		x.timeout = d.span(100*time.Millisecond, time.Minute)
	}
	if d.chance(0.2) {
		x.whenFull = producer.RejectWhenFull
	}
	if d.chance(0.3) {
		x.stopAt = d.span(time.Second, p.duration)
	}
	most := 150
	if p.theme == throttled || p.theme == leaving {
		most = 500
	}
	x.messages = max(1, d.between(20, most)/x.callers)
	x.gap = d.span(time.Millisecond, 2*p.duration/time.Duration(x.messages))
	switch t.kind {
	case settings.TopicTransaction: // in-process clients have no transactions
		x.mode, x.stopAt, p.clients[x.client].inProcess = "transaction", 0, false
	case settings.TopicDelay:
		x.mode = "delay"
	default:
		x.spool = d.chance(0.25)
	}
	if d.chance(0.1) { // sends that are further apart than anything else
		x.callers, x.messages, x.gap, x.maxAttempts, x.maxThrottles = 1, 30, d.span(5*time.Second, 40*time.Second), 1, 0
	}
	return x
}

// longestBackoff returns the longest wait of a throttled send.
func (x *producerPlan) longestBackoff() time.Duration {
	if x.backoff > 0 {
		return x.backoff * 6 / 5
	}
	return 144 * time.Second // of backoff.Default
}

// returnLimit is the time after the end of its ctx within which a call returns.
const returnLimit = 20 * time.Millisecond

// A sender is a running producer of a plan.
type sender struct {
	producerPlan
	w *world
	p *producer.Producer

	spool *spool.Spool    // nil: none
	left  map[string]bool // the names of the messages in the spool at the end
	end   sync.Once
}

func (w *world) newSender(x producerPlan) *sender {
	s := &sender{producerPlan: x, w: w}
	o := producer.Options{
		MaxAttempts: x.maxAttempts, MaxThrottles: x.maxThrottles, MaxThrottleTime: x.maxThrottleTime,
		Checker: w.ledger.check, AttemptTimeout: x.attemptTimeout, MaxPending: x.maxPending, WhenFull: x.whenFull,
		OnAttempt: func(a producer.Attempt) {
			w.book.attempt(x.client, a)
			w.book.note("%s: attempt %d of %s at %s (%d messages, %v): %v; %v, delay %v", x.name, a.Number, a.MessageID, a.Endpoint, a.Messages, a.Duration, a.Err, a.Stop, a.Delay)
		},
	}
	if x.backoff > 0 {
		o.Backoff = backoff.Exponential{Initial: 200 * time.Millisecond, Multiplier: 1.6, Max: x.backoff, Jitter: 0.2}
	}
	var err error
	switch x.limiter {
	case "rate":
		k, e := ratelimit.NewKeyed[string](200, 20, time.Minute)
		o.Limiter, err = keyed{k}, e
	case "adaptive":
		o.Limiter = w.adaptive
	}
	if err == nil && x.spool {
		s.spool, err = spool.Open(filepath.Join(w.t.TempDir(), "spool"), spool.Options{})
		o.Spool = s.spool
	}
	if err == nil && x.budget {
		o.Budget, err = ratelimit.NewBudget(ratelimit.BudgetOptions{})
	}
	if err == nil {
		s.p, err = producer.New(w.clients[x.client].Transport, o)
	}
	assert.Must(w.t, err)
	return s
}

// keyed is a Keyed with one key as a Limiter.
type keyed struct{ *ratelimit.Keyed[string] }

func (k keyed) WaitN(ctx context.Context, n int) error { return k.Keyed.WaitN(ctx, "all", n) }

// run calls the producer until all messages are sent or ctx ends. It returns when all calls have
// returned.
func (s *sender) run(ctx context.Context) {
	var callers sync.WaitGroup
	for i := range s.callers {
		callers.Go(func() {
			d := newDice(s.w.plan.seed, fmt.Sprint(s.name, i))
			wait(ctx, time.Duration(d.Int64N(int64(s.gap)+1)))
			for n := 0; n < s.messages && s.w.now() < s.w.plan.duration; {
				count := 1
				if s.mode == "batch" {
					count = min(d.between(1, 20), s.messages-n)
				}
				var msgs []*tidegate.Message
				for range count {
					msgs = append(msgs, s.message(d, i, n))
					n++
				}
				s.call(ctx, msgs)
				wait(ctx, time.Duration(d.Int64N(2*int64(s.gap)+1)))
			}
		})
	}
	callers.Wait()
}

// message returns message n of caller i.
func (s *sender) message(d dice, i, n int) *tidegate.Message {
	m := &tidegate.Message{ID: fmt.Sprintf("%s-%d-%d", s.name, i, n), Topic: s.topic, Body: []byte("x")}
	if s.messageGroups > 0 {
		// A caller has message groups of its own: the order of concurrent calls is unknown.
		m.MessageGroup = fmt.Sprintf("%s-%d-g%d", s.name, i, d.IntN(s.messageGroups))
	}
	if s.mode == "delay" {
		m.DeliverAt = time.Now().Add(d.span(time.Second, 20*time.Second))
	}
	return m
}

// call sends the messages in one call and checks that the call ends in time.
func (s *sender) call(ctx context.Context, msgs []*tidegate.Message) {
	cancel := context.CancelFunc(func() {})
	if s.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
	}
	sent := make([]*sent, len(msgs))
	for i, m := range msgs {
		sent[i] = s.w.book.send(m, s.name)
	}
	began := time.Now()
	end := s.w.book.begin("%s: %s of %s", s.name, s.mode, msgs[0].ID)
	finish := func() {
		end()
		if late := time.Since(began) - s.timeout; s.timeout > 0 && late > returnLimit {
			s.w.book.fail("%s: the call for %s returned %v after its ctx", s.name, msgs[0].ID, late)
		}
	}
	switch s.mode {
	case "send":
		r, err := s.p.Send(ctx, msgs[0])
		finish()
		s.result(sent[0], r, err)
	case "batch":
		results := s.p.SendBatch(ctx, msgs)
		finish()
		for i, r := range results {
			s.result(sent[i], r.Receipt, r.Err)
		}
	case "async":
		err := s.p.SendAsync(ctx, msgs[0], func(r tidegate.Receipt, err error) {
			finish()
			s.result(sent[0], r, err)
			cancel()
		})
		if err == nil {
			return // done cancels
		}
		finish()
		s.result(sent[0], tidegate.Receipt{}, err)
	case "transaction":
		r, err := s.transact(ctx, msgs[0])
		end() // its checker and its resolution have times of their own
		if errors.Is(err, errLocal) {
			err = nil // the ledger has the outcome
		}
		s.result(sent[0], r, err)
	case "delay":
		r, err := s.p.Send(ctx, msgs[0])
		finish()
		s.result(sent[0], r, err)
		if d := newDice(s.w.plan.seed, "recall "+msgs[0].ID); err == nil && d.chance(0.3) {
			s.recall(ctx, sent[0])
		}
	}
	cancel()
}

// recall recalls a delayed message. If an attempt failed, another copy of the message can remain.
func (s *sender) recall(ctx context.Context, x *sent) {
	_, err := s.p.Recall(ctx, x.topic, x.receipt.RecallHandle)
	s.w.book.recall(x, err)
}

// result records the result of a message.
func (s *sender) result(x *sent, r tidegate.Receipt, err error) {
	e, ok := errors.AsType[*producer.SendError](err)
	if err != nil && !ok {
		s.w.book.fail("%s: the error of %s is no SendError: %v", s.name, x.name, err)
		return
	}
	if ok && e.Fault() != producer.PassingFault {
		s.w.book.fail("%s: no fault of the simulation is permanent, and %s failed permanently: %v", s.name, x.name, err)
	}
	s.w.book.result(x, r, err, ok && e.MaybeStored)
}

// canaryTimeout is enough for a send when nothing disturbs it.
const canaryTimeout = 30 * time.Second

// canary sends one message, which has to succeed.
func (s *sender) canary(ctx context.Context) {
	wait(ctx, s.w.book.lastTrouble()-s.w.now())
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	if s.mode == "transaction" || s.mode == "delay" {
		return
	}
	m := &tidegate.Message{ID: s.name + "-canary", Topic: s.topic, Body: []byte("x")}
	if s.messageGroups > 0 {
		m.MessageGroup = s.name + "-canary"
	}
	x := s.w.book.send(m, s.name)
	r, err := s.p.Send(ctx, m)
	s.result(x, r, err)
	if err != nil {
		s.w.book.fail("%s: a send that nothing disturbs failed: %v", s.name, err)
	}
}

// finish ends the producer. A second call returns when the first has returned.
func (s *sender) finish() {
	s.end.Do(func() {
		began := time.Now()
		defer s.w.book.begin("%s: %s", s.name, s.stop)()
		if s.stop == "close" {
			_ = s.p.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // reason: t's ctx is that of the seed
		defer cancel()
		a, err := s.p.Shutdown(ctx)
		if late := time.Since(began) - 10*time.Second; late > returnLimit {
			s.w.book.fail("%s: Shutdown returned %v after its ctx", s.name, late)
		}
		s.w.book.note("%s ends: accounts %d accepted, %d delivered, %d failed, %d spooled, %d drained, %d undelivered (%v)", s.name, a.Accepted, a.Delivered, a.Failed, a.Spooled, a.Drained, len(a.Undelivered), err)
		if sum := a.Delivered + a.Failed + a.Spooled + len(a.Undelivered); sum != a.Accepted {
			s.w.book.fail("%s: accounts of Shutdown: %d accepted, but %d + %d + %d + %d = %d have a result", s.name, a.Accepted, a.Delivered, a.Failed, a.Spooled, len(a.Undelivered), sum)
		}
		_ = s.p.Close()
		if s.spool != nil {
			s.closeSpool()
		}
	})
}

// closeSpool records the messages that are left in the spool, and closes it.
func (s *sender) closeSpool() {
	s.left = map[string]bool{}
	for after := uint64(0); ; {
		entries, err := s.spool.Entries(false, after, 1000)
		if err != nil {
			s.w.book.fail("%s: reading the spool: %v", s.name, err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			s.left[e.Message.ID], after = true, e.Sequence
		}
	}
	if err := s.spool.Close(); err != nil {
		s.w.book.fail("%s: closing the spool: %v", s.name, err)
	}
}

// redriven reports whether a dead letter job of the plan sends the dead letters of a group back.
func (p *plan) redriven(group string) bool {
	return newDice(p.seed, "redrive "+group).chance(0.3)
}

// redrives reports whether the plan has a dead letter job.
func (p *plan) redrives() bool {
	return slices.ContainsFunc(p.groups, func(g groupPlan) bool { return p.redriven(g.name) })
}

// redrive runs the dead letter jobs. The first run of a job ends early, and the second one
// continues it. A message that is sent back is handled, or becomes a dead letter again.
func (w *world) redrive() {
	for _, g := range w.plan.groups {
		if !w.plan.redriven(g.name) {
			continue
		}
		for _, s := range w.sites {
			s.redrive(g.name, newDice(w.plan.seed, fmt.Sprint("redrive ", g.name, s.number)))
		}
	}
}

func (s *site) redrive(group string, d dice) {
	w := s.w
	c, err := admin.New(s.HTTPAddress(), admin.Options{Dialer: s.DialHTTP})
	assert.Must(w.t, err)
	defer func() { _ = c.Close() }()
	letters := w.letters(group)
	for name := range letters {
		w.sentBack[name] = true
	}
	o := deadletter.Options{Journal: filepath.Join(w.t.TempDir(), "journal"), MaxFailureShare: 1}
	ctx, cancel := context.WithTimeout(w.t.Context(), d.span(time.Millisecond, time.Second))
	r, err := deadletter.Redrive(ctx, deadletter.Broker{Client: c, Group: group}, o)
	cancel()
	w.book.note("broker %d: %d dead letters of %s are sent back, before the job is interrupted (%v)", s.number, r.Redriven, group, err)
	if r, err = deadletter.Redrive(w.t.Context(), deadletter.Broker{Client: c, Group: group}, o); err != nil || r.Failed+r.Unresolved > 0 {
		w.book.fail("broker %d: the dead letters of %s, %d before: %+v, %v", s.number, group, len(letters), r, err)
	}
	w.book.note("broker %d: %d further dead letters of %s are sent back", s.number, r.Redriven, group)
}

// A ledger has the local transactions of all producers, like the table of a database. The broker
// can ask any producer of a topic.
type ledger struct {
	mu    sync.Mutex
	state map[string]transport.Resolution // by the name of the message
}

func (l *ledger) put(name string, r transport.Resolution) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == nil {
		l.state = map[string]transport.Resolution{}
	}
	l.state[name] = r
}

// check is the producer's Checker. A transaction without an entry is under way.
func (l *ledger) check(_ context.Context, c transport.TransactionCheck) transport.Resolution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state[c.Message.ID]
}

var errLocal = errors.New("the local transaction fails, by the simulation")

// transact sends the message in a transaction. The name of the message decides about its local
// transaction.
func (s *sender) transact(ctx context.Context, m *tidegate.Message) (tidegate.Receipt, error) {
	d := newDice(s.w.plan.seed, "transaction "+m.ID)
	ran := false
	r, err := s.p.Transact(ctx, m, func(ctx context.Context, _ *tidegate.Message) error {
		ran = true
		wait(ctx, time.Duration(d.Int64N(int64(time.Second))))
		if d.chance(0.3) {
			s.w.ledger.put(m.ID, transport.Rollback)
			return errLocal
		}
		s.w.ledger.put(m.ID, transport.Commit)
		if d.chance(0.1) { // the response of the database is lost
			return fmt.Errorf("no response: %w", errLocal)
		}
		return nil
	})
	if !ran { // a half message without a response is never committed
		s.w.ledger.put(m.ID, transport.Rollback)
	}
	return r, err
}

// serveChecks resolves the transactions that the broker checks, until ctx ends.
func (s *sender) serveChecks(ctx context.Context) {
	if err := s.p.ServeChecks(ctx, s.topic); err != nil && ctx.Err() == nil && !errors.Is(err, tidegate.ErrClosed) {
		s.w.book.fail("%s: ServeChecks ended by itself: %v", s.name, err)
	}
}

// rolledBack reports whether the message belongs to a transaction that was rolled back.
func (w *world) rolledBack(x *sent) bool { return w.ledger.state[x.name] == transport.Rollback }

// transactionsEnd compares the deliveries with the ledger, which decides also if every response was
// lost.
func transactionsEnd(w *world, broken func(string, ...any)) {
	for _, g := range w.plan.groups {
		letters := w.letters(g.name)
		for name, r := range w.ledger.state {
			if w.book.sent[name].topic != g.topic {
				continue
			}
			handled := 0
			for i := range w.sites {
				if c := w.book.handled[copyKey{g.name, name, i}]; c != nil {
					handled += len(c.calls)
				}
			}
			switch {
			case r == transport.Rollback && handled > 0:
				broken("%s was rolled back, and %s got it", name, g.name)
			case r == transport.Commit && handled+letters[name] == 0:
				broken("%s was committed, and %s did not get it", name, g.name)
			}
		}
	}
}

// limited is the number of calls beside the sends that wait for the adaptive limiter in the theme
// waiting.
const limited = 300

// waitForLimiter makes calls that share the adaptive limiter with the producers, for example
// requests to another server. They begin at the end of the throttle, when the rate is low.
func (w *world) waitForLimiter(ctx context.Context) {
	if w.plan.theme != waiting {
		return
	}
	wait(ctx, w.plan.lastFault())
	var calls sync.WaitGroup
	for i := range limited {
		calls.Go(func() {
			defer w.book.begin("call %d of the limiter", i)()
			_ = w.adaptive.WaitN(ctx, 1) // an error is the end of ctx
		})
	}
	calls.Wait()
}
