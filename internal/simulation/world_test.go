package simulation

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
)

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
