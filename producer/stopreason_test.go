package producer

import (
	"testing"

	"github.com/tidegate/tidegate/producer/internal/retry"
)

// Each reason of a decision ends a send with a reason of its own.
func TestEveryStopHasAReason(t *testing.T) {
	seen := map[StopReason]retry.Stop{NotStopped: retry.Continue}
	for s := retry.Continue + 1; s < retry.Stops; s++ {
		r := stopReasons[s]
		if other, taken := seen[r]; taken {
			t.Errorf("stop %d has the reason %q of stop %d", s, r, other)
		}
		seen[r] = s
	}
}

// Each reason has words of its own, and it is decided whether a message that ends for it moves to
// the spool: it does if a later send may succeed.
func TestEveryReasonIsDecided(t *testing.T) {
	spools := map[StopReason]bool{
		NotStopped:      false, // the message has not ended
		StopInvalid:     false,
		StopPermanent:   false,
		StopExhausted:   true,
		StopThrottled:   true,
		StopPushedBack:  true,
		StopDeadline:    true,
		StopLimiter:     true,
		StopContext:     true, // while its ctx has not been cancelled
		StopClosed:      true,
		StopFull:        false, // the producer never had it
		StopBudget:      true,
		StopHalfMessage: false,
		StopSpool:       true, // the group moves there
	}
	words := map[string]bool{"unknown": true}
	of := &topic{p: &Producer{spooler: &spooler{}}}
	for r := range reasons {
		if words[r.String()] {
			t.Errorf("reason %d has no words of its own: %q", r, r)
		}
		words[r.String()] = true
		want, decided := spools[r]
		if !decided {
			t.Errorf("%q: the table does not decide whether the message moves to the spool", r)
		}
		it := newItem(t.Context(), message())
		it.topic = of
		if got := of.spools(it, &SendError{Reason: r}); got != want {
			t.Errorf("%q: moves to the spool: %v, want %v", r, got, want)
		}
	}
}
