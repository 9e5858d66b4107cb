package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The values of HeaderLanguage.
const (
	LanguageNode = "HTTP" // RocketMQ's Node client
	LanguageJava = "JAVA" // RocketMQ's Java client
	LanguageGo   = "GO"   // RocketMQ's Go client, and ours
)

// RetryPolicy returns a policy as a client of the language reads it.
// RocketMQ's Node client knows only exponential policies, the others read
// ladders (and Python nothing else).
func RetryPolicy(p serving.RetryPolicy, language string) *rmqpb.RetryPolicy {
	steps := p.Ladder
	if len(steps) == 0 { // a ladder without steps: every delay is 0; clients reject an empty list
		steps = []time.Duration{0}
	}
	out := &rmqpb.RetryPolicy{MaxAttempts: math.MaxInt32} // for ever
	if p.MaxAttempts > 0 {
		out.MaxAttempts = int32(min(p.MaxAttempts, math.MaxInt32))
	}
	if language == LanguageNode {
		multiplier := 2.0
		if len(steps) == 1 {
			multiplier = 1
		}
		out.Strategy = Exponential(steps[0], max(steps[0], steps[len(steps)-1]), multiplier)
		return out
	}
	next := make([]*durationpb.Duration, len(steps))
	for i, d := range steps {
		next[i] = durationpb.New(d)
	}
	out.Strategy = &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: next}}
	return out
}

// Exponential returns a policy whose delays grow by multiplier from initial up to longest.
func Exponential(initial, longest time.Duration, multiplier float64) *rmqpb.RetryPolicy_ExponentialBackoff {
	return &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &rmqpb.ExponentialBackoff{
		Initial: durationpb.New(initial), Max: durationpb.New(longest), Multiplier: float32(multiplier),
	}}
}
