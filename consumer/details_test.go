package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/policies"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// A StopReport counts each disposition in one field, and a message is consumed if the group does
// not receive it again from its topic.
func TestDispositions(t *testing.T) {
	for _, tt := range []struct {
		disposition Disposition
		want        StopReport
		consumed    bool
	}{
		{disposition: Acked, want: StopReport{Acked: 1}, consumed: true},
		{disposition: Retried, want: StopReport{Retried: 1}},
		{disposition: DeadLettered, want: StopReport{Retried: 1}, consumed: true},
		{disposition: LeaseLost, want: StopReport{Unsettled: 1}},
		{disposition: Released, want: StopReport{Released: 1}},
		{disposition: Unsettled, want: StopReport{Unsettled: 1}},
		{disposition: PerhapsSettled, want: StopReport{Unsettled: 1}},
		{disposition: Parked, want: StopReport{Retried: 1}},
		{disposition: Snoozed, want: StopReport{Retried: 1}},
		{disposition: Reconsumed, want: StopReport{Retried: 1}, consumed: true},
		{disposition: Discarded, want: StopReport{Retried: 1}, consumed: true},
	} {
		var got StopReport
		it := &item{disposition: tt.disposition}
		if got.count(it); got != tt.want || it.consumed() != tt.consumed {
			t.Errorf("%v: report %+v, consumed %v; want %+v, %v", tt.disposition, got, it.consumed(), tt.want, tt.consumed)
		}
	}
}

func TestNegativeDelaysMeanNone(t *testing.T) {
	if e, ok := errors.AsType[*verdict.Snooze](Snooze(-time.Second)); !ok || e.Delay != 0 {
		t.Errorf("Snooze: %+v", e)
	}
	if e, ok := errors.AsType[*verdict.RetryIn](RetryIn(-time.Second, nil)); !ok || e.Delay != 0 {
		t.Errorf("RetryIn: %+v", e)
	}
}

// The maximum of a policy holds if the server announces none or a higher one.
func TestMaxAttemptsOfAPolicy(t *testing.T) {
	for _, tt := range []struct{ own, server, want int }{
		{own: 3, server: 0, want: 3},
		{own: 3, server: -1, want: 3},
		{own: 3, server: 5, want: 3},
		{own: 5, server: 3, want: 3},
		{own: 0, server: 3, want: 3},
		{own: 0, server: -1, want: -1},
	} {
		src := &source{topic: &topic{name: "orders"}}
		src.topic.settings.Store(&transport.ConsumerSettings{MaxAttempts: tt.server})
		it := &item{source: src, choice: policies.Choice{MaxAttempts: tt.own}, current: tidegate.Delivery{Message: tidegate.Message{Topic: "orders"}}}
		if got := (&run{}).maxAttempts(it); got != tt.want {
			t.Errorf("policy %d, server %d: %d, want %d", tt.own, tt.server, got, tt.want)
		}
	}
}

// Tripped lasts from the trip until full concurrency, also during the probe.
func TestTrippedDuringTheProbe(t *testing.T) {
	o := PushOptions{Concurrency: 4, KillSwitch: KillSwitch{FailureRatio: 0.5, MinMessages: 1}}.withDefaults()
	h := newHand(&o)
	now := time.Unix(0, 0)
	step := func(name string, state killswitch.State, want bool) {
		t.Helper()
		if h.gate.State() != state || h.tripped() != want {
			t.Errorf("%s: state %v, tripped %v; want %v, %v", name, h.gate.State(), h.tripped(), state, want)
		}
	}
	step("before", killswitch.Flowing, false)
	h.gate.Handled(now, true)
	step("after the failure", killswitch.Tripped, true)
	now = h.gate.Wake()
	h.gate.Tick(now, 4)
	step("during the probe", killswitch.Probing, true)
	h.gate.Handled(now, false)
	step("after the probe", killswitch.Ramping, true)
	for h.gate.State() == killswitch.Ramping {
		now = h.gate.Wake()
		h.gate.Tick(now, 4)
	}
	step("at full concurrency", killswitch.Flowing, false)
}
