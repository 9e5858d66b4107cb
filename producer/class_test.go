package producer

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate"
)

// Each class of errors has a fault. A new class fails the test until it is decided; the list below
// the classes names the other functions that decide it.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]struct {
		err  error
		want Fault
	}{
		tidegate.ClassOK:        {nil, PassingFault},
		tidegate.ClassThrottled: {codeError(tidegate.CodeTooManyRequests), PassingFault},
		tidegate.ClassTransient: {tidegate.ErrUnavailable, PassingFault},
		tidegate.ClassPermanent: {codeError(tidegate.CodeTopicNotFound), SetupFault},
		tidegate.ClassCancelled: {context.Canceled, PassingFault},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		d, ok := decided[c]
		if !ok || tidegate.Classify(d.err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		if got := faultOf(d.err); got != d.want {
			t.Errorf("%v: %v, want %v", c, got, d.want)
		}
	}
}
