// Package shelf has the pure decisions of package held: which receive gets which message, how much
// credit a link needs, and the fate of a message whose lease ends. It has no clock, no lock and no
// goroutine: its methods get the time as an argument, and Take returns the actions that follow.
package shelf

import (
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

// A Key names a source of messages.
type Key struct {
	Group, Topic string
	Filter       tidegate.Filter
}

// Limits are the limits of a Shelf. All are positive.
type Limits struct {
	Messages int           // held and asked for
	Bytes    int           // bodies of the held messages
	Idle     time.Duration // without a receive, until a source returns its messages
	Grace    time.Duration // for messages under way to a receive that does not wait
	Linger   time.Duration // of a receive that has some messages, for more
}

// An Outcome is the end of a native message.
type Outcome int

// The outcomes, in the order of package held.
const (
	Accepted Outcome = iota
	Released
	Retried
	DeadLettered
)

// A Settlement asks for an outcome.
type Settlement struct {
	*Message
	Outcome Outcome
	Delay   time.Duration
	Reason  string
}

// A Grant asks the system for more messages.
type Grant struct {
	Link *Link
	N    int
}

// Out lists the actions that follow a change of the Shelf. A link that has ended may get more of
// them.
type Out struct {
	Wake   []*Waiter    // receives to call Collect
	Open   []*Link      // to open, then Opened
	Grant  []Grant      // to ask for
	Close  []*Link      // open links to close, then Closed
	Settle []Settlement // to carry out in the background, then Left
}

// A Shelf has the messages that systems pushed and no one has settled yet, their leases, and the
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
//   - a leased, postponed or refused message, one that Snooze returns, and a source without
//     receives that can return messages, have an entry in alarms. The caller calls Due at Next;
//   - a message that is being settled waits for Finish or Left, which the caller owes.
//
// Bound on steps: a message in hand has one alarm, a source has one. An alarm ends a lease, makes a
// message ready, repeats a refused settlement with a growing delay, or releases messages. A receive
// is woken at most once for each event of its source. Credit is asked for if less than half of the
// wanted messages are under way.
type Shelf struct {
	limits    Limits
	prefix    string // of handles, different in each process
	serial    uint64 // of the last handle
	seq       uint64 // of the last message
	closed    bool
	sources   map[Key]*Source
	handles   map[string]*Message
	alarms    pile[*alarm]
	buried    []*Message // with a handle, the oldest first
	starved   []*Source
	held      int // messages of links that have not ended
	bytes     int // their bodies
	large     int // size of a large body, of the last messages
	credit    int // of all links
	postponed int // of the held messages
	out       Out
}

// New returns an empty Shelf whose handles begin with prefix.
func New(l Limits, prefix string) *Shelf {
	return &Shelf{
		limits: l, prefix: prefix, large: 64 << 10, sources: map[Key]*Source{}, handles: map[string]*Message{},
		alarms: newPile(func(a, b *alarm) bool { return a.at.Before(b.at) }, func(a *alarm) *int { return &a.place }),
	}
}

// Take returns the actions that follow the changes since the last call.
func (s *Shelf) Take() Out {
	o := s.out
	s.out = Out{}
	return o
}

// An alarm is the next change of a message or a source that time brings.
type alarm struct {
	at      time.Time
	place   int // in alarms
	message *Message
	source  *Source
}

func (s *Shelf) wakeAt(a *alarm, t time.Time) {
	a.at = t
	s.alarms.put(a)
}

// Next returns the time at which Due has something to do, zero if there is nothing.
func (s *Shelf) Next() time.Time {
	if s.alarms.len() == 0 {
		return time.Time{}
	}
	return s.alarms.first().at
}

// Due makes the changes that are due. It runs before each other method.
func (s *Shelf) Due(now time.Time) {
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

// A Source has the receives of one group, topic and filter.
type Source struct {
	Key
	tags    []string
	link    *Link // nil: closed
	closing int   // links that are not closed yet; the next one opens afterwards
	waiters []*Waiter
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

func newSource(k Key) *Source {
	src := &Source{Key: k}
	src.alarm.source = src
	if e := strings.TrimSpace(k.Filter.Expression); !k.Filter.SQL && e != "" && e != "*" {
		for t := range strings.SplitSeq(e, "||") {
			src.tags = append(src.tags, strings.TrimSpace(t))
		}
	}
	return src
}

// A Link is one connection of a source to its system, and has the messages that it brought. After
// its end the source opens a new one.
type Link struct {
	Source *Source
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
	messages    []*Message
	ready       pile[*Message]
	lines       map[string][]*Message // by message group, the head first
	receives    map[string]*received  // with leased messages, by AttemptID
	inHand      int                   // messages that are not buffered
}

func newLink(src *Source, fifo bool, maxAttempts int) *Link {
	return &Link{
		Source: src, FIFO: fifo, maxAttempts: maxAttempts,
		ready: newPile(func(a, b *Message) bool { return a.seq < b.seq }, func(m *Message) *int { return &m.ready }),
		lines: map[string][]*Message{}, receives: map[string]*received{},
	}
}

// A received is the result of one receive.
type received struct {
	messages []*Message // nil: no longer leased
	leased   int        // the others
}

// canReturn reports whether a link without receives can give messages back. The next messages of a
// message group stay while the first is in hand: their order would be lost.
func (l *Link) canReturn() bool { return l.inHand == 0 || !l.FIFO && l.ready.len() > 0 }

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

// A Message is one message that a system pushed.
type Message struct {
	Delivery *tidegate.Delivery // Attempt is the number of the current or next delivery
	Native   any                // of the caller
	Link     *Link

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
	leave     Settlement // of leaving
	failures  int        // of leave
}

// set changes the state and keeps the count of messages in hand.
func (m *Message) set(st state) {
	if m.state != buffered {
		m.Link.inHand--
	}
	if m.state = st; st != buffered {
		m.Link.inHand++
	}
}

func (s *Shelf) newHandle() string {
	s.serial++
	return string(strconv.AppendUint(append(make([]byte, 0, 32), s.prefix...), s.serial, 36))
}
