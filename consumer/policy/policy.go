package policy

import (
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

// A Policy sets the retries of the messages that it matches. A message has to match all of Topic,
// Tag and Properties. A policy without these matches every message. The zero value of a setting
// means that the policy does not set it.
type Policy struct {
	// Topic is a topic or a pattern of topics: words joined by ".", "*" for exactly one word, "#"
	// for any number of words, including none. A message in a retry topic has the topic of its
	// original send. Empty means every topic.
	Topic string

	// Tag is the message's tag. Empty means every message, with and without a tag.
	Tag string

	// Properties are user properties of the message with their values. An empty value means any
	// value. Nil means every message.
	Properties map[string]string

	// Retry is the retry schedule: the message is delivered again Retry.Delay(n) after its delivery
	// number n+1 failed. A delay above 12 h means 12 h. [ServerSchedule] means the server's own.
	// Redelivery settings of the topic's address on a tidegate broker override it.
	Retry backoff.Policy

	// MaxAttempts is the maximum of deliveries, including the first. After the last one has failed,
	// Exhausted applies. A lower maximum of the server overrides it.
	MaxAttempts int

	// Exhausted selects the end of a message whose last attempt by MaxAttempts has failed. If the
	// server's maximum is lower, the settings of the server apply instead.
	Exhausted Exhaustion
}

// An Exhaustion is the end of a message whose last attempt has failed. Zero means that a less
// specific policy selects it, and DeadLetter if none does.
type Exhaustion int

// The exhaustions.
const (
	_          Exhaustion = iota // inherited; DeadLetter if no policy sets it
	DeadLetter                   // the message becomes a dead letter of the group
	Discard                      // the message is acknowledged, and lost
)

// String returns the lower-case name.
func (e Exhaustion) String() string {
	switch e {
	case 0:
		return "unset"
	case DeadLetter:
		return "dead letter"
	case Discard:
		return "discard"
	}
	return "invalid"
}

// ServerSchedule returns the value of [Policy].Retry that selects the server's own retry schedule.
// It overrides the Retry of less specific policies and of the subscription. Its method Delay
// returns the delays of [backoff.RetryLadder], which can differ from the server's.
func ServerSchedule() backoff.Policy { return verdict.ServerSchedule{Steps: backoff.RetryLadder()} }
