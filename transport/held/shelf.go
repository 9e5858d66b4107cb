package held

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

// A key names a source of messages.
type key struct {
	Group, Topic string
	Filter       tidegate.Filter
}

// limits are the limits of a Shelf. All are positive.
type limits struct {
	Messages int           // held and asked for
	Bytes    int           // bodies of the held messages
	Idle     time.Duration // without a receive, until a source returns its messages
	Grace    time.Duration // for messages under way to a receive that does not wait
	Linger   time.Duration // of a receive that has some messages, for more
}

// An outcome is the end of a native message.
type outcome int

// The outcomes, in the order of package held.
const (
	accepted outcome = iota
	released
	retried
	deadLettered
	redelivered
)

// A settlement asks for an outcome.
type settlement struct {
	*message
	Outcome outcome
	Delay   time.Duration
	Reason  string
}

// A grant asks the system for more messages.
type grant struct {
	Link *link
	N    int
}

// out lists the actions that follow a change of the Shelf. A link that has ended may get more of
// them.
type out struct {
	Wake   []*waiter    // receives to call Collect
	Open   []*link      // to open, then Opened
	Grant  []grant      // to ask for
	Close  []*link      // open links to close, then Closed
	Settle []settlement // to carry out in the background, then Left
}

// A shelf has the messages that systems pushed and no one has settled yet, their leases, and the
// receives that wait.
//
// Wake-ups:
//   - a receive waits for a ready message: update, which runs after each event of its source, wakes
//     one receive, and each receive that collects wakes the next one. The opening, the failure and
//     the loss of its link wake it too, and so does Close. Its own timer ends its wait, and its
//     linger for more messages;
//   - a source whose receives need messages has credit or ready messages, or it holds messages and
//     is in starved, which each removal of a message checks;
//   - a source that closes a link opens the next one in Closed;
//   - the settlement of a delivery whose link was lost fails until there is a new link. It asks for
//     that link itself, because the caller may receive only after its settlements;
//   - a message behind another one of its message group waits for remove of that one;
//   - a leased, postponed or refused message, one that Snooze or NegativeAck returns, and a source without
//     receives that can return messages, have an entry in alarms. The caller calls Due at Next;
//   - a message that is being settled waits for Finish or Left, which the caller owes.
//
// Bound on steps: a message in hand has one alarm, a source has one. An alarm ends a lease, makes a
// message ready, repeats a refused settlement with a growing delay, or releases messages. A receive
// is woken at most once for each event of its source. Credit is asked for if less than half of the
// wanted messages are under way.
type shelf struct {
	limits    limits
	prefix    string // of handles, different in each process
	serial    uint64 // of the last handle
	seq       uint64 // of the last message
	closed    bool
	sources   map[key]*source
	handles   map[string]*message
	alarms    pile[*alarm]
	buried    []*message // with a handle, the oldest first
	starved   []*source
	held      int // messages of links that have not ended
	bytes     int // their bodies
	large     int // size of a large body, of the last messages
	credit    int // of all links
	postponed int // of the held messages
	out       out
}

// newShelf returns an empty Shelf whose handles begin with prefix.
func newShelf(l limits, prefix string) *shelf {
	return &shelf{
		limits: l, prefix: prefix, large: 64 << 10, sources: map[key]*source{}, handles: map[string]*message{},
		alarms: newPile(func(a, b *alarm) bool { return a.at.Before(b.at) }, func(a *alarm) *int { return &a.place }),
	}
}

// Take returns the actions that follow the changes since the last call.
func (s *shelf) Take() out {
	o := s.out
	s.out = out{}
	return o
}

// An alarm is the next change of a message or a source that time brings.
type alarm struct {
	at      time.Time
	place   int // in alarms
	message *message
	source  *source
}

func (s *shelf) wakeAt(a *alarm, t time.Time) {
	a.at = t
	s.alarms.put(a)
}

// Next returns the time at which Due has something to do, zero if there is nothing.
func (s *shelf) Next() time.Time {
	if s.alarms.len() == 0 {
		return time.Time{}
	}
	return s.alarms.first().at
}

// Due makes the changes that are due. It runs before each other method.
func (s *shelf) Due(now time.Time) {
	for s.alarms.len() > 0 && !s.alarms.first().at.After(now) {
		a := s.alarms.first()
		s.alarms.remove(a)
		if a.source != nil {
			s.idle(a.source, now)
			continue
		}
		switch m := a.message; m.state {
		case leased:
			s.expire(m, now)
		case postponed:
			s.postponed--
			s.putBack(m, now)
		case leaving:
			s.out.Settle = append(s.out.Settle, m.leave)
		case lost, buried:
			delete(s.handles, m.handle)
			m.state = gone
		}
	}
}

// A source has the receives of one group, topic and filter.
type source struct {
	key
	tags    []string
	link    *link // nil: closed
	closing int   // links that are not closed yet; the next one opens afterwards
	waiters []*waiter
	woken   int // of the waiters
	wanted  int // messages, by all waiters
	full    full
	alarm   alarm
}

// A full is the last receive of a source that got as many messages as it asked for. If the next
// receive follows quickly, the source asks for the messages of one more receive from then on:
// otherwise it would have to wait for them each time. A source of slow receives asks for no more
// than they do.
type full struct {
	at    time.Time // zero: the last receive did not get its maximum, or another one has begun since
	ahead int       // its maximum
	quick bool      // the next receive followed within Limits.Linger
}

func newSource(k key) *source {
	src := &source{key: k}
	src.alarm.source = src
	if e := strings.TrimSpace(k.Filter.Expression); !k.Filter.SQL && e != "" && e != "*" {
		for t := range strings.SplitSeq(e, "||") {
			src.tags = append(src.tags, strings.TrimSpace(t))
		}
	}
	return src
}

// A link is one connection of a source to its system, and has the messages that it brought. After
// its end the source opens a new one.
type link struct {
	Source *source
	Native any // of the caller
	FIFO   bool

	maxAttempts int  // not positive: no maximum
	asked       bool // Opened follows
	open        bool
	ended       bool
	err         error     // that ended it
	reopened    time.Time // when the last settlement of a lost delivery asked for the next link
	openedAt    time.Time
	expected    time.Time // when a lease ended, whose message comes again at once
	arrived     time.Time // of the last message
	credit      int
	messages    []*message
	ready       pile[*message]
	lines       map[string][]*message // by message group, the head first
	receives    map[string]*received  // with leased messages, by AttemptID
	inHand      int                   // messages that are not buffered
}

func newLink(src *source, fifo bool, maxAttempts int) *link {
	return &link{
		Source: src, FIFO: fifo, maxAttempts: maxAttempts,
		ready: newPile(func(a, b *message) bool { return a.seq < b.seq }, func(m *message) *int { return &m.ready }),
		lines: map[string][]*message{}, receives: map[string]*received{},
	}
}

// A received is the result of one receive.
type received struct {
	messages []*message // nil: no longer leased
	leased   int        // the others
}

// canReturn reports whether a link without receives can give messages back. The next messages of a
// message group stay while the first is in hand: their order would be lost.
func (l *link) canReturn() bool { return l.inHand == 0 || !l.FIFO && l.ready.len() > 0 }

// A state is the state of a message.
type state int

const (
	buffered  state = iota // ready, or behind another one of its message group
	leased                 // delivered
	postponed              // until a time, in this process
	settling               // by a caller
	leaving                // settled in the background, at once or at its alarm
	lost                   // with the link; only the handle is left
	buried                 // a dead letter; only the handle is left
	gone
)

// A message is one message that a system pushed.
type message struct {
	Delivery *tidegate.Delivery // Attempt is the number of the current or next delivery
	Native   any                // of the caller
	Link     *link

	state     state
	seq       uint64
	size      int
	inLine    bool
	push      bool
	handle    string
	attemptID string
	received  int       // place in the result of the receive with attemptID
	until     time.Time // of the lease
	alarm     alarm
	ready     int        // place in Source.ready
	place     int        // in Link.messages, from 1
	leave     settlement // of leaving
	failures  int        // of leave
}

// set changes the state and keeps the count of messages in hand.
func (m *message) set(st state) {
	if m.state != buffered {
		m.Link.inHand--
	}
	if m.state = st; st != buffered {
		m.Link.inHand++
	}
}

func (s *shelf) newHandle() string {
	s.serial++
	return string(strconv.AppendUint(append(make([]byte, 0, 32), s.prefix...), s.serial, 36))
}

// A request is one receive.
type request struct {
	key
	FIFO        bool
	MaxAttempts int // not positive: no maximum
	Push        bool
	Max         int // positive
	MaxBytes    int // 0: no bound
	Invisible   time.Duration
	Wait        time.Duration
	AttemptID   string
	Repeat      bool
}

// A waiter is a receive that waits.
type waiter struct {
	C chan struct{} // of the caller; closed or signalled for Out.Wake

	source *source
	r      request
	start  time.Time
	first  time.Time // when it saw a ready message
	linger time.Time // when it collects the ready messages although there are fewer than Max
	woken  bool
	ended  bool
	err    error
}

// Receive returns deliveries, or nothing and no Waiter, or the Waiter of a receive that waits. The
// caller then calls Collect after each wake-up and at the end of its timer, or Leave.
func (s *shelf) Receive(r request, now time.Time) (*waiter, []*tidegate.Delivery, error) {
	src := s.sources[r.key]
	if s.closed {
		return nil, nil, tidegate.ErrClosed
	}
	if src != nil && src.link != nil && r.AttemptID != "" {
		if ds := src.link.again(r.AttemptID); len(ds) > 0 {
			return nil, ds, nil
		}
	}
	if r.Repeat {
		if src != nil && r.AttemptID != "" {
			s.end(src, r.AttemptID)
		}
		return nil, nil, nil
	}
	if src == nil {
		src = s.add(r.key)
	}
	s.alarms.remove(&src.alarm)
	if f := &src.full; !f.at.IsZero() {
		f.quick, f.at = now.Sub(f.at) < s.limits.Linger, time.Time{}
	}
	if src.link == nil {
		src.link = newLink(src, r.FIFO, r.MaxAttempts)
		s.open(src)
	}
	w := &waiter{source: src, r: r, start: now, C: make(chan struct{}, 1)}
	quick := src.full.quick && src.link.ready.len() < r.Max // it has not asked for all of them
	if quick || s.lingers(w, now) {
		s.wake(w) // its next step depends on this moment
	} else if ds := s.hand(src.link, r, now); len(ds) > 0 {
		src.got(len(ds), r.Max, now)
		s.update(src, now)
		return nil, ds, nil
	}
	src.waiters = append(src.waiters, w)
	src.wanted += r.Max
	s.update(src, now)
	return w, nil, nil
}

// got notes the messages of a receive.
func (src *source) got(n, most int, now time.Time) {
	if n < most {
		src.full = full{}
		return
	}
	src.full.at, src.full.ahead = now, most
}

func (s *shelf) add(k key) *source {
	src := newSource(k)
	s.sources[k] = src
	return src
}

// again returns the deliveries of an earlier receive that are still in flight.
func (l *link) again(attemptID string) (ds []*tidegate.Delivery) {
	r := l.receives[attemptID]
	if r == nil {
		return nil
	}
	for _, m := range r.messages {
		if m != nil && m.state == leased {
			ds = append(ds, m.deliver())
		}
	}
	return ds
}

// end ends the waiting receives with an AttemptID.
func (s *shelf) end(src *source, attemptID string) {
	for _, w := range src.waiters {
		if w.r.AttemptID == attemptID {
			w.ended = true
			s.wake(w)
		}
	}
}

// Collect returns the result of a receive that waited, and whether it has ended. If not, next is
// when to call Collect again without a wake-up; zero means not at all.
func (s *shelf) Collect(w *waiter, now time.Time) (ds []*tidegate.Delivery, done bool, next time.Time, err error) {
	src := w.source
	over := w.err != nil || w.ended
	lingers := !over && src.link.open && s.lingers(w, now)
	if !over && !lingers {
		ds = s.hand(src.link, w.r, now)
	}
	if over || len(ds) > 0 {
		src.got(len(ds), w.r.Max, now)
		s.Leave(w, now)
		return ds, true, next, w.err
	}
	if src.link.open {
		if next = w.end(s.limits.Grace); lingers {
			next = w.linger
		} else if !now.Before(next) {
			src.got(0, w.r.Max, now)
			s.Leave(w, now)
			return nil, true, next, nil
		}
	}
	s.slept(w)
	s.update(src, now)
	return nil, false, next, nil
}

// lingers reports whether a receive waits for more messages than are ready: some have just arrived,
// and others are under way. It waits for a quarter of Limits.Linger after each message.
func (s *shelf) lingers(w *waiter, now time.Time) bool {
	l := w.source.link
	n := l.ready.len()
	if n == 0 {
		w.first, w.linger = time.Time{}, time.Time{}
	} else if w.first.IsZero() {
		w.first = now
	}
	if n == 0 || n >= w.r.Max || l.credit == 0 {
		return false
	}
	w.linger = l.arrived.Add(s.limits.Linger / 4)
	if from := w.start.Add(s.limits.Linger / 4); w.source.full.quick && from.After(w.linger) {
		w.linger = from // it has asked for messages then
	}
	if last := w.first.Add(s.limits.Linger); last.Before(w.linger) {
		w.linger = last
	}
	return w.linger.After(now)
}

// end returns when the receive returns nothing. Its link is open. Messages that the system has, or
// gets back now, take some time to arrive.
func (w *waiter) end(grace time.Duration) time.Time {
	l := w.source.link
	end := w.start.Add(w.r.Wait)
	last := end.Add(grace)
	if l.expected.Before(end) {
		last = l.expected.Add(grace)
	}
	for _, t := range []time.Time{w.start.Add(grace), l.openedAt.Add(grace), last} {
		if t.After(end) {
			end = t
		}
	}
	return end
}

// Leave ends a receive that waits.
func (s *shelf) Leave(w *waiter, now time.Time) {
	src := w.source
	i := slices.Index(src.waiters, w)
	if i < 0 {
		return
	}
	src.waiters = slices.Delete(src.waiters, i, i+1)
	src.wanted -= w.r.Max
	s.slept(w)
	s.update(src, now)
	s.forget(src)
}

// forget removes a source that has neither links nor receives.
func (s *shelf) forget(src *source) {
	if src.link == nil && src.closing == 0 && len(src.waiters) == 0 && s.sources[src.key] == src {
		delete(s.sources, src.key)
	}
}

func (s *shelf) wake(w *waiter) {
	if !w.woken {
		w.woken = true
		w.source.woken++
		s.out.Wake = append(s.out.Wake, w)
	}
}

func (s *shelf) slept(w *waiter) {
	if w.woken {
		w.woken = false
		w.source.woken--
	}
}

// update brings a source up to date after an event: it wakes a receive for a ready message, asks
// for messages, and sets the alarm of a source without receives.
func (s *shelf) update(src *source, now time.Time) {
	l := src.link
	if l == nil || !l.open {
		return
	}
	if len(src.waiters) == 0 {
		if src.alarm.place == 0 && l.canReturn() {
			s.wakeAt(&src.alarm, now.Add(s.limits.Idle))
		}
		if src.full.quick {
			s.refill(src)
		}
		return
	}
	if w := src.waiters[0]; l.ready.len() > 0 && src.woken == 0 && (!w.linger.After(now) || !s.lingers(w, now)) {
		s.wake(w)
	}
	s.refill(src)
}

// refill asks for messages if less than half of the wanted and expected ones are under way.
func (s *shelf) refill(src *source) {
	l := src.link
	under, wanted := l.ready.len()+l.credit, src.wanted
	if src.full.quick {
		wanted += src.full.ahead
	}
	if 2*under >= wanted {
		return
	}
	n := min(wanted-under, s.limits.Messages-s.held-s.credit, (s.limits.Bytes-s.bytes)/max(s.large, 1)-s.credit)
	if n < 1 && l.credit == 0 {
		if (s.held >= s.limits.Messages || s.bytes >= s.limits.Bytes) && len(l.messages) > 0 {
			if !slices.Contains(s.starved, src) {
				s.starved = append(s.starved, src)
			}
			return
		}
		n = 1 // each source gets on, although the messages and the credit of others may stay for long
	}
	if n > 0 {
		l.credit += n
		s.credit += n
		s.out.Grant = append(s.out.Grant, grant{l, n})
	}
}

// Deliver adds a message that the system pushed. It ignores messages of a link that has ended: the
// system delivers them again.
func (s *shelf) Deliver(l *link, d *tidegate.Delivery, native any, now time.Time) {
	if l.ended {
		return
	}
	src := l.Source
	if l.credit > 0 {
		l.credit--
		s.credit--
	}
	s.seq++
	m := &message{Delivery: d, Native: native, Link: l, seq: s.seq, size: len(d.Body)}
	m.alarm.message = m
	d.ConsumerGroup, d.Attempt = src.Group, max(d.Attempt, 1)
	l.messages = append(l.messages, m)
	m.place, l.arrived = len(l.messages), now
	s.held++
	s.bytes += m.size
	s.large = max(m.size, s.large-s.large/16)
	switch {
	case src.tags != nil && !slices.Contains(src.tags, d.Tag):
		s.settle(m, settlement{Outcome: accepted})
	case l.FIFO && d.MessageGroup != "":
		m.inLine = true
		l.lines[d.MessageGroup] = append(l.lines[d.MessageGroup], m)
		if len(l.lines[d.MessageGroup]) == 1 {
			l.ready.put(m)
		}
	case s.held > s.limits.Messages: // more than it was asked for
		s.settle(m, settlement{Outcome: released})
	default:
		l.ready.put(m)
	}
	s.update(src, now)
}

// hand leases ready messages to a receive.
func (s *shelf) hand(l *link, r request, now time.Time) (ds []*tidegate.Delivery) {
	bytes := 0
	ds = make([]*tidegate.Delivery, 0, min(r.Max, l.ready.len()))
	for len(ds) < r.Max && l.ready.len() > 0 {
		m := l.ready.first()
		if bytes += m.size; len(ds) > 0 && r.MaxBytes > 0 && bytes > r.MaxBytes {
			break
		}
		l.ready.remove(m)
		m.set(leased)
		m.push, m.attemptID = r.Push, r.AttemptID
		if m.attemptID != "" {
			result := l.receives[m.attemptID]
			if result == nil {
				result = &received{}
				l.receives[m.attemptID] = result
			}
			m.received = len(result.messages)
			result.messages = append(result.messages, m)
			result.leased++
		}
		m.handle = s.newHandle()
		s.handles[m.handle] = m
		m.until = now.Add(r.Invisible)
		s.wakeAt(&m.alarm, m.until)
		ds = append(ds, m.deliver())
	}
	return ds
}

// deliver returns the current delivery of a leased message.
func (m *message) deliver() *tidegate.Delivery {
	d := *m.Delivery // the receiver may change all of it
	d.Keys, d.Properties, d.Body = slices.Clone(d.Keys), maps.Clone(d.Properties), slices.Clone(d.Body)
	d.Handle, d.InvisibleUntil = m.handle, m.until
	return &d
}

// open asks for the link of a source once all earlier ones are closed, because messages that they
// return would come after those that follow.
func (s *shelf) open(src *source) {
	if l := src.link; l != nil && !l.asked && src.closing == 0 {
		l.asked = true
		s.out.Open = append(s.out.Open, l)
	}
}

// Opened reports the end of the opening of a link.
func (s *shelf) Opened(l *link, err error, now time.Time) {
	switch {
	case err != nil:
		s.Lost(l, err, now)
	case l.ended:
		s.close(l)
	default:
		l.open, l.openedAt = true, now
		s.forgetLost(l.Source.key)
		for _, w := range l.Source.waiters {
			s.wake(w) // its end depends on this moment
		}
		s.update(l.Source, now)
	}
}

func (s *shelf) close(l *link) {
	l.Source.closing++
	s.out.Close = append(s.out.Close, l)
}

// Closed reports that a link is closed.
func (s *shelf) Closed(l *link) {
	src := l.Source
	src.closing--
	s.open(src) // for a receive that has come meanwhile
	s.forget(src)
}

// Lost reports that a link has ended, and with it all deliveries: the system has the messages back.
// The receives fail.
func (s *shelf) Lost(l *link, err error, now time.Time) {
	if !l.ended {
		s.drop(l, err)
		s.feed(now)
	}
}

// drop forgets the messages of a link. Its receives fail.
func (s *shelf) drop(l *link, err error) {
	src := l.Source
	l.ended, l.open, l.err = true, false, err
	s.credit -= l.credit
	l.credit = 0
	for _, m := range l.messages {
		s.held--
		s.bytes -= m.size
		switch m.state {
		case settling: // Finish follows
		case leased:
			s.lose(m)
		default:
			if m.state == postponed {
				s.postponed--
			}
			s.alarms.remove(&m.alarm)
			m.state = gone
		}
	}
	l.messages, l.ready.heap.list = nil, nil // lost handles keep the link
	clear(l.lines)
	clear(l.receives)
	src.link = nil
	s.alarms.remove(&src.alarm)
	for _, w := range src.waiters {
		w.err = err
		s.wake(w)
	}
	s.forget(src)
}

// lose keeps the handle of a delivery whose link has ended until the end of its lease or the next
// link, so that its settlement fails for the lost connection.
func (s *shelf) lose(m *message) {
	m.state = lost
	m.Delivery, m.Native = nil, nil
	s.wakeAt(&m.alarm, m.until)
}

// reopen asks for a new link in the place of a lost one, at most once a second.
func (s *shelf) reopen(l *link, now time.Time) {
	src := s.sources[l.Source.key]
	if src == nil {
		src = s.add(l.Source.key)
	}
	if src.link == nil && now.Sub(l.reopened) >= time.Second {
		l.reopened = now
		src.link = newLink(src, l.FIFO, l.maxAttempts)
		s.open(src)
	}
	s.forget(src)
}

// forgetLost ends the validity of the handles that the lost links of a source have left.
func (s *shelf) forgetLost(k key) {
	for handle, m := range s.handles {
		if m.state == lost && m.Link.Source.key == k {
			delete(s.handles, handle)
			s.alarms.remove(&m.alarm)
			m.state = gone
		}
	}
}

// idle returns messages of a source without receives.
func (s *shelf) idle(src *source, now time.Time) {
	l := src.link
	src.full = full{}
	switch {
	case len(src.waiters) > 0 || l == nil || !l.open:
	case l.inHand == 0:
		s.close(l) // the system gets the buffered messages back
		s.drop(l, nil)
		s.feed(now)
	case !l.FIFO:
		list := slices.SortedFunc(slices.Values(l.ready.heap.list), func(a, b *message) int { return cmp.Compare(b.seq, a.seq) })
		for _, m := range list { // the last first: systems put a released message at the front
			l.ready.remove(m)
			s.settle(m, settlement{Outcome: released})
		}
	}
}

// Close ends everything: the receives fail, the links close, and no handle is valid.
func (s *shelf) Close() {
	s.closed = true
	for _, src := range s.sources {
		l := src.link
		if l == nil {
			continue
		}
		if l.open {
			s.close(l)
		}
		s.drop(l, tidegate.ErrClosed)
	}
	clear(s.handles)
	s.starved, s.buried, s.out.Settle = nil, nil, nil
	s.alarms = pile[*alarm]{order[*alarm]{less: s.alarms.heap.less, place: s.alarms.heap.place}}
}

// A pile is a heap whose elements know their place in it, so that they can be moved and removed.
type pile[T any] struct{ heap order[T] }

type order[T any] struct {
	list  []T
	less  func(a, b T) bool
	place func(T) *int // from 1; 0 if the element is not in the pile
}

func newPile[T any](less func(a, b T) bool, place func(T) *int) pile[T] {
	return pile[T]{order[T]{less: less, place: place}}
}

func (p *pile[T]) len() int { return len(p.heap.list) }

// first returns the smallest element of a pile that is not empty.
func (p *pile[T]) first() T { return p.heap.list[0] }

// put adds x, or moves it after its order has changed.
func (p *pile[T]) put(x T) {
	if n := *p.heap.place(x); n > 0 {
		heap.Fix(&p.heap, n-1)
		return
	}
	heap.Push(&p.heap, x)
}

// remove removes x if it is there.
func (p *pile[T]) remove(x T) {
	if n := *p.heap.place(x); n > 0 {
		heap.Remove(&p.heap, n-1)
	}
}

// Len is part of heap.Interface.
func (o *order[T]) Len() int { return len(o.list) }

// Less is part of heap.Interface.
func (o *order[T]) Less(i, j int) bool { return o.less(o.list[i], o.list[j]) }

// Swap is part of heap.Interface.
func (o *order[T]) Swap(i, j int) {
	o.list[i], o.list[j] = o.list[j], o.list[i]
	*o.place(o.list[i]), *o.place(o.list[j]) = i+1, j+1
}

// Push is part of heap.Interface.
func (o *order[T]) Push(x any) {
	o.list = append(o.list, x.(T))
	*o.place(x.(T)) = len(o.list)
}

// Pop is part of heap.Interface.
func (o *order[T]) Pop() any {
	var none T
	n := len(o.list) - 1
	x := o.list[n]
	o.list[n] = none
	o.list = o.list[:n]
	*o.place(x) = 0
	return x
}
