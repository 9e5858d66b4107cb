package simulation

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/status"
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
