// Package throttle decides when sends are rejected, and for how long (RocketMQ: sending retry and
// throttling, "Throttling"). It has the arithmetic and small state machines. It knows no topic,
// group or store, has no I/O and starts no goroutine. The caller passes the values and the time.
//
// Each kind of limit is one type. Each type returns its state as a [State]:
//
//	Backlog   of messages, bytes and age: "excessive unconsumed messages";  backlog.go
//	          shares of the clients after a throttle
//	Storage   free disk, compaction debt, write stalls: "high storage       storage.go
//	          pressure"
//	Cold      reads by groups "to consume from an earlier moment"           storage.go
//	Rate      messages and bytes a second                                   pushback.go
//
// A gate (backlog.go) decides when a limit is reached and when it ends (hysteresis). Producers wait
// for a time that follows from measured values: the rate at which a backlog drains ([Drain]) and
// the rate of messages ([Flow]), in pushback.go, and the age of a backlog and its change ([Ages],
// [Age]), in backlog.go.
//
// Zero values are ready for use. Several goroutines may share a Drain, Flow or Age. The other types
// need a lock of the caller.
package throttle

import (
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ResumePercent is the percentage of a limit at which its throttle ends.
const ResumePercent = 80

// resumeMark returns the value at which a throttle at mark ends: ResumePercent of mark, rounded
// down. The result is below mark if mark is above 0.
func resumeMark(mark int64) int64 {
	return mark/100*ResumePercent + mark%100*ResumePercent/100
}

// refuses reports whether a limit rejects sends. It does once value reaches mark, and then until
// value has fallen to resume, so that the state does not flap. A mark of 0 means no limit. before
// is the last result.
func refuses(before bool, value, mark, resume int64) bool {
	if mark <= 0 {
		return false
	}
	if before {
		return value > resume
	}
	return value >= mark
}

// A State is the state of a limit at one moment.
type State struct {
	On     bool  // the limit rejects sends
	Value  int64 // the current value
	Mark   int64 // the limit itself
	Resume int64 // sends are accepted again when the value is at or below; of free disk, at or above

	Since      time.Time     // when On was set; zero if On is false
	RetryAfter time.Duration // estimated time until sends are accepted again; 0 for no estimate
}

// A gate keeps whether one limit rejects sends. The zero value does not reject.
type gate struct {
	on    bool
	since time.Time

	// peak is the highest value of this throttle, and peakAt when update saw it last.
	peak   int64
	peakAt time.Time

	// resuming is set when the gate turns off, until the value has fallen to ResumePercent of the
	// value at which the throttle ended. Meanwhile the clients share the room.
	resuming bool
}

func (g *gate) update(value, mark int64, now time.Time) bool {
	if !g.on && !g.resuming && (mark <= 0 || value < mark) {
		return false // no change; the usual case
	}
	resume := resumeMark(mark)
	before := g.on
	if g.set(refuses(g.on, value, mark, resume), now); g.on && (!before || value >= g.peak) {
		g.peak, g.peakAt = value, now
	}
	if mark <= 0 || value <= resumeMark(resume) {
		g.resuming = false
	}
	return g.on
}

func (g *gate) set(on bool, now time.Time) {
	if on != g.on {
		g.since, g.resuming = now, !on
	}
	g.on = on
}

// state completes s, the state of the gate's limit: it sets On and Since, and clears RetryAfter if
// the gate is off.
func (g *gate) state(s State) State {
	if s.On = g.on; g.on {
		s.Since = g.since
	} else {
		s.RetryAfter = 0
	}
	return s
}

// A Range is an estimate of a time. The zero value means that there is no estimate.
type Range struct{ Least, Most time.Duration }

const (
	// leastFall is the least time since the peak from which a fall is an estimate.
	leastFall = 10 * time.Second

	// steady bounds Most of a Range, as a multiple of Least. A drain whose rate now and rate since
	// the peak differ more is not steady.
	steady = 4
)

// expect estimates how long the gate stays on, from two rates: drain is the time at the rate of the
// last seconds, and the fall since the peak is the rate of the whole throttle. There is no estimate
// in the first 10 s, and while one rate is more than four times the other.
func (g *gate) expect(value, resume int64, drain time.Duration, now time.Time) (r Range) {
	past := now.Sub(g.peakAt)
	if !g.on || drain <= 0 || past < leastFall || value >= g.peak {
		return r
	}
	whole := drainTime(value-resume, float64(g.peak-value)/past.Seconds())
	if r = (Range{min(drain, whole), max(drain, whole)}); r.Most > steady*r.Least {
		return Range{}
	}
	return r
}

// A Measure is one of the ways to measure a backlog.
type Measure int

// The measures.
const (
	ByMessages Measure = iota
	ByBytes
	ByAge // age of the oldest message, in milliseconds
	Measures
)

// An Amount is the size of a backlog, or a limit for it, in each measure. As a limit, 0 means no
// limit.
type Amount [Measures]int64

// A Backlog keeps which limits of one backlog reject sends. After a limit has ended, it shares the
// room below the limit among the clients. The zero value rejects nothing.
type Backlog struct {
	gates [Measures]gate

	// While sharing is set, the clients in fair share the room below the limit that has ended.
	sharing bool
	ended   Measure
	fair    fairness
}

// Update compares a backlog with its limits. It returns the first limit that rejects sends, or
// false if none does.
func (b *Backlog) Update(value, marks Amount, now time.Time) (Measure, bool) {
	holds, ended := Measures, Measures
	for i := range b.gates {
		m, g := Measure(i), &b.gates[i]
		if g.update(value[m], marks[m], now) {
			holds = min(holds, m)
		} else if g.resuming {
			ended = min(ended, m)
		}
	}
	if holds == Measures && ended == Measures {
		b.fair.clients = nil
	}
	b.sharing, b.ended = holds == Measures && ended != Measures, ended
	return holds, holds != Measures
}

// State returns the state of one limit at the last Update, without RetryAfter.
func (b *Backlog) State(m Measure, value, marks Amount) State {
	return b.gates[m].state(State{Value: value[m], Mark: marks[m], Resume: resumeMark(marks[m])})
}

// Expect estimates how long a limit that rejects sends continues to do so. drain is the estimate by
// the drain rate of the last seconds, see Draining.Until. value is that of the last Update.
func (b *Backlog) Expect(m Measure, value, marks Amount, drain time.Duration, now time.Time) Range {
	return b.gates[m].expect(value[m], resumeMark(marks[m]), drain, now)
}

// Draining is how fast a backlog falls: messages and bytes per second, and seconds of age per
// second. In a measure that is 0 or negative, the backlog does not fall.
type Draining struct{ Messages, Bytes, Age float64 }

// Until estimates how long it takes until a backlog has fallen to resume in a measure. It returns 0
// if the backlog does not fall, so that there is no estimate.
func (d Draining) Until(m Measure, backlog Amount, resume int64) time.Duration {
	switch m {
	case ByMessages:
		return drainTime(backlog[m]-resume, d.Messages)
	case ByBytes:
		return drainTime(backlog[m]-resume, d.Bytes)
	}
	// The age falls as consumers proceed to newer messages. It is 0 once the backlog is empty.
	all := drainTime(backlog[ByMessages], d.Messages)
	falling := drainTime(backlog[ByAge]-resume, d.Age*1000)
	if all == 0 || falling == 0 {
		return max(all, falling)
	}
	return min(all, falling)
}

// A Consumer is one of the groups that drain a topic.
type Consumer struct {
	Backlog Amount
	Drain   Draining
}

// UntilAll estimates how long it takes until the backlogs of all groups of a topic have fallen to
// resume in a measure. The slowest group above resume determines the result. waiting is the part
// that no group can drain yet, for example delayed messages; it counts in addition to the backlog
// of each group. UntilAll returns 0 if there is no estimate.
func UntilAll(m Measure, waiting Amount, groups []Consumer, resume int64) (longest time.Duration) {
	if resume -= waiting[m]; resume < 0 {
		return 0
	}
	for _, g := range groups {
		if g.Backlog[m] <= resume {
			continue
		}
		d := g.Drain.Until(m, g.Backlog, resume)
		if d == 0 {
			return 0
		}
		longest = max(longest, d)
	}
	return longest
}

// An Age is the age of the oldest message of a backlog. Sends update it by Look; there is no timer.
// Goroutines may share an Age. The zero value has not been updated yet; its age is 0.
type Age struct {
	looking atomic.Bool  // one goroutine updates; the others use the last value
	at      atomic.Int64 // time of the last update, in nanoseconds since 1970
	stored  atomic.Int64 // when the oldest message was stored; 0 for none

	mu       sync.Mutex
	progress progress // guarded by mu
}

// Look updates the age. oldest returns when the oldest message was stored, in nanoseconds since
// 1970; 0 means that the backlog is empty. oldest may read from a store.
//
// Look does not call oldest if the last update is less than a fiftieth of limit ago; this interval
// is at least 1 ms and at most 100 ms. While one goroutine is in oldest, Look returns at once in
// the other goroutines.
func (a *Age) Look(now time.Time, limit time.Duration, oldest func() int64) {
	if d := now.UnixNano() - a.at.Load(); d >= 0 && d < int64(ageEvery(limit)) || !a.looking.CompareAndSwap(false, true) {
		return
	}
	defer a.looking.Store(false)
	a.stored.Store(oldest())
	a.at.Store(now.UnixNano())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.progress.observe(a.stored.Load(), now)
}

// ageEvery returns the least time between two updates of an age for a limit.
func ageEvery(limit time.Duration) time.Duration {
	return min(max(limit/50, time.Millisecond), 100*time.Millisecond)
}

// At returns the age of the oldest message at now; 0 for an empty backlog.
func (a *Age) At(now time.Time) time.Duration {
	stored := a.stored.Load()
	if stored == 0 {
		return 0
	}
	return max(0, time.Duration(now.UnixNano()-stored))
}

// Fall returns how fast the age falls, in seconds per second. It is negative while the age grows.
func (a *Age) Fall() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.progress.rate() - 1
}

// progress measures how fast consumers proceed to newer messages, in seconds of stored time per
// second. For example, it is 2 while consumers take one second for the messages of two seconds.
// The zero value is ready for use.
type progress struct {
	at       time.Time
	stored   int64
	came, in float64 // decayed sums, in seconds: progress in stored time, and elapsed time
}

// observe records that the oldest message at now was stored at stored; 0 for an empty backlog.
func (p *progress) observe(stored int64, now time.Time) {
	dt := now.Sub(p.at).Seconds()
	if dt <= 0 {
		return
	}
	if p.stored == 0 || stored == 0 {
		p.came, p.in = 0, 0 // the backlog was empty, or is empty now
	} else {
		w := math.Exp(-dt / drainWindow.Seconds())
		if p.came *= w; p.came < 1e-3 { // a pause of many windows: measure anew
			p.came, p.in = 0, 0
		}
		p.came += max(0, time.Duration(stored-p.stored).Seconds())
		p.in = p.in*w + dt
	}
	p.at, p.stored = now, stored
}

// rate returns the progress of the consumers, in seconds of stored time per second.
func (p *progress) rate() float64 {
	if p.in == 0 {
		return 0
	}
	return p.came / p.in
}

// AgeTick is the resolution of the stored times in [Ages], in nanoseconds. Ages has at most one
// entry per tick.
const AgeTick = int64(100 * time.Millisecond)

// Ages counts messages by the time when they were stored, in nanoseconds since 1970. The entries
// are sorted, the oldest first. Within a queue, stored times grow with the offsets, so Add nearly
// always adds at the end. Add and Remove take amortized constant time, or a binary search among
// the entries. The zero value is empty.
type Ages struct {
	entries []ageEntry // the first one is never empty
	empty   int        // number of entries without messages
}

// An ageEntry counts the messages of one tick.
type ageEntry struct {
	stored int64 // stored time of the first message that was added
	n      int
}

func (a *Ages) search(stored int64) (int, bool) {
	return slices.BinarySearchFunc(a.entries, stored/AgeTick, func(e ageEntry, tick int64) int {
		return int(min(max(e.stored/AgeTick-tick, -1), 1))
	})
}

// Add counts a message that was stored at stored.
func (a *Ages) Add(stored int64) {
	i := len(a.entries) - 1
	if i < 0 || a.entries[i].stored/AgeTick != stored/AgeTick {
		var ok bool
		if i, ok = a.search(stored); !ok {
			a.entries = slices.Insert(a.entries, i, ageEntry{stored: stored})
			a.empty++
		}
	}
	if a.entries[i].n == 0 {
		a.entries[i].stored = stored
		a.empty--
	}
	a.entries[i].n++
}

// Remove removes a message that was added. It does nothing if the tick of stored has no messages.
func (a *Ages) Remove(stored int64) {
	i, ok := a.search(stored)
	if !ok || a.entries[i].n == 0 {
		return
	}
	if a.entries[i].n--; a.entries[i].n > 0 {
		return
	}
	a.empty++
	first := 0
	for first < len(a.entries) && a.entries[first].n == 0 {
		first++
	}
	a.entries, a.empty = a.entries[first:], a.empty-first
	if 2*a.empty > len(a.entries) { // for example one old message, and many later ones that were removed
		a.entries = slices.DeleteFunc(a.entries, func(e ageEntry) bool { return e.n == 0 })
		a.empty = 0
	}
}

// Oldest returns when the oldest message was stored, exact to a tick; 0 if there are no messages.
func (a *Ages) Oldest() int64 {
	if len(a.entries) == 0 {
		return 0
	}
	return a.entries[0].stored
}

// All yields each tick that has messages, the oldest first: when the messages were stored, exact
// to a tick, and their number.
func (a *Ages) All() iter.Seq2[int64, int] {
	return func(yield func(int64, int) bool) {
		for _, e := range a.entries {
			if e.n > 0 && !yield(e.stored, e.n) {
				return
			}
		}
	}
}

// Lesser returns the lesser of two times or limits. 0 means none: then Lesser returns the other.
func Lesser[T ~int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

const (
	// fairWindow is how long a client has a share after its last send or wait.
	fairWindow = 10 * time.Second

	// maxSharers bounds the number of clients with a share of their own. Further clients have one
	// share together.
	maxSharers = 4096
)

// fairness divides the room after a throttle among the clients that want to send. Without it the
// most aggressive client would take the whole room: that client retries all the time, while the
// others wait for the announced time.
//
// Sharing lasts from the end of a throttle until the backlog is well below the limit. Each client
// seen in the last fairWindow has a token bucket. A bucket starts with an equal part of half of the
// room, and gains an equal part of the drain rate. So the backlog stays about the same. The zero
// value is ready for use.
type fairness struct {
	clients map[string]*tokens
	purged  time.Time
}

// tokens are the token bucket of one client, in messages or bytes.
type tokens struct {
	left float64
	at   time.Time // when left was computed
	seen time.Time
}

// see records that a client wants to send, and returns its tokens.
func (f *fairness) see(client string, now time.Time) *tokens {
	if now.Sub(f.purged) >= time.Second {
		f.purged = now
		for name, c := range f.clients {
			if now.Sub(c.seen) > fairWindow {
				delete(f.clients, name)
			}
		}
	}
	c := f.clients[client]
	if c == nil && len(f.clients) >= maxSharers {
		client = ""
		c = f.clients[client]
	}
	if c == nil {
		if f.clients == nil {
			f.clients = map[string]*tokens{}
		}
		c = &tokens{left: math.Inf(1), at: now} // full: take lowers it to the size of a bucket
		f.clients[client] = c
	}
	c.seen = now
	return c
}

// take takes cost from the tokens of a client. If the client has too few tokens, take returns false
// and the time until it has enough. room is the amount that all clients together can send until the
// limit is reached again. rate is the drain rate per second.
func (f *fairness) take(client string, cost, room, rate float64, now time.Time) (wait time.Duration, ok bool) {
	c := f.see(client, now)
	n := float64(len(f.clients))
	if n == 1 {
		return 0, true // there is no other client
	}
	most := max(cost, room/2/n)
	c.left = min(most, c.left+rate/n*now.Sub(c.at).Seconds())
	c.at = now
	if c.left >= cost {
		c.left -= cost
		return 0, true
	}
	return pushBack(int64(math.Ceil(cost-c.left)), rate/n), false
}

// A Share describes the share of a client that has used it up for now.
type Share struct {
	Measure   Measure   // ByMessages or ByBytes
	PerSecond int64     // of one client
	Clients   int       // number of clients that share
	Since     time.Time // when the limit ended

	RetryAfter time.Duration // until the client has enough tokens for the message
}

// Wait records that a limit has rejected a send of a client. The client has a share when the limit
// ends.
func (b *Backlog) Wait(client string, now time.Time) { b.fair.see(client, now) }

// Sharing reports whether the clients shared the room at the last Update. They do from the end of a
// limit until the backlog is well below it, unless another limit rejects sends.
func (b *Backlog) Sharing() bool { return b.sharing }

// Share decides whether a client may send a message of size bytes. Call it while Sharing is true.
// messages and bytes are the drain rates per second. Each client that has sent or waited in the
// last ten seconds has an equal share of the drain rate; a single client is not limited. If the
// client has used up its share, Share returns the share and false.
func (b *Backlog) Share(client string, size int64, value, marks Amount, messages, bytes float64, now time.Time) (Share, bool) {
	m := b.ended
	by, cost, room, drained := ByMessages, 1.0, float64(marks[m]-value[m]), messages
	switch m {
	case ByBytes:
		by, cost, drained = ByBytes, max(1, float64(size)), bytes
	case ByAge:
		room = messages // the messages drained in one second
	}
	// Even if little or nothing drains, clients may use the room within fairWindow.
	drained = max(drained, room/fairWindow.Seconds(), cost/fairWindow.Seconds())
	wait, ok := b.fair.take(client, cost, room, drained, now)
	if ok {
		return Share{}, true
	}
	n := len(b.fair.clients)
	return Share{Measure: by, PerSecond: int64(drained / float64(n)), Clients: n, Since: b.gates[m].since, RetryAfter: wait}, false
}
