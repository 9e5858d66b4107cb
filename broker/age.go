package broker

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// ageTick is how finely stored times are told apart: what counts the messages
// of a queue has at most one entry for each.
const ageTick = int64(100 * time.Millisecond)

// ages counts messages by when they were stored, the oldest first. Offsets and
// stored times of a queue grow together, so adding is nearly always at the
// end; all it does is O(1) amortized, or a search among the entries. Its zero value is empty.
type ages struct {
	entries []ageEntry // the first one is never empty
	empty   int        // of entries
}

// An ageEntry is the messages of one tick.
type ageEntry struct {
	stored int64 // of the first of them that was added, in nanoseconds since 1970
	n      int
}

func (a *ages) search(stored int64) (int, bool) {
	return slices.BinarySearchFunc(a.entries, stored/ageTick, func(e ageEntry, tick int64) int {
		return int(min(max(e.stored/ageTick-tick, -1), 1))
	})
}

func (a *ages) add(stored int64) {
	i := len(a.entries) - 1
	if i < 0 || a.entries[i].stored/ageTick != stored/ageTick {
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

// remove takes out a message that was added.
func (a *ages) remove(stored int64) {
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
	if 2*a.empty > len(a.entries) { // one old message, and much that came and went since
		a.entries = slices.DeleteFunc(a.entries, func(e ageEntry) bool { return e.n == 0 })
		a.empty = 0
	}
}

// oldest returns when the oldest message was stored, exact to a tick; 0 for none.
func (a *ages) oldest() int64 {
	if len(a.entries) == 0 {
		return 0
	}
	return a.entries[0].stored
}

// earlier returns the earlier of two times, of which 0 is none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// A stamp is when the first message at or after an offset was stored.
type stamp struct{ from, stored int64 }

// keep adds a lease to those that are not done. mu is held.
func (s *subscription) keep(l *lease) {
	l.cursor.leases[l.offset] = l
	l.cursor.ages.add(l.Stored)
	s.leasedBytes.Add(l.Size)
}

// drop takes out a lease that keep added. mu is held.
func (s *subscription) drop(l *lease) {
	delete(l.cursor.leases, l.offset)
	l.cursor.ages.remove(l.Stored)
	s.leasedBytes.Add(-l.Size)
}

// oldest returns when the oldest message that the group is not done with was
// stored, and the oldest among those never handed out, in nanoseconds since
// 1970; 0 for none. It reads one message from each queue whose head it does
// not know. What cannot be read is told to who receives it, and passed over here.
func (s *subscription) oldest() (all, fresh int64) {
	type gap struct {
		c         *cursor
		from, end int64
	}
	var unknown []gap
	s.mu.Lock()
	for _, c := range s.cursors {
		all = earlier(all, c.ages.oldest())
		end := c.queue.end.Load()
		switch {
		case c.next >= end:
		case c.head.from == c.next && c.head.stored != 0:
			fresh = earlier(fresh, c.head.stored)
		default:
			unknown = append(unknown, gap{c, c.next, end})
		}
	}
	s.mu.Unlock()
	for i, g := range unknown {
		stored := s.broker.firstStored(s.topic, g.c.queue, g.from, g.end)
		fresh = earlier(fresh, stored)
		unknown[i].end = stored
	}
	if len(unknown) > 0 {
		s.mu.Lock()
		for _, g := range unknown {
			g.c.head = stamp{from: g.from, stored: g.end}
		}
		s.mu.Unlock()
	}
	return earlier(all, fresh), fresh
}

// progress measures how fast consumers come to newer messages: seconds of
// stored time in a second. Its zero value is ready for use.
type progress struct {
	at       time.Time
	stored   int64
	came, in float64 // decayed sums of seconds
}

// observe notes when the oldest message was stored at a moment; 0 for none.
func (p *progress) observe(stored int64, now time.Time) {
	dt := now.Sub(p.at).Seconds()
	if dt <= 0 {
		return
	}
	if p.stored == 0 || stored == 0 {
		p.came, p.in = 0, 0 // there was nothing to come to, or there is no more
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

// rate returns the seconds of stored time that consumers pass in a second.
func (p *progress) rate() float64 {
	if p.in == 0 {
		return 0
	}
	return p.came / p.in
}

// aging is the age of a backlog as it was looked at last. It is looked at when
// something is sent, and not by a timer. Its zero value is ready for use.
type aging struct {
	looking atomic.Bool // one at a time; the others take what is there
	at      atomic.Int64
	stored  atomic.Int64 // of the oldest message; 0 for none

	mu       sync.Mutex
	progress progress // guarded by mu
}

// ageEvery is how often an age is looked at for a limit.
func ageEvery(limit Duration) time.Duration {
	return min(max(time.Duration(limit)/50, time.Millisecond), 100*time.Millisecond)
}

// look has the age up to date: oldest, which may read from the store, is asked
// unless it was less than every ago.
func (a *aging) look(now time.Time, every time.Duration, oldest func() int64) {
	if d := now.UnixNano() - a.at.Load(); d >= 0 && d < int64(every) || !a.looking.CompareAndSwap(false, true) {
		return
	}
	defer a.looking.Store(false)
	a.stored.Store(oldest())
	a.at.Store(now.UnixNano())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.progress.observe(a.stored.Load(), now)
}

// age returns how old the oldest message is; 0 for none.
func (a *aging) age(now time.Time) time.Duration {
	stored := a.stored.Load()
	if stored == 0 {
		return 0
	}
	return max(0, time.Duration(now.UnixNano()-stored))
}

// fall returns how many seconds the age falls in a second; below 0 while it grows.
func (a *aging) fall() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.progress.rate() - 1
}

// lookAtAges has the ages up to date that limits of a topic or of its groups ask for.
func (b *Broker) lookAtAges(t *topic, now time.Time) {
	limit := b.backlogLimit(t).Age
	subs := *t.subs.Load()
	if len(subs) == 0 && limit > 0 {
		t.aging.look(now, ageEvery(limit), t.oldest(b))
		return
	}
	for _, s := range subs {
		l := s.group.config.Load().MaxBacklog.Age
		if limit > 0 && (l == 0 || limit < l) {
			l = limit
		}
		if l > 0 {
			s.aging.look(now, ageEvery(l), func() int64 { all, _ := s.oldest(); return all })
		}
	}
}

// oldest returns a function that reads when the oldest message of a topic was stored.
func (t *topic) oldest(b *Broker) func() int64 {
	return func() (oldest int64) {
		for _, q := range *t.queues.Load() {
			if end := q.end.Load(); end > 0 {
				oldest = earlier(oldest, b.firstStored(t, q, 0, end))
			}
		}
		return oldest
	}
}

// firstStored returns when the first message of a queue between two offsets
// was stored, in nanoseconds since 1970; 0 if there is none, or it cannot be read.
func (b *Broker) firstStored(t *topic, q *queue, from, to int64) int64 {
	m, ok, err := b.store.FirstIn(store.Range{Topic: t.id, Queue: q.number, From: from, To: to})
	if !ok || err != nil {
		return 0
	}
	return m.At.UnixNano()
}
