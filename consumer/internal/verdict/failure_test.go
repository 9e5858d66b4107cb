package verdict

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
)

func TestEndingAndRepeat(t *testing.T) {
	code := func(c tidegate.Code) error { return fmt.Errorf("wrapped: %w", &tidegate.Error{Code: c}) }
	for _, tt := range []struct {
		err            error
		ending         Ending
		harmless, harm bool // repeated, where that is harmless, and where it is not?
	}{
		{errors.New("connection lost"), never, true, false},
		{context.Canceled, never, true, false},
		{code(tidegate.CodeInternalServerError), never, true, false},
		{code(tidegate.CodeTooManyRequests), never, true, true},
		{code(tidegate.CodeTopicNotFound), never, false, false},
		{code(protocol.CodeConsumerGroupNotFound), never, false, false},
		{code(tidegate.CodeInvalidReceiptHandle), never, false, false},
		{code(protocol.CodeIllegalPollingTime), never, true, false},    // of a proxy that was paused
		{code(protocol.CodeUnrecognizedClientType), never, true, true}, // of a server that forgot the client
		{code(tidegate.CodeNotImplemented), never, false, false},       // of an ingress without a backend
		{code(protocol.CodeUnsupported), never, false, false},
		{code(49999), never, false, false},
		{code(tidegate.CodeBadRequest), never, false, false},
		{code(protocol.CodeIllegalConsumerGroup), AtOnce, false, false},
		{code(protocol.CodeIllegalFilterExpression), AtOnce, false, false},
		{code(protocol.CodeIllegalInvisibleTime), AtOnce, false, false},
		{code(tidegate.CodeUnauthorized), graced, false, false},
		{code(tidegate.CodeForbidden), graced, false, false},
		{fmt.Errorf("transport %w", tidegate.ErrClosed), AtOnce, false, false},
	} {
		if got := EndingOf(tt.err); got != tt.ending {
			t.Errorf("EndingOf(%v) = %v", tt.err, got)
		}
		got := canRepeat(tt.err, true)
		assert.That(t, got == tt.harmless, "CanRepeat(%v) where it is harmless: %v", tt.err, got)
		got = canRepeat(tt.err, false)
		assert.That(t, got == tt.harm, "CanRepeat(%v) where it is not: %v", tt.err, got)
	}
}
