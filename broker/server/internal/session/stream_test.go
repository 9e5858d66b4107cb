package session

import (
	"testing"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The queue of a stream without a reader is bounded.
func TestChecksOfASlowProducerAreBounded(t *testing.T) {
	s := NewStream(anySender{})
	c := &rmqpb.RecoverOrphanedTransactionCommand{}
	if !s.Offer(c, 2*maxCheckBytes) || s.Offer(c, 1) {
		t.Error("one check of any size fits, and then none")
	}
	if n := len(s.Taken()); n != 1 {
		t.Errorf("%d were accepted", n)
	}
	n := 0
	for s.Offer(c, 1) {
		n++
	}
	if n != maxChecks || len(s.Taken()) != n || len(s.Taken()) != 0 {
		t.Errorf("%d fit, want %d", n, maxChecks)
	}
}
