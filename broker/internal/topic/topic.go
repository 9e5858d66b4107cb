package topic

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/history"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// An Amount is a number of messages, and the size of their bodies in bytes.
type Amount struct {
	Messages, Bytes int64
}

// A Topic is a running topic. Several goroutines can call its methods at the same time. A method
// whose comment names a lock needs that lock.
type Topic struct {
	config Config

	// RoundRobin counts the messages without a message group. It determines their queues.
	RoundRobin atomic.Uint32

	// Throttling is the state of the limits of sends to the topic.
	Throttling Throttling

	// Recorded is the place of the topic in the history of rates and backlogs.
	Recorded Recorded

	settings  atomic.Pointer[settings.Topic]
	address   atomic.Pointer[AddressPolicy]
	automatic atomic.Bool
	deleted   atomic.Bool

	queues atomic.Pointer[[]*Queue] // only grows
	subs   atomic.Pointer[[]Subscription]

	// All messages that were ever written, including those on their way to the disk. Changed only
	// within the message log's Add.
	messages, bytes atomic.Int64
	opened          Amount // messages and bytes when the broker was opened
	duplicates      atomic.Int64
	pending         pending.Counters
	arrivals        throttle.Sampled

	lowMessages, lowBytes    atomic.Int64 // before the beginnings of the queues
	leftovers, leftoverBytes atomic.Int64 // of lowMessages and lowBytes: still stored for a group
	removed                  [retention.Causes]atomic.Int64

	retentionDue atomic.Int64 // time of the next round in nanoseconds since 1970; 0 for none
	retentionRan atomic.Int64 // start of the last round
	watched      atomic.Bool  // a round is due when groups have consumed messages
	hasGaps      atomic.Bool  // messages may have been removed from the middle of a queue
	kept         atomic.Int64 // see KeepExpired
}

// A Config has the fixed parts of a topic.
type Config struct {
	ID   uint32
	Name string

	// IDs remembers the message IDs of the duplicate window. It is used only within the message
	// log's Add, and before other goroutines use the topic.
	IDs *duplicates.Memory

	// Classes count the dead letters in the topic. Nil means a table of the topic alone.
	Classes *classes.Table

	// Retention is the task that removes messages.
	Retention *maintain.Task

	// Clock decides whether the wall clock can be trusted. Nil means that it can.
	Clock *wallclock.Clock

	// Activity gets a note of each change that the history of rates and backlogs has. Nil means
	// that there is no history.
	Activity *history.Activity

	// Transaction has the broker's times of transaction checks, for zero fields of the settings.
	Transaction *atomic.Pointer[settings.Transaction]
}

// New returns an empty topic.
func New(c Config, s settings.Topic) *Topic {
	if c.Classes == nil {
		c.Classes = classes.NewTable(c.ID, new(atomic.Int64))
	}
	t := &Topic{config: c}
	t.settings.Store(&s)
	t.address.Store(&AddressPolicy{})
	t.queues.Store(&[]*Queue{})
	t.subs.Store(&[]Subscription{})
	t.Grow(s.Queues)
	return t
}

// ID returns the number of the topic in stored records.
func (t *Topic) ID() uint32 { return t.config.ID }

// Name returns the name of the topic.
func (t *Topic) Name() string { return t.config.Name }

// IDs returns the memory of message IDs, Config.IDs.
func (t *Topic) IDs() *duplicates.Memory { return t.config.IDs }

// Classes returns the counts of the dead letters in the topic, Config.Classes.
func (t *Topic) Classes() *classes.Table { return t.config.Classes }

// RetentionTask returns the task that removes messages, Config.Retention.
func (t *Topic) RetentionTask() *maintain.Task { return t.config.Retention }

// Settings returns the settings of the topic. The caller must not change them.
func (t *Topic) Settings() *settings.Topic { return t.settings.Load() }

// SetSettings replaces the settings. Grow adds the queues.
func (t *Topic) SetSettings(s settings.Topic) { t.settings.Store(&s) }

// Address returns the address settings that apply to the topic.
func (t *Topic) Address() *AddressPolicy { return t.address.Load() }

// SetAddress replaces the address settings that apply to the topic.
func (t *Topic) SetAddress(p *AddressPolicy) { t.address.Store(p) }

// Automatic reports whether the topic is an automatic dead letter queue. Explicitly created topics
// are not.
func (t *Topic) Automatic() bool { return t.automatic.Load() }

// SetAutomatic sets the result of Automatic.
func (t *Topic) SetAutomatic(automatic bool) { t.automatic.Store(automatic) }

// Deleted reports whether the topic was deleted. Within the message log's Add the result is exact.
func (t *Topic) Deleted() bool { return t.deleted.Load() }

// Delete marks the topic as deleted. Only called within the message log's Add.
func (t *Topic) Delete() {
	t.deleted.Store(true)
	t.config.Classes.Close()
}

// Queues returns the queues by number. The caller must not change the slice.
func (t *Topic) Queues() []*Queue { return *t.queues.Load() }

// Grow adds queues up to the number n. One call runs at a time.
func (t *Topic) Grow(n int) {
	queues := slices.Clone(t.Queues())
	for len(queues) < n {
		queues = append(queues, newQueue(uint16(len(queues))))
	}
	t.queues.Store(&queues)
}

// Subscriptions returns the subscriptions of all groups. The caller must not change the slice.
func (t *Topic) Subscriptions() []Subscription { return slices.Clip(*t.subs.Load()) }

// AddSubscription adds the subscription of a further group. One change of the subscriptions runs at
// a time. The slices that Subscriptions has returned do not change: they end before the new one.
func (t *Topic) AddSubscription(s Subscription) {
	subs := append(*t.subs.Load(), s)
	t.subs.Store(&subs)
}

// RemoveSubscription removes a subscription. One change of the subscriptions runs at a time.
func (t *Topic) RemoveSubscription(s Subscription) {
	subs := slices.DeleteFunc(slices.Clone(t.Subscriptions()), func(o Subscription) bool { return o == s })
	t.subs.Store(&subs)
}

// ForgetReadAhead drops the messages that groups have read ahead, because some were removed.
func (t *Topic) ForgetReadAhead() {
	for _, s := range t.Subscriptions() {
		s.ForgetReadAhead()
	}
}

// Unused reports whether an automatic dead letter queue can be deleted: groups have consumed all of
// it, and no client has received from it for the duration idle.
func (t *Topic) Unused(idle time.Duration, now time.Time) bool {
	subs := t.Subscriptions()
	if t.Address().NoAutoDelete || !t.Automatic() || len(subs) == 0 {
		return false
	}
	for _, s := range subs {
		if !s.Idle(idle, now) || s.Consumed().Backlog().Messages > 0 {
			return false
		}
	}
	return true
}

// IsDeadLetter reports whether a name is that of the dead letter topic of a group.
func IsDeadLetter(name string) bool {
	_, ok := deadLetterGroup(name)
	return ok
}

// deadLetterGroup returns the group whose dead letter topic has a name. ok is false if the name is
// that of another topic.
func deadLetterGroup(name string) (group string, ok bool) {
	group, ok = strings.CutPrefix(name, protocol.DeadLetterPrefix)
	return group, ok && group != ""
}
