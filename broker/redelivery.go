package broker

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// The defaults of seed 002's address settings. They hold for every topic that
// has redelivery settings at all; the delays default to 0.
const (
	DefaultRedeliveryDelayMultiplier = 1.0
	DefaultMaxRedeliveryDelayFactor  = 10 // of redelivery-delay
	DefaultMaxDeliveryAttempts       = 10 // deliveries, the first one included
	DefaultDeadLetterQueuePrefix     = "DLQ."
)

// An addressPolicy is what the address settings that match a topic make of it.
type addressPolicy struct {
	redelivery    *redelivery // nil: none of them says anything about it
	keepQueues    bool        // auto-delete-queues is false
	persist       bool        // persist-delivery-count-before-delivery
	expiry        time.Duration
	expiryAddress string
}

// A redelivery is seed 002's settings with every default filled in.
type redelivery struct {
	delay, longest     time.Duration
	multiplier, factor float64
	maxAttempts        int // -1: for ever
	deadLetter         string
	autoCreate         bool
	prefix, suffix     string
}

// A policy is what holds for a group's messages of one topic: the group's
// settings, and where address settings say something of redelivery, these.
type policy struct {
	group   *GroupConfig
	address *addressPolicy
}

func (s *subscription) policy() policy {
	return policy{s.group.config.Load(), s.topic.address.Load()}
}

// A draw is what redelivery-collision-avoidance-factor needs of chance:
// "either positive or negative at random", and "a random number between 0.0 and 1.0".
type draw struct {
	negative bool
	number   float64
}

// draw is drawn once for each failure of a message: from its record, so that
// the same due time follows from it after a restart.
func (s *subscription) draw(l *lease) draw {
	p := s.place(l)
	x := uint64(s.group.id)
	for _, v := range [...]uint64{uint64(p.Topic), uint64(p.Queue), uint64(p.Offset), uint64(l.Serial), uint64(l.Attempt)} {
		x = mix(x + 0x9e3779b97f4a7c15 + v)
	}
	return draw{negative: x&1 == 1, number: float64(x>>11) / (1 << 53)}
}

// mix spreads the bits of x over the result (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// after returns the delay after delivery attempt failed: redelivery-delay,
// times the multiplier for each failure before, no more than
// max-redelivery-delay; then chance adds or takes a part of it, still within the maximum.
func (r *redelivery) after(attempt int, d draw) time.Duration {
	if r.delay <= 0 {
		return 0
	}
	longest := float64(r.longest)
	delay := min(float64(r.delay)*math.Pow(r.multiplier, float64(max(attempt, 1)-1)), longest)
	factor := r.factor
	if d.negative {
		factor = -factor
	}
	delay = min(delay+delay*(factor*d.number), longest)
	return min(time.Duration(math.Round(delay)), r.longest) // a float64 may round up
}

// interval returns the retry interval after delivery attempt of a push consumer failed.
func (p policy) interval(attempt int, d draw) time.Duration {
	if r := p.address.redelivery; r != nil {
		return r.after(attempt, d)
	}
	return p.group.interval(attempt)
}

// exhaustedBy is exhausted for an event: a negative acknowledgement, and the
// wait after one, do not have the group's maximum but one of their own.
func (p policy) exhaustedBy(e event, l *lease) bool {
	switch {
	case e == eventNegativeAck:
		most := p.group.NegativeAck.MaxRedeliveries
		return most > 0 && l.Attempt > most
	case e == eventDue && l.Negative:
		return false
	}
	return p.exhausted(l.Attempt)
}

// overrides reports whether the broker's interval goes before the one that a
// push consumer asks for.
func (p policy) overrides() bool { return p.address.redelivery != nil }

// maxAttempts is how often a message is delivered; -1 for ever.
func (p policy) maxAttempts() int {
	if r := p.address.redelivery; r != nil {
		return r.maxAttempts
	}
	return p.group.MaxAttempts
}

// exhausted reports whether delivery attempt was the last one.
func (p policy) exhausted(attempt int) bool {
	if r := p.address.redelivery; r != nil {
		return r.maxAttempts > 0 && attempt >= r.maxAttempts
	}
	return p.group.exhausted(attempt)
}

// keeps reports whether a message that e makes a dead letter is never merely
// removed, whatever address settings say of those that had their last delivery
// attempt: somebody made it one before that, or by another maximum.
func (p policy) keeps(e event, attempt int) bool {
	return e == eventNegativeAck || e == eventRedrive || e == eventDeadLetter && !p.exhausted(attempt)
}

// deadLetterTopics returns the topics that a message of group, in topic, goes
// to when it is given up; none: it is removed, unless keep is set.
func (p policy) deadLetterTopics(group, topic string, keep bool) []string {
	own := []string{p.ownDeadLetterTopic(group, topic)}
	r := p.address.redelivery
	switch {
	case r == nil, keep && r.deadLetter == "":
		return own
	case r.deadLetter == "":
		return nil
	case topic == r.deadLetter || r.autoCreate && r.isQueue(topic):
		return own // or dead letters that fail would come back to where they are
	}
	out := []string{r.deadLetter}
	if q := r.prefix + topic + r.suffix; r.autoCreate && q != topic && q != r.deadLetter && tidegate.ValidateTopic(q) == nil {
		out = append(out, q)
	}
	return out
}

// ownDeadLetterTopic returns the topic that it goes to where address settings say nothing.
func (p policy) ownDeadLetterTopic(group, topic string) string {
	if c := p.group.RetryTopic; c.Enabled {
		from, _ := c.original(topic, group)
		if name := c.deadLetterTopic(cmp.Or(from, topic), group); name != topic && tidegate.ValidateTopic(name) == nil {
			return name
		}
	}
	return tidegate.DeadLetterTopic(group)
}

// isQueue reports whether a name is that of an automatic dead-letter queue.
func (r *redelivery) isQueue(topic string) bool {
	return r.prefix+r.suffix != "" && len(topic) > len(r.prefix+r.suffix) &&
		strings.HasPrefix(topic, r.prefix) && strings.HasSuffix(topic, r.suffix)
}

// maxToldSteps bounds the ladder that is told to clients.
const maxToldSteps = 32

// ladder is the intervals as a client is told them, without chance.
func (p policy) ladder() backoff.Steps {
	r := p.address.redelivery
	if r == nil {
		return p.group.Ladder()
	}
	steps := backoff.Steps{r.after(1, draw{})}
	for n := 2; n <= maxToldSteps; n++ {
		steps = append(steps, r.after(n, draw{}))
	}
	for len(steps) > 1 && steps[len(steps)-1] == steps[len(steps)-2] { // the last step repeats anyway
		steps = steps[:len(steps)-1]
	}
	return steps
}

// A RetryPolicy is what a client of a group is told about redelivery.
type RetryPolicy struct {
	MaxAttempts int           // deliveries of one message; -1 for ever
	Ladder      backoff.Steps // the interval after the first failure, the second, ...; the last one repeats
}

// RetryInterval returns the interval, without chance, after which a message
// comes again whose delivery d failed: that after attempt d.Attempt or, if that is 0, after
// the one that the handle names. 40013 for a handle that is none, and,
// without an attempt, for one that is not valid any more.
func (b *Broker) RetryInterval(d *tidegate.Delivery) (time.Duration, error) {
	s, h, err := b.locate(d)
	if err != nil {
		return 0, err
	}
	attempt := d.Attempt
	if attempt == 0 {
		s.mu.Lock()
		l, err := s.current(h, time.Now())
		if err == nil {
			attempt = l.Attempt
		}
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	return s.policy().ladder().Delay(attempt - 1), nil
}

// RetryPolicy returns what holds for the group, whose settings are c, in the
// topics: the most deliveries that one of them allows, and the ladder if they
// agree on it, else the group's own. Topics that do not exist, and none at
// all, have the group's. Whatever a client makes of it, the broker decides.
func (b *Broker) RetryPolicy(c GroupConfig, topics ...string) RetryPolicy {
	c = c.withDefaults()
	own := policy{&c, &addressPolicy{}}
	out := RetryPolicy{own.maxAttempts(), own.ladder()}
	seen := 0
	for _, name := range topics {
		b.mu.RLock()
		t := b.topics[name]
		b.mu.RUnlock()
		p := own
		if t != nil {
			p.address = t.address.Load()
		}
		most, ladder := p.maxAttempts(), p.ladder()
		if seen++; seen == 1 {
			out = RetryPolicy{most, ladder}
			continue
		}
		if out.MaxAttempts > 0 && (most < 0 || most > out.MaxAttempts) {
			out.MaxAttempts = most
		}
		if !slices.Equal(ladder, out.Ladder) {
			out.Ladder = own.ladder()
		}
	}
	return out
}
