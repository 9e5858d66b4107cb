// Package policy lets a consumer retry some messages differently from others: by topic, tag or
// property. Its decisions are pure functions.
//
//	opts := consumer.PushOptions{Policies: []policy.Policy{
//		{MaxAttempts: 10}, // every message
//		{Topic: "orders.#", Retry: backoff.Steps{time.Second, time.Minute}},
//		{Tag: "invoice", MaxAttempts: 3},
//		{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 5},
//	}}
//
// A [Policy] sets values for the messages that it matches. If several policies match a message,
// each value comes from the most specific one that sets it. A value that no matching policy sets
// comes from Subscription.Retry, the server's settings or the default, in this order.
//
// A policy is more specific than another one if it
//
//  1. has more properties;
//  2. has more properties with a value, if they have the same number;
//  3. has a tag and the other one has none;
//  4. has the more specific topic pattern: more words that are not wildcards, then more words
//     including "*", then fewer "#", then its plain words further to the left;
//  5. comes first in the list.
//
// The first condition in which two policies differ decides. The topic patterns are those of the
// broker's address settings (Apache ActiveMQ Artemis manual, Undelivered Messages).
//
// Push.EffectivePolicy returns an [Effective]: the values in effect for a message with their
// sources. [Effective.Preview] lists the retries until the last attempt.
package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

// A Policy sets the retries of the messages that it matches. A message has to match all of Topic,
// Tag and Properties. A policy without these matches every message. The zero value of a setting
// means that the policy does not set it.
type Policy struct {
	// Topic is a topic or a pattern of topics: words joined by ".", "*" for exactly one word, "#"
	// for any number of words, including none. A message in a retry topic has the topic of its
	// original send. Empty means every topic.
	Topic string

	// Tag is the message's tag. Empty means every message, with and without a tag.
	Tag string

	// Properties are user properties of the message with their values. An empty value means any
	// value. Nil means every message.
	Properties map[string]string

	// Retry is the retry schedule: the message is delivered again Retry.Delay(n) after its delivery
	// number n+1 failed. A delay above 12 h means 12 h. [ServerSchedule] means the server's own.
	// Redelivery settings of the topic's address on a tidegate broker override it.
	Retry backoff.Policy

	// MaxAttempts is the maximum of deliveries, including the first. After the last one has failed,
	// Exhausted applies. A lower maximum of the server overrides it.
	MaxAttempts int

	// Exhausted selects the end of a message whose last attempt by MaxAttempts has failed. If the
	// server's maximum is lower, the settings of the server apply instead.
	Exhausted Exhaustion
}

// An Exhaustion is the end of a message whose last attempt has failed. Zero means that a less
// specific policy selects it, and DeadLetter if none does.
type Exhaustion int

// The exhaustions.
const (
	_          Exhaustion = iota // inherited; DeadLetter if no policy sets it
	DeadLetter                   // the message becomes a dead letter of the group
	Discard                      // the message is acknowledged, and lost
)

// String returns the lower-case name.
func (e Exhaustion) String() string {
	switch e {
	case 0:
		return "unset"
	case DeadLetter:
		return "dead letter"
	case Discard:
		return "discard"
	}
	return "invalid"
}

// ServerSchedule returns the value of [Policy].Retry that selects the server's own retry schedule.
// It overrides the Retry of less specific policies and of the subscription. Its method Delay
// returns the delays of [backoff.RetryLadder], which can differ from the server's.
func ServerSchedule() backoff.Policy { return verdict.ServerSchedule{Steps: backoff.RetryLadder()} }

// Effective has the values in effect for a message, each with its source as a text for people. The
// source is a policy, such as `PushOptions.Policies[2] (tag "invoice")`, or "Subscription.Retry",
// "server: settings of the group" or "default".
type Effective struct {
	Retry     backoff.Policy // the retry schedule; delays above 12 h mean 12 h
	RetryFrom string

	// MaxAttempts is the number of deliveries, including the first. It is at most the server's
	// maximum. Zero means that there is no maximum, or that a server without features, such as
	// RocketMQ, has not announced one.
	MaxAttempts     int
	MaxAttemptsFrom string

	// Exhausted is the end of a message whose delivery number MaxAttempts has failed. A FIFO group
	// of a tidegate broker may park or block the message group instead, as its on_exhausted sets.
	Exhausted     Exhaustion
	ExhaustedFrom string

	// Findings are sentences about settings without effect, for example a MaxAttempts above the
	// server's. Each begins with the name of a field.
	Findings []string
}

// previewed is the number of retries in a preview if there is no maximum.
const previewed = 10

// Preview returns the retries of a message whose handler always fails: a stage for each delivery
// after the first one, or the first ten if there is no maximum of attempts. The delays count from
// the end of the handler. They do not include the waits for a free handler.
func (e Effective) Preview() backoff.Schedule {
	return backoff.Preview(bounded{e.Retry}, retriesOf(e.MaxAttempts))
}

// retriesOf returns the number of retries in a preview.
func retriesOf(attempts int) int {
	if attempts == 0 {
		return previewed
	}
	return attempts - 1
}

// bounded is a schedule with delays that servers accept.
type bounded struct{ backoff.Policy }

// Range returns the bounds of a delay, see [backoff.Policy].
func (b bounded) Range(n int) (lo, hi time.Duration) {
	if p, ok := b.Policy.(interface {
		Range(n int) (lo, hi time.Duration)
	}); ok {
		lo, hi = p.Range(n)
	} else {
		lo = b.Delay(n)
		hi = lo
	}
	return min(lo, verdict.MaxDelay), min(hi, verdict.MaxDelay)
}

// String returns a line for each value with its source, and a line for each finding.
func (e Effective) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "retries: %s (%s)\n", firstDelays(e.Preview()), e.RetryFrom)
	if e.MaxAttempts > 0 {
		fmt.Fprintf(&b, "attempts: %d (%s)\n", e.MaxAttempts, e.MaxAttemptsFrom)
	} else {
		fmt.Fprintf(&b, "attempts: no maximum known (%s)\n", e.MaxAttemptsFrom)
	}
	fmt.Fprintf(&b, "exhausted: %v (%s)", e.Exhausted, e.ExhaustedFrom)
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\nnote: %s", f)
	}
	return b.String()
}

// shown is the number of delays in the text of an [Effective].
const shown = 4

// firstDelays returns the first delays in words, such as "after 10s, 30s, 1m0s, …".
func firstDelays(s backoff.Schedule) string {
	if len(s) == 0 {
		return "none"
	}
	var parts []string
	for _, st := range s[:min(len(s), shown)] {
		text := st.Lo.String()
		if st.Hi != st.Lo {
			text += " to " + st.Hi.String()
		}
		parts = append(parts, text)
	}
	if len(s) > shown {
		parts = append(parts, "…")
	}
	return "after " + strings.Join(parts, ", ")
}
