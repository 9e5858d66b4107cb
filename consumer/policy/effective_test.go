package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

var (
	rocketmq = transport.Capabilities{}
	ours     = transport.Capabilities{Suspend: true, RetryResult: true}
)

// Demand 3 and demand 29: every value has a source, and a setting without effect is reported.
func TestEffective(t *testing.T) {
	second, minute, long := backoff.Steps{time.Second}, backoff.Steps{time.Minute}, backoff.Steps{time.Second, 13 * time.Hour}
	const (
		all     = "PushOptions.Policies[0] (every message)"
		invoice = `PushOptions.Policies[1] (tag "invoice")`
	)
	for _, tt := range []struct {
		name     string
		policies []Policy
		base     Base
		want     Effective
		first    time.Duration
	}{
		{"nothing set, RocketMQ", nil, Base{},
			Effective{RetryFrom: FromDefault, MaxAttemptsFrom: FromServer, Exhausted: DeadLetter, ExhaustedFrom: FromServer}, 10 * time.Second},
		{"nothing set, tidegate", nil, Base{Capabilities: ours},
			Effective{RetryFrom: FromDefault, MaxAttempts: 17, MaxAttemptsFrom: FromDefault, Exhausted: DeadLetter, ExhaustedFrom: FromServer}, 10 * time.Second},
		{"the server's settings", nil, Base{Server: transport.ConsumerSettings{MaxAttempts: 4, Retry: minute}, Capabilities: rocketmq},
			Effective{RetryFrom: FromServer, MaxAttempts: 4, MaxAttemptsFrom: FromServer, Exhausted: DeadLetter, ExhaustedFrom: FromServer}, time.Minute},
		{"a server without a maximum", nil, Base{Server: transport.ConsumerSettings{MaxAttempts: -1}, Capabilities: ours},
			Effective{RetryFrom: FromDefault, MaxAttemptsFrom: FromServer, Exhausted: DeadLetter, ExhaustedFrom: FromServer}, 10 * time.Second},
		{"the subscription's schedule", nil, Base{Retry: second, Server: transport.ConsumerSettings{MaxAttempts: 4, Retry: minute}, Capabilities: ours},
			Effective{RetryFrom: FromSubscription, MaxAttempts: 4, MaxAttemptsFrom: FromServer, Exhausted: DeadLetter, ExhaustedFrom: FromServer}, time.Second},
		{"policies", []Policy{{Retry: second, MaxAttempts: 5}, {Tag: "invoice", MaxAttempts: 3, Exhausted: Discard}},
			Base{Retry: minute, Server: transport.ConsumerSettings{MaxAttempts: 4}, Capabilities: ours},
			Effective{RetryFrom: all, MaxAttempts: 3, MaxAttemptsFrom: invoice, Exhausted: Discard, ExhaustedFrom: invoice}, time.Second},
		{"a policy for the server's schedule", []Policy{{Retry: second}, {Tag: "invoice", Retry: ServerSchedule()}},
			Base{Retry: second, Server: transport.ConsumerSettings{MaxAttempts: 4, Retry: minute}, Capabilities: ours},
			Effective{RetryFrom: FromServer, MaxAttempts: 4, MaxAttemptsFrom: FromServer, Exhausted: DeadLetter, ExhaustedFrom: FromServer}, time.Minute},
		{"as many attempts as the server", []Policy{{MaxAttempts: 4}}, Base{Server: transport.ConsumerSettings{MaxAttempts: 4}},
			Effective{RetryFrom: FromDefault, MaxAttempts: 4, MaxAttemptsFrom: all, Exhausted: DeadLetter, ExhaustedFrom: FromDefault}, 10 * time.Second},
		{"more attempts than the server", []Policy{{MaxAttempts: 30, Exhausted: Discard}}, Base{Server: transport.ConsumerSettings{MaxAttempts: 4}},
			Effective{RetryFrom: FromDefault, MaxAttempts: 4, MaxAttemptsFrom: FromServer, Exhausted: DeadLetter, ExhaustedFrom: FromServer, Findings: []string{
				"PushOptions.Policies[0].MaxAttempts: 30 exceeds the maximum of 4 (server: settings of the group), which applies"}}, 10 * time.Second},
		{"more attempts than a silent tidegate broker", []Policy{{MaxAttempts: 30}}, Base{Capabilities: ours},
			Effective{RetryFrom: FromDefault, MaxAttempts: 17, MaxAttemptsFrom: FromDefault, Exhausted: DeadLetter, ExhaustedFrom: FromServer, Findings: []string{
				"PushOptions.Policies[0].MaxAttempts: 30 exceeds the maximum of 17 (default), which applies"}}, 10 * time.Second},
		{"attempts where the server has no maximum", []Policy{{MaxAttempts: 30}}, Base{Server: transport.ConsumerSettings{MaxAttempts: -1}, Capabilities: ours},
			Effective{RetryFrom: FromDefault, MaxAttempts: 30, MaxAttemptsFrom: all, Exhausted: DeadLetter, ExhaustedFrom: FromDefault}, 10 * time.Second},
		{"discard without a maximum", []Policy{{Exhausted: Discard}}, Base{Capabilities: ours},
			Effective{RetryFrom: FromDefault, MaxAttempts: 17, MaxAttemptsFrom: FromDefault, Exhausted: DeadLetter, ExhaustedFrom: FromServer, Findings: []string{
				"PushOptions.Policies[0].Exhausted: it has no effect without MaxAttempts, because the server decides about the last attempt"}}, 10 * time.Second},
		{"a delay that no server accepts", []Policy{{Retry: long, MaxAttempts: 3}}, Base{},
			Effective{RetryFrom: all, MaxAttempts: 3, MaxAttemptsFrom: all, Exhausted: DeadLetter, ExhaustedFrom: FromDefault, Findings: []string{
				"PushOptions.Policies[0].Retry: the delay before retry 2, 13h0m0s, exceeds the servers' maximum of 12h0m0s, which applies"}}, time.Second},
		{"such a delay after the last attempt", []Policy{{Retry: long, MaxAttempts: 2}}, Base{},
			Effective{RetryFrom: all, MaxAttempts: 2, MaxAttemptsFrom: all, Exhausted: DeadLetter, ExhaustedFrom: FromDefault}, time.Second},
	} {
		got := set(t, tt.policies...).Effective(&tidegate.Message{Topic: "orders", Tag: "invoice"}, tt.base)
		if d := got.Retry.Delay(0); d != tt.first {
			t.Errorf("%s: the first delay is %v, want %v", tt.name, d, tt.first)
		}
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

func TestPreview(t *testing.T) {
	for _, tt := range []struct {
		e      Effective
		delays []time.Duration
		text   string
	}{
		{Effective{Retry: backoff.Steps{time.Second, 13 * time.Hour}, MaxAttempts: 3, Exhausted: Discard},
			[]time.Duration{time.Second, 12 * time.Hour}, "2 retries in 12h\nafter attempt 3: discard"},
		{Effective{Retry: backoff.Steps{time.Second}, MaxAttempts: 1, Exhausted: DeadLetter}, nil, "no retries\nafter attempt 1: dead letter"},
		{Effective{Retry: backoff.Steps{time.Minute}}, []time.Duration{9: time.Minute}, "10 retries in 10m, and so on"},
	} {
		p := tt.e.Preview()
		if len(p.Retries) != len(tt.delays) || !strings.HasSuffix(p.String(), tt.text) {
			t.Errorf("got %v\n%d retries, want %d ending with %q", p, len(p.Retries), len(tt.delays), tt.text)
			continue
		}
		if n := len(tt.delays); n > 0 && p.Retries[n-1].Hi != tt.delays[n-1] {
			t.Errorf("the last delay is %v, want %v", p.Retries[n-1].Hi, tt.delays[n-1])
		}
	}
}
