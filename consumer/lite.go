package consumer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/transport"
)

const (
	// liteInterval is the time between two repetitions of the whole set of lite topics, as in
	// RocketMQ's clients.
	liteInterval = 30 * time.Second

	// liteTimeout bounds one request that changes or repeats the set.
	liteTimeout = 10 * time.Second
)

// Subscribe adds a lite topic of Subscription.Topic to those that the consumer receives from.
// start is where the group begins in it; the zero value means the first message that the group has
// not consumed. A lite topic that the consumer has already does not change; to begin elsewhere,
// call [Push.Unsubscribe] first.
//
// While a Run is active, Subscribe blocks until the server has the change or ctx ends. It repeats
// transient errors and throttles after PushOptions.ReceiveBackoff. Otherwise it records the lite
// topic, and the next Run begins with it. The server uses start once: later Runs and connections
// continue at the position of the group.
//
// An error does not change the set. If ctx ended during a request, the server can have the lite
// topic until the next repetition of the set, 30 s later at most. The error has code 42902 if the
// consumer would have more lite topics than the server permits, 42901 if Subscription.Topic would,
// 40020 for an illegal name, and 40000 for an invalid start or if Subscription.Lite is false.
func (p *Push) Subscribe(ctx context.Context, liteTopic string, start transport.LiteStart) error {
	start.Time = start.Time.Round(0).UTC() // equal times are equal starts
	if start.Time.IsZero() {
		start.Time = time.Time{}
	}
	return p.changeLite(ctx, "subscribe to", liteTopic, cmp.Or(p.checkLite(liteTopic), start.Validate()), func(l *lite) (liteRequest, bool) {
		t, has := l.set[liteTopic]
		switch {
		case !has && l.runs == 0:
			l.set[liteTopic] = liteTopicState{start: start}
			return liteRequest{}, false
		case !has:
			t.start = start
		case t.synced || l.runs == 0:
			return liteRequest{}, false
		}
		return liteRequest{LiteSync: transport.LiteSync{Action: transport.LiteAdd, Topics: []string{liteTopic}, Start: t.start}, joins: true}, true
	})
}

// Unsubscribe removes a lite topic. The group keeps its position in it. The handler still gets
// messages that the consumer has already received. Removing a lite topic that the consumer does not
// have is no error.
//
// While a Run is active, Unsubscribe blocks until the server has the change or ctx ends, and
// repeats failed requests as [Push.Subscribe] does. After an error the consumer no longer has the
// lite topic, but the server can deliver messages of it until the next repetition of the set, 30 s
// later at most.
func (p *Push) Unsubscribe(ctx context.Context, liteTopic string) error {
	fault := p.checkLite(liteTopic)
	if fault == nil {
		p.lite.end(liteTopic) // at once, and again in its turn, after a Subscribe under way
	}
	return p.changeLite(ctx, "unsubscribe from", liteTopic, fault, func(l *lite) (liteRequest, bool) {
		delete(l.set, liteTopic)
		return liteRequest{LiteSync: transport.LiteSync{Action: transport.LiteRemove, Topics: []string{liteTopic}}}, l.runs > 0
	})
}

// LiteTopics returns the lite topics of the consumer, sorted: those of Subscribe without those of
// Unsubscribe and those that the server ended. It is empty if Subscription.Lite is false.
func (p *Push) LiteTopics() []string {
	if p.lite == nil {
		return nil
	}
	p.lite.mu.Lock()
	defer p.lite.mu.Unlock()
	return slices.Sorted(maps.Keys(p.lite.set))
}

// checkLite returns the error of a change of a lite topic, nil if it is valid.
func (p *Push) checkLite(liteTopic string) error {
	if p.lite == nil {
		return &tidegate.Error{
			Subject: p.sub.Topic, Code: tidegate.CodeBadRequest,
			Message: "the consumer has no lite topics; set Subscription.Lite, and Topic to their parent",
		}
	}
	return tidegate.ValidateLiteTopic(liteTopic)
}

// changeLite carries out a change of a lite topic, unless it has a fault.
func (p *Push) changeLite(ctx context.Context, what, liteTopic string, fault error, change func(*lite) (liteRequest, bool)) error {
	err := fault
	if err == nil {
		err = p.lite.change(ctx, func(failures int, err error) time.Duration {
			return receiveWait(guard.Policy("ReceiveBackoff", p.opts.ReceiveBackoff, p.reportPanic), failures, err)
		}, change)
	}
	if err != nil {
		return fmt.Errorf("consumer: %s the lite topic %q of %q for %q: %w", what, liteTopic, p.sub.Topic, p.sub.Group, err)
	}
	return nil
}

// reportPanic logs a panic of a function that package guard calls outside of a run.
func (p *Push) reportPanic(function string, value any, stack []byte) {
	p.opts.Logger.Error(function+" panicked", "group", p.sub.Group, "panic", verdict.Show(value), "stack", string(stack))
}

// A liteTopicState is the state of a lite topic in a liteSet.
type liteTopicState struct {
	start  transport.LiteStart // of the request that adds it; zero once the server has used it
	synced bool                // the server has it, by the last request of the Runs under way
}

// A liteSet is the lite topics of a consumer by name. It has no locks and sends nothing.
type liteSet map[string]liteTopicState

// A liteRequest changes or repeats the set at the server.
type liteRequest struct {
	transport.LiteSync
	joins bool // its lite topics join the set when the server has accepted them
}

// whole returns the request that repeats the set. It leaves out the lite topics whose start the
// server has not used yet; addition returns the requests for these.
func (s liteSet) whole() liteRequest {
	return liteRequest{LiteSync: transport.LiteSync{Action: transport.LiteSet, Topics: s.from(transport.LiteStart{})}}
}

// addition returns a request that adds lite topics whose start the server has not used: those of
// the first start, in the order of the names, that tried does not have. It returns false if there
// are no further ones.
func (s liteSet) addition(tried []transport.LiteStart) (liteRequest, bool) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		start := s[name].start
		if start != (transport.LiteStart{}) && !slices.Contains(tried, start) {
			return liteRequest{LiteSync: transport.LiteSync{Action: transport.LiteAdd, Topics: s.from(start), Start: start}}, true
		}
	}
	return liteRequest{}, false
}

// from returns the lite topics with a start that the server has not used, sorted.
func (s liteSet) from(start transport.LiteStart) (names []string) {
	for name, t := range s {
		if t.start == start {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// applied records the success of a request. Lite topics that have left the set meanwhile stay out.
func (s liteSet) applied(r liteRequest) {
	for _, name := range r.Topics {
		if _, has := s[name]; r.Action != transport.LiteRemove && (has || r.joins) {
			s[name] = liteTopicState{synced: true}
		}
	}
}

// A lite has the lite topics of a Push.
//
// Subscribe, Unsubscribe and the keepLite of each Run change and repeat the set at the server. The
// one that holds turn reads the set, sends its request and records the result, so the requests have
// the order of their changes, and no repetition removes a lite topic that was just added. turn is
// held across the request. mu guards the set, and is held neither across a wait nor together with
// another lock. A lite topic that the server ends leaves the set under mu alone.
type lite struct {
	transport.LiteConsumer
	server  transport.LiteSubscriber
	turn    chan struct{} // of capacity 1
	serving chan struct{} // of capacity 1: one Run at a time waits for the ends of lite topics

	mu   sync.Mutex
	set  liteSet
	runs int             // calls of Run under way
	era  context.Context //nolint:containedctx // ends when no Run is under way; independent of requests
	over context.CancelFunc
}

func newLite(server transport.LiteSubscriber, sub *Subscription) *lite {
	return &lite{
		LiteConsumer: transport.LiteConsumer{Group: sub.Group, Topic: sub.Topic, ID: rand.Text()},
		server:       server, turn: make(chan struct{}, 1), serving: make(chan struct{}, 1), set: liteSet{},
		era: context.Background(), over: func() {}, // the era of the first Run replaces it
	}
}

// enter records the begin of a Run.
func (l *lite) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs++; l.runs > 1 {
		return
	}
	l.era, l.over = context.WithCancel(context.Background()) // several Runs share it
	for name, t := range l.set {
		t.synced = false // the server forgets the set of a consumer that does not receive
		l.set[name] = t
	}
}

// leave records the end of a Run.
func (l *lite) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs--; l.runs == 0 {
		l.over()
	}
}

// change makes a change of the set, with as many attempts as it takes until ctx ends. wait returns
// the time after a failed attempt. If the last Run ends meanwhile, the change needs no request.
func (l *lite) change(ctx context.Context, wait func(failures int, err error) time.Duration, next func(*lite) (liteRequest, bool)) error {
	var last error
	for failures := 0; ; failures++ {
		_, era, err := l.try(ctx, next)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx, cmp.Or(last, err))
		case era.Err() != nil:
			continue
		}
		last = err
		switch tidegate.Classify(err) {
		case tidegate.ClassTransient, tidegate.ClassThrottled:
		default:
			return err
		}
		timer := time.NewTimer(wait(failures, err))
		select {
		case <-timer.C:
		case <-era.Done():
		case <-ctx.Done():
			return ended(ctx, err)
		}
		timer.Stop()
	}
}

// ended returns the error after the end of ctx, with that of the last attempt.
func ended(ctx context.Context, last error) error {
	cause := context.Cause(ctx)
	if errors.Is(last, cause) {
		return last
	}
	return fmt.Errorf("%w; the last attempt failed: %w", cause, last)
}

// try makes one attempt to send the request that next returns, if it returns one. era is the time
// of the Runs that were under way.
func (l *lite) try(ctx context.Context, next func(*lite) (liteRequest, bool)) (sent bool, era context.Context, err error) {
	select {
	case l.turn <- struct{}{}:
	default:
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			return false, ctx, context.Cause(ctx)
		}
	}
	defer func() { <-l.turn }()
	l.mu.Lock()
	r, needed := next(l)
	era = l.era
	l.mu.Unlock()
	if !needed {
		return false, era, nil
	}
	r.LiteConsumer = l.LiteConsumer
	ctx, cancel := context.WithTimeout(ctx, liteTimeout)
	defer cancel()
	stop := context.AfterFunc(era, cancel)
	defer stop()
	if err = l.server.SyncLite(ctx, r.LiteSync); err != nil {
		return true, era, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set.applied(r)
	return true, era, nil
}

// end removes a lite topic without a request, and reports whether the set had it.
func (l *lite) end(liteTopic string) (had bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, had = l.set[liteTopic]
	delete(l.set, liteTopic)
	return had
}

// sync sends the whole set, and then the lite topics whose start the server has not used, those of
// each start in a request. It reports whether the server accepted the set, and the first error. The
// lite topics of a rejected request do not delay the others.
func (l *lite) sync(ctx context.Context) (accepted bool, first error) {
	if _, _, err := l.try(ctx, func(l *lite) (liteRequest, bool) { return l.set.whole(), true }); err != nil {
		return false, err
	}
	var tried []transport.LiteStart
	for {
		sent, _, err := l.try(ctx, func(l *lite) (r liteRequest, more bool) {
			r, more = l.set.addition(tried)
			tried = append(tried, r.Start)
			return r, more
		})
		first = cmp.Or(first, err)
		if !sent || ctx.Err() != nil {
			return true, first
		}
	}
}

// keepLite sends the lite topics to the server, then begins to receive, and repeats the set until
// the run ends.
func (r *run) keepLite(t *topic) {
	r.lite.enter()
	defer r.lite.leave()
	failures := 0
	var outage recovery
	for receiving := false; ; {
		accepted, err := r.lite.sync(r.running)
		if accepted && !receiving {
			receiving = true
			r.receivers.Go(func() { r.watchQueues(t) })
			r.receivers.Go(func() { r.awaitLiteEnds(t) })
		}
		if err == nil {
			failures, outage = 0, recovery{}
			if r.pause(liteInterval) != nil {
				return
			}
			continue
		}
		if r.running.Err() != nil {
			return
		}
		wait, end := r.receiveFailed(t, "sending the lite topics failed", err, failures)
		if failures++; end || outage.await(r.running, r.transport, wait, err) != nil {
			return
		}
	}
}

// errLiteServe is the error of a ServeLite that ended without an error before its ctx.
var errLiteServe = errors.New("the transport's ServeLite has returned")

// awaitLiteEnds removes the lite topics that the server ends, until the run ends. A server reports
// them to one ServeLite of a consumer.
func (r *run) awaitLiteEnds(t *topic) {
	select {
	case r.lite.serving <- struct{}{}:
		defer func() { <-r.lite.serving }()
	case <-r.running.Done():
		return
	}
	failures := 0
	var outage recovery
	for {
		begin := time.Now()
		err := cmp.Or(r.lite.server.ServeLite(r.running, r.lite.LiteConsumer, func(name string) { r.liteEnded(t, name) }), errLiteServe)
		if r.running.Err() != nil {
			return
		}
		if time.Since(begin) > liteInterval {
			failures, outage = 0, recovery{}
		}
		wait := receiveWait(guard.Policy("ReceiveBackoff", r.opts.ReceiveBackoff, r.reportPanic), failures, err)
		r.log.Warn("waiting for the ends of lite topics failed", "topic", t.name, "group", r.sub.Group, "error", err, "retry_in", wait)
		if failures++; outage.await(r.running, r.transport, wait, err) != nil {
			return
		}
	}
}

// liteEnded removes a lite topic that the server has ended, and reports it.
func (r *run) liteEnded(t *topic, liteTopic string) {
	if !r.lite.end(liteTopic) {
		return
	}
	r.log.Info("the server ended the subscription to a lite topic", "topic", t.name, "group", r.sub.Group, "lite_topic", liteTopic)
	if r.opts.OnLiteEnd != nil {
		r.announcer.Do(func() {
			r.guard("OnLiteEnd panicked", "", func() { r.opts.OnLiteEnd(liteTopic) })
		})
	}
}

// ordered reports whether messages of the subscription have an order: those of a message group in a
// FIFO group, and those of a lite topic.
func (r *run) ordered(s *transport.ConsumerSettings) bool { return s.FIFO || r.lite != nil }
