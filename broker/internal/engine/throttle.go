package engine

import (
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Values of Throttle.Limit.
const (
	topicMessages     = "topic backlog messages"
	topicBytes        = "topic backlog bytes"
	topicAge          = "topic backlog age"
	groupMessages     = "group backlog messages"
	groupBytes        = "group backlog bytes"
	groupAge          = "group backlog age"
	topicRateMessages = "topic rate messages"
	TopicRateBytes    = "topic rate bytes"
	FairShare         = "fair share"
	coldReads         = "cold reads"
	freeDisk          = "free disk" // too little
	DiskFull          = "disk full" // nothing is free; the value is the number of missing bytes
	WriteStall        = "write stall"
	compactionDebt    = "compaction debt"
)

// ClientQuota is the limit of WithinQuota. It counts rejected sends and is no value of
// Throttle.Limit.
const ClientQuota = "client quota"

// Names are the values of Throttle.Limit, and ClientQuota.
var Names = [...]string{
	topicMessages, topicBytes, topicAge, groupMessages, groupBytes, groupAge, topicRateMessages, TopicRateBytes,
	FairShare, coldReads, freeDisk, WriteStall, compactionDebt, DiskFull, ClientQuota,
}

// Units of a status.Throttle.
const (
	unitMessages          = "messages"
	unitBytes             = "bytes"
	unitMilliseconds      = "ms"
	unitMessagesPerSecond = "messages/s"
	unitBytesPerSecond    = "bytes/s"
)

// Limits and units by measure.
var (
	topicLimits  = [throttle.Measures]string{topicMessages, topicBytes, topicAge}
	groupLimits  = [throttle.Measures]string{groupMessages, groupBytes, groupAge}
	backlogUnits = [throttle.Measures]string{unitMessages, unitBytes, unitMilliseconds}
	rateLimits   = [...]string{topicRateMessages, TopicRateBytes}
	rateUnits    = [...]string{unitMessagesPerSecond, unitBytesPerSecond}
)

// at returns t with the numbers of a limit.
func at(t status.Throttle, s throttle.State) status.Throttle {
	t.Value, t.Mark, t.Resume, t.Since, t.RetryAfter = s.Value, s.Mark, s.Resume, s.Since, settings.Duration(s.RetryAfter)
	return t
}

// stateOf returns the state of the limit t with its numbers.
func stateOf(t status.Throttle, s throttle.State) status.LimitState {
	return status.LimitState{Throttle: at(t, s), On: s.On}
}

// Rejected returns the error of a send that a limit rejects: 530 TOO_MANY_REQUESTS with the limit,
// its value and the value at which the broker accepts sends again (RocketMQ: sending retry and
// throttling).
func Rejected(t status.Throttle) error {
	return &tidegate.Error{
		Code:       tidegate.CodeTooManyRequests,
		RetryAfter: time.Duration(t.RetryAfter),
		Message:    strconv.Itoa(protocol.ReplyTooManyRequests) + " TOO_MANY_REQUESTS: " + text(t),
	}
}

// text returns the limit, its value and bounds, and the remedy, as a text for people.
func text(t status.Throttle) string {
	var what string
	switch t.Limit {
	case FairShare:
		what = "this client has used its fair share of the drain rate of " + strconv.Quote(t.Subject) + ", " + show(t.Value, t.Unit)
	case DiskFull:
		what = "the disk of the data directory is full; sends are accepted again when " + show(t.Value, unitBytes) + " more bytes are free"
	default:
		what = t.Limit
		if t.Subject != "" {
			what += " of " + strconv.Quote(t.Subject)
		}
		what += " is " + show(t.Value, t.Unit) + ", the limit is " + show(t.Mark, t.Unit) + "; sends are accepted again at " + show(t.Resume, t.Unit)
	}
	return what + "; " + remedies[t.Limit]
}

func show(v int64, unit string) string {
	switch unit {
	case unitMilliseconds:
		return (time.Duration(v) * time.Millisecond).String()
	case unitMessages, unitBytes:
		return strconv.FormatInt(v, 10)
	}
	return strconv.FormatInt(v, 10) + " " + unit
}

// remedies has the advice to the client or the operator, by Limit.
var remedies = map[string]string{
	topicMessages: remedyBacklog, topicBytes: remedyBacklog, topicAge: remedyBacklog,
	groupMessages: remedyBacklog, groupBytes: remedyBacklog, groupAge: remedyBacklog,
	topicRateMessages: remedyRate, TopicRateBytes: remedyRate,
	FairShare: "retry when the consumers have caught up",
	coldReads: "retry when the lagging groups have caught up",
	freeDisk:  remedyFree, DiskFull: remedySpace,
	WriteStall: remedyDisk, compactionDebt: remedyDisk,
}

const (
	remedyBacklog = "add consumers or make them faster, or raise max_backlog"
	remedyRate    = "send more slowly, or raise the topic's max_rate"
	remedySpace   = "purge messages, or free or add space on the disk of the data directory; no restart is needed"
	remedyFree    = remedySpace + "; or lower min_free_disk_bytes"
	remedyDisk    = "the disk is too slow for this load; send more slowly, or use a faster disk"
)

// Counters count the messages that each limit rejected. The zero value is ready for use.
type Counters [len(Names) + 1]atomic.Int64 // in the order of Names; the last one for others

// Add counts a message that a limit rejected.
func (c *Counters) Add(limit string) {
	i := slices.Index(Names[:], limit)
	if i < 0 {
		i = len(Names)
	}
	c[i].Add(1)
}

// A backlogged has a backlog with limits. It is a topic, or a group in a topic.
type backlogged interface {
	// Limited returns the backlog, with the age at the last look.
	Limited(now time.Time) throttle.Amount

	// DrainTime estimates how long it takes until the backlog is down to resume; 0 for no estimate.
	DrainTime(m throttle.Measure, resume int64, now time.Time) time.Duration

	// Drained returns the messages and bytes that leave the backlog in a second.
	Drained(now time.Time) (messages, bytes float64)
}

// A backlog has the state of the limits of one backlog.
type backlog struct {
	*gates
	of      backlogged
	names   *[throttle.Measures]string
	subject string // the topic or the group
}

func ofTopic(t *Topic) backlog {
	return backlog{&t.Throttling.Backlog, t, &topicLimits, t.Name()}
}

func ofGroup(c *Consumption) backlog {
	return backlog{&c.Gates, c, &groupLimits, c.Group().Name()}
}

func amount(l settings.Limit) throttle.Amount {
	return throttle.Amount{l.Messages, l.Bytes, time.Duration(l.Age).Milliseconds()}
}

// update compares the backlog with its limits. Without limits it forgets the previous ones. Callers
// hold Mu.
func (b backlog) update(value, marks throttle.Amount, now time.Time) (throttle.Measure, bool) {
	b.Used.Store(marks != throttle.Amount{})
	return b.gates.Gates.Update(value, marks, now)
}

// check returns the limit that rejects a send now, or nil. throttle.Backlog.Update decides, and
// backlogged.DrainTime estimates RetryAfter. After a throttle, throttle.Backlog.Share decides about
// the share of the client. If by is nil, nothing is sent.
func (b backlog) check(limit settings.Limit, by *Sender, now time.Time) *status.Throttle {
	if limit == (settings.Limit{}) && !b.Used.Load() {
		return nil
	}
	b.Mu.Lock()
	defer b.Mu.Unlock()
	value, marks := b.of.Limited(now), amount(limit)
	if m, on := b.update(value, marks, now); on {
		if by != nil {
			b.gates.Gates.Wait(by.Client, now)
		}
		rejects := b.state(m, value, marks, now)
		return &rejects.Throttle
	}
	if by == nil || !b.gates.Gates.Sharing() {
		return nil
	}
	messages, bytes := b.of.Drained(now)
	share, ok := b.gates.Gates.Share(by.Client, by.Size, value, marks, messages, bytes, now)
	if ok {
		return nil
	}
	return &status.Throttle{
		Limit: FairShare, Subject: b.subject, Unit: rateUnits[share.Measure],
		Value: share.PerSecond, Mark: share.PerSecond, Resume: share.PerSecond, Since: share.Since, RetryAfter: settings.Duration(share.RetryAfter),
	}
}

// states returns the state of each limit that is set.
func (b backlog) states(limit settings.Limit, now time.Time) (out []status.LimitState) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	value, marks := b.of.Limited(now), amount(limit)
	b.update(value, marks, now)
	for m := range throttle.Measures {
		if marks[m] > 0 {
			out = append(out, b.state(m, value, marks, now))
		}
	}
	return out
}

// state returns the state of one limit. Callers hold Mu.
func (b backlog) state(m throttle.Measure, value, marks throttle.Amount, now time.Time) status.LimitState {
	s := b.gates.Gates.State(m, value, marks)
	out := status.Throttle{Limit: b.names[m], Subject: b.subject, Unit: backlogUnits[m]}
	if s.On {
		drain := b.of.DrainTime(m, s.Resume, now)
		if drain > 0 {
			s.RetryAfter = throttle.Bound(drain)
		}
		expected := b.gates.Gates.Expect(m, value, marks, drain, now)
		out.ResumesLeast, out.ResumesMost = settings.Duration(expected.Least), settings.Duration(expected.Most)
	}
	return stateOf(out, s)
}

// CountCold counts messages that a group has read from the store, if the group is far behind and
// such reads have a limit.
func (l *Limits) CountCold(c *Consumption, ms []store.Message) {
	c.CountCold(ms, coldLimit(l.storage.limits.Load()))
}

func coldLimit(p *settings.Pressure) throttle.ColdLimit {
	return throttle.ColdLimit{PerSecond: p.MaxColdReads, Distance: p.WithDefaults().ColdDistance}
}

// checkCold returns the throttle of cold reads if they reject sends to the topic, or nil. If the
// limit was removed while it rejected sends, checkCold ends the throttle.
func (l *Limits) checkCold(t *Topic, subs []TopicSubscription, now time.Time) *status.Throttle {
	limit := coldLimit(l.storage.limits.Load())
	if limit.PerSecond <= 0 && !t.Throttling.ColdOn.Load() {
		return nil
	}
	if s := updateCold(t, limit, subs, now); s.On {
		th := at(coldThrottle(t), s)
		return &th
	}
	return nil
}

// updateCold compares the cold reads of all groups with their limit.
func updateCold(t *Topic, limit throttle.ColdLimit, subs []TopicSubscription, now time.Time) throttle.State {
	var reads throttle.ColdReads
	for _, s := range subs {
		c := s.Consumed()
		if behind := c.Behind(); limit.Far(behind) {
			_, rate := c.Cold.Rate(now)
			reads.Add(limit, behind, rate)
		}
	}
	t.Throttling.Mu.Lock()
	defer t.Throttling.Mu.Unlock()
	s := t.Throttling.Cold.Update(limit, reads, now)
	t.Throttling.ColdOn.Store(s.On)
	return s
}

func coldThrottle(t *Topic) status.Throttle {
	return status.Throttle{Limit: coldReads, Subject: t.Name(), Unit: unitBytesPerSecond}
}

// storage has the limits of the storage's state. It reads the state when a message is sent or a
// client asks for the limits; it has no timer.
type storage struct {
	store  *store.Store
	logger *slog.Logger
	onDisk bool

	limits   atomic.Pointer[settings.Pressure]
	throttle atomic.Pointer[status.Throttle] // rejects all sends; nil for none
	states   atomic.Pointer[[]status.LimitState]

	asking atomic.Bool  // one goroutine reads the state; the others use the last result
	at     atomic.Int64 // of the last read, in nanoseconds since 1970
	bytes  atomic.Int64 // committed at the last read

	gates throttle.Storage // used by the goroutine that set asking
}

// look reads the state of the storage if the last read is long ago, if much was written since, or
// if writes are delayed.
func (s *storage) look(now time.Time) {
	if !s.onDisk {
		return
	}
	th := s.throttle.Load()
	stalled := !s.store.StalledSince().IsZero() || th != nil && th.Limit == WriteStall
	if !throttle.Stale(time.Duration(now.UnixNano()-s.at.Load()), s.store.Messages.Committed()-s.bytes.Load(), stalled) {
		return
	}
	s.ask(now)
}

// ask reads the state of the storage and decides whether it rejects sends.
func (s *storage) ask(now time.Time) {
	if !s.asking.CompareAndSwap(false, true) {
		return
	}
	defer s.asking.Store(false)
	s.at.Store(now.UnixNano())
	s.bytes.Store(s.store.Messages.Committed())
	var held time.Duration
	if since := s.store.StalledSince(); !since.IsZero() {
		held = now.Sub(since)
	}
	states := s.decide(s.store.Pressure(), held, now)
	var rejects *status.Throttle
	for i := range states {
		if states[i].On {
			rejects = &states[i].Throttle
			break
		}
	}
	s.states.Store(&states)
	before := s.throttle.Swap(rejects)
	switch {
	case rejects != nil && (before == nil || before.Limit != rejects.Limit):
		s.logger.Warn("all sends throttled", "limit", rejects.Limit, "value", rejects.Value, "mark", rejects.Mark, "resume", rejects.Resume, "advice", remedies[rejects.Limit])
	case rejects == nil && before != nil:
		s.logger.Info("sends accepted again", "limit", before.Limit)
	}
}

// decide returns the state of each limit that is set, from the state of the storage and the time
// for which it has delayed writes.
func (s *storage) decide(at store.Pressure, held time.Duration, now time.Time) (states []status.LimitState) {
	p := s.limits.Load()
	limits := throttle.ConditionOf(*p, at.Disk, int64(at.Total))
	free, stalled, debt := s.gates.Update(limits, throttle.Condition{Free: int64(at.Free), Debt: int64(at.CompactionDebt), Stalled: held}, now)
	for _, l := range []struct {
		set         bool
		limit, unit string
		is          throttle.State
	}{
		{limits.Free > 0, freeDisk, unitBytes, free},
		{limits.Stalled > 0, WriteStall, unitMilliseconds, stalled},
		{limits.Debt > 0, compactionDebt, unitBytes, debt},
	} {
		if l.set {
			states = append(states, stateOf(status.Throttle{Limit: l.limit, Unit: l.unit}, l.is))
		}
	}
	return states
}

// diskFullRetryAfter is the RetryAfter of a full disk. There is no estimate of when space is free.
const diskFullRetryAfter = 5 * time.Second

func diskFull(full *store.DiskFull) *status.Throttle {
	return &status.Throttle{
		Limit: DiskFull, Unit: unitBytes, Value: full.Missing, Mark: 1, Since: full.Since, RetryAfter: settings.Duration(diskFullRetryAfter),
	}
}
