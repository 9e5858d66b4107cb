package tidegate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/protocol"
)

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		`SendMessage "orders" at h:1: 40402 TOPIC_NOT_FOUND: create it: EOF`: {
			Op: "SendMessage", Subject: "orders", Endpoint: "h:1", Code: CodeTopicNotFound, Message: "create it", Err: errors.New("EOF"),
		},
		`SendMessage: 530 TOO_MANY_REQUESTS`:            {Op: "SendMessage", Code: CodeTooManyRequests},
		`530 TOO_MANY_REQUESTS: the backlog is 10`:      {Code: CodeTooManyRequests, Message: "530 TOO_MANY_REQUESTS: the backlog is 10"},
		`530 TOO_MANY_REQUESTS: please wait`:            {Code: CodeTooManyRequests, Message: "please wait"},
		`"body": 41302 MESSAGE_BODY_EMPTY: it is empty`: {Subject: "body", Code: protocol.CodeMessageBodyEmpty, Message: "it is empty"},
		`49999: odd`:                   {Code: 49999, Message: "odd"},
		`AckMessage: context canceled`: {Op: "AckMessage", Err: context.Canceled},
		`unavailable`:                  {Err: ErrUnavailable},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestErrorIs(t *testing.T) {
	sentinels := map[string]error{
		"throttled": ErrThrottled, "handle": ErrInvalidHandle, "topic": ErrTopicNotFound, "notfound": ErrNotFound, "invalid": ErrInvalid,
		"unauthorized": ErrUnauthorized, "forbidden": ErrForbidden, "unavailable": ErrUnavailable, "closed": ErrClosed,
	}
	for code, want := range map[Code]string{
		CodeTooManyRequests: "throttled", CodeInvalidReceiptHandle: "handle invalid", CodeTopicNotFound: "topic notfound",
		protocol.CodeConsumerGroupNotFound: "notfound", CodeMessageBodyTooLarge: "invalid", protocol.CodeMessagePropertiesTooLarge: "invalid",
		CodeUnauthorized: "unauthorized", CodeForbidden: "forbidden", CodeInternalServerError: "unavailable",
		protocol.CodeProxyTimeout: "unavailable", protocol.CodeRequestTimeout: "unavailable", CodeNotImplemented: "", protocol.CodeUnsupported: "", protocol.CodeOK: "", 0: "", 42901: "",
	} {
		err := fmt.Errorf("around: %w", &Error{Code: code, Err: context.Canceled})
		for name, sentinel := range sentinels {
			expected := strings.Contains(" "+want+" ", " "+name+" ")
			if got := errors.Is(err, sentinel); got != expected {
				t.Errorf("code %v is %s: %v, want %v", code, name, got, expected)
			}
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("code %v hides its cause", code)
		}
	}
	if got := (&Error{Code: CodeTooManyRequests}).ReplyCode(); got != 530 {
		t.Errorf("reply code %d, want 530 (RocketMQ: sending retry and throttling)", got)
	}
	if got := (&Error{Code: CodeForbidden}).ReplyCode(); got != 40300 {
		t.Errorf("reply code %d, want 40300", got)
	}
}

func TestRetryAfter(t *testing.T) {
	after := func(d time.Duration, cause error) error {
		return &Error{Code: CodeTooManyRequests, RetryAfter: d, Err: cause}
	}
	for _, tt := range []struct {
		err  error
		want time.Duration
	}{
		{nil, 0},
		{errors.New("no wish"), 0},
		{after(0, nil), 0},
		{after(time.Second, nil), time.Second},
		{after(-1, nil), 0},
		{fmt.Errorf("around: %w", after(time.Second, nil)), time.Second},
		{after(0, after(time.Second, nil)), time.Second},
		{errors.Join(context.DeadlineExceeded, after(-1, nil), fmt.Errorf("around: %w", after(time.Minute, nil))), time.Minute},
	} {
		if got := RetryAfter(tt.err); got != tt.want {
			t.Errorf("RetryAfter(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

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
