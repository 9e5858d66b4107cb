package simulation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
)

// A book has everything that the users of the SDK observed. Its methods may be called by several
// goroutines.
type book struct {
	w *world

	mu       sync.Mutex // guards the following fields
	lines    []string
	failures []string
	sent     map[string]*sent     // by the name of the message
	order    map[string]int       // the number of sends so far of each producer, topic and message group
	handled  map[copyKey]*copyOf  // the handling of a message by each group
	working  map[string]work      // message groups in work, by consumer group, broker and message group
	open     map[string]time.Time // calls that have not returned, by a description
	attempts map[int][]attempt    // of the producers of each client
	called   time.Duration        // the start of the last call of a handler
	most     int                  // the largest number of calls for one message
	failed   time.Duration        // the end of the last failed attempt, with the wait that its response requested
}

// An attempt is an attempt of a producer for one message.
type attempt struct {
	began     time.Duration
	endpoint  string
	throttled bool
	ok        bool
}

// attempt records an attempt.
func (b *book) attempt(client int, a producer.Attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts[client] = append(b.attempts[client], attempt{a.Began.Sub(b.w.start), a.Endpoint, errors.Is(a.Err, tidegate.ErrThrottled), a.Err == nil})
	if a.Err != nil {
		b.failed = max(b.failed, b.w.now()+max(0, tidegate.RetryAfter(a.Err)))
	}
}

// lastCall returns the start of the last call of a handler.
func (b *book) lastCall() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.called
}

// excess reports whether a message was handled more often than any group permits.
func (b *book) excess() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most > 2*mostAttempts+maxExcuses
}

// lastTrouble returns the end of the last failed attempt and of the wait that its response
// requested.
func (b *book) lastTrouble() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

// A sent is a message that a producer was asked to send.
type sent struct {
	name, producer, topic, messageGroup string

	number  int // in its message group, by the order of the calls
	began   time.Duration
	ended   bool
	err     error
	receipt tidegate.Receipt
	maybe   bool // err != nil, and the broker may have it nevertheless
	recall  recall
}

// A recall is the known state of the recall of a message.
type recall int

const (
	notRecalled recall = iota
	perhapsRecalled
	recalled
)

// A copyKey is a message as a consumer group sees it: each broker can have a copy of it.
type copyKey struct {
	group, name string
	broker      int
}

// A copyOf is the history of a message in a group.
type copyOf struct {
	calls     []call
	succeeded int
}

// A call is one call of a handler, or one receive of a simple consumer.
type call struct {
	attempt    int
	offset     int64
	queue      int
	began, end time.Duration
	err        error
	returned   bool
}

func newBook(w *world) *book {
	return &book{w: w, sent: map[string]*sent{}, order: map[string]int{}, handled: map[copyKey]*copyOf{}, working: map[string]work{}, open: map[string]time.Time{}, attempts: map[int][]attempt{}}
}

// logs reports whether the log of the seed is wanted: a seed has tens of thousands of lines.
func logs() bool { return *verbose || *oneSeed != 0 }

// note adds a line to the log of the seed.
func (b *book) note(format string, args ...any) {
	if !logs() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noteLocked(format, args...)
}

func (b *book) noteLocked(format string, args ...any) {
	if !logs() {
		return
	}
	b.lines = append(b.lines, fmt.Sprintf("%10.3f  ", b.w.now().Seconds())+fmt.Sprintf(format, args...))
}

// maxFailures bounds the failures that the test of a seed reports. The log has all of them.
const maxFailures = 10

// fail records a broken promise.
func (b *book) fail(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failLocked(format, args...)
}

func (b *book) failLocked(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.failures = append(b.failures, text)
	b.noteLocked("BROKEN: %s", text)
}

// begin records a call that has to end, and returns the function that records its end.
func (b *book) begin(format string, args ...any) (end func()) {
	name := fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[name] = time.Now()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.open, name)
	}
}

// pending returns the calls that have not ended, the oldest first.
func (b *book) pending() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for name, began := range b.open {
		list = append(list, fmt.Sprintf("%s, since %v", name, time.Since(began).Round(time.Millisecond)))
	}
	slices.Sort(list)
	return list
}

// send records the call for a message.
func (b *book) send(m *tidegate.Message, producer string) *sent {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := producer + " " + m.Topic + " " + m.MessageGroup
	s := &sent{name: m.ID, producer: producer, topic: m.Topic, messageGroup: m.MessageGroup, number: b.order[key], began: b.w.now()}
	b.order[key]++
	b.sent[m.ID] = s
	b.noteLocked("%s sends %s (%s)", producer, m.ID, m.MessageGroup)
	return s
}

// result records the result of a send.
func (b *book) result(s *sent, r tidegate.Receipt, err error, maybeStored bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.ended {
		b.failLocked("%s has two results", s.name)
	}
	s.ended, s.err, s.receipt, s.maybe = true, err, r, maybeStored
	if err != nil {
		b.noteLocked("%s failed: %v", s.name, err)
	} else {
		b.noteLocked("%s is stored: %s queue %d offset %d, spooled %v, %d attempts", s.name, r.Endpoint, r.Queue, r.Offset, r.Spooled, r.Attempts)
	}
}

// recall records the result of a recall.
func (b *book) recall(s *sent, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.recall = perhapsRecalled; err == nil && s.receipt.Attempts == 1 {
		s.recall = recalled
	}
	b.noteLocked("%s is recalled: %v", s.name, err)
}

// broker returns the number of the broker that a delivery came from.
func (b *book) broker(d *tidegate.Delivery) int {
	if strings.HasPrefix(d.Endpoint, "broker1/") {
		return 1
	}
	return 0
}

// handle records the start of a handler and returns the function that records its end.
func (b *book) handle(group, consumer string, d *tidegate.Delivery) (end func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := copyKey{group, d.ID, b.broker(d)}
	c := b.handled[key]
	if c == nil {
		c = &copyOf{}
		b.handled[key] = c
	}
	n := len(c.calls)
	b.called, b.most = b.w.now(), max(b.most, n+1)
	c.calls = append(c.calls, call{attempt: d.Attempt, offset: d.Offset, queue: d.Queue, began: b.w.now()})
	b.noteLocked("%s of %s begins %s, attempt %d (broker %d, queue %d, offset %d, group %s)", consumer, group, d.ID, d.Attempt, key.broker, d.Queue, d.Offset, d.MessageGroup)
	line := fmt.Sprint(group, " broker ", key.broker, " ", d.Topic, " queue ", d.Queue, " offset ", d.Offset)
	if d.MessageGroup != "" && b.fifo(group) {
		line = fmt.Sprint(group, " broker ", key.broker, " ", d.Topic, " message group ", d.MessageGroup)
	}
	// The first delivery of a message is not synced before the response, so a power failure can
	// lose its lease, and the message is delivered again at once.
	if other, busy := b.working[line]; busy && (b.w.sites[key.broker].lost.Load() == 0 || int64(other.began) > b.w.sites[key.broker].lost.Load()) {
		b.failLocked("%s of %s handles %s while %s is being handled (%s)", consumer, group, d.ID, other.id, line)
	}
	b.working[line] = work{d.ID, b.w.now()}
	return func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.working, line)
		call := &c.calls[n]
		call.end, call.err, call.returned = b.w.now(), err, true
		if err == nil {
			c.succeeded++
		}
		b.noteLocked("%s of %s ends %s: %v", consumer, group, d.ID, err)
	}
}

// calls returns the number of calls of a handler for a message so far.
func (b *book) calls(group string, d *tidegate.Delivery) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.handled[copyKey{group, d.ID, b.broker(d)}].calls)
}

// A work is a message that is being handled.
type work struct {
	id    string
	began time.Duration
}

func (b *book) fifo(group string) bool {
	g := b.w.plan.group(group)
	return g != nil && g.fifo
}
