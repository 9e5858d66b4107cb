package verdict

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A delay of more than 12 h means 12 h, unless the server decides.
func TestLongRetryDelays(t *testing.T) {
	day := transport.ConsumerSettings{Retry: backoff.Steps{24 * time.Hour}}
	failed := Read(errors.New("no connection"))
	for _, r := range []Rules{
		NewRules(nil, day, transport.Capabilities{}),
		NewRules(day.Retry.(backoff.Steps), transport.ConsumerSettings{}, transport.Capabilities{RetryResult: true}),
	} {
		v := Judge(1, failed, r)
		assert.That(t, v.Delay == 12*time.Hour && !v.ByServer, "%+v: got %+v", r, v)
	}
}

// A transport would send a set of kinds as an extension of the lease.
func TestReconsumeNeedsOneKind(t *testing.T) {
	for kind, want := range map[transport.VerdictKind]bool{
		transport.RetryTopic: true, transport.NegativeAck: true, transport.RetryTopic | transport.NegativeAck: false,
		transport.Release: false, transport.Retry: false, transport.DeadLetter: false, transport.Snooze: false,
	} {
		f := Read(&Reconsume{Verdict: transport.Verdict{Kind: kind}})
		assert.That(t, (f.Reconsume != nil) == want, "%v is read as %+v", kind, f)
	}
}

func TestNewRules(t *testing.T) {
	own, pushed := backoff.Steps{time.Second}, backoff.Steps{time.Minute}
	ours := transport.Capabilities{Suspend: true}
	for _, tt := range []struct {
		name    string
		own     backoff.Policy
		pushed  transport.ConsumerSettings
		caps    transport.Capabilities
		attempt int
		delay   time.Duration
	}{
		{"nothing known", nil, transport.ConsumerSettings{}, transport.Capabilities{}, 0, 10 * time.Second},
		{"a silent server of ours", nil, transport.ConsumerSettings{}, ours, 17, 10 * time.Second},
		{"pushed", nil, transport.ConsumerSettings{MaxAttempts: 4, Retry: pushed}, transport.Capabilities{}, 4, time.Minute},
		{"for ever", nil, transport.ConsumerSettings{MaxAttempts: -1}, ours, 0, 10 * time.Second},
		{"a server that decides", nil, transport.ConsumerSettings{MaxAttempts: 4}, transport.Capabilities{RetryResult: true}, 0, 10 * time.Second},
		{"own schedule", own, transport.ConsumerSettings{MaxAttempts: 4, Retry: pushed}, ours, 4, time.Second},
	} {
		if r := NewRules(tt.own, tt.pushed, tt.caps); r.MaxAttempts != tt.attempt || r.Schedule.Delay(0) != tt.delay {
			t.Errorf("%s: got %+v, want %d attempts and a first delay of %v", tt.name, r, tt.attempt, tt.delay)
		}
	}
}

// The lower maximum applies, and it is the server's also if the server decides about each failure.
func TestLimit(t *testing.T) {
	decides := transport.Capabilities{RetryResult: true}
	for _, tt := range []struct {
		own, server int
		caps        transport.Capabilities
		limit       int
		ours        bool
	}{
		{0, 0, transport.Capabilities{}, 0, false},
		{5, 0, transport.Capabilities{}, 5, true},
		{5, 2, transport.Capabilities{}, 2, false},
		{5, 2, decides, 2, false},
		{2, 5, decides, 2, true},
		{5, 5, decides, 5, true},
		{5, -1, decides, 5, true},
		{18, 0, decides, 17, false},
		{0, 3, decides, 3, false},
		{0, -1, decides, 0, false},
	} {
		r := NewRules(nil, transport.ConsumerSettings{MaxAttempts: tt.server}, tt.caps)
		r.OwnAttempts = tt.own
		if limit, ours := r.Limit(); limit != tt.limit || ours != tt.ours {
			t.Errorf("%d attempts of the policies, %d of the server: %d, %v; want %d, %v", tt.own, tt.server, limit, ours, tt.limit, tt.ours)
		}
	}
}

// The reason that travels with a dead letter does not grow with the error.
func TestReasonIsBounded(t *testing.T) {
	for _, text := range []string{
		"", "  \n ", "a\nb\tc\x00d", strings.Repeat("ü", 2000), strings.Repeat("x", 1<<20), "\xff\xfe", strings.Repeat("\xff", 5000),
		strings.Repeat("a", maxReason-1) + "ü",
	} {
		r := reason(errors.New(text))
		assert.That(t, r != "" && len(r) <= maxReason && utf8.ValidString(r) && !strings.ContainsAny(r, "\n\t\x00"),
			"reason of %.20q… (%d bytes) is %.40q… (%d bytes)", text, len(text), r, len(r))
	}
}

func TestEndingAndRepeat(t *testing.T) {
	code := func(c tidegate.Code) error { return fmt.Errorf("wrapped: %w", &tidegate.Error{Code: c}) }
	for _, tt := range []struct {
		err            error
		ending         Ending
		harmless, harm bool // repeated, where that is harmless, and where it is not?
	}{
		{errors.New("connection lost"), never, true, false},
		{context.Canceled, never, true, false},
		{code(tidegate.CodeInternalServerError), never, true, false},
		{code(tidegate.CodeTooManyRequests), never, true, true},
		{code(tidegate.CodeTopicNotFound), never, false, false},
		{code(protocol.CodeConsumerGroupNotFound), never, false, false},
		{code(tidegate.CodeInvalidReceiptHandle), never, false, false},
		{code(protocol.CodeIllegalPollingTime), never, true, false},    // of a proxy that was paused
		{code(protocol.CodeUnrecognizedClientType), never, true, true}, // of a server that forgot the client
		{code(tidegate.CodeNotImplemented), never, false, false},       // of an ingress without a backend
		{code(protocol.CodeUnsupported), never, false, false},
		{code(49999), never, false, false},
		{code(tidegate.CodeBadRequest), never, false, false},
		{code(protocol.CodeIllegalConsumerGroup), AtOnce, false, false},
		{code(protocol.CodeIllegalFilterExpression), AtOnce, false, false},
		{code(protocol.CodeIllegalInvisibleTime), AtOnce, false, false},
		{code(tidegate.CodeUnauthorized), graced, false, false},
		{code(tidegate.CodeForbidden), graced, false, false},
		{fmt.Errorf("transport %w", tidegate.ErrClosed), AtOnce, false, false},
	} {
		if got := EndingOf(tt.err); got != tt.ending {
			t.Errorf("EndingOf(%v) = %v", tt.err, got)
		}
		got := canRepeat(tt.err, true)
		assert.That(t, got == tt.harmless, "CanRepeat(%v) where it is harmless: %v", tt.err, got)
		got = canRepeat(tt.err, false)
		assert.That(t, got == tt.harm, "CanRepeat(%v) where it is not: %v", tt.err, got)
	}
}

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

// Between two delays there are at most three attempts: one with the handle that was found, and one
// with a retry in place of the verdict. A delivery ends as settled if and only if its last attempt
// succeeded.
func TestModel(t *testing.T) { model.Run(t, 100_000, runModel) }

// runModel settles one delivery with random results, as the consumer does.
func runModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	throttled := &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: time.Second}
	results := []error{nil, lost, lost, invalid, invalid, refused, throttled}
	decisions := []Decision{{Act: Ack}, {Act: Discard}}
	for _, k := range []transport.VerdictKind{transport.Release, transport.Retry, transport.DeadLetter, transport.Snooze, transport.RetryTopic, transport.NegativeAck} {
		decisions = append(decisions, Decision{Verdict: transport.Verdict{Kind: k}})
	}
	s := State{Decision: decisions[r.IntN(len(decisions))]}
	unsure, harmless := r.IntN(2) == 0, r.IntN(4) > 0
	attempts := 0 // since the last delay
	var err error
	for next := TryAgain; next == TryAgain; {
		if s.Last != nil {
			if s.Tries++; s.Tries > r.IntN(20) {
				break // the lease ends
			}
			attempts = 0
		}
		if attempts++; attempts > 3 {
			t.Errorf("%d attempts without a delay", attempts)
			return
		}
		err = results[r.IntN(len(results))]
		next = s.After(err, harmless, unsure)
		if next == FindHandle {
			found := results[r.IntN(len(results))]
			unsure = found != nil && (unsure || Perhaps(found))
			next = s.Found(found)
		}
		if next == RetryInstead {
			s.Refused, s.Last, s.Decision, next = s.Last, nil, Decision{Verdict: transport.Verdict{Kind: transport.Retry}}, TryAgain
		}
	}
	end, _, report := s.Conclude(transport.RetryResult{}, s.Last)
	failed := slices.Contains([]Disposition{LeaseLost, Unsettled, PerhapsSettled}, end)
	assert.That(t, failed == (err != nil) && (!failed || report != nil), "end %d with the error %v after a last attempt with the error %v", end, report, err)
}
