package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
)

// Limits are the limits of a broker in use. Several goroutines can call all methods at the same
// time. Each method takes only the locks of the limits' state, for one read or change. Most of this
// state is in throttling and consumption. Methods that can read from the store, as their comments
// state, also take locks of subscriptions. A send calls WithinQuota and Observe without a lock, and
// then Check for each message, within the message log's Add.
//
// # Adding a limit
//
//  1. The rule is a pure function in package throttle, with its table of tests. A Gate there ends a
//     throttle below the limit.
//  2. Its state for each topic is in throttling. Catalog.Recover restores values that must survive
//     a restart.
//  3. The values of the message that it compares are in [Sender], which send.go sets for sends, and
//     deadletters.go for redrives.
//  4. The name of the limit is a constant beside Names, and in openapi.yaml. The name of a topic's
//     limit begins with "topic", that of a group's with "group". A new unit needs its constant.
//  5. Check calls it before the rate, because the rate counts the accepted messages. Its sender can
//     be nil. States (topicStates for a topic) returns its state, and remedies has the advice to
//     the client.
//  6. Its setting is a field of the topic or of the broker: see "Adding to it" in DESIGN.md.
//  7. A limit that rejects all sends is also in the alert TidegateStoragePressed of
//     broker/server/monitoring. One that rejects one client has no metric limit_reached.
//
// TestNamesAreComplete and TestEachLimitHasARemedy (here), TestOpenAPIThrottleLimits and
// TestMonitoringKnowsTheStoragesLimits (broker/server) find most omissions.
type Limits struct {
	store   *store.Store
	backlog atomic.Pointer[settings.Limit] // of topics without a limit of their own
	quota   atomic.Pointer[quota]
	storage storage

	configured settings.Limits // guarded by the token of Directory.LockAdmin
}

// A LimitsConfig has the parts of the broker that limits need.
type LimitsConfig struct {
	Store  *store.Store
	Logger *slog.Logger

	// OnDisk is whether the store has a disk. Without one only the limit of cold reads applies to
	// the storage.
	OnDisk bool
}

// NewLimits returns the limits of a broker: the configured ones, which must be valid, and those
// that Set stored after the last change of the configuration.
func NewLimits(c LimitsConfig, configured settings.Limits) (*Limits, error) {
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
func (l *Limits) Observe(t *Topic, now time.Time) {
	l.storage.look(now)
	l.lookAtAges(t, now)
}

// Check returns the limit that rejects a send to a topic, or nil. The order of the limits is:
// storage, backlog of the topic, backlogs of its groups, cold reads, rate. The rate is the last, so
// that a message that another limit rejects does not count in it. Check takes the message from the
// rate of the topic and from the share of its client. If by is nil, it only returns the limit that
// rejects sends now, and takes nothing. Only the limits of the storage apply to a topic of dead
// letters.
func (l *Limits) Check(t *Topic, now time.Time, by *Sender) *status.Throttle {
	if th := l.Storage(); th != nil {
		return th
	}
	if isDeadLetter(t.Name()) {
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
	if th := l.Storage(); th != nil && (th.Limit == DiskFull || th.Limit == freeDisk) {
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
func (l *Limits) States(topics []*Topic, look bool, now time.Time) (out []status.LimitState) {
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
		if isDeadLetter(t.Name()) {
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
func (l *Limits) topicStates(t *Topic, now time.Time) (out []status.LimitState) {
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
func (l *Limits) backlogLimit(t *Topic) settings.Limit {
	if own := t.Settings().MaxBacklog; own != (settings.Limit{}) {
		return own
	}
	return *l.backlog.Load()
}

// lookAtAges updates the ages that have a limit: those of the backlogs of the topic and its groups.
func (l *Limits) lookAtAges(t *Topic, now time.Time) {
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

// quotaIdle is the minimum time for which the use of a client's quota is remembered.
const quotaIdle = time.Minute

// A quota is the quota of each client, in use.
type quota struct {
	settings.Quota
	limiters *ratelimit.Keyed[string] // by client; nil without a quota
}

func newQuota(q settings.Quota) (*quota, error) {
	if q == (settings.Quota{}) {
		return &quota{}, nil
	}
	limiters, err := ratelimit.NewKeyed[string](rate.Limit(q.MessagesPerSecond), burst(q), quotaIdle)
	if err != nil {
		return nil, err
	}
	return &quota{q, limiters}, nil
}

func burst(q settings.Quota) int { return throttle.Burst(q.MessagesPerSecond, q.Burst) }

// WithinQuota takes one message from the quota of a client, or returns the error of the rejected
// send. A message that another limit rejects later counts in the quota too.
func (l *Limits) WithinQuota(client string) error {
	q := l.quota.Load()
	if q.limiters == nil || client == "" || q.limiters.AllowN(client, 1) {
		return nil
	}
	wait, _ := q.limiters.DelayN(client, 1)
	wait = throttle.Bound(wait)
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, RetryAfter: wait,
		Message: fmt.Sprintf("%d TOO_MANY_REQUESTS: client %q sends more than its quota of %g messages a second (burst %d); retry in %v",
			protocol.ReplyTooManyRequests, client, q.MessagesPerSecond, burst(q.Quota), wait),
	}
}

// rateChanged applies a change of a topic's settings to the state of its rate. A measure without a
// limit forgets the earlier sends, so that a later limit begins with its whole burst.
func rateChanged(t *Topic) {
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	t.Throttling.Rate.Fill(throttle.RateLimit(t.Settings().MaxRate))
}

// checkRate takes a message from the topic's rate, or returns the rate as a throttle if the message
// is too early. If by is nil, nothing is sent, and checkRate returns nil.
func checkRate(t *Topic, by *Sender, now time.Time) *status.Throttle {
	limit := t.Settings().MaxRate
	if limit == (settings.Rate{}) || by == nil {
		return nil
	}
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	m, wait := t.Throttling.Rate.Take(throttle.RateLimit(limit), by.Size, now)
	if wait == 0 {
		return nil
	}
	th := at(rateThrottle(t, m), t.Throttling.Rate.Refused(m, wait, throttle.RateLimit(limit), now))
	return &th
}

// rateStates returns the state of each bound of the topic's rate.
func rateStates(t *Topic, now time.Time) (out []status.LimitState) {
	limit := t.Settings().MaxRate
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	for i, bound := range []float64{limit.MessagesPerSecond, limit.BytesPerSecond} {
		if m := throttle.Measure(i); bound > 0 {
			out = append(out, stateOf(rateThrottle(t, m), t.Throttling.Rate.State(m, throttle.RateLimit(limit), now)))
		}
	}
	return out
}

func rateThrottle(t *Topic, m throttle.Measure) status.Throttle {
	return status.Throttle{Limit: rateLimits[m], Subject: t.Name(), Unit: rateUnits[m]}
}

// A change is the record of limits that were set while the broker was in use.
type change struct {
	Set        settings.Limits `json:"set"`
	Configured settings.Limits `json:"configured"` // those of the configuration at that time
}

// over returns the limits in effect with a configuration. The last change of each limit wins: a
// limit whose configured value differs from that at the time of the change has the configured
// value, and the others have those that were set. The quota of a client is one limit, because a
// burst needs a rate.
func (c change) over(configured settings.Limits) settings.Limits {
	is, was, out := configured, c.Configured, c.Set
	pick(&out.MaxBacklog.Messages, is.MaxBacklog.Messages, was.MaxBacklog.Messages)
	pick(&out.MaxBacklog.Bytes, is.MaxBacklog.Bytes, was.MaxBacklog.Bytes)
	pick(&out.MaxBacklog.Age, is.MaxBacklog.Age, was.MaxBacklog.Age)
	pick(&out.ClientQuota, is.ClientQuota, was.ClientQuota)
	pick(&out.Pressure.MinFreeDisk, is.Pressure.MinFreeDisk, was.Pressure.MinFreeDisk)
	pick(&out.Pressure.MaxCompactionDebt, is.Pressure.MaxCompactionDebt, was.Pressure.MaxCompactionDebt)
	pick(&out.Pressure.MaxWriteStall, is.Pressure.MaxWriteStall, was.Pressure.MaxWriteStall)
	pick(&out.Pressure.MaxColdReads, is.Pressure.MaxColdReads, was.Pressure.MaxColdReads)
	pick(&out.Pressure.ColdDistance, is.Pressure.ColdDistance, was.Pressure.ColdDistance)
	return out
}

// pick sets a limit to its configured value if that has changed.
func pick[T comparable](limit *T, is, was T) {
	if is != was {
		*limit = is
	}
}

// recovered returns the limits that are in effect at the start.
func recovered(c LimitsConfig, configured settings.Limits) (settings.Limits, error) {
	raw, err := c.Store.Limits()
	if err != nil || raw == nil {
		return configured, err
	}
	var stored change
	if err := json.Unmarshal(raw, &stored); err != nil {
		return configured, fmt.Errorf("the stored limits: %w", err)
	}
	out := stored.over(configured)
	if out != configured {
		c.Logger.Info("limits that were set in use replace the configured ones; change the configuration, or PUT /v1/throttle, to replace them",
			"limits", asJSON(out), "configured", asJSON(configured))
	}
	if stored.Configured == configured {
		return out, nil
	}
	return out, record(c.Store, change{out, configured})
}

// record writes a change, and returns when it is on disk. It removes the record if the limits are
// those of the configuration.
func record(st *store.Store, c change) error {
	v, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return st.Messages.Add(func(w *store.Batch) {
		if c.Set == c.Configured {
			w.DeleteLimits()
		} else {
			w.PutLimits(v)
		}
	}, nil).Wait()
}

// asJSON returns limits in the form that PUT /v1/throttle takes.
func asJSON(l settings.Limits) string {
	v, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	return string(v)
}

// Set replaces the limits of the whole broker, and returns when they are on disk. They apply from
// the next send on. A changed quota refills the burst of every client. If a value is invalid, Set
// changes nothing and returns an error that names each fault. The caller holds the token of
// Directory.LockAdmin.
func (l *Limits) Set(s settings.Limits) error { return l.change(change{s, l.configured}) }

// Configure replaces the configured limits, as a start with these would: a limit that differs from
// the one configured before replaces one that was set. The rest is as in Set.
func (l *Limits) Configure(s settings.Limits) error {
	return l.change(change{change{l.Settings(), l.configured}.over(s), s})
}

func (l *Limits) change(c change) error {
	if err := c.Set.Validate(); err != nil {
		return err
	}
	if c != (change{l.Settings(), l.configured}) {
		if err := record(l.store, c); err != nil {
			return refusal.Store(err)
		}
	}
	l.configured = c.Configured
	return l.apply(c.Set)
}
