package simulation

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/producer"
)

// A promise is a sentence that holds in every seed, and its check. The check reports each case in
// which the promise is broken.
type promise struct {
	sentence string
	check    func(w *world, broken func(format string, args ...any))
}

// promisesOfCalls are checked after the first phase.
var promisesOfCalls = []promise{
	{"every call of a producer returns within a bounded time after the last fault", callsReturn},
}

// promisesOfSpools are checked after promisesOfCalls.
var promisesOfSpools = []promise{
	{"a spool becomes empty within a bounded time after the last fault", spoolsBecomeEmpty},
}

// promisesOfGroups are checked when no producer sends.
var promisesOfGroups = []promise{
	{"the groups become idle within a bounded time after the last fault", groupsBecomeIdle},
}

// promisesAtTheEnd are checked after all producers and consumers have ended.
var promisesAtTheEnd = []promise{
	{"each accepted message was handled, is a dead letter or is in the spool, unless it was recalled", acceptedMessagesEnd},
	{"a group with an inbox handles each message once", handledOnce},
	{"a message whose transaction was committed is delivered, and one that was rolled back is not", transactionsEnd},
	{"the messages of a message group are stored and handled in their order", messageGroupsKeepOrder},
	{"no delivery has an attempt above the maximum of its group, and no handler call is beyond the bound", attemptsAreBounded},
	{"no lease is left after the end of the consumers", noLeaseIsLeft},
	{"sends leave an endpoint that throttles for longer than the grace", throttlingEndpointsAreLeft},
	{"the number of transport calls is bounded by the number of events", callsAreBounded},
}

// maxCases bounds the reported cases of one promise.
const maxCases = 3

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

func (b *book) checkAll(w *world, promises []promise) {
	for _, p := range promises {
		cases := 0
		p.check(w, func(format string, args ...any) {
			if cases++; cases <= maxCases {
				b.fail("%s: %s", p.sentence, fmt.Sprintf(format, args...))
			}
		})
		if cases > maxCases {
			b.fail("%s: and %d further cases", p.sentence, cases-maxCases)
		}
	}
}

// slowLimit is a rate, in events a second, below which the calls of a plan can wait for minutes. An
// Adaptive that knows the rate of the server grows by a twentieth of that rate each second.
const slowLimit = 50

// callsReturn waits until no call waits. A call can wait for the longest backoff after the last
// failed attempt, twice: until the probe of its lane, and until its own attempt.
func callsReturn(w *world, broken func(string, ...any)) {
	limit := 30 * time.Second
	for i := range w.plan.producers {
		limit = max(limit, 30*time.Second+2*w.plan.producers[i].longestBackoff())
	}
	var slow time.Duration // the last time at which the adaptive limiter was slow, which delays calls for long
	for {
		list := w.book.pending()
		if len(list) == 0 {
			return
		}
		if w.adaptive.Limit() < slowLimit {
			slow = w.now()
		}
		if quiet := w.now() - max(w.book.lastTrouble(), w.plan.lastFault(), w.plan.duration, slow); quiet > limit {
			broken("%d calls still wait %v after the last failed attempt, the first are %s", len(list), quiet, strings.Join(list[:min(len(list), 3)], "; "))
			return
		}
		if w.now() > w.plan.duration+idleLimit { // the attempts fail again and again: the consumers are stuck
			broken("%d calls fail again and again; %s", len(list), w.busy())
			return
		}
		wait(w.t.Context(), time.Second)
	}
}

const (
	// progressLimit is the time without a call of any handler after which a group with messages
	// counts as stuck. It is longer than any invisible time and retry interval of a plan.
	progressLimit = 5 * time.Minute

	// idleLimit is the time after which all groups are idle, also with many failing messages.
	idleLimit = 12 * time.Hour

	// checksTime is the time in which delayed messages become due and transactions are checked.
	checksTime = time.Minute
)

// spoolsBecomeEmpty waits until no running producer has a spooled message.
func spoolsBecomeEmpty(w *world, broken func(string, ...any)) {
	for _, s := range w.senders {
		if s.spool == nil || s.stopAt > 0 {
			continue
		}
		for began := w.now(); s.spool.Stats().Pending > 0; wait(w.t.Context(), time.Second) {
			if w.now()-max(began, w.book.lastTrouble()) > progressLimit {
				broken("%s has %d messages in its spool", s.name, s.spool.Stats().Pending)
				break
			}
		}
	}
}

// groupsBecomeIdle waits until no group has work.
func groupsBecomeIdle(w *world, broken func(string, ...any)) {
	wait(w.t.Context(), checksTime)
	for began := w.now(); ; wait(w.t.Context(), 5*time.Second) {
		busy := w.busy()
		if busy == "" {
			w.book.note("everything is idle")
			return
		}
		if quiet := w.now() - max(began, w.book.lastCall()); quiet > progressLimit || w.now()-began > idleLimit || w.book.excess() {
			broken("after %v, %v after the last call of a handler, %s", w.now()-began, quiet, busy)
			return
		}
	}
}

// busy returns the first group that has work, or "".
func (w *world) busy() string {
	for _, s := range w.sites {
		for _, g := range w.plan.groups {
			if x := s.Stats(g.name, g.topic); x.Ready+x.Inflight+x.WaitingRetry > 0 || x.Topic == "" {
				return fmt.Sprintf("broker %d: %s has %d ready messages of %s, %d in flight and %d waiting for a retry", s.number, g.name, x.Ready, g.topic, x.Inflight, x.WaitingRetry)
			}
		}
	}
	return ""
}

// letters returns the dead letters of a group, by the name of the message.
func (w *world) letters(group string) map[string]int {
	letters := map[string]int{}
	for _, s := range w.sites {
		for q := (status.DeadLetterQuery{}); ; {
			page, err := s.DeadLetters(group, q)
			if err != nil {
				w.book.fail("the dead letters of %s: %v", group, err)
				break
			}
			for _, l := range page.DeadLetters {
				letters[l.MessageID]++
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	return letters
}

func acceptedMessagesEnd(w *world, broken func(string, ...any)) {
	for _, g := range w.plan.groups {
		letters := w.letters(g.name)
		for _, s := range w.book.sent {
			if s.topic != g.topic || s.err != nil || s.recall == perhapsRecalled {
				continue
			}
			handled := 0
			for broker := range w.sites {
				if c := w.book.handled[copyKey{g.name, s.name, broker}]; c != nil {
					handled += c.succeeded
				}
			}
			if s.recall == recalled {
				if handled+letters[s.name] > 0 {
					broken("%s was recalled, and %s got it", s.name, g.name)
				}
				continue
			}
			if w.rolledBack(s) || w.spooled(s) {
				continue
			}
			if handled == 0 && letters[s.name] == 0 {
				broken("%s of %s was stored at %s queue %d offset %d, and %s neither handled it nor has its dead letter", s.name, s.producer, s.receipt.Endpoint, s.receipt.Queue, s.receipt.Offset, g.name)
			}
			if g.reactionTo(w.plan.seed, s.name).failures < 0 && handled > 0 {
				broken("%s failed in every call, and %s has handled it", s.name, g.name)
			}
		}
	}
}

// spooled reports whether the message is still in the spool of its producer, which has ended.
func (w *world) spooled(x *sent) bool {
	for _, s := range w.senders {
		if s.left[x.name] {
			return true
		}
	}
	return false
}

// handledOnce looks at groups with an inbox.
func handledOnce(w *world, broken func(string, ...any)) {
	counts := map[copyKey]int{}
	for key, c := range w.book.handled {
		if w.plan.group(key.group).inbox {
			key.broker = 0
			counts[key] += c.succeeded
		}
	}
	for key, n := range counts {
		if n > 1 {
			broken("%s handled %s %d times", key.group, key.name, n)
		}
	}
}

// messageGroupsKeepOrder compares the order of first deliveries with the order of the sends. It
// compares the copies of one broker: after a switch of the failover the messages of one message
// group are on two brokers. Dead letters that were sent back are behind later messages.
func messageGroupsKeepOrder(w *world, broken func(string, ...any)) {
	type line struct {
		group, producer, messageGroup string
		broker                        int
	}
	type step struct {
		began  time.Duration
		number int
		name   string
		offset int64
	}
	lines := map[line][]step{}
	for key, c := range w.book.handled {
		s := w.book.sent[key.name]
		if s == nil || s.messageGroup == "" || !w.book.fifo(key.group) || w.sentBack[s.name] {
			continue
		}
		l := line{key.group, s.producer, s.messageGroup, key.broker}
		lines[l] = append(lines[l], step{c.calls[0].began, s.number, key.name, c.calls[0].offset})
	}
	for l, steps := range lines {
		slices.SortFunc(steps, func(a, b step) int { return int(a.offset - b.offset) })
		for i := range steps[1:] {
			a, b := steps[i], steps[i+1]
			if a.number > b.number {
				broken("%s: %s was stored before %s (%s of %s, broker %d)", l.group, a.name, b.name, l.messageGroup, l.producer, l.broker)
			}
			if a.began > b.began {
				broken("%s: %s was delivered before %s (%s of %s, broker %d)", l.group, b.name, a.name, l.messageGroup, l.producer, l.broker)
			}
		}
	}
}

// maxExcuses is the number of handler calls of one message beyond the maximum of attempts: repeated
// deliveries with the same attempt number, for example by the kill switch.
const maxExcuses = 30

func attemptsAreBounded(w *world, broken func(string, ...any)) {
	for key, c := range w.book.handled {
		limit, highest := w.plan.group(key.group).maxAttempts, 0
		deliveries := limit
		if w.plan.redrives() {
			deliveries = 2 * limit
		}
		for _, x := range c.calls {
			highest = max(highest, x.attempt)
		}
		if highest > limit {
			broken("%s had attempt %d of %d in %s", key.name, highest, limit, key.group)
		}
		if len(c.calls) > deliveries+maxExcuses {
			broken("%s was handled %d times by %s, whose maximum is %d attempts", key.name, len(c.calls), key.group, limit)
		}
	}
}

func noLeaseIsLeft(w *world, broken func(string, ...any)) {
	for _, s := range w.sites {
		for _, g := range w.plan.groups {
			if x := s.Stats(g.name, g.topic); x.Inflight > 0 {
				broken("broker %d: %s has %d messages of %s in flight", s.number, g.name, x.Inflight, g.topic)
			}
		}
	}
}

// callsAreBounded counts the calls of each transport. The events are messages with their attempts
// and copies, the seconds in which consumers poll, and those in which a server throttles. In these
// a producer sends another message each 50 ms, as the delays of its messages allow: many messages
// of a spool do so for minutes if the backlog does not fall.
func callsAreBounded(w *world, broken func(string, ...any)) {
	messages := len(w.book.sent)
	consumers := 0
	for _, g := range w.plan.groups {
		consumers += len(g.consumers)
	}
	seconds := int(w.now().Seconds())
	for i, c := range w.clients {
		producers := 0
		for _, p := range w.plan.producers {
			if p.client == i {
				producers++
			}
		}
		w.book.note("%v", c.meter)
		for op, limit := range map[string]int{
			"Lane":    w.maxLanes(i),
			"Send":    20*messages + 1000 + 20*c.meter.throttledSeconds()*producers,
			"Receive": consumers * (40*messages + 20*seconds),
			"Ack":     20 * messages * consumers,
		} {
			if n := c.meter.total(op); n > limit {
				broken("%s: %d calls of %s, with %d messages, %d consumers and %d seconds; the bound is %d", c.plan.name, n, op, messages, consumers, seconds, limit)
			}
		}
	}
}

// maxLanes is the largest number of calls of Lane of a client. A message needs one, and another one
// after each attempt. As many are without use, because the lane has become busy meanwhile. Beside
// that, up to nine messages that wait for a server ask in each second whether they still have to.
func (w *world) maxLanes(client int) int {
	servers, asks := 0, 1
	for _, p := range w.plan.producers {
		if p.client == client {
			servers += w.plan.brokers
			if p.messageGroups > 0 {
				asks = 9
			}
		}
	}
	events := len(w.book.sent) + len(w.book.attempts[client])
	return 2*events + asks*servers*int(w.sendsEnded.Seconds()) + 200
}

// throttlingEndpointsAreLeft looks at plans in which one broker throttles every send and the other
// one works. Attempts that begin in the instants around the switch do not count.
func throttlingEndpointsAreLeft(w *world, broken func(string, ...any)) {
	if w.plan.theme != leaving || w.plan.faults[0].kind != throttle {
		return
	}
	f := w.plan.faults[0]
	for i, c := range w.plan.clients {
		if !c.failover {
			continue
		}
		var since time.Duration // the first throttled attempt after the last accepted one
		var last time.Duration
		late := 0
		for _, a := range w.book.attempts[i] {
			switch {
			case a.ok || !a.throttled || !f.active(a.began) || !strings.HasPrefix(a.endpoint, "broker0/"):
				since = 0
			case since == 0:
				since = a.began
			case a.began > since+c.throttleGrace+f.late+time.Second && a.began > last+time.Second:
				last = a.began
				if late++; late > 3 {
					broken("%s: attempt at %s at %v, throttled since %v, grace %v", c.name, a.endpoint, a.began, since, c.throttleGrace)
					return
				}
			}
		}
	}
}

// checkGoroutines reports the goroutines that the world has left. It runs last.
func (w *world) checkGoroutines() {
	synctest.Wait()
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	_, bubble, ok := strings.Cut(firstLine(string(stacks)), "synctest bubble ")
	if !ok {
		w.book.fail("the simulation does not run in a bubble")
		return
	}
	bubble, _, _ = strings.Cut(bubble, "]")
	for i, stack := range strings.Split(string(stacks), "\n\n") {
		// The bubble has two goroutines of its own: this one and that of the test.
		if i > 0 && strings.Contains(firstLine(stack), "synctest bubble "+bubble+"]") && !strings.Contains(stack, "testing/synctest") && !strings.Contains(stack, "internal/synctest") {
			w.book.fail("no goroutine is left: there is\n%s", stack)
		}
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
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
