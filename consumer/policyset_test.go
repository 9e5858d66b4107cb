package consumer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
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

var (
	rocketmq    = transport.Capabilities{}
	ourPolicies = transport.Capabilities{Suspend: true, RetryResult: true}
)

// Every value has a source, and a setting without effect is reported.
func TestEffective(t *testing.T) {
	second, minute, long := backoff.Steps{time.Second}, backoff.Steps{time.Minute}, backoff.Steps{time.Second, 13 * time.Hour}
	const (
		all     = "PushOptions.Policies[0] (every message)"
		invoice = `PushOptions.Policies[1] (tag "invoice")`
	)
	for _, tt := range []struct {
		name     string
		policies []policy.Policy
		base     policyBase
		want     policy.Effective
		first    time.Duration
	}{
		{"nothing set, RocketMQ", nil, policyBase{},
			policy.Effective{RetryFrom: fromDefault, MaxAttemptsFrom: fromServer, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer}, 10 * time.Second},
		{"nothing set, tidegate", nil, policyBase{Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromDefault, MaxAttempts: 17, MaxAttemptsFrom: fromDefault, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer}, 10 * time.Second},
		{"the server's settings", nil, policyBase{Server: transport.ConsumerSettings{MaxAttempts: 4, Retry: minute}, Capabilities: rocketmq},
			policy.Effective{RetryFrom: fromServer, MaxAttempts: 4, MaxAttemptsFrom: fromServer, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer}, time.Minute},
		{"a server without a maximum", nil, policyBase{Server: transport.ConsumerSettings{MaxAttempts: -1}, Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromDefault, MaxAttemptsFrom: fromServer, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer}, 10 * time.Second},
		{"the subscription's schedule", nil, policyBase{Retry: second, Server: transport.ConsumerSettings{MaxAttempts: 4, Retry: minute}, Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromSubscription, MaxAttempts: 4, MaxAttemptsFrom: fromServer, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer}, time.Second},
		{"policies", []policy.Policy{{Retry: second, MaxAttempts: 5}, {Tag: "invoice", MaxAttempts: 3, Exhausted: policy.Discard}},
			policyBase{Retry: minute, Server: transport.ConsumerSettings{MaxAttempts: 4}, Capabilities: ourPolicies},
			policy.Effective{RetryFrom: all, MaxAttempts: 3, MaxAttemptsFrom: invoice, Exhausted: policy.Discard, ExhaustedFrom: invoice}, time.Second},
		{"a policy for the server's schedule", []policy.Policy{{Retry: second}, {Tag: "invoice", Retry: policy.ServerSchedule()}},
			policyBase{Retry: second, Server: transport.ConsumerSettings{MaxAttempts: 4, Retry: minute}, Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromServer, MaxAttempts: 4, MaxAttemptsFrom: fromServer, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer}, time.Minute},
		{"as many attempts as the server", []policy.Policy{{MaxAttempts: 4}}, policyBase{Server: transport.ConsumerSettings{MaxAttempts: 4}},
			policy.Effective{RetryFrom: fromDefault, MaxAttempts: 4, MaxAttemptsFrom: all, Exhausted: policy.DeadLetter, ExhaustedFrom: fromDefault}, 10 * time.Second},
		{"more attempts than the server", []policy.Policy{{MaxAttempts: 30, Exhausted: policy.Discard}}, policyBase{Server: transport.ConsumerSettings{MaxAttempts: 4}},
			policy.Effective{RetryFrom: fromDefault, MaxAttempts: 4, MaxAttemptsFrom: fromServer, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer, Findings: []string{
				"PushOptions.Policies[0].MaxAttempts: 30 exceeds the maximum of 4 (server: settings of the group), which applies"}}, 10 * time.Second},
		{"more attempts than a silent tidegate broker", []policy.Policy{{MaxAttempts: 30}}, policyBase{Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromDefault, MaxAttempts: 17, MaxAttemptsFrom: fromDefault, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer, Findings: []string{
				"PushOptions.Policies[0].MaxAttempts: 30 exceeds the maximum of 17 (default), which applies"}}, 10 * time.Second},
		{"attempts where the server has no maximum", []policy.Policy{{MaxAttempts: 30}}, policyBase{Server: transport.ConsumerSettings{MaxAttempts: -1}, Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromDefault, MaxAttempts: 30, MaxAttemptsFrom: all, Exhausted: policy.DeadLetter, ExhaustedFrom: fromDefault}, 10 * time.Second},
		{"discard without a maximum", []policy.Policy{{Exhausted: policy.Discard}}, policyBase{Capabilities: ourPolicies},
			policy.Effective{RetryFrom: fromDefault, MaxAttempts: 17, MaxAttemptsFrom: fromDefault, Exhausted: policy.DeadLetter, ExhaustedFrom: fromServer, Findings: []string{
				"PushOptions.Policies[0].Exhausted: it has no effect without MaxAttempts, because the server decides about the last attempt"}}, 10 * time.Second},
		{"a delay that no server accepts", []policy.Policy{{Retry: long, MaxAttempts: 3}}, policyBase{},
			policy.Effective{RetryFrom: all, MaxAttempts: 3, MaxAttemptsFrom: all, Exhausted: policy.DeadLetter, ExhaustedFrom: fromDefault, Findings: []string{
				"PushOptions.Policies[0].Retry: the delay before retry 2, 13h0m0s, exceeds the servers' maximum of 12h0m0s, which applies"}}, time.Second},
		{"such a delay after the last attempt", []policy.Policy{{Retry: long, MaxAttempts: 2}}, policyBase{},
			policy.Effective{RetryFrom: all, MaxAttempts: 2, MaxAttemptsFrom: all, Exhausted: policy.DeadLetter, ExhaustedFrom: fromDefault}, time.Second},
	} {
		got := set(t, tt.policies...).Effective(&tidegate.Message{Topic: "orders", Tag: "invoice"}, tt.base)
		d := got.Retry.Delay(0)
		assert.That(t, d == tt.first, "%s: the first delay is %v, want %v", tt.name, d, tt.first)
		findings := strings.Join(got.Findings, "\n")
		if want := strings.Join(tt.want.Findings, "\n"); findings != want {
			t.Errorf("%s: findings %q, want %q", tt.name, findings, want)
		}
		if got.RetryFrom != tt.want.RetryFrom || got.MaxAttempts != tt.want.MaxAttempts || got.MaxAttemptsFrom != tt.want.MaxAttemptsFrom ||
			got.Exhausted != tt.want.Exhausted || got.ExhaustedFrom != tt.want.ExhaustedFrom {
			t.Errorf("%s: got\n%v\nwant %+v", tt.name, got, tt.want)
		}
	}
}
