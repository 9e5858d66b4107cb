package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/transport"
)

// A Base has the values for messages whose policies do not set them.
type Base struct {
	Retry        backoff.Policy             // Subscription.Retry; nil means none
	Server       transport.ConsumerSettings // zero if they could not be read
	Capabilities transport.Capabilities     // of the server
}

// The sources of the values of an [Effective] that come from no policy.
const (
	FromSubscription = "Subscription.Retry"
	FromServer       = "server: settings of the group"
	FromDefault      = "default"
)

// Effective has the values in effect for a message, each with its source. The source is a policy,
// such as `PushOptions.Policies[2] (tag "invoice")`, or one of [FromSubscription], [FromServer] and
// [FromDefault].
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

// Effective returns the values in effect for the message. It reads the message's topic, tag and
// properties.
//
// A tidegate broker decides about each failure by its current settings, and reports the decision in
// Outcome. The server's settings in b may be older.
func (s *Set) Effective(m *tidegate.Message, b Base) Effective {
	c := s.Choose(m)
	var e Effective
	report := func(format string, args ...any) { e.Findings = append(e.Findings, fmt.Sprintf(format, args...)) }

	own := c.Own(b.Retry)
	rules := decision.NewRules(own, b.Server, b.Capabilities)
	e.Retry = rules.Schedule
	switch {
	case own != nil && c.Retry != nil:
		e.RetryFrom = c.retryFrom.source()
	case own != nil:
		e.RetryFrom = FromSubscription
	case b.Server.Retry != nil:
		e.RetryFrom = FromServer
	default:
		e.RetryFrom = FromDefault
	}

	server, from := b.Server.MaxAttempts, FromServer
	if server == 0 && b.Capabilities != (transport.Capabilities{}) {
		server, from = decision.DefaultMaxAttempts, FromDefault
	}
	e.MaxAttempts, e.MaxAttemptsFrom = max(server, 0), from
	e.Exhausted, e.ExhaustedFrom = DeadLetter, FromServer
	switch {
	case c.MaxAttempts == 0 && c.Exhausted == Discard:
		report("%s.Exhausted: it has no effect without MaxAttempts, because the server decides about the last attempt", c.exhaustedFrom.name())
	case c.MaxAttempts > 0 && server > 0 && c.MaxAttempts > server:
		report("%s.MaxAttempts: %d exceeds the maximum of %d (%s), which applies", c.attemptsFrom.name(), c.MaxAttempts, server, from)
	case c.MaxAttempts > 0:
		e.MaxAttempts, e.MaxAttemptsFrom = c.MaxAttempts, c.attemptsFrom.source()
		e.ExhaustedFrom = FromDefault
		if c.Exhausted != ExhaustionUnset {
			e.Exhausted, e.ExhaustedFrom = c.Exhausted, c.exhaustedFrom.source()
		}
	}
	if field := c.retryField(own); field != "" {
		if at, d := firstLong(e.Retry, e.MaxAttempts); d > 0 {
			report("%s: the delay before retry %d, %v, exceeds the servers' maximum of %v, which applies", field, at, d, decision.MaxDelay)
		}
	}
	return e
}

// retryField returns the name of the option that sets the schedule, empty if none does.
func (c Choice) retryField(own backoff.Policy) string {
	switch {
	case own == nil:
		return ""
	case c.Retry == nil:
		return FromSubscription
	}
	return c.retryFrom.name() + ".Retry"
}

// firstLong returns the first retry with a delay that servers reject, or zero if there is none.
func firstLong(p backoff.Policy, attempts int) (retry int, d time.Duration) {
	for _, stage := range backoff.Preview(p, retriesOf(attempts)) {
		if stage.Hi > decision.MaxDelay {
			return stage.Retry, stage.Hi
		}
	}
	return 0, 0
}

// Own returns the consumer's own retry schedule for the message: that of a policy, or otherwise
// that of the subscription. Nil means the server's schedule.
func (c Choice) Own(subscription backoff.Policy) backoff.Policy {
	switch {
	case c.Retry == nil:
		return subscription
	case isServerSchedule(c.Retry):
		return nil
	}
	return c.Retry
}

// name returns the name of the policy as an option.
func (e *entry) name() string { return "PushOptions." + name(e.index, "") }

// source returns the name of the policy and the messages that it matches.
func (e *entry) source() string { return e.name() + " (" + e.describe() + ")" }

// previewed is the number of retries in a preview if there is no maximum.
const previewed = 10

// A Preview lists the retries of a message whose handler always fails.
type Preview struct {
	// Retries has a stage for each delivery after the first one. Without a maximum it has the first
	// ten.
	Retries backoff.Schedule

	MaxAttempts int        // after this many failed deliveries the message ends; 0 means never
	Exhausted   Exhaustion // the end of the message
}

// Preview returns the retries of a message whose handler always fails, and its end. The delays
// count from the end of the handler. They do not include the waits for a free handler.
func (e Effective) Preview() Preview {
	schedule := backoff.Preview(bounded{e.Retry}, retriesOf(e.MaxAttempts))
	return Preview{Retries: schedule, MaxAttempts: e.MaxAttempts, Exhausted: e.Exhausted}
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
	return min(lo, decision.MaxDelay), min(hi, decision.MaxDelay)
}

// String returns the table of [backoff.Schedule] and a line with the end of the message.
func (p Preview) String() string {
	if p.MaxAttempts == 0 {
		return p.Retries.String() + ", and so on"
	}
	return fmt.Sprintf("%v\nafter attempt %d: %v", p.Retries, p.MaxAttempts, p.Exhausted)
}

// String returns a line for each value with its source, and a line for each finding.
func (e Effective) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "retries: %s (%s)\n", firstDelays(e.Preview().Retries), e.RetryFrom)
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
