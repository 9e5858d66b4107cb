package consumer

import (
	"time"

	"github.com/tidegate/tidegate/consumer/internal/gate"
)

// A KillSwitch stops a consumer whose handlers fail in large numbers, for example during the outage
// of a database. The consumer stops receiving. On servers with [transport.Capabilities].Suspend it
// releases the messages that wait for a handler, and failures cost no attempt from then on. After
// Probe the consumer handles one message. If that succeeds, the concurrency doubles each second up
// to its full value. The zero value never stops the consumer.
type KillSwitch struct {
	// FailureRatio is the share of failures among the last handled messages that trips the switch,
	// at most 1. Zero means that failures do not trip it.
	FailureRatio float64

	// DeadLetters is the number of dead letters within Window that trips the switch. Zero means
	// that dead letters do not trip it.
	DeadLetters int

	// MinMessages is the number of last handled messages for FailureRatio. The switch counts up to
	// twice as many. Default: 20.
	MinMessages int

	// Window is the time for which results and dead letters count. Default: 30 s.
	Window time.Duration

	// Probe is the time from a trip or a failed probe to the next probe. Default: 5 s.
	Probe time.Duration
}

// gate returns the state machine of the switch.
func (k KillSwitch) gate() *gate.Gate { return gate.New(gate.Options(k)) }
