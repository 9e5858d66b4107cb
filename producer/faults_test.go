package producer

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
)

var ladder = backoff.Steps{1 * time.Second, 2 * time.Second, 4 * time.Second}

func codeError(c tidegate.Code) *tidegate.Error {
	return &tidegate.Error{Op: "SendMessage", Subject: "orders", Endpoint: "a:1", Code: c, Message: "from the server"}
}

func throttled(after time.Duration) error {
	e := codeError(tidegate.CodeTooManyRequests)
	e.RetryAfter = after
	return e
}

func pushedBack(c tidegate.Code, after time.Duration) error {
	e := codeError(c)
	e.RetryAfter = after
	return e
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		reason StopReason
		last   error
		want   Fault
	}{
		{StopInvalid, nil, MessageFault},
		{StopPermanent, codeError(tidegate.CodeMessageBodyTooLarge), MessageFault},
		{StopPermanent, codeError(tidegate.CodeIllegalDeliveryTime), MessageFault},
		{StopPermanent, codeError(tidegate.CodeMessagePropertyConflict), MessageFault},
		{StopPermanent, codeError(tidegate.CodeMessagePropertiesTooLarge), MessageFault},
		{StopPermanent, fmt.Errorf("around: %w", codeError(protocol.CodeIllegalMessageTag)), MessageFault},
		{StopPermanent, tidegate.ErrInvalid, MessageFault},
		{StopPermanent, codeError(tidegate.CodeTopicNotFound), SetupFault},
		{StopPermanent, codeError(tidegate.CodeIllegalTopic), SetupFault},
		{StopPermanent, codeError(tidegate.CodeUnauthorized), SetupFault},
		{StopPermanent, codeError(tidegate.CodeForbidden), SetupFault},
		{StopPermanent, codeError(protocol.CodeUnsupported), SetupFault},
		{StopExhausted, codeError(tidegate.CodeInternalServerError), PassingFault},
		{StopExhausted, throttled(0), PassingFault},
		{StopThrottled, throttled(0), PassingFault},
		{StopDeadline, throttled(0), PassingFault},
		{StopContext, nil, PassingFault},
		{StopClosed, nil, PassingFault},
		{StopFull, nil, PassingFault},
	} {
		if got := (&SendError{Reason: tt.reason, Last: tt.last}).Fault(); got != tt.want {
			t.Errorf("%v, %v: %v, want %v", tt.reason, tt.last, got, tt.want)
		}
	}
}
