package pushed

import (
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// ProducerSettings converts the server's settings for a producer. can are the features that the
// server announced.
func ProducerSettings(s *rmqpb.Settings, can transport.Capabilities) transport.ProducerSettings {
	p := transport.ProducerSettings{
		MaxAttempts: positive(s.GetBackoffPolicy().GetMaxAttempts()),
		MaxBodySize: positive(s.GetPublishing().GetMaxBodySize()),
	}
	// The policy on the wire has no jitter, but producers that were throttled
	// together must not come back together.
	if d := delayer(s.GetBackoffPolicy(), backoff.Default().Jitter); d != nil {
		p.Backoff = throttleBackoff(d, can)
	}
	return p
}

// ConsumerSettings converts the server's settings for a consumer. can are the features that the
// server announced.
func ConsumerSettings(s *rmqpb.Settings, can transport.Capabilities) transport.ConsumerSettings {
	sub := s.GetSubscription()
	c := transport.ConsumerSettings{
		FIFO:             sub.GetFifo(),
		MaxAttempts:      deliveries(s.GetBackoffPolicy().GetMaxAttempts()),
		ReceiveBatchSize: positive(sub.GetReceiveBatchSize()),
		LongPolling:      durationOf(sub.GetLongPollingTimeout()),
	}
	if d := delayer(s.GetBackoffPolicy(), backoff.NoJitter); d != nil {
		c.Retry = retryLadder(d, c.FIFO, can)
	}
	return c
}

// A policy is a retry policy that a server can push.
type policy interface {
	backoff.Policy
	Range(n int) (lo, hi time.Duration)
}

// throttleBackoff returns the wait after a throttled attempt, or nil for the client's default, the
// backoff of "RocketMQ: sending retry and throttling". No shorter wait is used: RocketMQ pushes one
// policy for all retries, 10 ms doubled up to 1 s, and three attempts would end 40 ms after the
// first throttle. The policy of a server with features is used unchanged.
func throttleBackoff(pushed policy, can transport.Capabilities) backoff.Policy {
	if can != (transport.Capabilities{}) {
		return pushed
	}
	shortest := backoff.Default()
	if !exceeds(pushed, shortest) {
		return nil
	}
	return atLeast{pushed, shortest}
}

// exceeds reports whether any delay of p, without jitter, is longer than that of least.
func exceeds(p policy, least backoff.Exponential) bool {
	delay, steps := p.Delay, 0
	switch p := p.(type) {
	case backoff.Exponential:
		if p.Multiplier > 1 && p.Max > least.Max {
			return true // in the end
		}
		delay = p.Base
	case spreadSteps:
		delay, steps = p.steps.Delay, len(p.steps)
	}
	// From where least is at its longest, no exponential delay is longer that was not before.
	for n := 0; n < steps || least.Base(n-1) < least.Max; n++ {
		if delay(n) > least.Base(n) {
			return true
		}
	}
	return false
}

// atLeast has the delays of one policy where they are not shorter than the other's.
type atLeast struct{ policy, least policy }

func (a atLeast) Delay(n int) time.Duration { return max(a.policy.Delay(n), a.least.Delay(n)) }

func (a atLeast) Range(n int) (lo, hi time.Duration) {
	lo, hi = a.policy.Range(n)
	leastLo, leastHi := a.least.Range(n)
	return max(lo, leastLo), max(hi, leastHi)
}

// delayLevels is RocketMQ's table of delays, which it pushes to every group
// that has none of its own.
var delayLevels = append(backoff.Steps{time.Second, 5 * time.Second}, backoff.RetryLadder()...)

// fifoRetryInterval is the fixed interval of RocketMQ for ordered messages.
const fifoRetryInterval = 3 * time.Second

// retryLadder returns the delays between deliveries. RocketMQ's broker itself begins with the third
// step of its table (RocketMQ: consumption retry: 10 s), but pushes the whole table. It also pushes
// the table to FIFO groups, whose interval is fixed.
func retryLadder(pushed policy, fifo bool, can transport.Capabilities) backoff.Policy {
	steps, ok := pushed.(backoff.Steps)
	switch {
	case can != (transport.Capabilities{}) || !ok || !slices.Equal(steps, delayLevels):
		return pushed
	case fifo:
		return backoff.Steps{fifoRetryInterval}
	}
	return backoff.RetryLadder()
}

// delayer returns the policy's delays, nil if it has none that make sense.
func delayer(p *rmqpb.RetryPolicy, jitter float64) policy {
	if e := p.GetExponentialBackoff(); e != nil {
		x := backoff.Exponential{
			Initial:    durationOf(e.GetInitial()),
			Max:        durationOf(e.GetMax()),
			Multiplier: decimal(e.GetMultiplier()),
			Jitter:     jitter,
		}
		// A field that the server left out is a policy without sense, and not ours.
		if x.Initial == 0 || x.Max == 0 || x.Multiplier == 0 || x.Validate() != nil {
			return nil
		}
		return x
	}
	var steps backoff.Steps
	for _, d := range p.GetCustomizedBackoff().GetNext() {
		if d.CheckValid() != nil {
			return nil
		}
		steps = append(steps, d.AsDuration())
	}
	switch {
	case len(steps) == 0 || steps.Validate() != nil:
		return nil
	case jitter > 0:
		return spreadSteps{steps, jitter}
	}
	return steps
}

// spreadSteps are steps with jitter, a share of each.
type spreadSteps struct {
	steps  backoff.Steps
	jitter float64
}

func (s spreadSteps) step(n int) backoff.Exponential {
	d := s.steps.Delay(n)
	return backoff.Exponential{Initial: d, Multiplier: 1, Jitter: s.jitter, Max: d}
}

func (s spreadSteps) Delay(n int) time.Duration {
	if s.steps.Delay(n) == 0 {
		return 0
	}
	return s.step(n).Delay(0)
}

func (s spreadSteps) Range(n int) (lo, hi time.Duration) {
	if s.steps.Delay(n) == 0 {
		return 0, 0
	}
	return s.step(n).Range(0)
}

// decimal returns the number that was meant by f: 1.6, where float64(f) is a little more.
func decimal(f float32) float64 {
	d, _ := strconv.ParseFloat(strconv.FormatFloat(float64(f), 'g', -1, 32), 64) // a number's own text
	return d
}

// durationOf returns 0 for a duration that is missing, illegal or negative.
func durationOf(d *durationpb.Duration) time.Duration {
	if d.CheckValid() != nil {
		return 0
	}
	return max(d.AsDuration(), 0)
}

func positive(n int32) int { return int(max(n, 0)) }

// deliveries returns -1 for no limit. Servers send a negative number or the largest one for it.
func deliveries(n int32) int {
	if n < 0 || n == math.MaxInt32 {
		return -1
	}
	return int(n)
}
