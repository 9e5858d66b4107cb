package verdict

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

var (
	lost    = &tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true} // the response was
	invalid = &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
	refused = &tidegate.Error{Code: tidegate.CodeForbidden}
)

// After a lost response an invalid handle shows that the first attempt has probably worked; a valid
// one that was found shows that it has not.
func TestPerhaps(t *testing.T) {
	s := State{Decision: Decision{Act: Ack}}
	s.After(lost, true, false)
	s.After(invalid, true, true)
	if end, _, err := s.Conclude(transport.RetryResult{}, s.Last); end != PerhapsSettled || !errors.Is(err, ErrPerhaps) || !errors.Is(err, tidegate.ErrInvalidHandle) {
		t.Errorf("end %d, %v", end, err)
	}
	got := s.Found(lost)
	assert.That(t, got == TryAgain && errors.Is(s.Last, lost), "step %d after a lost response, want another attempt", got)
	assert.Equal(t, "step after an invalid handle", s.Found(invalid), Failed)
	got = s.Found(nil)
	assert.That(t, got == TryAgain && s.Last == nil, "step %d after the handle was found, %v", got, s.Last)
	end, _, err := s.Conclude(transport.RetryResult{}, nil)
	assert.That(t, end == Acked && err == nil, "end %d, %v", end, err)
}

func TestConclude(t *testing.T) {
	wish := errors.New("the server has no retry topics")
	for name, tt := range map[string]struct {
		decision Decision
		refused  error
		res      transport.RetryResult
		err      error
		end      Disposition
		delay    time.Duration
		report   error
	}{
		"acknowledged":         {decision: Decision{Act: Ack}, end: Acked},
		"discarded":            {decision: Decision{Act: Discard}, end: Discarded},
		"released":             {decision: Decision{Verdict: transport.Verdict{Kind: transport.Release}}, end: Released},
		"not released":         {decision: Decision{Verdict: transport.Verdict{Kind: transport.Release}}, err: lost, end: Unsettled, report: lost},
		"lost":                 {decision: Decision{Act: Forget}, err: invalid, end: LeaseLost, report: invalid},
		"too late":             {decision: Decision{Act: Ack}, err: invalid, end: LeaseLost, report: invalid},
		"not settled":          {decision: Decision{Verdict: transport.Verdict{Kind: transport.Retry}}, err: lost, end: Unsettled, report: lost},
		"snoozed":              {decision: Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: time.Hour}}, end: Snoozed, delay: time.Hour},
		"dead letter":          {decision: Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter}}, end: DeadLettered},
		"dead letter, result":  {decision: Decision{Verdict: transport.Verdict{Kind: transport.Retry}}, res: transport.RetryResult{Fate: transport.FateDeadLetter}, end: DeadLettered},
		"parked":               {decision: Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter}}, res: transport.RetryResult{Fate: transport.FateParked}, end: Parked},
		"reconsumed":           {decision: Decision{Verdict: transport.Verdict{Kind: transport.RetryTopic}}, res: transport.RetryResult{Fate: transport.FateAgain, Delay: time.Minute}, end: Reconsumed, delay: time.Minute},
		"retried":              {decision: Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Second}}, end: Retried, delay: time.Second},
		"retried, result":      {decision: Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Second}}, res: transport.RetryResult{Fate: transport.FateAgain, Delay: time.Hour}, end: Retried, delay: time.Hour},
		"instead of a refusal": {decision: Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Second}}, refused: wish, end: Retried, delay: time.Second, report: wish},
	} {
		s := State{Decision: tt.decision, Refused: tt.refused}
		end, delay, err := s.Conclude(tt.res, tt.err)
		assert.That(t, end == tt.end && delay == tt.delay && errors.Is(err, tt.report) && (err == nil) == (tt.report == nil),
			"%s: end %d after %v, %v; want %d after %v, %v", name, end, delay, err, tt.end, tt.delay, tt.report)
	}
}
