package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
)

// A plan is everything that a seed determines.
type plan struct {
	seed      uint64
	duration  time.Duration // of the first phase; all faults and all sends begin in it
	brokers   int
	clients   []clientPlan
	topics    []topicPlan
	producers []producerPlan
	groups    []groupPlan
	faults    []fault
	theme     theme
	latency   time.Duration // the longest time of a request and of its response on the network
}

// A theme makes the faults of a plan similar, so that they meet.
type theme string

const (
	mixed     theme = "mixed"
	throttled theme = "throttled" // throttles of sends, many of them late
	leaving   theme = "leaving"   // the first broker throttles or fails for long, the second one works
	queried   theme = "queried"   // throttles of queries
	failing   theme = "failing"   // handlers fail
	waiting   theme = "waiting"   // many callers wait for a limiter whose rate recovers from a throttle
)

// A clientPlan is a transport. Several producers and consumers can share it.
type clientPlan struct {
	name      string
	inProcess bool // false: gRPC
	failover  bool // over all brokers; false: the first broker alone

	throttleGrace, switchBack time.Duration // of the failover
	panics                    bool          // its OnSwitch panics
}

// A topicPlan is a topic, which all brokers have.
type topicPlan struct {
	name       string
	kind       settings.TopicType
	queues     int
	maxBacklog int64 // messages; 0: no limit
}

// dice are the random choices of a plan.
type dice struct{ *rand.Rand }

func newDice(seed uint64, purpose string) dice {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return dice{rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// chance is true with probability p.
func (d dice) chance(p float64) bool { return d.Float64() < p }

// span returns a duration from least to most. Short ones are as probable as long ones: each
// doubling
// has the same probability.
func (d dice) span(least, most time.Duration) time.Duration {
	ratio := float64(most) / float64(least)
	x := float64(least) * pow(ratio, d.Float64())
	return time.Duration(x).Round(time.Millisecond)
}

// between returns a number from least to most.
func (d dice) between(least, most int) int { return least + d.IntN(most-least+1) }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// newPlan returns the plan of a seed. It is a pure function.
func newPlan(seed uint64) *plan {
	d := newDice(seed, "plan")
	p := &plan{seed: seed, duration: d.span(20*time.Second, 4*time.Minute), brokers: d.between(1, 2)}
	p.latency = pick(d, 0, d.span(time.Millisecond, 300*time.Millisecond))
	p.theme = pick(d, mixed, mixed, mixed, throttled, leaving, queried, failing)
	if p.theme == mixed && newDice(seed, "theme").chance(0.07) { // by dice of its own: other seeds keep their plans
		p.theme = waiting
	}
	longestGrace := 30 * time.Second
	switch p.theme {
	case leaving:
		p.brokers, longestGrace = 2, 5*time.Second
		fallthrough
	case throttled: // many sends and faults in a short time
		p.duration = d.span(3*time.Second, 40*time.Second)
	}
	for i := range d.between(1, 2) {
		p.topics = append(p.topics, topicPlan{name: fmt.Sprintf("topic%d", i), kind: pick(d, settings.TopicNormal, settings.TopicNormal, settings.TopicFIFO, settings.TopicFIFO, settings.TopicTransaction, settings.TopicDelay), queues: d.between(1, 4), maxBacklog: int64(pick(d, 0, 0, 20, 200))})
	}
	for i := range d.between(1, 3) {
		c := clientPlan{name: fmt.Sprintf("client%d", i), inProcess: d.chance(0.3), failover: p.brokers > 1}
		if c.failover {
			c.throttleGrace, c.switchBack = d.span(longestGrace/30, longestGrace), d.span(2*time.Second, time.Minute)
			c.panics = d.chance(0.1)
		}
		p.clients = append(p.clients, c)
	}
	for _, t := range p.topics {
		for range d.between(1, 2) {
			p.producers = append(p.producers, p.newProducer(d, t))
		}
		for range d.between(1, 2) {
			p.groups = append(p.groups, p.newGroup(d, t))
		}
	}
	others := 8
	switch p.theme {
	case leaving:
		others, p.faults = 0, append(p.faults, p.newLongFault(d))
		if d.chance(0.6) {
			p.sendSteadily(d)
		}
	case throttled:
		others = 1
		p.throttleLate(d)
	case waiting:
		others = 0
		p.throttleBriefly(d)
	}
	for range d.between(0, others) {
		p.faults = append(p.faults, p.newFault(d))
	}
	p.boundProbes()
	return p
}

// maxProbed is the number of messages that fail, in the mean, in a group with a kill switch. Each
// of them costs up to gate.MaxExcuses probes of two seconds, and a probe receives and releases many
// other messages: with hundreds of them a seed takes an hour of virtual time that repeats the same.
const maxProbed = 30

// boundProbes bounds the work of kill switches. If the plan does not test sends, the callers send
// fewer messages. If that is not enough, fewer of the messages fail.
func (p *plan) boundProbes() {
	for i := range p.groups {
		g := &p.groups[i]
		if !slices.ContainsFunc(g.consumers, func(c consumerPlan) bool { return c.killSwitch }) {
			continue
		}
		excess := float64(p.messages(g.topic)) * (g.poison + g.failing) / maxProbed
		if excess > 1 && p.theme != throttled && p.theme != leaving && p.theme != waiting {
			for j := range p.producers {
				if x := &p.producers[j]; x.topic == g.topic {
					before := x.messages
					x.messages = max(1, int(float64(before)/excess))
					x.gap = x.gap * time.Duration(before) / time.Duration(x.messages)
				}
			}
			excess = float64(p.messages(g.topic)) * (g.poison + g.failing) / maxProbed
		}
		if excess > 1 {
			g.poison, g.failing = g.poison/excess, g.failing/excess
		}
	}
}

// messages returns the number of messages that the callers send to a topic, at most.
func (p *plan) messages(topic string) (n int) {
	for _, x := range p.producers {
		if x.topic == topic {
			n += x.callers * x.messages
		}
	}
	return n
}

// throttleLate makes the first broker throttle some of the sends, many of them late, and be slow to
// accept the others.
func (p *plan) throttleLate(d dice) {
	f := fault{kind: throttle, requests: sends, share: pick(d, 0.3, 0.6, 1), lasts: d.span(p.duration/4, p.duration*9/10)}
	f.at = pick(d, 0, time.Duration(d.Int64N(int64(p.duration-f.lasts))))
	f.late = pick(d, time.Millisecond, d.span(300*time.Millisecond, 3*time.Second))
	p.faults = append(p.faults, f)
	p.sendSteadily(d)
}

// throttleBriefly makes the first broker throttle all sends for a short time, in which many callers
// begin to wait for the adaptive limiter.
func (p *plan) throttleBriefly(d dice) {
	p.sendSteadily(d)
	p.duration, p.latency = d.span(10*time.Second, 40*time.Second), 0
	p.faults = append(p.faults, fault{kind: throttle, requests: sends, share: 1, lasts: d.span(500*time.Millisecond, 3*time.Second)})
	for i := range p.producers {
		x := &p.producers[i]
		x.limiter, x.timeout, x.backoff = "adaptive", 0, time.Second
		x.callers, x.messages, x.gap = pick(d, 100, 300), 2, time.Second
	}
	for i := range p.topics {
		p.topics[i].maxBacklog = 0
	}
}

// sendSteadily makes the producers send all the time, from many callers, to brokers with a latency.
func (p *plan) sendSteadily(d dice) {
	p.latency = d.span(10*time.Millisecond, 500*time.Millisecond)
	most := 500
	if p.theme == throttled { // each late throttle has to meet a probe
		most = 1000
	}
	for i := range p.producers {
		x := &p.producers[i]
		x.timeout, x.stopAt, x.maxPending, x.whenFull, x.attemptTimeout, x.maxThrottleTime = pick(d, 0, 0, time.Minute), 0, 0, producer.WaitWhenFull, 0, 0
		x.maxThrottles, x.limiter, x.budget, x.spool = producer.UntilContextEnds, pick(d, "", "", "adaptive"), false, false
		x.callers = pick(d, 20, 100, 300)
		x.messages = max(1, d.between(most/5, most)/x.callers)
		x.gap = p.duration / time.Duration(x.messages) / time.Duration(pick(d, 1, 1, 10))
	}
}

// String returns the plan as text, for people.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d brokers, first phase %v, theme %s, latency %v\n", p.seed, p.brokers, p.duration, p.theme, p.latency)
	for _, c := range p.clients {
		fmt.Fprintf(&b, "  client %+v\n", c)
	}
	for _, t := range p.topics {
		fmt.Fprintf(&b, "  topic %+v\n", t)
	}
	for _, x := range p.producers {
		fmt.Fprintf(&b, "  producer %+v\n", x)
	}
	for _, g := range p.groups {
		fmt.Fprintf(&b, "  group %+v\n", g)
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "  fault %v\n", f)
	}
	return b.String()
}

// wide reports whether a consumer needs the idle topics.
func (p *plan) wide() bool {
	return slices.ContainsFunc(p.groups, func(g groupPlan) bool {
		return slices.ContainsFunc(g.consumers, func(c consumerPlan) bool { return c.wide })
	})
}

// lastFault returns the time at which the last fault ends.
func (p *plan) lastFault() (end time.Duration) {
	for _, f := range p.faults {
		end = max(end, f.at+f.lasts)
	}
	return end
}

// group returns the plan of a consumer group.
func (p *plan) group(name string) *groupPlan {
	for i := range p.groups {
		if p.groups[i].name == name {
			return &p.groups[i]
		}
	}
	return nil
}

func pow(x, y float64) float64 { return math.Pow(x, y) }

// A world has the brokers, clients and faults that a plan creates.
type world struct {
	t       *testing.T
	plan    *plan
	book    *book
	start   time.Time
	sites   []*site
	clients []*client
	senders []*sender
	ledger  ledger

	sentBack map[string]bool // the names of the messages whose dead letters jobs have sent back

	sendsEnded time.Duration // when no call of a producer was under way any more, except for canaries

	adaptive *ratelimit.Adaptive // of all producers with an adaptive limiter
}

// A client is a transport of a plan, with the count of its calls.
type client struct {
	plan      clientPlan
	Transport transport.Transport // with the optional methods of its kind; a field, because embedding hides them
	meter     *meter
}

func (w *world) now() time.Duration { return time.Since(w.start) }

// newWorld creates the brokers, topics, groups and clients of a plan.
func newWorld(t *testing.T, p *plan) *world {
	w := &world{t: t, plan: p, start: time.Now(), sentBack: map[string]bool{}}
	w.book = newBook(w)
	var err error
	if w.adaptive, err = ratelimit.NewAdaptive(ratelimit.AdaptiveOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range p.brokers {
		memory := broker.NewMemory()
		if slices.ContainsFunc(p.faults, func(f fault) bool { return f.kind == powerLoss && f.broker == i }) {
			memory = crashable()
		}
		s := &site{w: w, number: i, memory: memory, Broker: brokertest.NewWith(t, brokertest.Options{
			Broker: broker.Options{CacheBytes: 1 << 20, Memory: memory},
		})}
		s.engine.Store(s.Broker.Broker)
		for _, f := range p.faults {
			if f.broker == i && f.onRequests() {
				s.faults = append(s.faults, f)
			}
		}
		s.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			return s.around(ctx, call.Op, next)
		})
		for _, topic := range p.topics {
			s.CreateTopic(topic.name, topic.config())
		}
		if p.wide() {
			for _, name := range idleTopics {
				s.CreateTopic(name, settings.Topic{Queues: 1})
			}
		}
		for _, g := range p.groups {
			s.CreateGroup(g.name, g.config())
		}
		w.sites = append(w.sites, s)
	}
	for _, c := range p.clients {
		w.clients = append(w.clients, w.newClient(c))
	}
	return w
}

func (t topicPlan) config() settings.Topic {
	return settings.Topic{
		Type: t.kind, Queues: t.queues, MaxBacklog: settings.Limit{Messages: t.maxBacklog},
		Transaction: settings.Transaction{Timeout: settings.Duration(2 * time.Second), CheckInterval: settings.Duration(3 * time.Second), CheckMax: -1},
	}
}

// newClient returns the transport of a plan.
func (w *world) newClient(p clientPlan) *client {
	m := &meter{w: w, name: p.name}
	if !p.failover {
		return &client{p, m.count(w.sites[0].endpoint(p.inProcess)), m}
	}
	var ends []failover.Endpoint
	for i, s := range w.sites {
		m := &meter{w: w, name: fmt.Sprintf("%s's endpoint %d", p.name, i)}
		ends = append(ends, failover.Endpoint{Name: fmt.Sprintf("broker%d", i), Transport: m.count(s.endpoint(p.inProcess))})
	}
	f := assert.Value(failover.New(ends, failover.Options{
		ThrottleGrace: p.throttleGrace, SwitchBack: p.switchBack,
		OnSwitch: func(e failover.Event) {
			w.book.note("%s switches from %s to %s: %v (%v)", p.name, e.From, e.To, e.Reason, e.Err)
		},
	}))(w.t)
	return &client{p, m.count(f), m}
}

// endpoint returns a transport to the broker.
func (s *site) endpoint(inProcess bool) transport.Transport {
	if inProcess {
		return &inProcessTransport{s: s}
	}
	return s.Client()
}

func (w *world) closeClients() {
	for _, c := range w.clients {
		if err := c.Transport.Close(); err != nil {
			w.book.fail("%s: close: %v", c.plan.name, err)
		}
	}
}

func (w *world) closeBrokers() {
	for _, s := range w.sites {
		if err := s.Close(); err != nil {
			w.book.fail("broker %d: close: %v", s.number, err)
		}
	}
}

// An act is a change of a broker at a time of the plan.
type act struct {
	at   time.Duration
	name string
	do   func()
}

// acts returns the faults that change a broker, in the order of their times.
func (w *world) acts() (list []act) {
	for _, f := range w.plan.faults {
		s := w.sites[f.broker]
		switch f.kind {
		case disconnect:
			list = append(list, act{f.at, "disconnect", s.cut}, act{f.at + f.lasts, "reconnect", s.mend})
		case powerLoss:
			list = append(list, act{f.at, "power loss", func() { s.losePower(f) }}, act{f.at + f.lasts, "restart", s.restart})
		case restart:
			list = append(list, act{f.at, "stop", s.cut}, act{f.at + f.lasts, "restart", s.restart})
		}
	}
	return list
}
