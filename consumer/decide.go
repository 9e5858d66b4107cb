package consumer

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// defaultMaxAttempts are the deliveries that a server of ours makes if it does
// not say how many: 16 retries after the first (RocketMQ: consumption retry).
const defaultMaxAttempts = 17

// maxReason bounds the reason of a dead letter, in bytes: it travels with the
// message and must not grow with stack traces and quoted input.
const maxReason = 1024

// rules are what decides about failures in one group.
type rules struct {
	fifo        bool
	maxAttempts int // deliveries; 0: no limit, or the server decides
	ladder      backoff.Policy
	byServer    bool // the ladder is the server's, which knows better what holds
	snooze      bool // the server can postpone a delivery without counting its attempt
	reconsume   bool // it has retry topics and negative acknowledgements
}

// makeRules merges the subscription's own ladder, the server's settings, and
// the defaults.
func makeRules(own backoff.Policy, s transport.ConsumerSettings, c transport.Capabilities) rules {
	r := rules{fifo: s.FIFO, maxAttempts: s.MaxAttempts, ladder: own, byServer: own == nil && c.RetryResult}
	if r.ladder == nil && s.Retry != nil {
		r.ladder = s.Retry
	}
	if r.ladder == nil {
		r.ladder = backoff.RetryLadder()
	}
	switch {
	case c.RetryResult:
		r.maxAttempts = 0 // what was pushed may be old, or of another topic than the message's
	case r.maxAttempts < 0:
		r.maxAttempts = 0 // for ever
	case r.maxAttempts == 0 && c != (transport.Capabilities{}):
		// A server that is only known by its silence may allow any number:
		// its own count decides then, and it makes the dead letter.
		r.maxAttempts = defaultMaxAttempts
	}
	return r
}

type action int

const (
	ack action = iota
	retry
	deadLetterNow
	snooze
	reconsume
	giveBack // it was not handled, or not to its end
	forget   // it is not ours any more
)

// A verdict is what to do with a delivery after its handler.
type verdict struct {
	action   action
	delay    time.Duration // of retry and snooze
	byServer bool          // the server puts its own in the place of delay
	spent    bool          // the handler postponed the delivery, but its attempt counts
	mode     ReconsumeMode // of reconsume
	plain    bool          // the handler wanted it consumed later in a way that the server does not have
	reason   string        // of deadLetterNow, and of retry if that was the last attempt
}

// A failure is what a handler's error says. Reading it calls methods that may
// be anybody's and may panic, as those of a typed nil do, or end the goroutine; so it is read once,
// where the handler runs, and nothing is decided by the error itself.
type failure struct {
	reason     string // if the message is given up
	deadLetter bool   // by the handler's wish
	retryAfter bool   // by the handler's wish, after delay
	snooze     bool   // by the handler's wish, for delay
	delay      time.Duration
	reconsume  *ReconsumeMode // by the handler's wish
}

// readError returns what err says, nil if that is nil.
func readError(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{reason: reason(err)}
	_, f.deadLetter = errors.AsType[*deadLetter](err)
	if ra, ok := errors.AsType[*retryAfter](err); ok {
		f.retryAfter, f.delay = true, ra.delay
	}
	if sn, ok := errors.AsType[*snoozed](err); ok {
		f.snooze, f.delay = true, sn.delay
	}
	if re, ok := errors.AsType[*reconsumeError](err); ok {
		f.reconsume = &re.mode
	}
	return f
}

// readPanic is readError of a panic, whose value may be an error that cannot
// be read either: its text takes its place then.
func readPanic(p *PanicError) (f *failure) {
	defer func() {
		if recover() != nil {
			p.Value = show(p.Value)
			f = readError(p)
		}
	}()
	return readError(p)
}

// show is fmt.Sprint of a value whose methods may panic.
func show(v any) (text string) {
	defer func() {
		if recover() != nil { // fmt recovers too, but prints what was recovered
			text = fmt.Sprintf("a %T", v)
		}
	}()
	return fmt.Sprint(v)
}

// judge decides about delivery number attempt, whose handler failed with f, or
// did not if that is nil. It depends on its arguments only.
func judge(attempt int, f *failure, r rules) verdict {
	switch {
	case f == nil:
		return verdict{action: ack}
	case f.snooze && !f.deadLetter && r.snooze:
		return verdict{action: snooze, delay: min(f.delay, maxInvisibleDuration)}
	case f.snooze && !f.deadLetter:
		return verdict{action: retry, delay: min(f.delay, maxInvisibleDuration), reason: f.reason, spent: true}
	case f.reconsume != nil && !f.deadLetter && r.reconsume:
		return verdict{action: reconsume, mode: *f.reconsume, reason: f.reason}
	case f.deadLetter, r.maxAttempts > 0 && attempt >= r.maxAttempts:
		return verdict{action: deadLetterNow, reason: f.reason}
	}
	return ladderVerdict(attempt, f, r)
}

func ladderVerdict(attempt int, f *failure, r rules) verdict {
	v := verdict{action: retry, delay: min(f.delay, maxInvisibleDuration), reason: f.reason}
	switch {
	case f.reconsume != nil:
		v.delay, v.plain = min(instead(*f.reconsume, attempt), maxInvisibleDuration), true
	case !f.retryAfter:
		v.delay, v.byServer = min(r.ladder.Delay(max(0, attempt-1)), maxInvisibleDuration), r.byServer
	}
	return v
}

// reason is the text of err as a dead letter can carry it: bounded, valid
// UTF-8, one line.
func reason(err error) string {
	text := err.Error()
	if len(text) > 2*maxReason {
		text = text[:2*maxReason] // before the rune by rune work
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if text = strings.TrimSpace(text); text == "" {
		return "the handler failed without a text"
	}
	if len(text) > maxReason {
		cut := maxReason
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return text
}
