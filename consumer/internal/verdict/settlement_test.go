package verdict

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
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
		action   Action
		err      error
		harmless bool
		unsure   bool
		want     Step
	}{
		"success":         {want: Finished},
		"a lost response": {err: lost, harmless: true, want: TryAgain},
		"a lost response, where a repetition harms": {err: lost, want: Failed},
		"an invalid handle":                         {err: invalid, harmless: true, want: Failed},
		"an invalid handle that may be replaced":    {err: invalid, harmless: true, unsure: true, want: FindHandle},
		"a refused acknowledgement":                 {action: Ack, err: refused, harmless: true, want: Failed},
		"a refused dead letter":                     {action: DeadLetterNow, err: refused, want: RetryInstead},
		"a refused retry topic":                     {action: ReconsumeIn, err: refused, harmless: true, want: RetryInstead},
	} {
		s := State{Verdict: Verdict{Action: tt.action}}
		if got := s.After(tt.err, tt.harmless, tt.unsure); got != tt.want || !errors.Is(s.Last, tt.err) && tt.err != nil {
			t.Errorf("%s: step %d after %v, want %d", name, got, s.Last, tt.want)
		}
	}
}

// After a lost response an invalid handle shows that the first attempt has probably worked; a valid
// one that was found shows that it has not.
func TestPerhaps(t *testing.T) {
	s := State{Verdict: Verdict{Action: Ack}}
	s.After(lost, true, false)
	s.After(invalid, true, true)
	if end, _, err := s.Conclude(transport.RetryResult{}, s.Last); end != PerhapsSettled || !errors.Is(err, ErrPerhaps) || !errors.Is(err, tidegate.ErrInvalidHandle) {
		t.Errorf("end %d, %v", end, err)
	}
	if got := s.Found(lost); got != TryAgain || !errors.Is(s.Last, lost) {
		t.Errorf("step %d after a lost response, want another attempt", got)
	}
	if got := s.Found(invalid); got != Failed {
		t.Errorf("step %d after an invalid handle, want none", got)
	}
	if got := s.Found(nil); got != TryAgain || s.Last != nil {
		t.Errorf("step %d after the handle was found, %v", got, s.Last)
	}
	if end, _, err := s.Conclude(transport.RetryResult{}, nil); end != Acked || err != nil {
		t.Errorf("end %d, %v", end, err)
	}
}

func TestConclude(t *testing.T) {
	wish := errors.New("the server has no retry topics")
	for name, tt := range map[string]struct {
		verdict Verdict
		refused error
		res     transport.RetryResult
		err     error
		end     End
		delay   time.Duration
		report  error
	}{
		"acknowledged":         {verdict: Verdict{Action: Ack}, end: Acked},
		"discarded":            {verdict: Verdict{Action: Discard}, end: Discarded},
		"released":             {verdict: Verdict{Action: GiveBack}, end: Released},
		"not released":         {verdict: Verdict{Action: GiveBack}, err: lost, end: Unsettled, report: lost},
		"lost":                 {verdict: Verdict{Action: Forget}, err: invalid, end: LeaseLost, report: invalid},
		"too late":             {verdict: Verdict{Action: Ack}, err: invalid, end: LeaseLost, report: invalid},
		"not settled":          {verdict: Verdict{Action: Retry}, err: lost, end: Unsettled, report: lost},
		"snoozed":              {verdict: Verdict{Action: SnoozeFor, Delay: time.Hour}, end: Snoozed, delay: time.Hour},
		"dead letter":          {verdict: Verdict{Action: DeadLetterNow}, end: DeadLettered},
		"dead letter, result":  {verdict: Verdict{Action: Retry}, res: transport.RetryResult{Fate: transport.FateDeadLetter}, end: DeadLettered},
		"parked":               {verdict: Verdict{Action: DeadLetterNow}, res: transport.RetryResult{Fate: transport.FateParked}, end: Parked},
		"reconsumed":           {verdict: Verdict{Action: ReconsumeIn}, res: transport.RetryResult{Fate: transport.FateAgain, Delay: time.Minute}, end: Reconsumed, delay: time.Minute},
		"retried":              {verdict: Verdict{Action: Retry, Delay: time.Second}, end: Retried, delay: time.Second},
		"retried, result":      {verdict: Verdict{Action: Retry, Delay: time.Second}, res: transport.RetryResult{Fate: transport.FateAgain, Delay: time.Hour}, end: Retried, delay: time.Hour},
		"instead of a refusal": {verdict: Verdict{Action: Retry, Delay: time.Second}, refused: wish, end: Retried, delay: time.Second, report: wish},
	} {
		s := State{Verdict: tt.verdict, Refused: tt.refused}
		end, delay, err := s.Conclude(tt.res, tt.err)
		if end != tt.end || delay != tt.delay || !errors.Is(err, tt.report) || (err == nil) != (tt.report == nil) {
			t.Errorf("%s: end %d after %v, %v; want %d after %v, %v", name, end, delay, err, tt.end, tt.delay, tt.report)
		}
	}
}
