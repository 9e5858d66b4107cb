package policies

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A Base has the values for messages whose policies do not set them.
type Base struct {
	Retry        backoff.Policy             // Subscription.Retry; nil means none
	Server       transport.ConsumerSettings // zero if they could not be read
	Capabilities transport.Capabilities     // of the server
}

// The sources of values that come from no policy, as [policy.Effective] has them.
const (
	fromSubscription = "Subscription.Retry"
	fromServer       = "server: settings of the group"
	fromDefault      = "default"
)

// Effective returns the values in effect for the message. It reads the message's topic, tag and
// properties.
//
// A tidegate broker decides about each failure by its current settings, and reports the decision in
// Outcome. The server's settings in b may be older.
func (s *Set) Effective(m *tidegate.Message, b Base) policy.Effective {
	c := s.Choose(m)
	var e policy.Effective
	report := func(format string, args ...any) { e.Findings = append(e.Findings, fmt.Sprintf(format, args...)) }

	own := c.Own(b.Retry)
	rules := c.Rules(b)
	e.Retry = rules.Schedule
	switch {
	case own != nil && c.Retry != nil:
		e.RetryFrom = c.retryFrom.source()
	case own != nil:
		e.RetryFrom = fromSubscription
	case b.Server.Retry != nil:
		e.RetryFrom = fromServer
	default:
		e.RetryFrom = fromDefault
	}

	from := fromServer
	if b.Server.MaxAttempts == 0 && rules.ServerAttempts > 0 {
		from = fromDefault
	}
	e.MaxAttemptsFrom, e.Exhausted, e.ExhaustedFrom = from, policy.DeadLetter, fromServer
	limit, ours := rules.Limit()
	e.MaxAttempts = limit
	switch {
	case c.MaxAttempts == 0 && c.Exhausted == policy.Discard:
		report("%s.Exhausted: it has no effect without MaxAttempts, because the server decides about the last attempt", c.exhaustedFrom.name())
	case c.MaxAttempts > 0 && !ours:
		report("%s.MaxAttempts: %d exceeds the maximum of %d (%s), which applies", c.attemptsFrom.name(), c.MaxAttempts, limit, from)
	case ours:
		e.MaxAttemptsFrom = c.attemptsFrom.source()
		e.ExhaustedFrom = fromDefault
		if c.Exhausted != 0 {
			e.Exhausted, e.ExhaustedFrom = c.Exhausted, c.exhaustedFrom.source()
		}
	}
	if field := c.retryField(own); field != "" {
		if at, d := firstLong(e); d > 0 {
			report("%s: the delay before retry %d, %v, exceeds the servers' maximum of %v, which applies", field, at, d, verdict.MaxDelay)
		}
	}
	return e
}

// Rules returns the rules for a failure of a message of the choice.
func (c Choice) Rules(b Base) verdict.Rules {
	r := verdict.NewRules(c.Own(b.Retry), b.Server, b.Capabilities)
	r.OwnAttempts, r.Discard = c.MaxAttempts, c.Exhausted == policy.Discard
	r.Takes = b.Capabilities.Verdicts
	return r
}

// retryField returns the name of the option that sets the schedule, empty if none does.
func (c Choice) retryField(own backoff.Policy) string {
	switch {
	case own == nil:
		return ""
	case c.Retry == nil:
		return fromSubscription
	}
	return c.retryFrom.name() + ".Retry"
}

// firstLong returns the first retry with a delay that servers reject, or zero if there is none.
func firstLong(e policy.Effective) (retry int, d time.Duration) {
	for _, stage := range backoff.Preview(e.Retry, len(e.Preview())) {
		if stage.Hi > verdict.MaxDelay {
			return stage.Retry, stage.Hi
		}
	}
	return 0, 0
}

// Own returns the consumer's own retry schedule for the message: that of a policy, or otherwise
// that of the subscription. Nil means the server's schedule.
func (c Choice) Own(subscription backoff.Policy) backoff.Policy {
	if c.Retry == nil {
		return subscription
	}
	if _, server := c.Retry.(verdict.ServerSchedule); server {
		return nil
	}
	return c.Retry
}

// name returns the name of the policy as an option.
func (e *entry) name() string { return "PushOptions." + name(e.index, "") }

// source returns the name of the policy and the messages that it matches.
func (e *entry) source() string { return e.name() + " (" + describe(e.Policy) + ")" }

// describe returns the messages of a policy in words.
func describe(p policy.Policy) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(p.Properties)) {
		if v := p.Properties[k]; v != "" {
			parts = append(parts, fmt.Sprintf("property %s=%q", k, v))
		} else {
			parts = append(parts, "property "+k)
		}
	}
	if p.Tag != "" {
		parts = append(parts, fmt.Sprintf("tag %q", p.Tag))
	}
	if p.Topic != "" {
		parts = append(parts, fmt.Sprintf("topic %q", p.Topic))
	}
	if len(parts) == 0 {
		return "every message"
	}
	return strings.Join(parts, ", ")
}

// topicOf returns the topic that a message was sent to, also if a retry topic delivered it.
func topicOf(m *tidegate.Message) string {
	if t := m.Properties[protocol.PropertyRealTopic]; t != "" {
		return t
	}
	return m.Topic
}
