package transport

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

func TestClassify(t *testing.T) {
	for code, want := range map[tidegate.Code]Class{
		tidegate.CodeOK: OK, tidegate.CodeTooManyRequests: Throttled, tidegate.CodeRequestTimeout: Transient,
		tidegate.CodeBadRequest: Permanent, tidegate.CodeIllegalTopic: Permanent, tidegate.CodeInvalidReceiptHandle: Permanent,
		tidegate.CodeUnauthorized: Permanent, tidegate.CodeForbidden: Permanent, tidegate.CodeTopicNotFound: Permanent,
		tidegate.CodeMessageBodyTooLarge: Permanent, tidegate.CodeMessagePropertiesTooLarge: Permanent, 42901: Permanent,
		protocol.CodeInternalError: Transient, tidegate.CodeInternalServerError: Transient, protocol.CodeProxyTimeout: Transient,
		protocol.CodeMasterPersistenceTimeout: Transient, protocol.CodeHANotAvailable: Transient,
		tidegate.CodeNotImplemented: Permanent, protocol.CodeUnsupported: Permanent,
	} {
		if got := Classify(fmt.Errorf("around: %w", &tidegate.Error{Code: code})); got != want {
			t.Errorf("%v is %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]Class{
		nil: OK, errors.New("EOF"): Transient, context.DeadlineExceeded: Transient, context.Canceled: Cancelled, tidegate.ErrClosed: Cancelled,
		tidegate.ErrInvalid:                    Permanent,
		&tidegate.Error{Err: context.Canceled}: Cancelled, &tidegate.Error{Err: errors.New("reset")}: Transient,
		// A code is the server's word, whatever else is wrapped.
		&tidegate.Error{Code: tidegate.CodeTooManyRequests, Err: context.Canceled}: Throttled,
	} {
		if got := Classify(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
	for c := OK; c <= Cancelled; c++ {
		if c.String() == "unknown" {
			t.Errorf("class %d has no name", c)
		}
	}
}

// Who sends again for as long as ErrUnavailable matches must come to an end
// where nothing will ever change.
func TestUnavailableIsNeverPermanent(t *testing.T) {
	for code := tidegate.Code(0); code <= 70000; code++ {
		err := &tidegate.Error{Code: code}
		if class := Classify(err); errors.Is(err, tidegate.ErrUnavailable) && class != Transient {
			t.Errorf("%v matches ErrUnavailable and is %v, want transient", code, class)
		}
	}
}

func TestIsMessageFault(t *testing.T) {
	for code, want := range map[tidegate.Code]bool{
		tidegate.CodeMessageBodyTooLarge: true, protocol.CodeIllegalMessageTag: true, tidegate.CodeMessagePropertyConflict: true,
		tidegate.CodeMessagePropertiesTooLarge: true, tidegate.CodeIllegalDeliveryTime: true,
		tidegate.CodeTopicNotFound: false, tidegate.CodeUnauthorized: false, tidegate.CodeForbidden: false, tidegate.CodeIllegalTopic: false,
		tidegate.CodeIllegalAccessPoint: false, tidegate.CodeTooManyRequests: false, protocol.CodeInternalError: false,
		tidegate.CodeNotImplemented: false,
	} {
		if got := IsMessageFault(fmt.Errorf("around: %w", &tidegate.Error{Code: code})); got != want {
			t.Errorf("%v: %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]bool{nil: false, tidegate.ErrInvalid: true, errors.New("EOF"): false, context.Canceled: false} {
		if got := IsMessageFault(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
