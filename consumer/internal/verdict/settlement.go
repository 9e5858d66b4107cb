package verdict

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// ErrPerhaps reports that a delivery may have been settled by an earlier attempt.
var ErrPerhaps = errors.New("an earlier attempt, whose response was lost, may have settled the delivery")

// A State is the state of the requests that settle a delivery.
//
// Wake-ups: the consumer carries out each Step at once, except Again after a failed attempt, for
// which it sets a timer before the end of the lease, or gives up.
//
// Bound on steps: an attempt without a delay follows FindHandle, after which the handle is certain,
// or RetryInstead, which occurs once because it replaces the verdict by a retry. All other attempts
// are paced by a backoff, and end with the lease.
type State struct {
	Decision Decision
	Failure  *Failure // of the handler, nil for none
	Tries    int      // attempts that were repeated
	Refused  error    // why the handler's wish was replaced by a retry
	Last     error    // of the last attempt

	maybe   bool  // an attempt may have worked
	settled error // it seems to have
}

// A Step is the action after an attempt to settle.
type Step int

// The steps.
const (
	Finished     Step = iota // the attempt succeeded
	TryAgain                 // another attempt, after a delay if Last is not nil
	FindHandle               // an extension whose response was lost may have replaced the handle
	RetryInstead             // the server does not support the handler's result
	Failed                   // no further attempt
)

// A Disposition is the end of a delivery. Package consumer exports and explains it.
type Disposition int

// The dispositions.
const (
	Acked Disposition = iota + 1
	Retried
	DeadLettered
	LeaseLost
	Released
	Unsettled
	PerhapsSettled
	Parked
	Snoozed
	Reconsumed
	Discarded
)

// String returns the disposition in lower-case words.
func (d Disposition) String() string {
	words := [...]string{
		Acked:          "acked",
		Retried:        "retried",
		DeadLettered:   "dead-lettered",
		LeaseLost:      "lease lost",
		Released:       "released",
		Unsettled:      "unsettled",
		PerhapsSettled: "possibly settled",
		Parked:         "parked",
		Snoozed:        "snoozed",
		Reconsumed:     "reconsumed",
		Discarded:      "discarded",
	}
	if d < Acked || int(d) >= len(words) {
		return "unknown"
	}
	return words[d]
}

// After decides about the step after an attempt that ended with err. harmless reports that a
// repetition does nothing more where an earlier attempt worked. unsure reports that the handle may
// have been replaced.
func (s *State) After(err error, harmless, unsure bool) Step {
	s.Last = err
	if err == nil {
		return Finished
	}
	s.maybe = s.maybe || Perhaps(err)
	invalid := errors.Is(err, tidegate.ErrInvalidHandle)
	if s.maybe && invalid {
		s.settled = fmt.Errorf("%w: %w", ErrPerhaps, err)
	}
	switch {
	case unsure && invalid:
		return FindHandle
	case canRepeat(err, harmless):
		return TryAgain
	case s.Decision.Act == Settle && (s.Decision.Kind == transport.DeadLetter || s.Decision.Kind > transport.Snooze) && permanent(err):
		return RetryInstead // the server does not do that for us, and nothing may be lost
	}
	return Failed
}

// Found decides about the step after an attempt to find the valid handle that ended with err.
func (s *State) Found(err error) Step {
	switch {
	case err == nil:
		s.settled, s.Last = nil, nil
		return TryAgain
	case errors.Is(err, tidegate.ErrInvalidHandle) || !canRepeat(err, true):
		return Failed
	}
	s.Last = err
	return TryAgain
}

// Conclude returns the end of the delivery whose last attempt to settle ended with err, the delay
// of its next delivery, and the error to report.
func (s *State) Conclude(res transport.RetryResult, err error) (end Disposition, delay time.Duration, _ error) {
	if err != nil && s.settled != nil {
		err = s.settled
	}
	report := err
	if err == nil {
		report = s.Refused
	}
	switch {
	case s.Decision.Act == Forget:
		return LeaseLost, 0, report
	case errors.Is(err, ErrPerhaps):
		return PerhapsSettled, 0, report
	case err != nil && s.Decision.Is(transport.Release):
		return Unsettled, 0, fmt.Errorf("release: %w", err)
	case err != nil && errors.Is(err, tidegate.ErrInvalidHandle):
		return LeaseLost, 0, report
	case err != nil:
		return Unsettled, 0, report
	case s.Decision.Act == Ack:
		return Acked, 0, report
	case s.Decision.Act == Discard:
		return Discarded, 0, report
	case s.Decision.Is(transport.Release):
		return Released, 0, report
	case s.Decision.Is(transport.Snooze):
		return Snoozed, s.Decision.Delay, report
	case s.Decision.Is(transport.DeadLetter) && res.Fate == transport.FateUntold, res.Fate == transport.FateDeadLetter:
		return DeadLettered, 0, report
	case res.Fate == transport.FateParked:
		return Parked, 0, report
	case s.Decision.Is(transport.RetryTopic):
		return Reconsumed, res.Delay, report
	case res.Fate == transport.FateAgain:
		return Retried, res.Delay, report
	}
	return Retried, s.Decision.Delay, report
}
