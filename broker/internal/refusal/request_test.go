package refusal

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
)

// The failure of a whole request has the longest wait of its messages.
func TestCommon(t *testing.T) {
	throttled := func(wait time.Duration) error {
		return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: wait}
	}
	short, long, other := throttled(time.Second), throttled(time.Minute), New(tidegate.CodeBadRequest, "", "")
	for name, c := range map[string]struct {
		in   []error
		want error
	}{
		"none":           {nil, nil},
		"one":            {[]error{short}, short},
		"one stored":     {[]error{nil}, nil},
		"the last waits": {[]error{short, short, long}, long},
		"the first does": {[]error{long, short}, long},
		"one is stored":  {[]error{short, nil}, nil},
		"the first is":   {[]error{nil, short}, nil},
		"two codes":      {[]error{short, other}, nil},
	} {
		got := Common(len(c.in), func(i int) error { return c.in[i] })
		assert.That(t, errors.Is(got, c.want), "%s: %v, want %v", name, got, c.want)
	}
}
