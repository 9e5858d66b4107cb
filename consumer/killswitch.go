package consumer

import (
	"time"

	"github.com/tidegate/tidegate/consumer/internal/gate"
)

// A KillSwitch stops a consumer whose handlers fail in large numbers, for example during the outage
// of a database. When it trips, the consumer stops receiving. On servers with
// [transport.Capabilities].Suspend it releases the messages that wait for a handler.
//
// After Probe the consumer handles one message. If the handler fails, the switch trips again. If it
// succeeds, the concurrency starts at 1 and doubles each second up to its full value.
//
// The failure that trips the switch, and all failures until the full concurrency is reached again,
// cost no attempt on a tidegate broker: the message is delivered again after 4 × Probe, and
// Outcome.Disposition is [Snoozed]. On servers without [transport.Capabilities].Snooze and Suspend,
// such as RocketMQ, these messages are retried as usual.
//
// The zero value never stops the consumer.
type KillSwitch struct {
	// FailureRatio trips the switch when the share of failures among the last handled messages
	// reaches it. At most 1. Zero means that failures do not trip the switch.
	FailureRatio float64

	// DeadLetters is the number of dead letters within Window that trips the switch. Zero means
	// that dead letters do not trip the switch.
	DeadLetters int

	// MinMessages is the number of messages that must have been handled within Window before
	// FailureRatio applies. While the concurrency grows after a probe, 2 are enough. The ratio
	// covers the last MinMessages to 2 × MinMessages messages. Default: 20.
	MinMessages int

	// Window is the time for which results and dead letters count. Default: 30 s.
	Window time.Duration

	// Probe is the time from a trip or a failed probe to the next probe. Default: 5 s.
	Probe time.Duration
}

// gate returns the state machine of the switch.
func (k KillSwitch) gate() *gate.Gate { return gate.New(gate.Options(k)) }
