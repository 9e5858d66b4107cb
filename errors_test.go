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
