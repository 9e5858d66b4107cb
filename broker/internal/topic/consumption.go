package topic

import (
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/history"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// A Subscription is the consumption of a topic by one group. Each method except Consumed takes the
// lock of the subscription.
type Subscription interface {
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
	SkipRemoved(p *retention.Plan) (lost Amount)

	// Marked reports whether there may be marks of dead letters.
	Marked() bool
}

// A Consumption is how much of a topic one group has consumed. Its methods take no lock of the
// subscription.
type Consumption struct {
	Age  throttle.Age  // of the oldest message that the group has not consumed
	Cold throttle.Flow // bytes that were read far behind the end of the topic

	// Gates are the limits of the group's backlog in the topic.
	Gates Gates

	// Recorded has the counters as of the last round of the history of rates and backlogs.
	Recorded history.Meter

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
func (c *Consumption) Done(done Amount, leasedBytes int64) {
	c.leasedBytes.Add(leasedBytes)
	c.doneMessages.Add(done.Messages)
	c.doneBytes.Add(done.Bytes)
}

// Drain adds consumed messages to the drain rate, after Done.
func (c *Consumption) Drain(done Amount, now time.Time) {
	c.drain.Add(done.Messages, done.Bytes, c.Backlog().Messages > 0, now)
}

// Backlog returns the messages that the group has not consumed.
func (c *Consumption) Backlog() Amount {
	return Amount{Messages: c.topic.messages.Load() - c.doneMessages.Load(), Bytes: c.topic.bytes.Load() - c.doneBytes.Load()}
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
