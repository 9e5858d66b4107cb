package ratelimit

import (
	"errors"
	"math"
	"sync"
)

// BudgetOptions are the settings of a [Budget]. The zero value is valid.
type BudgetOptions struct {
	// Ratio is the number of retries that each call earns. Once the saved retries are spent, a
	// server that fails every request receives at most 1 + Ratio requests for each call. Above 0,
	// at most 1. Zero means 0.1.
	Ratio float64

	// Capacity is the largest number of saved retries, and the number in a new Budget. 1 or more.
	// Zero means 100.
	Capacity int
}

// The defaults of BudgetOptions.
const (
	defaultRatio    = 0.1
	defaultCapacity = 100
)

// A Priority orders retries when a [Budget] is low.
type Priority int

// The priorities. The zero value is Normal.
const (
	Low    Priority = -1 // retries while at least half of the budget is left
	Normal Priority = 0  // retries while at least a tenth of the budget is left
	High   Priority = 1  // retries while anything is left
)

// A Budget bounds the retries of all calls together. Each call earns a part of a retry, and each
// retry costs one. A few failed calls can retry as their own policies allow. When most calls fail,
// the budget keeps their retries from multiplying the load of the server.
//
// Several goroutines may share it; use one for all producers of a process. No method blocks, so
// nothing waits in a Budget for a wake-up. Create one with [NewBudget].
type Budget struct {
	ratio, capacity float64

	mu     sync.Mutex
	tokens float64 // guarded by mu
}

// NewBudget returns a full Budget. The error matches tidegate.ErrInvalid and lists every invalid
// field of o with the valid values.
func NewBudget(o BudgetOptions) (*Budget, error) {
	const op = "ratelimit.NewBudget"
	if o.Ratio == 0 {
		o.Ratio = defaultRatio
	}
	if o.Capacity == 0 {
		o.Capacity = defaultCapacity
	}
	var errs []error
	if !(o.Ratio > 0 && o.Ratio <= 1) {
		errs = append(errs, invalid(op, "Ratio", "is %v; it must be a number above 0 and up to 1", o.Ratio))
	}
	if o.Capacity < 1 || o.Capacity > math.MaxInt32 {
		errs = append(errs, invalid(op, "Capacity", "is %d; it must be 1 to %d", o.Capacity, math.MaxInt32))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Budget{ratio: o.Ratio, capacity: float64(o.Capacity), tokens: float64(o.Capacity)}, nil
}

// Earn counts n calls, without their retries.
func (b *Budget) Earn(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.capacity, b.tokens+float64(max(n, 0))*b.ratio)
}

// Spend reports whether a retry is permitted now, and takes its token if so.
func (b *Budget) Spend(p Priority) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !permits(b.tokens, b.capacity, p) {
		return false
	}
	b.tokens--
	return true
}

// Tokens returns the number of retries left.
func (b *Budget) Tokens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens
}

// permits reports whether a budget with that many tokens permits a retry of the priority. It
// ignores rounding errors.
func permits(tokens, capacity float64, p Priority) bool {
	reserve := 0.0
	switch {
	case p < Normal:
		reserve = capacity / 2
	case p == Normal:
		reserve = capacity / 10
	}
	const rounding = 1e-9
	return tokens >= max(1, reserve)-rounding
}
