package conn

import (
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each class of errors has a verdict. A new class fails the test until it is decided.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]struct {
		err  *tidegate.Error
		want Verdict
	}{
		tidegate.ClassOK:        {nil, Healthy},
		tidegate.ClassThrottled: {&tidegate.Error{Code: tidegate.CodeTooManyRequests}, Healthy},
		tidegate.ClassTransient: {&tidegate.Error{Err: tidegate.ErrUnavailable}, failing},
		tidegate.ClassPermanent: {&tidegate.Error{Code: tidegate.CodeBadRequest}, Nothing},
		tidegate.ClassCancelled: {&tidegate.Error{Err: tidegate.ErrClosed}, Nothing},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		d, ok := decided[c]
		var err error
		if d.err != nil {
			err = d.err
		}
		if !ok || tidegate.Classify(err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		got := VerdictOf(d.err, nil, 0)
		assert.That(t, got == d.want, "%v: %v, want %v", c, got, d.want)
	}
}
