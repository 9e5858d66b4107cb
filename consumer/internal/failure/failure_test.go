package failure

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

func TestEndingAndRepeat(t *testing.T) {
	code := func(c tidegate.Code) error { return fmt.Errorf("wrapped: %w", &tidegate.Error{Code: c}) }
	for _, tt := range []struct {
		err            error
		ending         Ending
		harmless, harm bool // repeated, where that is harmless, and where it is not?
	}{
		{errors.New("connection lost"), Never, true, false},
		{code(tidegate.CodeInternalServerError), Never, true, false},
		{code(tidegate.CodeTooManyRequests), Never, true, true},
		{code(tidegate.CodeTopicNotFound), Never, false, false},
		{code(tidegate.CodeConsumerGroupNotFound), Never, false, false},
		{code(tidegate.CodeInvalidReceiptHandle), Never, false, false},
		{code(protocol.CodeIllegalPollingTime), Never, true, false},    // of a proxy that was paused
		{code(protocol.CodeUnrecognizedClientType), Never, true, true}, // of a server that forgot the client
		{code(tidegate.CodeNotImplemented), Never, false, false},       // of an ingress without a backend
		{code(protocol.CodeUnsupported), Never, false, false},
		{code(49999), Never, false, false},
		{code(tidegate.CodeBadRequest), Never, false, false},
		{code(tidegate.CodeIllegalConsumerGroup), AtOnce, false, false},
		{code(tidegate.CodeIllegalFilterExpression), AtOnce, false, false},
		{code(tidegate.CodeIllegalInvisibleTime), AtOnce, false, false},
		{code(tidegate.CodeUnauthorized), Graced, false, false},
		{code(tidegate.CodeForbidden), Graced, false, false},
		{fmt.Errorf("transport %w", tidegate.ErrClosed), AtOnce, false, false},
	} {
		if got := EndingOf(tt.err); got != tt.ending {
			t.Errorf("EndingOf(%v) = %v", tt.err, got)
		}
		if got := CanRepeat(tt.err, true); got != tt.harmless {
			t.Errorf("CanRepeat(%v) where it is harmless: %v", tt.err, got)
		}
		if got := CanRepeat(tt.err, false); got != tt.harm {
			t.Errorf("CanRepeat(%v) where it is not: %v", tt.err, got)
		}
	}
}
