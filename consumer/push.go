package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// A Transport has the methods of a transport that a push consumer calls.
type Transport interface {
	transport.Receiver
	transport.Settler
	transport.Configurer
}

// A Push consumer receives messages and calls a handler for each, or for batches of them. Several
// goroutines may call its methods at the same time. Create one with [NewPush] or [NewBatch]. It
// needs no Close.
type Push struct {
	transport    Transport
	sub          Subscription
	handler      Handler
	opts         PushOptions
	policies     *policySet
	batchHandler BatchHandler // nil if handler gets single messages
	limits       limits
	logsNothing  bool  // PushOptions.Logger is nil
	lite         *lite // nil without Subscription.Lite

	mu     sync.Mutex
	paused bool
	runs   map[*run]struct{}
}

// NewPush returns a consumer of sub that receives through t and calls handler for each message. It
// sends no request before [Push.Run]. The error joins all faults of the arguments.
func NewPush(t Transport, sub Subscription, handler Handler, opts PushOptions) (*Push, error) {
	var f faults
	if handler == nil {
		f.add("handler", "it is nil; give the function that consumes a delivery")
	}
	if opts.Batch != (BatchOptions{}) {
		f.add("Batch", "it has an effect only with NewBatch")
	}
	return newPush(f, t, sub, handler, opts)
}

// newPush returns a consumer, or an error that joins f with all other faults.
func newPush(f faults, t Transport, sub Subscription, handler Handler, opts PushOptions) (*Push, error) {
	if t == nil {
		f.add("transport", "it is nil; give the transport to receive through")
	}
	set, err := newPolicySet(opts.Policies...)
	if err != nil {
		f.append(err)
	}
	f.subscription(sub)
	f.lite(t, &sub, &opts)
	f.push(opts)
	if err := f.err(); err != nil {
		return nil, err
	}
	for i, wrap := range slices.Backward(opts.Middleware) {
		handler = f.middleware(fmt.Sprintf("Middleware[%d]", i), wrap, handler)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	sub.Topics = maps.Clone(sub.Topics)
	p := &Push{transport: t, sub: sub, handler: handler, opts: opts.withDefaults(), policies: set, logsNothing: opts.Logger == nil, runs: map[*run]struct{}{}}
	if server, ok := t.(transport.LiteSubscriber); ok && sub.Lite {
		p.lite = newLite(server, &sub)
	}
	return p, nil
}

// Pause stops receiving and handling until [Push.Resume]. Running handlers continue. Messages that
// wait for a handler are released on servers that do not count this as an attempt
// ([transport.Capabilities].Suspend), and wait on others. Pause returns at once. Pausing a paused
// consumer has no effect.
func (p *Push) Pause() { p.setPaused(true) }

// Resume ends a [Push.Pause].
func (p *Push) Resume() { p.setPaused(false) }

func (p *Push) setPaused(paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = paused
	for r := range p.runs {
		r.effects.Go(func() { r.follow(r.hand.pause(p.isPaused(), time.Now())) })
	}
}

func (p *Push) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused
}

// A run is one call of Run. No goroutine holds two of the locks of run, hand, batches, pools, lite
// and Push, with two exceptions: Push.mu is held while a pause is announced to the runs, and
// lite.turn, which is held across a request, is taken before lite.mu.
type run struct {
	*Push
	log    *slog.Logger
	events *tally.Log // lines about deliveries
	hand   *hand

	// The contexts live as long as the run.
	running  context.Context         //nolint:containedctx // Run's; ends with it or with a rejection
	fatal    context.CancelCauseFunc // ends running with a rejection
	detached context.Context         //nolint:containedctx // Run's without its end
	handlers context.Context         //nolint:containedctx // ends with ErrShutdown when the handlers' contexts do
	polling  context.Context         //nolint:containedctx // parent of the receives'; ends with handlers
	settling context.Context         //nolint:containedctx // parent of the settlements'; ends when the time to shut down is over

	topics    []*topic // sorted by name
	ackers    sync.Map // ackKey → *batcher[*item]
	settlers  *pool
	renewers  *pool
	announcer *pool // of one goroutine: keeps the order of the kill switch's events
	receivers sync.WaitGroup
	effects   sync.WaitGroup // workers, requests that settle, and maintainLeases
	spent     sync.Once
	gatherer  *gatherer[batched]

	mu sync.Mutex // guards refusals and warned of the topics
}

// Run consumes until ctx ends. Then it stops receiving, waits for the running handlers, settles
// their messages, and returns nil. Messages that wait for a handler are released on servers with
// [transport.Capabilities].Suspend. On others, such as RocketMQ, a release would count as an
// attempt, so these messages are handled.
//
// Run does not return before all handlers have returned. The contexts of the handlers end after
// nine tenths of PushOptions.ShutdownTimeout. If the handlers return then, Run returns within
// ShutdownTimeout, and messages that are not settled by then are delivered again. A handler that
// returns after ShutdownTimeout delays Run by at most a second more, for the settlement of its
// message. On servers without [transport.Capabilities].RepeatReceive, such as RocketMQ, the
// stop waits up to 5 s for the receives under way, and the messages of these receives are handled.
//
// Run repeats failed receives, also those of a topic or group that does not exist yet; see
// PushOptions.OnReceiveFailure. Before the end of ctx it stops in the same way and returns an error
// in three cases:
//
//   - the transport was closed;
//   - the server rejected the arguments of the subscription to one of its topics;
//   - the server has rejected the credentials for all topics for more than a minute.
//
// Run may be called again after it has returned, and by several goroutines at the same time. Each
// call has its own handlers, buffers and kill switch.
func (p *Push) Run(ctx context.Context) error {
	r := &run{Push: p, log: p.opts.Logger, events: tally.New(p.opts.Logger), hand: newHand(&p.opts), topics: p.sub.newTopics()}
	r.hand.hurry = r.hurryAcks
	r.gatherer = newGather(p.limits, r.handleBatch)
	r.running, r.fatal = context.WithCancelCause(ctx)
	defer r.fatal(nil)
	r.detached = context.WithoutCancel(ctx)
	handlers, endHandlers := context.WithCancelCause(r.detached)
	defer endHandlers(nil)
	polling, endPolling := context.WithCancel(r.detached)
	defer endPolling()
	settling, endSettling := context.WithCancel(r.detached)
	defer endSettling()
	r.handlers, r.polling, r.settling = handlers, polling, settling
	r.settlers = newPool(settleRequests, r.effects.Go)
	r.announcer = newPool(1, r.effects.Go)
	r.renewers = newPool(max(settleRequests, p.opts.Concurrency), r.effects.Go)

	maintaining, endMaintaining := context.WithCancel(r.detached)
	defer endMaintaining()
	r.effects.Go(func() { r.maintainLeases(maintaining) })
	r.join()
	r.receivers.Add(1) // until no further receiver starts
	for _, t := range r.topics {
		if r.lite != nil {
			r.receivers.Go(func() { r.keepLite(t) }) // begins to receive when the server has the set
			continue
		}
		r.receivers.Go(func() { r.watchQueues(t) })
	}
	<-r.running.Done()
	begin := time.Now()

	timeout := p.opts.ShutdownTimeout
	last := time.AfterFunc(timeout-timeout/10, func() {
		endHandlers(ErrShutdown)
		endPolling()
		r.follow(r.hand.stop(true))
	})
	defer last.Stop()
	over := time.AfterFunc(timeout, func() {
		endSettling()
		r.concludePostponed()
	})
	defer over.Stop()
	r.hurryAcks()
	r.follow(r.hand.stop(false))
	r.receivers.Done()
	r.receivers.Wait()
	r.hand.close()
	<-r.hand.empty
	r.leaveRuns()
	endMaintaining()
	r.effects.Wait()
	r.events.Close()
	r.reportStop(time.Since(begin))
	if r, ok := errors.AsType[*refusal](context.Cause(r.running)); ok { // a rejection, not the end of ctx, which may have come later
		return fmt.Errorf("consume %q for %q: %w", r.topic, p.sub.Group, r.error)
	}
	return nil
}

// settleRequests is the largest number of concurrent settlement requests of a run, except
// acknowledgements.
const settleRequests = 64

// A refusal is a cause of a run's end other than the end of Run's ctx.
type refusal struct {
	error
	topic string
}

func (r *run) join() {
	r.Push.mu.Lock()
	r.Push.runs[r] = struct{}{}
	r.Push.mu.Unlock()
	r.follow(r.hand.pause(r.isPaused(), time.Now()))
}

func (r *run) leaveRuns() {
	r.Push.mu.Lock()
	defer r.Push.mu.Unlock()
	delete(r.Push.runs, r)
}

func (r *run) reportStop(took time.Duration) {
	s := r.hand.stopReport()
	s.Took = took
	r.log.Info("consumer stopped", "topic", r.topicNames(), "group", r.sub.Group, "duration", took, "acked", s.Acked,
		"retried", s.Retried, "released", s.Released, "cancelled", s.Cancelled, "unsettled", s.Unsettled)
	if r.opts.OnStop != nil {
		r.guard("OnStop panicked", "", func() { r.opts.OnStop(s) })
	}
}

// follow carries out the actions after a change of the deliveries in hand.
func (r *run) follow(c change) {
	r.hire(c.hire)
	for _, cancel := range c.end {
		cancel(ErrShutdown)
	}
	for _, cancel := range c.interrupt {
		cancel()
	}
	for _, it := range c.release {
		r.carryOut(it)
	}
	for _, s := range c.fetch {
		r.help(s)
	}
	r.announce(c.events)
}

// EffectivePolicy returns the retry policy in effect for the message, with the source of each
// value: a policy of PushOptions.Policies, Subscription.Retry, the server's settings, or the
// default. Only Topic, Tag and Properties of m count. An empty Topic means Subscription.Topic. The
// message need not exist.
//
// EffectivePolicy requests the server's settings, and blocks until there is a response or ctx ends.
// If it cannot read the settings, it returns the error and the values in effect without them. The
// server's settings include address settings of a tidegate broker. Their redelivery delays also
// override the delays of a policy; EffectivePolicy does not report this.
//
//	e, err := c.EffectivePolicy(ctx, &tidegate.Message{Tag: "invoice"})
//	fmt.Println(e)
//	fmt.Println(e.Preview())
func (p *Push) EffectivePolicy(ctx context.Context, m *tidegate.Message) (policy.Effective, error) {
	asked := tidegate.Message{Topic: m.Topic, Tag: m.Tag, Properties: m.Properties}
	if asked.Topic == "" {
		asked.Topic = p.sub.Topic
	}
	b := policyBase{Retry: p.sub.Retry, Capabilities: p.transport.Capabilities("")}
	err := tidegate.ValidateTopic(asked.Topic)
	if err == nil {
		b.Server, err = p.transport.ConsumerSettings(ctx, p.sub.Group, asked.Topic)
	}
	if err != nil {
		err = fmt.Errorf("consumer: effective policy of %q: %w", asked.Topic, err)
	}
	return p.policies.Effective(&asked, b), err
}

// refresh is the time between two requests for the server's settings and queues.
const refresh = 10 * time.Second

// watchQueues keeps one receive loop for each queue of the topic until the run ends.
func (r *run) watchQueues(t *topic) {
	sources := map[int]*source{}
	failures := 0
	var outage recovery
	for r.running.Err() == nil {
		wait := refresh
		pause := r.pause
		queues, err := r.refresh(r.running, t)
		switch {
		case r.running.Err() != nil:
			return
		case err == nil:
			failures, outage = 0, recovery{}
			r.setQueues(t, sources, queues)
		case t.settings.Load() == nil:
			// Without the settings the order of the group is unknown.
			var end bool
			if wait, end = r.receiveFailed(t, "reading the group's settings failed", err, failures); end {
				return
			}
			failures++
			pause = func(d time.Duration) error { return outage.await(r.running, r.transport, d, err) }
		default:
			// The earlier settings remain in effect. The receive loops report every other fault.
			r.log.Debug("rereading the group's settings failed",
				"topic", t.name, "group", r.sub.Group, "error", err)
		}
		if pause(wait) != nil {
			return
		}
	}
}

// setQueues starts loops for new queues, and ends those of removed queues.
func (r *run) setQueues(t *topic, sources map[int]*source, queues []int) {
	r.hand.addSources(len(queues) - len(sources))
	for _, q := range queues {
		if sources[q] == nil {
			s := &source{topic: t, queue: q}
			sources[q] = s
			r.receivers.Go(func() { r.receive(s, false) })
		}
	}
	for q, s := range sources {
		if !slices.Contains(queues, q) {
			delete(sources, q)
			for _, cancel := range r.hand.remove(s) {
				cancel()
			}
		}
	}
}

// refresh reads the server's settings for the topic and the queues to receive from.
func (r *run) refresh(ctx context.Context, t *topic) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, refresh)
	defer cancel()
	s, err := r.transport.ConsumerSettings(ctx, r.sub.Group, t.name)
	if err != nil {
		return nil, err
	}
	queues, err := r.transport.Queues(ctx, r.sub.Group, t.name)
	if err != nil {
		return nil, err
	}
	t.settings.Store(&s)
	return queues, nil
}

// settingsOf returns the settings for a topic of the server at endpoint, or of the transport if it
// does not know them for each server.
func (r *run) settingsOf(t *topic, endpoint string) *transport.ConsumerSettings {
	if endpoint == "" { // there was no delivery
		return t.settings.Load()
	}
	if c, ok := r.transport.(transport.EndpointConfigurer); ok {
		if s, ok := c.EndpointSettings(endpoint, r.sub.Group, t.name); ok {
			return &s
		}
	}
	return t.settings.Load()
}

// capsOf returns the capabilities of the server at endpoint.
func (r *run) capsOf(endpoint string) transport.Capabilities {
	return r.transport.Capabilities(endpoint)
}

// ofSource returns the settings and capabilities of the server that delivered last from a queue.
func (r *run) ofSource(s *source) (*transport.ConsumerSettings, transport.Capabilities) {
	endpoint := r.hand.endpointOf(s)
	return r.settingsOf(s.topic, endpoint), r.capsOf(endpoint)
}

func (h *hand) endpointOf(s *source) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.endpoint
}

func (h *hand) addSources(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sources += n
	h.credits.SetSources(max(1, h.sources))
}

// startHelper starts another loop of the queue, unless there are enough or the run stops. It calls
// start under the lock, so that no loop starts after stop.
func (h *hand) startHelper(s *source, start func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped && s.helpers < overlap-1 {
		s.helpers++
		start()
	}
}

func (h *hand) endHelper(s *source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.helpers--
}
