package ratelimit_test

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/ratelimit"
)

func TestBudgetOptions(t *testing.T) {
	for _, o := range []ratelimit.BudgetOptions{{Ratio: -0.1}, {Ratio: 1.1}, {Capacity: -1}} {
		_, err := ratelimit.NewBudget(o)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%+v: %v, want ErrInvalid", o, err)
	}
}
