package verdict

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each class of errors has a decision. A new class fails the test until it has one.
func TestEveryClass(t *testing.T) {
	type decision struct {
		err                                    error
		always, ifHarmless, permanent, noReply bool
	}
	decided := map[tidegate.Class]decision{
		tidegate.ClassOK:        {err: nil},
		tidegate.ClassThrottled: {err: &tidegate.Error{Code: tidegate.CodeTooManyRequests}, always: true, ifHarmless: true},
		tidegate.ClassTransient: {err: tidegate.ErrUnavailable, ifHarmless: true, noReply: true},
		tidegate.ClassPermanent: {err: &tidegate.Error{Code: tidegate.CodeBadRequest}, permanent: true},
		tidegate.ClassCancelled: {err: context.Canceled, ifHarmless: true},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		want, ok := decided[c]
		if !ok || tidegate.Classify(want.err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		got := decision{want.err, canRepeat(want.err, false), canRepeat(want.err, true), permanent(want.err), Unanswered(want.err)}
		assert.That(t, got == want, "%v: %+v, want %+v", c, got, want)
	}
}
