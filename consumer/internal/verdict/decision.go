// Package verdict decides about the end of a delivery: what a failure means (Read, Judge, Again),
// which step follows each attempt to settle (State), and how the delivery ended (End). It has no
// clock, locks or goroutines.
package verdict

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// DefaultMaxAttempts is the number of deliveries that a tidegate broker makes if it announces none:
// 16 retries after the first delivery (RocketMQ: consumption retry).
const DefaultMaxAttempts = 17

// MaxDelay is RocketMQ's maximum of an invisible duration, and so of the delay of a retry.
const MaxDelay = 12 * time.Hour

// Rules decide about the failures of a delivery.
type Rules struct {
	MaxAttempts int // deliveries; 0 means that there is no maximum, or that the server decides

	// ServerAttempts is the server's maximum of deliveries as the consumer knows it, also if the
	// server decides. 0 means that there is no maximum, or that it is not known.
	ServerAttempts int

	Schedule backoff.Policy
	ByServer bool                  // the server replaces the delay of Schedule by its own
	Takes    transport.VerdictKind // the verdicts that the server takes beside the common ones

	OwnAttempts int  // deliveries that the consumer's policies allow; 0 means that they set no maximum
	Discard     bool // a message that has used up OwnAttempts is acknowledged
}

// NewRules merges the consumer's own schedule, nil for none, with the server's settings and the
// defaults.
func NewRules(own backoff.Policy, s transport.ConsumerSettings, c transport.Capabilities) Rules {
	r := Rules{ServerAttempts: max(s.MaxAttempts, 0), Schedule: own, ByServer: own == nil && c.RetryResult}
	if r.Schedule == nil && s.Retry != nil {
		r.Schedule = s.Retry
	}
	if r.Schedule == nil {
		r.Schedule = backoff.RetryLadder()
	}
	if s.MaxAttempts == 0 && c != (transport.Capabilities{}) {
		// A RocketMQ that announces nothing may allow any number: it counts itself then, and makes
		// the dead letter.
		r.ServerAttempts = DefaultMaxAttempts
	}
	if !c.RetryResult { // a server that decides may have another maximum by now
		r.MaxAttempts = r.ServerAttempts
	}
	return r
}

// Limit returns the maximum of deliveries, 0 for none, and whether it is that of the consumer's
// policies. A lower maximum of the server overrides theirs, and then the settings of the server
// decide about the end of the message. In a FIFO group they can retry it without end, and negative
// acknowledgements do not count for the server, so a delivery beyond the server's maximum is
// possible.
func (r Rules) Limit() (attempts int, own bool) {
	if r.OwnAttempts > 0 && (r.ServerAttempts == 0 || r.OwnAttempts <= r.ServerAttempts) {
		return r.OwnAttempts, true
	}
	return r.ServerAttempts, false
}

// A ServerSchedule is the schedule of policy.ServerSchedule: a mark for the server's own one.
type ServerSchedule struct{ backoff.Steps }

// An Act is what the consumer does to end a delivery.
type Act int

// The acts.
const (
	Settle  Act = iota // by the verdict
	Ack                // it was consumed
	Discard            // acknowledge it although it failed
	Forget             // nothing: its lease is lost
	Keep               // nothing: it is retried in this process
)

// A Decision is the decision about a delivery. The zero value releases it.
type Decision struct {
	Act Act
	transport.Verdict

	ByServer bool // the server replaces Delay by its own
	Spent    bool // the handler postponed the delivery, but its attempt counts
	Plain    bool // a Retry in place of a RetryTopic or NegativeAck, which the server does not take
}

// Is reports whether the delivery is settled by a kind of verdict.
func (d *Decision) Is(k transport.VerdictKind) bool { return d.Act == Settle && d.Kind == k }

// Request is the verdict as it goes to the server.
func (d *Decision) Request() transport.Verdict {
	v := d.Verdict
	if d.ByServer {
		v.Delay = transport.BySchedule
	}
	return v
}

// Judge decides about delivery number attempt. f is nil if the handler succeeded.
func Judge(attempt int, f *Failure, r Rules) Decision {
	switch {
	case f == nil:
		return Decision{Act: Ack}
	case f.Snooze && !f.DeadLetter && r.Takes.Has(transport.Snooze):
		return Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: min(f.Delay, MaxDelay)}}
	case f.Snooze && !f.DeadLetter:
		return Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: min(f.Delay, MaxDelay), Reason: f.Reason}, Spent: true}
	case f.Reconsume != nil && !f.DeadLetter && r.Takes.Has(f.Reconsume.Kind):
		d := Decision{Verdict: *f.Reconsume}
		d.Reason = f.Reason
		return d
	case f.DeadLetter:
		return Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: f.Reason}}
	case r.Discard && r.exhausted(attempt):
		return Decision{Act: Discard, Verdict: transport.Verdict{Reason: f.Reason}}
	case r.exhausted(attempt), r.MaxAttempts > 0 && attempt >= r.MaxAttempts:
		return Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: f.Reason}}
	}
	return Again(attempt, f, r)
}

// exhausted reports whether the delivery was the last one that the consumer's policies allow.
func (r Rules) exhausted(attempt int) bool {
	limit, own := r.Limit()
	return own && attempt >= limit
}

// Again returns the verdict of a retry after delivery number attempt.
func Again(attempt int, f *Failure, r Rules) Decision {
	v := Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: min(f.Delay, MaxDelay), Reason: f.Reason}}
	switch {
	case f.Reconsume != nil:
		v.Delay, v.Plain = min(instead(*f.Reconsume, attempt), MaxDelay), true
	case !f.RetryIn:
		v.Delay, v.ByServer = min(r.Schedule.Delay(max(0, attempt-1)), MaxDelay), r.ByServer
	}
	return v
}

// A RetryIn is the error of consumer.RetryIn.
type RetryIn struct {
	Delay time.Duration
	Err   error // may be nil
}

// Error returns the text of the failure.
func (e *RetryIn) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("retry after %v", e.Delay)
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *RetryIn) Unwrap() error { return e.Err }

// A Snooze is the error of consumer.Snooze.
type Snooze struct{ Delay time.Duration }

// Error returns the delay in words.
func (e *Snooze) Error() string { return fmt.Sprintf("postponed for %v", e.Delay) }

// A DeadLetter is the error of consumer.DeadLetterNow.
type DeadLetter struct{ Err error } // may be nil

// Error returns the text of the failure.
func (e *DeadLetter) Error() string {
	if e.Err == nil {
		return "dead letter requested by the handler"
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *DeadLetter) Unwrap() error { return e.Err }

// A Reconsume is the error of consumer.Reconsume.
type Reconsume struct {
	Verdict transport.Verdict
	Err     error // may be nil
}

// Error returns the text of the failure.
func (e *Reconsume) Error() string {
	if e.Err == nil {
		return "reconsume later"
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *Reconsume) Unwrap() error { return e.Err }

// levels are RocketMQ's delay levels, the first of them level 1.
var levels = [...]time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	1 * time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute,
	7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	1 * time.Hour, 2 * time.Hour,
}

// levelDelay returns the delay of one of RocketMQ's delay levels. A level below 1 means 1, one
// above 18 means 18.
func levelDelay(level int) time.Duration { return levels[min(max(level, 1), len(levels))-1] }

// defaultNegativeAckDelay is the delay of a negative acknowledgement of Apache Pulsar's clients.
const defaultNegativeAckDelay = time.Minute

// instead returns the delay of a retry in the message's own topic after an attempt, where the
// server does not take v.
func instead(v transport.Verdict, attempt int) time.Duration {
	switch {
	case v.Delay != 0:
		return max(v.Delay, 0)
	case v.Kind == transport.NegativeAck:
		return defaultNegativeAckDelay
	case v.Level > 0:
		return levelDelay(v.Level)
	}
	return levelDelay(attempt)
}
