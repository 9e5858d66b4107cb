package consume

import (
	"math"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// RetryRules are the redelivery settings of an address with all defaults. No method changes them,
// so several goroutines may share them.
type RetryRules struct {
	Delay       time.Duration // redelivery-delay; 0 for none
	Longest     time.Duration // max-redelivery-delay
	Multiplier  float64       // redelivery-delay-multiplier, above 0
	Factor      float64       // redelivery-collision-avoidance-factor, 0 to 1
	MaxAttempts int           // max-delivery-attempts; -1 for ever

	DeadLetter     string // dead-letter-address; empty: a message without attempts left is removed
	AutoCreate     bool   // auto-create-dead-letter-resources
	Prefix, Suffix string // of automatic dead-letter queues
}

// After returns the delay after a failed delivery attempt: redelivery-delay, times the multiplier
// for each earlier failure. The random part is then added or subtracted. Both steps are limited to
// max-redelivery-delay.
func (r *RetryRules) After(attempt int, d Draw) time.Duration {
	if r.Delay <= 0 {
		return 0
	}
	longest := float64(r.Longest)
	delay := min(float64(r.Delay)*math.Pow(r.Multiplier, float64(max(attempt, 1)-1)), longest)
	factor := r.Factor
	if d.Negative {
		factor = -factor
	}
	delay = min(delay+delay*(factor*d.Number), longest)
	return min(time.Duration(math.Round(delay)), r.Longest) // a float64 may round up
}

// maxSteps bounds the steps of Ladder.
const maxSteps = 32

// Ladder returns the retry schedule without the random part: the delay after the first failure,
// after the second and so on. The last one repeats.
func (r *RetryRules) Ladder() backoff.Steps {
	steps := backoff.Steps{r.After(1, Draw{})}
	for n := 2; n <= maxSteps; n++ {
		steps = append(steps, r.After(n, Draw{}))
	}
	for len(steps) > 1 && steps[len(steps)-1] == steps[len(steps)-2] { // the last step repeats anyway
		steps = steps[:len(steps)-1]
	}
	return steps
}

// DeadLetterTopics returns the topics to which a message of a topic goes after its last attempt.
// own is the dead letter topic of the consumer group, and the destination of dead letters that fail
// again. early is Departure.Early of package consume. Without a dead-letter-address such a message
// goes to own, and any other message is removed. With AutoCreate a message also goes to the
// automatic dead-letter queue of its topic.
func (r *RetryRules) DeadLetterTopics(own, topic string, early bool) []string {
	switch {
	case early && r.DeadLetter == "":
		return []string{own}
	case r.DeadLetter == "":
		return nil
	case topic == r.DeadLetter || r.AutoCreate && r.isQueue(topic):
		return []string{own} // otherwise a dead letter that fails would return to its own topic
	}
	out := []string{r.DeadLetter}
	if q := r.Prefix + topic + r.Suffix; r.AutoCreate && q != topic && q != r.DeadLetter && tidegate.ValidateTopic(q) == nil {
		out = append(out, q)
	}
	return out
}

// isQueue reports whether a topic has the name of an automatic dead-letter queue.
func (r *RetryRules) isQueue(topic string) bool {
	return r.Prefix+r.Suffix != "" && len(topic) > len(r.Prefix+r.Suffix) &&
		strings.HasPrefix(topic, r.Prefix) && strings.HasSuffix(topic, r.Suffix)
}

// A Draw is the random part of redelivery-collision-avoidance-factor (Apache ActiveMQ Artemis):
// "either positive or negative at random", and "a random number between 0.0 and 1.0". The zero
// value means no random part.
type Draw struct {
	Negative bool
	Number   float64 // from 0, below 1
}

// drawFrom derives a draw from numbers that identify its purpose. Equal numbers give equal draws in
// every process, so a draw need not be stored for a restart.
func drawFrom(first uint64, more ...uint64) Draw {
	x := first
	for _, v := range more {
		x = mix(x + 0x9e3779b97f4a7c15 + v)
	}
	return Draw{Negative: x&1 == 1, Number: float64(x>>11) / (1 << 53)}
}

// mix spreads the bits of x over the result (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
