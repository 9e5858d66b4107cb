package ratelimit_test

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/ratelimit"
)

func newBudget(t *testing.T, o ratelimit.BudgetOptions) *ratelimit.Budget {
	t.Helper()
	return assert.Value(ratelimit.NewBudget(o))(t)
}

// A server that fails every request gets at most 1.1 requests a call once the
// saved retries are used up.
func TestBudgetBoundsRetries(t *testing.T) {
	b := newBudget(t, ratelimit.BudgetOptions{})
	retries := 0
	const calls = 10_000
	for range calls {
		b.Earn(1)
		for range 2 {
			if b.Spend(ratelimit.High) {
				retries++
			}
		}
	}
	if most := 100 + calls/10; retries > most || retries < most-1 {
		t.Errorf("%d retries of %d calls, want %d: the 100 that were saved and a tenth of the calls", retries, calls, most)
	}
}

func TestBudgetOptions(t *testing.T) {
	for _, o := range []ratelimit.BudgetOptions{{Ratio: -0.1}, {Ratio: 1.1}, {Capacity: -1}} {
		_, err := ratelimit.NewBudget(o)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%+v: %v, want ErrInvalid", o, err)
	}
}
