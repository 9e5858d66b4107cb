// Package policies chooses the policies of a message. It has no clock, locks or goroutines.
package policies

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/address"
)

// most is the largest number of policies of one consumer.
const most = 1024

// A Set chooses the policies of a message. It does not change, so several goroutines may share it.
// Create one with [New]; a nil Set has no policies.
type Set struct {
	entries []entry // the most specific first
}

type entry struct {
	policy.Policy
	index   int             // in the list
	pattern address.Pattern // of Topic
	valued  int             // properties with a value
}

// New returns the set of the policies. The error joins all faults; each names the policy by its
// index, the field, the value and its limit.
func New(list ...policy.Policy) (*Set, error) {
	var errs []error
	if len(list) > most {
		errs = append(errs, fault("Policies", "%d are too many; give at most %d", len(list), most))
	}
	s := &Set{}
	for i, p := range list {
		e, faults := newEntry(i, p)
		errs = append(errs, faults...)
		for _, o := range s.entries {
			if e.sameMatch(o) {
				errs = append(errs, fault(name(i, ""), "it matches the same messages as Policies[%d] (%s); combine them in one policy", o.index, describe(o.Policy)))
			}
		}
		s.entries = append(s.entries, e)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortStableFunc(s.entries, compare)
	return s, nil
}

func fault(subject, format string, args ...any) error {
	return &tidegate.Error{Subject: subject, Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

// name returns the name of a field of a policy in the list.
func name(i int, field string) string { return fmt.Sprintf("Policies[%d]%s", i, field) }

// newEntry checks a policy.
func newEntry(i int, p policy.Policy) (e entry, errs []error) {
	add := func(field, format string, args ...any) {
		errs = append(errs, fault(name(i, field), format, args...))
	}
	e = entry{Policy: p, index: i}
	e.Properties = maps.Clone(p.Properties)
	var err error
	if e.pattern, err = address.Parse(cmp.Or(p.Topic, "#")); err != nil {
		errs = append(errs, &tidegate.Error{Subject: name(i, ".Topic"), Code: tidegate.CodeBadRequest, Err: err})
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
			errs = append(errs, &tidegate.Error{Subject: name(i, ".Retry"), Code: tidegate.CodeBadRequest, Err: err})
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

func (e entry) sameMatch(o entry) bool {
	return e.pattern.String() == o.pattern.String() && e.Tag == o.Tag && maps.Equal(e.Properties, o.Properties)
}

// compare orders policies by precedence. It is negative if a is more specific than b, and zero if
// the order of the list decides.
func compare(a, b entry) int {
	return cmp.Or(
		cmp.Compare(len(b.Properties), len(a.Properties)),
		cmp.Compare(b.valued, a.valued),
		cmp.Compare(min(len(b.Tag), 1), min(len(a.Tag), 1)),
		address.CompareRank(a.pattern, b.pattern),
	)
}

func (e entry) match(topic string, m *tidegate.Message) bool {
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

// A Choice is the merged policies of one message.
type Choice struct {
	Retry       backoff.Policy    // nil if no policy sets it
	MaxAttempts int               // 0 if no policy sets it
	Exhausted   policy.Exhaustion // 0 if no policy sets it

	retryFrom, attemptsFrom, exhaustedFrom *entry
}

// Choose returns the values that the policies set for the message. It reads the message's topic,
// tag and properties. It does not keep m.
func (s *Set) Choose(m *tidegate.Message) (c Choice) {
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
