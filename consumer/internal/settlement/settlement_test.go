package settlement

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/transport"
)

var (
	lost    = &tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true} // the response was
	invalid = &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
	refused = &tidegate.Error{Code: tidegate.CodeForbidden}
)

func TestAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		before   error // of an earlier attempt
		action   decision.Action
		err      error
		harmless bool
		unsure   bool
		want     Step
	}{
		"success":         {want: Finished},
		"a lost response": {err: lost, harmless: true, want: Again},
		"a lost response, where a repetition harms": {err: lost, want: Failed},
		"an invalid handle":                         {err: invalid, harmless: true, want: Failed},
		"an invalid handle that may be replaced":    {err: invalid, harmless: true, unsure: true, want: FindHandle},
		"a refused acknowledgement":                 {action: decision.Ack, err: refused, harmless: true, want: Failed},
		"a refused dead letter":                     {action: decision.DeadLetterNow, err: refused, want: RetryInstead},
		"a refused retry topic":                     {action: decision.ReconsumeIn, err: refused, harmless: true, want: RetryInstead},
	} {
		s := State{Verdict: decision.Verdict{Action: tt.action}}
		if got := s.After(tt.err, tt.harmless, tt.unsure); got != tt.want || !errors.Is(s.Last, tt.err) && tt.err != nil {
			t.Errorf("%s: step %d after %v, want %d", name, got, s.Last, tt.want)
		}
	}
}

// After a lost response an invalid handle shows that the first attempt has probably worked; a valid
// one that was found shows that it has not.
func TestPerhaps(t *testing.T) {
	s := State{Verdict: decision.Verdict{Action: decision.Ack}}
	s.After(lost, true, false)
	s.After(invalid, true, true)
	if end, _, err := s.Conclude(transport.RetryResult{}, s.Last); end != PerhapsSettled || !errors.Is(err, ErrPerhaps) || !errors.Is(err, tidegate.ErrInvalidHandle) {
		t.Errorf("end %d, %v", end, err)
	}
	if got := s.Found(lost); got != Again || !errors.Is(s.Last, lost) {
		t.Errorf("step %d after a lost response, want another attempt", got)
	}
	if got := s.Found(invalid); got != Failed {
		t.Errorf("step %d after an invalid handle, want none", got)
	}
	if got := s.Found(nil); got != Again || s.Last != nil {
		t.Errorf("step %d after the handle was found, %v", got, s.Last)
	}
	if end, _, err := s.Conclude(transport.RetryResult{}, nil); end != Acked || err != nil {
		t.Errorf("end %d, %v", end, err)
	}
}

func TestConclude(t *testing.T) {
	wish := errors.New("the server has no retry topics")
	for name, tt := range map[string]struct {
		verdict decision.Verdict
		refused error
		res     transport.RetryResult
		err     error
		end     End
		delay   time.Duration
		report  error
	}{
		"acknowledged":         {verdict: decision.Verdict{Action: decision.Ack}, end: Acked},
		"discarded":            {verdict: decision.Verdict{Action: decision.Discard}, end: Discarded},
		"released":             {verdict: decision.Verdict{Action: decision.GiveBack}, end: Released},
		"not released":         {verdict: decision.Verdict{Action: decision.GiveBack}, err: lost, end: Unsettled, report: lost},
		"lost":                 {verdict: decision.Verdict{Action: decision.Forget}, err: invalid, end: LeaseLost, report: invalid},
		"too late":             {verdict: decision.Verdict{Action: decision.Ack}, err: invalid, end: LeaseLost, report: invalid},
		"not settled":          {verdict: decision.Verdict{Action: decision.Retry}, err: lost, end: Unsettled, report: lost},
		"snoozed":              {verdict: decision.Verdict{Action: decision.SnoozeFor, Delay: time.Hour}, end: Snoozed, delay: time.Hour},
		"dead letter":          {verdict: decision.Verdict{Action: decision.DeadLetterNow}, end: DeadLettered},
		"dead letter, result":  {verdict: decision.Verdict{Action: decision.Retry}, res: transport.RetryResult{Fate: transport.FateDeadLetter}, end: DeadLettered},
		"parked":               {verdict: decision.Verdict{Action: decision.DeadLetterNow}, res: transport.RetryResult{Fate: transport.FateParked}, end: Parked},
		"reconsumed":           {verdict: decision.Verdict{Action: decision.ReconsumeIn}, res: transport.RetryResult{Fate: transport.FateAgain, Delay: time.Minute}, end: Reconsumed, delay: time.Minute},
		"retried":              {verdict: decision.Verdict{Action: decision.Retry, Delay: time.Second}, end: Retried, delay: time.Second},
		"retried, result":      {verdict: decision.Verdict{Action: decision.Retry, Delay: time.Second}, res: transport.RetryResult{Fate: transport.FateAgain, Delay: time.Hour}, end: Retried, delay: time.Hour},
		"instead of a refusal": {verdict: decision.Verdict{Action: decision.Retry, Delay: time.Second}, refused: wish, end: Retried, delay: time.Second, report: wish},
	} {
		s := State{Verdict: tt.verdict, Refused: tt.refused}
		end, delay, err := s.Conclude(tt.res, tt.err)
		if end != tt.end || delay != tt.delay || !errors.Is(err, tt.report) || (err == nil) != (tt.report == nil) {
			t.Errorf("%s: end %d after %v, %v; want %d after %v, %v", name, end, delay, err, tt.end, tt.delay, tt.report)
		}
	}
}
