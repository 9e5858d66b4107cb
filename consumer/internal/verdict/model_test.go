package verdict

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
)

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
