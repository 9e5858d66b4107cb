// Package redelivery applies the redelivery settings of an address (Artemis: undelivered messages):
// the delay after each failure, the last failure, and the destination after it. It depends on the
// rules alone and knows no topic.
package redelivery

import (
	"math"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// Rules are the redelivery settings of an address with all defaults. No method changes them, so
// several goroutines may share them.
type Rules struct {
	Delay       time.Duration // redelivery-delay; 0 for none
	Longest     time.Duration // max-redelivery-delay
	Multiplier  float64       // redelivery-delay-multiplier, above 0
	Factor      float64       // redelivery-collision-avoidance-factor, 0 to 1
	MaxAttempts int           // max-delivery-attempts; -1 for ever

	DeadLetter     string // dead-letter-address; empty: what is given up is removed
	AutoCreate     bool   // auto-create-dead-letter-resources
	Prefix, Suffix string // of automatic dead-letter queues
}

// After returns the delay after delivery attempt failed: redelivery-delay,
// times the multiplier for each failure before, no more than
// max-redelivery-delay; then chance adds or takes a part of it, still within the maximum.
func (r *Rules) After(attempt int, d Draw) time.Duration {
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

// maxSteps bounds a ladder.
const maxSteps = 32

// Ladder returns the delays after the first failure, the second and so on, without
// chance; the last one repeats.
func (r *Rules) Ladder() backoff.Steps {
	steps := backoff.Steps{r.After(1, Draw{})}
	for n := 2; n <= maxSteps; n++ {
		steps = append(steps, r.After(n, Draw{}))
	}
	for len(steps) > 1 && steps[len(steps)-1] == steps[len(steps)-2] { // the last step repeats anyway
		steps = steps[:len(steps)-1]
	}
	return steps
}

// DeadLetterTopics returns the topics that a message of a topic goes to when it is given
// up; none: it is removed, unless keep is set. own is the topic of what
// nothing is said about, and of dead letters that fail.
func (r *Rules) DeadLetterTopics(own, topic string, keep bool) []string {
	switch {
	case keep && r.DeadLetter == "":
		return []string{own}
	case r.DeadLetter == "":
		return nil
	case topic == r.DeadLetter || r.AutoCreate && r.isQueue(topic):
		return []string{own} // or dead letters that fail would come back to where they are
	}
	out := []string{r.DeadLetter}
	if q := r.Prefix + topic + r.Suffix; r.AutoCreate && q != topic && q != r.DeadLetter && tidegate.ValidateTopic(q) == nil {
		out = append(out, q)
	}
	return out
}

// isQueue reports whether a name is that of an automatic dead-letter queue.
func (r *Rules) isQueue(topic string) bool {
	return r.Prefix+r.Suffix != "" && len(topic) > len(r.Prefix+r.Suffix) &&
		strings.HasPrefix(topic, r.Prefix) && strings.HasSuffix(topic, r.Suffix)
}
