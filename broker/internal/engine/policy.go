package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Policy has the retry settings of a group in one topic: the group's settings, or the address
// settings of the topic if these have redelivery settings.
type Policy struct {
	Group   *settings.Group
	Address *AddressPolicy
}

// Ladder returns the retry schedule without its random parts.
func (p Policy) Ladder() backoff.Steps {
	if r := p.Address.Redelivery; r != nil {
		return r.Ladder()
	}
	return p.Group.Ladder()
}

// LongestInterval returns the longest retry interval of the group and of the address.
func (p Policy) LongestInterval() time.Duration {
	return max(slices.Max(p.Ladder()), slices.Max(p.Group.Ladder()))
}

// MaxAttempts returns the maximum of deliveries of a message; -1 means no maximum.
func (p Policy) MaxAttempts() int {
	if r := p.Address.Redelivery; r != nil {
		return r.MaxAttempts
	}
	return p.Group.MaxAttempts
}

// Rules returns the policy as package consume applies it.
func (p Policy) Rules() consume.Policy {
	return consume.Policy{
		MaxAttempts: p.MaxAttempts(), MaxRedeliveries: p.Group.NegativeAck.MaxRedeliveries, OnExhausted: p.onExhausted(),
		Schedule: p.Group, Address: p.Address.Redelivery,
	}
}

// onExhausted returns the action after the last attempt of a message with a message group.
func (p Policy) onExhausted() consume.Exhaustion {
	switch {
	case !p.Group.FIFO:
		return consume.ThenDeadLetter // no order to keep
	case p.Group.OnExhausted == settings.OnExhaustedPark:
		return consume.ThenPark
	case p.Group.OnExhausted == settings.OnExhaustedBlock:
		return consume.ThenBlock
	}
	return consume.ThenDeadLetter
}

// DeadLetterTopics returns the topics of the dead letter of a message of group in topic. Without
// any the message is removed. early is Departure.Early of package consume: address settings without
// a dead-letter-address do not remove such a message. A dead letter does not go to the topic that
// it is in: a group that consumes its own dead letters would never end.
func (p Policy) DeadLetterTopics(group, topic string, early bool) []string {
	topics := []string{p.OwnDeadLetterTopic(group, topic)}
	if r := p.Address.Redelivery; r != nil {
		topics = r.DeadLetterTopics(topics[0], topic, early)
	}
	return slices.DeleteFunc(topics, func(to string) bool { return to == topic })
}

// OwnDeadLetterTopic returns the topic of dead letters without address settings.
func (p Policy) OwnDeadLetterTopic(group, topic string) string {
	if c := p.Group.RetryTopic; c.Enabled {
		from, _ := c.Original(topic, group)
		if name := c.DeadLetterName(cmp.Or(from, topic), group); name != topic && tidegate.ValidateTopic(name) == nil {
			return name
		}
	}
	return tidegate.DeadLetterTopic(group)
}

// An AddressPolicy has the effects of the address settings that match a topic.
type AddressPolicy struct {
	Redelivery    *consume.RetryRules // nil if no redelivery or dead letter setting matches
	NoAutoDelete  bool                // auto-delete-queues is false
	Persist       bool                // persist-delivery-count-before-delivery
	Expiry        time.Duration       // expiry-delay; 0 for none
	ExpiryAddress string
}

// newAddressPolicy returns the effects of merged settings on a topic.
func newAddressPolicy(s settings.Address) *AddressPolicy {
	p := &AddressPolicy{
		NoAutoDelete: !orDefault(s.AutoDeleteQueues, true),
		Persist:      orDefault(s.PersistDeliveryCountBeforeDelivery, false),
		Expiry:       orDefault(s.ExpiryDelay, 0).Duration(), ExpiryAddress: orDefault(s.ExpiryAddress, ""),
	}
	if !s.Redelivers() {
		return p
	}
	delay := orDefault(s.RedeliveryDelay, 0)
	p.Redelivery = &consume.RetryRules{
		Delay:       delay.Duration(),
		Longest:     orDefault(s.MaxRedeliveryDelay, min(10*delay, maxMilliseconds)).Duration(),
		Multiplier:  orDefault(s.RedeliveryDelayMultiplier, 1),
		Factor:      orDefault(s.RedeliveryCollisionAvoidanceFactor, 0),
		MaxAttempts: orDefault(s.MaxDeliveryAttempts, 10),
		DeadLetter:  orDefault(s.DeadLetterAddress, ""),
		AutoCreate:  orDefault(s.AutoCreateDeadLetterResources, false),
		Prefix:      orDefault(s.DeadLetterQueuePrefix, "DLQ."),
		Suffix:      orDefault(s.DeadLetterQueueSuffix, ""),
	}
	return p
}

const maxMilliseconds = settings.Milliseconds(settings.MaxDuration / time.Millisecond)

// orDefault returns *p, or v if p is nil.
func orDefault[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}

// A Group is a running consumer group. Several goroutines can call its methods at the same time.
type Group struct {
	// Recorded is the place of the group in the history of rates and backlogs.
	Recorded Track

	id        uint32
	name      string
	settings  atomic.Pointer[settings.Group]
	automatic atomic.Bool
	deleted   atomic.Bool
}

// newGroup returns a group. id is its number in stored records.
func newGroup(name string, id uint32, s settings.Group) *Group {
	g := &Group{id: id, name: name}
	g.settings.Store(&s)
	return g
}

// ID returns the number of the group in stored records.
func (g *Group) ID() uint32 { return g.id }

// Name returns the name of the group.
func (g *Group) Name() string { return g.name }

// Settings returns the settings of the group. The caller must not change them.
func (g *Group) Settings() *settings.Group { return g.settings.Load() }

// SetSettings replaces the settings.
func (g *Group) SetSettings(s settings.Group) { g.settings.Store(&s) }

// Automatic reports whether the first receive created the group, and no explicit request.
func (g *Group) Automatic() bool { return g.automatic.Load() }

// SetAutomatic sets the result of Automatic, and returns the result before.
func (g *Group) SetAutomatic(automatic bool) (before bool) { return g.automatic.Swap(automatic) }

// Deleted reports whether the group was deleted. Within the message log's Add the result is exact.
func (g *Group) Deleted() bool { return g.deleted.Load() }

// Delete marks the group as deleted. Only called within the message log's Add.
func (g *Group) Delete() { g.deleted.Store(true) }

// StartsLate reports whether the group begins at the end of a topic. The result is false for topics
// of dead letters and for the group's own retry topics.
func (g *Group) StartsLate(t *Topic) bool {
	c := g.Settings()
	if c.Start != settings.StartLatest || isDeadLetter(t.Name()) || t.Automatic() {
		return false
	}
	_, retry := c.RetryTopic.Original(t.Name(), g.name)
	return !retry
}

// A TopicSubscription is the consumption of a topic by one group. Each method except Consumed takes
// the lock of the subscription.
type TopicSubscription interface {
	// Consumed returns the group, and how much of the topic it has consumed.
	Consumed() *Consumption

	// Wake ends the wait of up to n receives that may read a queue.
	Wake(n int64, queue uint16)

	// AddQueues adds the queues that the topic has and the subscription has not.
	AddQueues()

	// Idle reports whether no receive waits, and none has looked for messages for a duration.
	Idle(since time.Duration, now time.Time) bool

	// ForgetReadAhead drops the messages that were read ahead.
	ForgetReadAhead()

	// Oldest returns the times at which two messages were stored, in nanoseconds since 1970: the
	// oldest one that the group has not consumed, and the oldest one that was never delivered. Zero
	// means that there is none. It may read from the store.
	Oldest() (all, undelivered int64)

	// FirstSpilled returns the offset of the first spilled message of a queue, or one before it;
	// the largest number if there is none.
	FirstSpilled(q *Queue) int64

	// Unconsumed returns the first offset from begin on that the group has received and not
	// consumed, or end if there is none, and the offset of its next new message. ok is false if the
	// subscription does not have the queue yet.
	Unconsumed(queue uint16, begin, end int64) (first, next int64, ok bool)

	// SkipRemoved moves the group over the messages that a plan removes, and returns the messages
	// that the group loses because it has not consumed them. It notes in the plan the messages that
	// are kept for the group.
	SkipRemoved(p *retention.Plan) (lost Contents)

	// Marked reports whether there may be marks of dead letters.
	Marked() bool
}

// A Consumption is how much of a topic one group has consumed. Its methods take no lock of the
// subscription.
type Consumption struct {
	Age  throttle.Age  // of the oldest message that the group has not consumed
	Cold throttle.Flow // bytes that were read far behind the end of the topic

	// Gates are the limits of the group's backlog in the topic.
	Gates gates

	// Recorded has the counters as of the last round of the history of rates and backlogs.
	Recorded meter

	group *Group
	topic *Topic

	doneMessages, doneBytes atomic.Int64 // consumed, from the beginning of the topic on
	leasedBytes             atomic.Int64 // of the messages that have a lease
	drain                   throttle.Drain
}

// Init sets the group and the topic. It is called before all other methods.
func (c *Consumption) Init(g *Group, t *Topic) { c.group, c.topic = g, t }

// Group returns the group.
func (c *Consumption) Group() *Group { return c.group }

// Topic returns the topic.
func (c *Consumption) Topic() *Topic { return c.topic }

// Policy returns the retry settings of the group in the topic.
func (c *Consumption) Policy() Policy { return Policy{c.group.Settings(), c.topic.Address()} }

// Done adds messages that the group has consumed, and changes the bytes of leased messages.
func (c *Consumption) Done(done Contents, leasedBytes int64) {
	c.leasedBytes.Add(leasedBytes)
	c.doneMessages.Add(done.Messages)
	c.doneBytes.Add(done.Bytes)
}

// Drain adds consumed messages to the drain rate, after Done.
func (c *Consumption) Drain(done Contents, now time.Time) {
	c.drain.Add(done.Messages, done.Bytes, c.Backlog().Messages > 0, now)
}

// Backlog returns the messages that the group has not consumed.
func (c *Consumption) Backlog() Contents {
	return Contents{Messages: c.topic.messages.Load() - c.doneMessages.Load(), Bytes: c.topic.bytes.Load() - c.doneBytes.Load()}
}

// LeasedBytes returns the size of the bodies of the messages that have a lease.
func (c *Consumption) LeasedBytes() int64 { return c.leasedBytes.Load() }

// Behind returns the size of the bodies that the group has not read yet.
func (c *Consumption) Behind() int64 { return c.Backlog().Bytes - c.leasedBytes.Load() }

// CountCold counts messages that were read from the store, if the group is far behind.
func (c *Consumption) CountCold(ms []store.Message, limit throttle.ColdLimit) {
	if limit.PerSecond <= 0 || !limit.Far(c.Behind()) {
		return
	}
	var n int64
	for i := range ms {
		n += int64(len(ms[i].Body))
	}
	c.Cold.Add(int64(len(ms)), n, time.Now())
}

// Limited returns the amount that backlog limits apply to, with the age at the last look.
func (c *Consumption) Limited(now time.Time) throttle.Amount {
	l := c.Backlog()
	return throttle.Amount{l.Messages, l.Bytes, c.topic.ageOf(&c.Age, now).Milliseconds()}
}

// Drained returns the drain rate of the group, per second.
func (c *Consumption) Drained(now time.Time) (messages, bytes float64) { return c.drain.Rate(now) }

func (c *Consumption) consumer(now time.Time) throttle.Consumer {
	messages, bytes := c.Drained(now)
	return throttle.Consumer{Backlog: c.Limited(now), Drain: throttle.Draining{Messages: messages, Bytes: bytes, Age: c.Age.Fall()}}
}

// DrainTime estimates how long it takes until the limited amount is down to resume. Zero means that
// there is no estimate.
func (c *Consumption) DrainTime(m throttle.Measure, resume int64, now time.Time) time.Duration {
	of := c.consumer(now)
	return of.Drain.Until(m, of.Backlog, resume)
}

// A topicRecord is the stored form of a topic's settings.
type topicRecord struct {
	ID        uint32 `json:"id"`
	Automatic bool   `json:"automatic,omitempty"`
	settings.Topic
}

// Encode returns the bytes of the record.
func (r topicRecord) Encode() ([]byte, error) { return json.Marshal(r) }

// decodeRecord reads the record of the topic with that name, and sets the defaults of its settings.
func decodeRecord(name string, v []byte) (r topicRecord, err error) {
	if err = json.Unmarshal(v, &r); err == nil {
		err = r.Topic.Validate()
	}
	if err != nil {
		return r, fmt.Errorf("the settings of topic %q: %w", name, err)
	}
	r.Topic = r.Topic.WithDefaults()
	return r, nil
}

// A groupRecord is the stored form of a consumer group's settings.
type groupRecord struct {
	ID        uint32 `json:"id"`
	Automatic bool   `json:"automatic,omitempty"`
	settings.Group
}

// Encode returns the bytes of the record.
func (r groupRecord) Encode() ([]byte, error) { return json.Marshal(r) }

// decodeGroupRecord reads the record of the group with that name, and sets the defaults of its
// settings.
func decodeGroupRecord(name string, v []byte) (r groupRecord, err error) {
	if err = json.Unmarshal(v, &r); err == nil {
		err = r.Group.WithDefaults().ValidateFor(name)
	}
	if err != nil {
		return r, fmt.Errorf("the settings of group %q: %w", name, err)
	}
	r.Group = r.Group.WithDefaults()
	return r, nil
}
