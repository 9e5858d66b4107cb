package session

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The queue of a stream without a reader is bounded.
func TestChecksOfASlowProducerAreBounded(t *testing.T) {
	s := NewStream(anySender{})
	c := &rmqpb.RecoverOrphanedTransactionCommand{}
	assert.That(t, s.Offer(c, 2*maxCheckBytes) && !s.Offer(c, 1), "one check of any size fits, and then none")
	assert.Equal(t, "were accepted", len(s.Taken()), 1)
	n := 0
	for s.Offer(c, 1) {
		n++
	}
	assert.That(t, n == maxChecks && len(s.Taken()) == n && len(s.Taken()) == 0, "%d fit, want %d", n, maxChecks)
}
