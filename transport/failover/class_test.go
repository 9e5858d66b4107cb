package failover

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each class of errors has a verdict and a reaction. A new class fails the test until both are
// decided.
func TestEveryClass(t *testing.T) {
	bad, down := &tidegate.Error{Code: tidegate.CodeBadRequest}, &tidegate.Error{Err: tidegate.ErrUnavailable}
	throttled, closed := &tidegate.Error{Code: tidegate.CodeTooManyRequests}, &tidegate.Error{Err: tidegate.ErrClosed}
	decided := map[tidegate.Class]struct {
		err     error
		verdict error
		reaction
	}{
		tidegate.ClassOK:        {nil, nil, reaction{responds: true}},
		tidegate.ClassThrottled: {throttled, errNothing, reaction{responds: true, knownQueues: true}},
		tidegate.ClassTransient: {down, down, reaction{knownQueues: true, askOthers: true}},
		tidegate.ClassPermanent: {bad, errNothing, reaction{endsAlone: true}},
		tidegate.ClassCancelled: {closed, errNothing, reaction{}},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		d, ok := decided[c]
		if !ok || tidegate.Classify(d.err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		if got := verdict(d.err, nil, 0); !errors.Is(got, d.verdict) {
			t.Errorf("%v: verdict %v, want %v", c, got, d.verdict)
		}
		got := reactionTo(d.err)
		assert.That(t, got == d.reaction, "%v: reaction %+v, want %+v", c, got, d.reaction)
	}
}
