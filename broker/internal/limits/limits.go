package limits

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// Limits are the limits of a broker in use. Several goroutines can call all methods at the same
// time. Each method takes only the locks of the limits' state, for one read or change. Most of this
// state is in topic.Throttling and topic.Consumption. Methods that can read from the store, as
// their comments state, also take locks of subscriptions.
type Limits struct {
	store   *store.Store
	backlog atomic.Pointer[settings.Limit] // of topics without a limit of their own
	quota   atomic.Pointer[quota]
	storage storage

	configured settings.Limits // guarded by the token of Directory.LockAdmin
}

// A Config has the parts of the broker that limits need.
type Config struct {
	Store  *store.Store
	Logger *slog.Logger

	// OnDisk is whether the store has a disk. Without one only the limit of cold reads applies to
	// the storage.
	OnDisk bool
}

// New returns the limits of a broker: the configured ones, which must be valid, and those that Set
// stored after the last change of the configuration.
func New(c Config, configured settings.Limits) (*Limits, error) {
	s, err := recovered(c, configured)
	if err != nil {
		return nil, err
	}
	q, err := newQuota(s.ClientQuota)
	if err != nil {
		return nil, err
	}
	l := &Limits{store: c.Store, storage: storage{store: c.Store, logger: c.Logger, onDisk: c.OnDisk}, configured: configured}
	l.backlog.Store(&s.MaxBacklog)
	l.quota.Store(q)
	l.storage.limits.Store(&s.Pressure)
	return l, nil
}

// Settings returns the limits of the whole broker that are in effect.
func (l *Limits) Settings() settings.Limits {
	return settings.Limits{MaxBacklog: *l.backlog.Load(), ClientQuota: l.quota.Load().Quota, Pressure: *l.storage.limits.Load()}
}

// apply has the limits in effect from the next send on.
func (l *Limits) apply(s settings.Limits) error {
	if l.quota.Load().Quota != s.ClientQuota {
		q, err := newQuota(s.ClientQuota)
		if err != nil {
			return err
		}
		l.quota.Store(q)
	}
	l.backlog.Store(&s.MaxBacklog)
	l.storage.limits.Store(&s.Pressure)
	l.storage.at.Store(0) // the next send reads the state of the storage
	return nil
}

// A Sender is the client that sends a message, and the size of the message's body.
type Sender struct {
	Client string
	Size   int64
}

// Observe updates the values that Check does not compute itself: the state of the storage, and ages
// that have a limit. Callers hold no lock, because Observe can read from the store.
func (l *Limits) Observe(t *topic.Topic, now time.Time) {
	l.storage.look(now)
	l.lookAtAges(t, now)
}

// Check returns the limit that rejects a send to a topic, or nil. The order of the limits is:
// storage, backlog of the topic, backlogs of its groups, cold reads, rate. The rate is the last, so
// that a message that another limit rejects does not count in it. Check takes the message from the
// rate of the topic and from the share of its client. If by is nil, it only returns the limit that
// rejects sends now, and takes nothing. Only the limits of the storage apply to a topic of dead
// letters.
func (l *Limits) Check(t *topic.Topic, now time.Time, by *Sender) *status.Throttle {
	if th := l.Storage(); th != nil {
		return th
	}
	if topic.IsDeadLetter(t.Name()) {
		return nil
	}
	if th := ofTopic(t).check(l.backlogLimit(t), by, now); th != nil {
		return th
	}
	subs := t.Subscriptions()
	for _, s := range subs {
		c := s.Consumed()
		if th := ofGroup(c).check(c.Group().Settings().MaxBacklog, by, now); th != nil {
			th.Topic = t.Name()
			return th
		}
	}
	if th := l.checkCold(t, subs, now); th != nil {
		return th
	}
	return checkRate(t, by, now)
}

// Storage returns the limit that rejects all sends now, or nil.
func (l *Limits) Storage() *status.Throttle {
	if full := l.store.DiskFull(); full != nil {
		return diskFull(full)
	}
	return l.storage.throttle.Load()
}

// ShortOfDisk returns the limit of the disk that is reached, or nil. The free space of the disk is
// then a reserve for consumers. Work that copies stored messages asks first, and waits if the limit
// is reached. Callers hold no lock, because ShortOfDisk can read from the store.
func (l *Limits) ShortOfDisk() *status.Throttle {
	l.storage.look(time.Now())
	if th := l.Storage(); th != nil && (th.Limit == DiskFull || th.Limit == FreeDisk) {
		return th
	}
	return nil
}

// Room waits until the message log has space for a number of bytes, and reserves it. Release of the
// log returns the space. While the storage rejects all sends, Room does not wait: it returns the
// error of Rejected and the name of the limit. Other errors are those of the log, for example the
// cause of ctx; limit is then empty.
func (l *Limits) Room(ctx context.Context, bytes int64) (limit string, err error) {
	err = l.store.Messages.Room(ctx, bytes, func() error {
		l.storage.look(time.Now())
		th := l.Storage()
		if th == nil {
			return nil
		}
		limit = th.Limit
		return Rejected(*th)
	})
	return limit, err
}

// States returns the state of each limit that is set: first the limits that reject sends, then by
// limit and subject. It omits the quota, which rejects one client for a moment. If look is set, it
// updates the values first, which can read from the store.
func (l *Limits) States(topics []*topic.Topic, look bool, now time.Time) (out []status.LimitState) {
	if look && l.storage.onDisk {
		l.storage.ask(now)
	}
	if states := l.storage.states.Load(); states != nil {
		out = append(out, *states...)
	}
	if full := l.store.DiskFull(); full != nil {
		out = append(out, status.LimitState{Throttle: *diskFull(full), On: true})
	}
	for _, t := range topics {
		if topic.IsDeadLetter(t.Name()) {
			continue
		}
		if look {
			l.lookAtAges(t, now)
		}
		out = append(out, l.topicStates(t, now)...)
	}
	slices.SortFunc(out, func(x, y status.LimitState) int {
		if x.On != y.On {
			if x.On {
				return -1
			}
			return 1
		}
		return 2*strings.Compare(x.Limit, y.Limit) + strings.Compare(x.Subject, y.Subject)
	})
	return out
}

// topicStates returns the limits of a topic and of its groups.
func (l *Limits) topicStates(t *topic.Topic, now time.Time) (out []status.LimitState) {
	subs := t.Subscriptions()
	out = append(out, ofTopic(t).states(l.backlogLimit(t), now)...)
	out = append(out, rateStates(t, now)...)
	for _, s := range subs {
		c := s.Consumed()
		for _, st := range ofGroup(c).states(c.Group().Settings().MaxBacklog, now) {
			st.Topic = t.Name()
			out = append(out, st)
		}
	}
	if cold := coldLimit(l.storage.limits.Load()); cold.PerSecond > 0 {
		out = append(out, stateOf(coldThrottle(t), updateCold(t, cold, subs, now)))
	}
	return out
}

// backlogLimit returns the limit of a topic's backlog.
func (l *Limits) backlogLimit(t *topic.Topic) settings.Limit {
	if own := t.Settings().MaxBacklog; own != (settings.Limit{}) {
		return own
	}
	return *l.backlog.Load()
}

// lookAtAges updates the ages that have a limit: those of the backlogs of the topic and its groups.
func (l *Limits) lookAtAges(t *topic.Topic, now time.Time) {
	limit := l.backlogLimit(t).Age
	subs := t.Subscriptions()
	if len(subs) == 0 && limit > 0 {
		t.Throttling.Age.Look(now, time.Duration(limit), func() int64 { return t.Oldest(l.store) })
		return
	}
	for _, s := range subs {
		c := s.Consumed()
		if age := throttle.Lesser(limit, c.Group().Settings().MaxBacklog.Age); age > 0 {
			c.Age.Look(now, time.Duration(age), func() int64 { all, _ := s.Oldest(); return all })
		}
	}
}
