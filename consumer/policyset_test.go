package consumer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
)

func set(t *testing.T, list ...policy.Policy) *policySet {
	t.Helper()
	return assert.Value(newPolicySet(list...))(t)
}

// precedence has policies that all match one message, the most specific first.
var precedence = []policy.Policy{
	{Properties: map[string]string{"tenant": "acme", "size": "1"}},
	{Properties: map[string]string{"tenant": "acme", "size": ""}},
	{Properties: map[string]string{"tenant": "", "size": ""}, Tag: "invoice", Topic: "orders.eu.berlin"},
	{Properties: map[string]string{"tenant": "acme"}, Tag: "invoice"},
	{Properties: map[string]string{"tenant": "acme"}, Topic: "orders.eu.berlin"},
	{Properties: map[string]string{"tenant": "acme"}},
	{Properties: map[string]string{"size": ""}, Tag: "invoice", Topic: "orders.eu.berlin"},
	{Properties: map[string]string{"size": ""}},
	{Tag: "invoice", Topic: "orders.eu.berlin"},
	{Tag: "invoice", Topic: "orders.#"},
	{Tag: "invoice"},
	{Topic: "orders.eu.berlin"},
	{Topic: "orders.eu.*"},
	{Topic: "orders.*.berlin"},
	{Topic: "orders.eu.#"},
	{Topic: "orders.*.#"},
	{Topic: "orders.#"},
	{Topic: "*.*.*"},
	{},
}

// The most specific policy that matches applies, in any order of the list.
//
// Attempts per topic and message.
func TestPrecedence(t *testing.T) {
	m := &tidegate.Message{Topic: "orders.eu.berlin", Tag: "invoice", Properties: map[string]string{"tenant": "acme", "size": "1"}}
	for i := range precedence {
		list := slices.Clone(precedence[i:])
		for n := range list {
			list[n].MaxAttempts = i + n + 1
		}
		rand.Shuffle(len(list), func(a, b int) { list[a], list[b] = list[b], list[a] })
		if got := set(t, list...).Choose(m).MaxAttempts; got != i+1 {
			t.Errorf("%s holds, want %s", describe(precedence[got-1]), describe(precedence[i]))
		}
	}
}

// A Set does not follow later changes of the program's map.
func TestSetCopiesProperties(t *testing.T) {
	props := map[string]string{"tenant": "acme"}
	s := set(t, policy.Policy{Properties: props, MaxAttempts: 3})
	m := &tidegate.Message{Properties: maps.Clone(props)}
	props["tenant"] = "other"
	assert.Equal(t, "the policy has changed", s.Choose(m).MaxAttempts, 3)
}

// Every fault names the policy, the field, the value and its limit.
func TestNewRejects(t *testing.T) {
	many := make([]policy.Policy, maxPolicies+1)
	for i := range many {
		many[i] = policy.Policy{Tag: strings.Repeat("x", i+1), MaxAttempts: 1}
	}
	for _, tt := range []struct {
		list []policy.Policy
		want []string
	}{
		{[]policy.Policy{{MaxAttempts: 1}, {Topic: "a..b", MaxAttempts: 1}}, []string{`"Policies[1].Topic": `, `"a..b" has an empty word`}},
		{[]policy.Policy{{Topic: "orders*", MaxAttempts: 1}}, []string{`"Policies[0].Topic": `, "* and # replace whole words"}},
		{[]policy.Policy{{Properties: map[string]string{"": "x"}, MaxAttempts: 1}}, []string{`"Policies[0].Properties": 40000 BAD_REQUEST: the name of a property is empty`}},
		{[]policy.Policy{{MaxAttempts: -3}}, []string{`"Policies[0].MaxAttempts": 40000 BAD_REQUEST: -3 is negative; give 1 or more, or 0 to inherit`}},
		{[]policy.Policy{{Exhausted: 3}}, []string{`"Policies[0].Exhausted": 40000 BAD_REQUEST: 3 is not a constant of package policy; give DeadLetter or Discard`}},
		{[]policy.Policy{{Exhausted: -1}}, []string{`"Policies[0].Exhausted": 40000 BAD_REQUEST: -1`}},
		{[]policy.Policy{{Retry: backoff.Exponential{Multiplier: 0.5}}}, []string{`"Policies[0].Retry": 40000 BAD_REQUEST: `, "Multiplier is 0.5"}},
		{[]policy.Policy{{Tag: "invoice"}}, []string{`"Policies[0]": 40000 BAD_REQUEST: it sets nothing; set Retry, MaxAttempts or Exhausted`}},
		{
			[]policy.Policy{{Topic: "#", MaxAttempts: 1}, {Tag: "a", MaxAttempts: 2}, {MaxAttempts: 3}},
			[]string{`"Policies[2]": 40000 BAD_REQUEST: it matches the same messages as Policies[0] (topic "#"); combine them in one policy`},
		},
		{[]policy.Policy{{MaxAttempts: -1}, {Tag: "a", Exhausted: 9}}, []string{"Policies[0].MaxAttempts", "Policies[1].Exhausted"}},
		{many, []string{`"Policies": 40000 BAD_REQUEST: 1025 are too many; give at most 1024`}},
	} {
		s, err := newPolicySet(tt.list...)
		if err == nil || s != nil {
			t.Errorf("%q: no error", tt.want)
			continue
		}
		for _, want := range tt.want {
			assert.That(t, strings.Contains(err.Error(), want), "the error is %q, want it to have %q", err, want)
		}
	}
}
