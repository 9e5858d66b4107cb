package oteltidegate_test

import (
	"testing"

	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// Trips and returns of a kill switch are counted, and the program's function is called too.
func TestKillSwitchEvents(t *testing.T) {
	run(t, func(e *env) {
		called := 0
		o := e.i.PushOptions(consumer.PushOptions{OnKillSwitch: func(consumer.KillSwitchEvent) { called++ }})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: "billing", Tripped: true})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: "billing"})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: "billing", Tripped: true})
		e.i.PushOptions(consumer.PushOptions{}).OnKillSwitch(consumer.KillSwitchEvent{Group: "shipping"})
		got := e.series()
		for series, want := range map[string]string{
			"tidegate.consumer.kill_switch.events messaging.consumer.group.name=billing tidegate.event=trip":    "2",
			"tidegate.consumer.kill_switch.events messaging.consumer.group.name=billing tidegate.event=return":  "1",
			"tidegate.consumer.kill_switch.events messaging.consumer.group.name=shipping tidegate.event=return": "1",
		} {
			assert.That(t, got[series] == want, "%s is %q, want %s", series, got[series], want)
		}
		assert.That(t, called == 3, "the program's function was called %d times, want 3", called)
	})
}
