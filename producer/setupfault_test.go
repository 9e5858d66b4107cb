package producer

import "testing"

// A permanent failure without an attempt is a fault of the set-up: no message can be sent.
func TestPermanentFailureWithoutAnAttempt(t *testing.T) {
	p := newProducer(t, &fake{}, Options{})
	_, err := p.Begin(t.Context(), message()) // the transport has no transactions
	if e := sendError(t, err); e.Reason != StopPermanent || e.Attempts != 0 || e.Fault() != SetupFault {
		t.Errorf("%v: reason %v after %d attempts, fault %v; want a set-up fault", e, e.Reason, e.Attempts, e.Fault())
	}
}
