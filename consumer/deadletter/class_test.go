package deadletter

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate"
)

// Each class of errors has a step after a failed send. A new class fails the test until it is
// decided.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]struct {
		err         error
		first, last afterSend // after the first failed send, and after the last one
	}{
		tidegate.ClassOK:        {nil, letterFailed, letterFailed}, // no failed send
		tidegate.ClassThrottled: {&tidegate.Error{Code: tidegate.CodeTooManyRequests}, sendAgain, sendAgain},
		tidegate.ClassTransient: {tidegate.ErrUnavailable, sendAgain, endRun},
		tidegate.ClassPermanent: {tidegate.ErrInvalid, letterFailed, letterFailed},
		tidegate.ClassCancelled: {context.Canceled, endRun, endRun},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		d, ok := decided[c]
		if !ok || tidegate.Classify(d.err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		if first, last := stepAfter(d.err, 0), stepAfter(d.err, transientAttempts-1); first != d.first || last != d.last {
			t.Errorf("%v: %v, later %v; want %v, %v", c, first, last, d.first, d.last)
		}
	}
}
