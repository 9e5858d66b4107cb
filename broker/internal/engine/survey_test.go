package engine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestReasonsOfRejections(t *testing.T) {
	t.Parallel()
	e := func(c tidegate.Code) error { return &tidegate.Error{Code: c} }
	for _, c := range []struct {
		err  error
		want RefusalReason
	}{
		{Rejected(status.Throttle{}), RefusedThrottled},
		{refusal.TopicNotFound("t"), RefusedNoTopic},
		{e(protocol.CodeIllegalMessageID), RefusedInvalid},
		{e(tidegate.CodeMessageBodyTooLarge), RefusedInvalid},
		{e(protocol.CodeInternalError), RefusedOther},
		{&tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: errors.New("disk")}, RefusedUnknown},
		{refusal.WithOp("SendMessage", refusal.Closed()), RefusedOther},
		{fmt.Errorf("sending: %w", t.Context().Err()), RefusedOther},
	} {
		if got := reasonOf(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

// The counters of rejections cost no allocation for each send.
func TestCountingAllocatesNothing(t *testing.T) {
	c := counters{}
	results := make([]transport.SendResult, 64)
	refused := []transport.SendResult{{Err: refusal.TopicNotFound("t")}}
	if n := testing.AllocsPerRun(100, func() {
		c.countRefused(results)
		c.countRefused(refused)
		c.throttled.Add("topic backlog bytes")
	}); n != 0 {
		t.Errorf("%g allocations, want 0", n)
	}
}
