package consumer

import (
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// defaultMaxAttempts are the deliveries that a server of ours makes if it does
// not say how many: 16 retries after the first (seed 000).
const defaultMaxAttempts = 17

// maxReason bounds the reason of a dead letter, in bytes: it travels with the
// message and must not grow with stack traces and quoted input.
const maxReason = 1024

// rules are what decides about failures in one group.
type rules struct {
	fifo        bool
	maxAttempts int // deliveries; 0: no limit, or one that only the server knows
	ladder      backoff.Policy
}

// makeRules merges the subscription's own ladder, the server's settings, and
// the defaults.
func makeRules(own backoff.Policy, s transport.ConsumerSettings, c transport.Capabilities) rules {
	r := rules{fifo: s.FIFO, maxAttempts: s.MaxAttempts, ladder: own}
	if r.ladder == nil && s.Retry != nil {
		r.ladder = s.Retry
	}
	if r.ladder == nil {
		r.ladder = backoff.RetryLadder()
	}
	switch {
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
)

// A verdict is what to do with a delivery after its handler.
type verdict struct {
	action action
	delay  time.Duration // of retry
	reason string        // of deadLetterNow
}

// judge decides about delivery number attempt, whose handler returned err. It
// depends on its arguments only.
func judge(attempt int, err error, r rules) verdict {
	if err == nil {
		return verdict{action: ack}
	}
	if _, ok := errors.AsType[*deadLetter](err); ok {
		return verdict{action: deadLetterNow, reason: reason(err)}
	}
	if r.maxAttempts > 0 && attempt >= r.maxAttempts {
		return verdict{action: deadLetterNow, reason: reason(err)}
	}
	return ladderVerdict(attempt, err, r)
}

func ladderVerdict(attempt int, err error, r rules) verdict {
	if ra, ok := errors.AsType[*retryAfter](err); ok {
		return verdict{action: retry, delay: min(ra.delay, maxInvisibleDuration)}
	}
	return verdict{action: retry, delay: min(r.ladder.Delay(max(0, attempt-1)), maxInvisibleDuration)}
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

// fatal reports whether a failed receive ends the consumer: the server refuses
// what it asks for, and will again. What is not there (404xx) may be created.
func fatal(err error) bool {
	switch transport.Classify(err) {
	case transport.Cancelled:
		return errors.Is(err, tidegate.ErrClosed)
	case transport.Permanent:
		return !errors.Is(err, tidegate.ErrNotFound)
	}
	return false
}

// canRepeat reports whether a failed settlement may be tried again.
func canRepeat(a action, err error, c transport.Capabilities) bool {
	if errors.Is(err, tidegate.ErrInvalidHandle) {
		return false
	}
	switch transport.Classify(err) {
	case transport.Throttled:
		return true // refused: nothing happened
	case transport.Transient:
		// A real RocketMQ makes a second dead letter of a repeated request.
		return a != deadLetterNow || c.IdempotentDeadLetter
	}
	return false
}
