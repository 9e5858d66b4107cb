package consumer

import (
	"time"

	"github.com/tidegate/tidegate/consumer/internal/gate"
)

// A KillSwitch stops a consumer whose handlers fail in large numbers, as in the outage of a
// dependency: polling stops, messages that no handler has begun with are released, and failures
// cost no attempt where the server can release a message without counting it
// ([transport.Capabilities].Suspend). After Probe one message is tried. Once that succeeds, the
// concurrency grows to its full value within a few seconds. The zero value never stops the
// consumer.
type KillSwitch struct {
	// FailureRatio is the part of the messages handled last, from above 0 to 1, whose failure
	// trips the switch. Zero means that failures do not trip it.
	FailureRatio float64

	// DeadLetters is how many dead letters within Window trip the switch. Zero means that they do
	// not.
	DeadLetters int

	// MinMessages is how many messages FailureRatio is taken of: the last MinMessages at least, and
	// twice as many at most. Default: 20.
	MinMessages int

	// Window is how long results and dead letters count. Default: 30 s.
	Window time.Duration

	// Probe is the time from a trip or a failed probe to the next probe. Default: 5 s.
	Probe time.Duration
}

func (k KillSwitch) withDefaults() KillSwitch {
	if k.MinMessages == 0 {
		k.MinMessages = 20
	}
	if k.Window == 0 {
		k.Window = 30 * time.Second
	}
	if k.Probe == 0 {
		k.Probe = 5 * time.Second
	}
	return k
}

// gate returns the state machine of the switch.
func (k KillSwitch) gate() *gate.Gate { return gate.New(gate.Options(k)) }
