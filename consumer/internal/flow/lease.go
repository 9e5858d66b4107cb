package flow

import (
	"container/heap"
	"slices"
	"time"
)

// maxInvisibleDuration is RocketMQ's maximum of an invisible duration.
const maxInvisibleDuration = 12 * time.Hour

// A Lease is the time for which a delivery belongs to this consumer, by its own clock.
//
// Wake-ups: Renewal and Retry return the time of the next extension, or the end of the lease if no
// extension may begin before it. The consumer keeps a timer for that time.
//
// Bound on steps: an extension that succeeds is followed by one after more than a quarter of the
// remaining time, a failed one by one after a hundredth of the invisible duration or later. None
// begins after the longest time of extensions, so every lease ends.
type Lease struct {
	Until time.Time // the handler's context ends then
	last  time.Time // no extension begins after that
}

// The server counts an invisible time from the moment at which it handed the message out or
// made the change, which is somewhere between request and response. The lease counts from
// the earliest of these moments and ends a little sooner, so that it is over before the
// server may deliver the message again, at any delay of the network.

// First returns the lease of a delivery that was asked for at sent, arrived at now, and
// is invisible for left from now on if the network took no time. A receive may have been parked for
// longer than that; then it is not known when the message was handed out, and a third of
// left is certain enough to begin with an extension.
func First(sent, now time.Time, left, maxExtension time.Duration) Lease {
	left = max(left, 0)
	certain := max(left-now.Sub(sent), left/3)
	l := Lease{Until: now.Add(certain - margin(left))}
	if maxExtension > 0 {
		l.last = now.Add(maxExtension)
	}
	return l
}

// margin is the part of an invisible time that is not used: timers fire late, and a handler needs a
// moment to see that its context has ended.
func margin(d time.Duration) time.Duration { return min(d/50, time.Second) }

// Extended returns the lease after an extension to d that was asked for at sent.
func (l Lease) Extended(sent time.Time, d time.Duration) Lease {
	l.Until = sent.Add(d - margin(d))
	return l
}

// Renewal returns when to extend the lease: after a third of its remaining time, less up to
// a tenth of that by random, 0 ≤ random < 1, so that messages received together are not
// extended together. Without an extension that is the end of the lease.
func (l Lease) Renewal(now time.Time, random float64) time.Time {
	third := l.Until.Sub(now) / 3
	return l.allowed(now.Add(third - time.Duration(random*float64(third)/10)))
}

// Retry returns when to try an extension again that failed: after a tenth of the remaining time.
func (l Lease) Retry(now time.Time, inv time.Duration) time.Time {
	return l.allowed(now.Add(max(l.Until.Sub(now)/10, inv/100)))
}

// allowed returns t, or the end of the lease if no extension may begin at t.
func (l Lease) allowed(t time.Time) time.Time {
	if t.After(l.last) || t.After(l.Until) {
		return l.Until
	}
	return t
}

// Again returns the lease for another attempt at due, whose extensions may last for maxExtension
// after that. ok is false if the lease ends before due.
func (l Lease) Again(due time.Time, maxExtension time.Duration) (again Lease, ok bool) {
	if maxExtension > 0 {
		l.last = due.Add(maxExtension)
	}
	return l, due.Before(l.Until) || maxExtension > 0
}

// A RenewTime remembers how long extensions take.
type RenewTime struct{ peak time.Duration }

// Observe notes an extension that took d. The peak decays, so that one slow extension is
// forgotten after some dozens.
func (r *RenewTime) Observe(d time.Duration) { r.peak = max(d, r.peak-r.peak/32) }

// Floor returns the invisible duration to request: inv, or three times the duration of an
// extension. A shorter one would end before its extension arrives.
func (r *RenewTime) Floor(inv time.Duration) time.Duration {
	return min(max(inv, 3*r.peak), max(inv, maxInvisibleDuration))
}

// Timeout returns how long one attempt to extend may take.
func (r *RenewTime) Timeout(inv, left time.Duration) time.Duration {
	return min(max(inv/3, 2*r.peak), left)
}

const (
	// remindMax bounds the reminders.
	remindMax = 1024

	// step is how precise reminders are: those of one queue within one step are one.
	step = 100 * time.Millisecond
)

// revivals are the times after the delay of a retry at which a RocketMQ is asked for it. 5.2.0 has
// it ready 2.0 s to 2.2 s late, at times more than 3 s. A receive that comes too early waits for
// 5 s and is not woken.
var revivals = [...]time.Duration{2500 * time.Millisecond, 4 * time.Second}

// A reminder is the time at which a retry of this consumer is ready. On a RocketMQ a retry does not
// wake the receive that waits, and so would come up to a whole poll late; another receive fetches
// it.
type reminder[S comparable] struct {
	At     time.Time
	source S
}

// Reminders are sorted by time. The zero value is empty.
type Reminders[S comparable] []reminder[S]

// Retry notes a retry that a RocketMQ delivers from the queue s after its due time.
func (r *Reminders[S]) Retry(due time.Time, s S) {
	for _, late := range revivals {
		r.add(due.Add(late), s)
	}
}

// add notes a time. The latest ones are dropped if there are too many.
func (r *Reminders[S]) add(t time.Time, s S) {
	m := reminder[S]{t.Truncate(step).Add(step), s}
	i, _ := slices.BinarySearchFunc(*r, m, func(a, b reminder[S]) int { return a.At.Compare(b.At) })
	for j := i; j < len(*r) && (*r)[j].At.Equal(m.At); j++ {
		if (*r)[j].source == s {
			return
		}
	}
	*r = slices.Insert(*r, i, m)
	*r = (*r)[:min(len(*r), remindMax)]
}

// Due removes the reminders up to now, and returns their queues.
func (r *Reminders[S]) Due(now time.Time) (sources []S) {
	n := 0
	for n < len(*r) && !(*r)[n].At.After(now) {
		sources = append(sources, (*r)[n].source)
		n++
	}
	*r = slices.Delete(*r, 0, n)
	return sources
}

// A Schedule has entries by time. The zero value is empty.
type Schedule[T any] struct{ entries entries[T] }

// An Entry is a field of the scheduled value, so that scheduling takes no allocation. It is in one
// schedule at most.
type Entry[T any] struct {
	Value T         // the scheduled value
	At    time.Time // when it is due; only Schedule changes it

	place int // in the heap, from 1; 0 if it is not there
}

// Set schedules e at t, instead of its earlier time if it has one.
func (s *Schedule[T]) Set(e *Entry[T], t time.Time) {
	e.At = t
	if e.place > 0 {
		heap.Fix(&s.entries, e.place-1)
	} else {
		heap.Push(&s.entries, e)
	}
}

// Remove takes e out of the schedule, if it is there.
func (s *Schedule[T]) Remove(e *Entry[T]) {
	if e.place > 0 {
		heap.Remove(&s.entries, e.place-1)
	}
}

// First returns the entry that is due first, nil if there is none.
func (s *Schedule[T]) First() *Entry[T] {
	if len(s.entries) == 0 {
		return nil
	}
	return s.entries[0]
}

// All returns the values of all entries, in no particular order.
func (s *Schedule[T]) All() []T {
	list := make([]T, len(s.entries))
	for i, e := range s.entries {
		list[i] = e.Value
	}
	return list
}

// entries implements heap.Interface.
type entries[T any] []*Entry[T]

func (h entries[T]) Len() int           { return len(h) }
func (h entries[T]) Less(i, j int) bool { return h[i].At.Before(h[j].At) }

func (h entries[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push adds an entry; see package heap.
func (h *entries[T]) Push(x any) {
	e := x.(*Entry[T])
	e.place = len(*h) + 1
	*h = append(*h, e)
}

// Pop removes the last entry; see package heap.
func (h *entries[T]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.place = 0
	return e
}

// Lanes hold the messages that wait for a handler: new messages in one lane, retries in the other.
// In each lane the topics take turns. The zero value is empty.
type Lanes[T any] struct {
	fresh, retried lane[T]
	popped         int
}

// Len returns the number of messages.
func (l *Lanes[T]) Len() int { return l.fresh.n + l.retried.n }

// Push adds a message of a topic, which is numbered from 0.
func (l *Lanes[T]) Push(topic int, retried bool, x T) {
	if retried {
		l.retried.push(topic, x)
	} else {
		l.fresh.push(topic, x)
	}
}

// Pop removes the message to handle next; false if there is none. While both lanes have messages,
// new messages have three turns of four, so that neither lane starves. With preferFresh they have
// all turns.
func (l *Lanes[T]) Pop(preferFresh bool) (x T, ok bool) {
	if l.Len() == 0 {
		return x, false
	}
	from := &l.fresh
	if l.fresh.n == 0 || !preferFresh && l.retried.n > 0 && l.popped%4 == 3 {
		from = &l.retried
	}
	l.popped++
	return from.pop(), true
}

// A lane gives each topic with messages one turn after the other.
type lane[T any] struct {
	topics []queue[T]
	order  queue[int] // the topics with messages
	n      int
}

func (l *lane[T]) push(topic int, x T) {
	for topic >= len(l.topics) {
		l.topics = append(l.topics, queue[T]{})
	}
	q := &l.topics[topic]
	if q.len() == 0 {
		l.order.push(topic)
	}
	q.push(x)
	l.n++
}

func (l *lane[T]) pop() T {
	topic := l.order.pop()
	q := &l.topics[topic]
	x := q.pop()
	if q.len() > 0 {
		l.order.push(topic)
	}
	l.n--
	return x
}

// A queue is first in, first out.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(x T) {
	if q.head > 0 && len(q.items) == cap(q.items) && q.head >= len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, x)
}

func (q *queue[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return x
}
