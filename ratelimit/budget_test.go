package ratelimit_test

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/ratelimit"
)

func newBudget(t *testing.T, o ratelimit.BudgetOptions) *ratelimit.Budget {
	t.Helper()
	b, err := ratelimit.NewBudget(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
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

func TestBudgetPriorities(t *testing.T) {
	for _, c := range []struct {
		name     string
		priority ratelimit.Priority
		spent    int // of 100
	}{
		{"low", ratelimit.Low, 51},
		{"normal", ratelimit.Normal, 91},
		{"high", ratelimit.High, 100},
	} {
		b := newBudget(t, ratelimit.BudgetOptions{})
		n := 0
		for b.Spend(c.priority) {
			n++
		}
		if n != c.spent {
			t.Errorf("%s: %d retries, want %d", c.name, n, c.spent)
		}
		if got := b.Tokens(); got != float64(100-n) {
			t.Errorf("%s: %v tokens are left, want %d", c.name, got, 100-n)
		}
	}
}

func TestBudgetIsNeverAboveItsCapacity(t *testing.T) {
	b := newBudget(t, ratelimit.BudgetOptions{Ratio: 1, Capacity: 3})
	b.Earn(1_000_000)
	b.Earn(-5)
	n := 0
	for b.Spend(ratelimit.High) {
		n++
	}
	if n != 3 {
		t.Errorf("%d retries, want 3", n)
	}
	for range 10 {
		b.Earn(1)
		if !b.Spend(ratelimit.High) {
			t.Fatal("with a ratio of 1 each call earns a retry")
		}
	}
}

func TestBudgetOptions(t *testing.T) {
	for _, o := range []ratelimit.BudgetOptions{{Ratio: -0.1}, {Ratio: 1.1}, {Capacity: -1}} {
		if _, err := ratelimit.NewBudget(o); !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", o, err)
		}
	}
}
