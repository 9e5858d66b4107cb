package consumer

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

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
