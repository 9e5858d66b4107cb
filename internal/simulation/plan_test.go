package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
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
}

// A clientPlan is a transport. Several producers and consumers can share it.
type clientPlan struct {
	name      string
	inProcess bool // false: gRPC
	failover  bool // over all brokers; false: the first broker alone

	throttleGrace, switchBack time.Duration // of the failover
}

// A topicPlan is a topic, which all brokers have.
type topicPlan struct {
	name       string
	fifo       bool
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
	p := &plan{seed: seed, duration: d.span(20*time.Second, 3*time.Minute), brokers: 1}
	if d.chance(0.5) {
		p.brokers = 2
	}
	for i := range d.between(1, 2) {
		p.topics = append(p.topics, topicPlan{name: fmt.Sprintf("topic%d", i), fifo: d.chance(0.5), queues: d.between(1, 4), maxBacklog: int64(pick(d, 0, 0, 20, 200))})
	}
	for i := range d.between(1, 3) {
		c := clientPlan{name: fmt.Sprintf("client%d", i), inProcess: d.chance(0.3), failover: p.brokers > 1}
		if c.failover {
			c.throttleGrace, c.switchBack = d.span(time.Second, 30*time.Second), d.span(2*time.Second, time.Minute)
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
	for range d.between(0, 8) {
		p.faults = append(p.faults, p.newFault(d))
	}
	return p
}

// String returns the plan as text, for people.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d brokers, first phase %v\n", p.seed, p.brokers, p.duration)
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
