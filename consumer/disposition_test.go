package consumer

import (
	"testing"

	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

// A Disposition is converted from an end of package verdict, so both have the same values. The
// zero value is none of them.
func TestDispositionsAreEnds(t *testing.T) {
	ends := map[verdict.End]Disposition{
		verdict.Acked: Acked, verdict.Retried: Retried, verdict.DeadLettered: DeadLettered, verdict.LeaseLost: LeaseLost,
		verdict.Released: Released, verdict.Unsettled: Unsettled, verdict.PerhapsSettled: PerhapsSettled,
		verdict.Parked: Parked, verdict.Snoozed: Snoozed, verdict.Reconsumed: Reconsumed, verdict.Discarded: Discarded,
	}
	for end, want := range ends {
		if Disposition(end) != want {
			t.Errorf("end %d is %v, want %v", end, Disposition(end), want)
		}
	}
	n := Acked
	for ; n.String() != "unknown"; n++ {
		if ends[verdict.End(n)] != n {
			t.Errorf("%v is no end", n)
		}
	}
	if len(ends) != int(n-1) || Disposition(0).String() != "unknown" {
		t.Errorf("%d ends, %d dispositions, and the zero value is %v", len(ends), n-1, Disposition(0))
	}
}
