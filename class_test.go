package tidegate

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate/internal/protocol"
)

func TestClassify(t *testing.T) {
	for code, want := range map[Code]Class{
		protocol.CodeOK: ClassOK, CodeTooManyRequests: ClassThrottled, protocol.CodeRequestTimeout: ClassTransient,
		CodeBadRequest: ClassPermanent, protocol.CodeIllegalTopic: ClassPermanent, CodeInvalidReceiptHandle: ClassPermanent,
		CodeUnauthorized: ClassPermanent, CodeForbidden: ClassPermanent, CodeTopicNotFound: ClassPermanent,
		CodeMessageBodyTooLarge: ClassPermanent, protocol.CodeMessagePropertiesTooLarge: ClassPermanent, 42901: ClassPermanent,
		protocol.CodeInternalError: ClassTransient, CodeInternalServerError: ClassTransient, protocol.CodeProxyTimeout: ClassTransient,
		protocol.CodeMasterPersistenceTimeout: ClassTransient, protocol.CodeHANotAvailable: ClassTransient,
		CodeNotImplemented: ClassPermanent, protocol.CodeUnsupported: ClassPermanent,
	} {
		if got := Classify(fmt.Errorf("around: %w", &Error{Code: code})); got != want {
			t.Errorf("%v is %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]Class{
		nil: ClassOK, errors.New("EOF"): ClassTransient, context.DeadlineExceeded: ClassTransient, context.Canceled: ClassCancelled, ErrClosed: ClassCancelled,
		ErrInvalid:                    ClassPermanent,
		&Error{Err: context.Canceled}: ClassCancelled, &Error{Err: errors.New("reset")}: ClassTransient,
		// The code of the server decides, even if other errors are wrapped.
		&Error{Code: CodeTooManyRequests, Err: context.Canceled}: ClassThrottled,
	} {
		if got := Classify(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}

// Each class has a name of its own. The tests of other packages find the classes by their names.
func TestClassesHaveNames(t *testing.T) {
	names := map[string]bool{"unknown": true}
	for c := range classes {
		if names[c.String()] {
			t.Errorf("class %d has no name of its own: %q", c, c)
		}
		names[c.String()] = true
	}
	if got := classes.String(); got != "unknown" {
		t.Errorf("the number after the last class is %q, want unknown", got)
	}
}

// A caller may send again while ErrUnavailable matches, so permanent errors must not match it.
func TestUnavailableIsNeverPermanent(t *testing.T) {
	for code := Code(0); code <= 70000; code++ {
		err := &Error{Code: code}
		if class := Classify(err); errors.Is(err, ErrUnavailable) && class != ClassTransient {
			t.Errorf("%v matches ErrUnavailable and is %v, want transient", code, class)
		}
	}
}

func TestIsMessageFault(t *testing.T) {
	for code, want := range map[Code]bool{
		CodeMessageBodyTooLarge: true, protocol.CodeIllegalMessageTag: true, protocol.CodeMessagePropertyConflict: true,
		protocol.CodeMessagePropertiesTooLarge: true, protocol.CodeIllegalDeliveryTime: true,
		CodeTopicNotFound: false, CodeUnauthorized: false, CodeForbidden: false, protocol.CodeIllegalTopic: false,
		CodeIllegalAccessPoint: false, CodeTooManyRequests: false, protocol.CodeInternalError: false,
		CodeNotImplemented: false,
	} {
		if got := IsMessageFault(fmt.Errorf("around: %w", &Error{Code: code})); got != want {
			t.Errorf("%v: %v, want %v", code, got, want)
		}
	}
	for err, want := range map[error]bool{nil: false, ErrInvalid: true, errors.New("EOF"): false, context.Canceled: false} {
		if got := IsMessageFault(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
