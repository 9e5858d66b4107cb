package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/address"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// maxPolicies is the largest number of policies of one consumer.
const maxPolicies = 1024

// A policySet chooses the policies of a message. It does not change, so several goroutines may
// share it. Create one with [newPolicySet]; a nil one has no policies.
type policySet struct {
	entries []policyEntry // the most specific first
}

type policyEntry struct {
	policy.Policy
	index   int             // in the list
	pattern address.Pattern // of Topic
	valued  int             // properties with a value
}

// newPolicySet returns the set of the policies. The error joins all faults; each names the policy
// by its index, the field, the value and its limit.
func newPolicySet(list ...policy.Policy) (*policySet, error) {
	var errs []error
	if len(list) > maxPolicies {
		errs = append(errs, policyFault("Policies", "%d are too many; give at most %d", len(list), maxPolicies))
	}
	s := &policySet{}
	for i, p := range list {
		e, faults := newPolicyEntry(i, p)
		errs = append(errs, faults...)
		for _, o := range s.entries {
			if e.sameMatch(o) {
				errs = append(errs, policyFault(policyName(i, ""), "it matches the same messages as Policies[%d] (%s); combine them in one policy", o.index, describe(o.Policy)))
			}
		}
		s.entries = append(s.entries, e)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortStableFunc(s.entries, comparePolicies)
	return s, nil
}

func policyFault(subject, format string, args ...any) error {
	return &tidegate.Error{Subject: subject, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// policyName returns the name of a field of a policy in the list.
func policyName(i int, field string) string { return fmt.Sprintf("Policies[%d]%s", i, field) }

// newPolicyEntry checks a policy.
func newPolicyEntry(i int, p policy.Policy) (e policyEntry, errs []error) {
	add := func(field, format string, args ...any) {
		errs = append(errs, policyFault(policyName(i, field), format, args...))
	}
	e = policyEntry{Policy: p, index: i}
	e.Properties = maps.Clone(p.Properties)
	var err error
	if e.pattern, err = address.Parse(cmp.Or(p.Topic, "#")); err != nil {
		errs = append(errs, &tidegate.Error{Subject: policyName(i, ".Topic"), Code: tidegate.CodeBadRequest, Err: err})
	}
	for k, v := range p.Properties {
		if k == "" {
			add(".Properties", "the name of a property is empty; give one of at least one character")
		}
		if v != "" {
			e.valued++
		}
	}
	if v, ok := p.Retry.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			errs = append(errs, &tidegate.Error{Subject: policyName(i, ".Retry"), Code: tidegate.CodeBadRequest, Err: err})
		}
	}
	if p.MaxAttempts < 0 {
		add(".MaxAttempts", "%d is negative; give 1 or more, or 0 to inherit", p.MaxAttempts)
	}
	if p.Exhausted < 0 || p.Exhausted > policy.Discard {
		add(".Exhausted", "%d is not a constant of package policy; give DeadLetter or Discard", p.Exhausted)
	}
	if p.Retry == nil && p.MaxAttempts == 0 && p.Exhausted == 0 {
		add("", "it sets nothing; set Retry, MaxAttempts or Exhausted")
	}
	return e, errs
}

func (e policyEntry) sameMatch(o policyEntry) bool {
	return e.pattern.String() == o.pattern.String() && e.Tag == o.Tag && maps.Equal(e.Properties, o.Properties)
}

// comparePolicies orders policies by precedence. It is negative if a is more specific than b, and
// zero if the order of the list decides.
func comparePolicies(a, b policyEntry) int {
	return cmp.Or(
		cmp.Compare(len(b.Properties), len(a.Properties)),
		cmp.Compare(b.valued, a.valued),
		cmp.Compare(min(len(b.Tag), 1), min(len(a.Tag), 1)),
		address.CompareRank(a.pattern, b.pattern),
	)
}

func (e policyEntry) match(topic string, m *tidegate.Message) bool {
	if e.Tag != "" && e.Tag != m.Tag {
		return false
	}
	for k, want := range e.Properties {
		if v, ok := m.Properties[k]; !ok || want != "" && v != want {
			return false
		}
	}
	return e.Topic == "" || e.pattern.Match(topic)
}

// A policyChoice has the merged policies of one message.
type policyChoice struct {
	Retry       backoff.Policy    // nil if no policy sets it
	MaxAttempts int               // 0 if no policy sets it
	Exhausted   policy.Exhaustion // 0 if no policy sets it

	retryFrom, attemptsFrom, exhaustedFrom *policyEntry
}

// Choose returns the values that the policies set for the message. It reads the message's topic,
// tag and properties. It does not keep m.
func (s *policySet) Choose(m *tidegate.Message) (c policyChoice) {
	if s == nil || len(s.entries) == 0 {
		return c
	}
	topic := topicOf(m)
	for i := range s.entries {
		e := &s.entries[i]
		if !e.match(topic, m) {
			continue
		}
		if c.Retry == nil && e.Retry != nil {
			c.Retry, c.retryFrom = e.Retry, e
		}
		if c.MaxAttempts == 0 && e.MaxAttempts > 0 {
			c.MaxAttempts, c.attemptsFrom = e.MaxAttempts, e
		}
		if c.Exhausted == 0 && e.Exhausted != 0 {
			c.Exhausted, c.exhaustedFrom = e.Exhausted, e
		}
	}
	return c
}

// A policyBase has the values for messages whose policies do not set them.
type policyBase struct {
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
func (s *policySet) Effective(m *tidegate.Message, b policyBase) policy.Effective {
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
func (c policyChoice) Rules(b policyBase) verdict.Rules {
	r := verdict.NewRules(c.Own(b.Retry), b.Server, b.Capabilities)
	r.OwnAttempts, r.Discard = c.MaxAttempts, c.Exhausted == policy.Discard
	r.Takes = b.Capabilities.Verdicts
	return r
}

// retryField returns the name of the option that sets the schedule, empty if none does.
func (c policyChoice) retryField(own backoff.Policy) string {
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
func (c policyChoice) Own(subscription backoff.Policy) backoff.Policy {
	if c.Retry == nil {
		return subscription
	}
	if _, server := c.Retry.(verdict.ServerSchedule); server {
		return nil
	}
	return c.Retry
}

// name returns the name of the policy as an option.
func (e *policyEntry) name() string { return "PushOptions." + policyName(e.index, "") }

// source returns the name of the policy and the messages that it matches.
func (e *policyEntry) source() string { return e.name() + " (" + describe(e.Policy) + ")" }

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

// rulesFor returns the rules for a failure of the delivery.
func (r *run) rulesFor(it *item) verdict.Rules {
	caps := r.capsOf(it.current.Endpoint)
	rules := it.choice.Rules(policyBase{Retry: r.sub.Retry, Server: *r.settingsOf(it.source.topic, it.current.Endpoint), Capabilities: caps})
	rules.Schedule = guard.Policy("the retry schedule", rules.Schedule, r.reportPanic)
	return rules
}
