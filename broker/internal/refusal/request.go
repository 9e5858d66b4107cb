package refusal

import (
	"errors"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

// TooLong returns the error of a field whose n bytes exceed the limit.
func TooLong(code tidegate.Code, field string, n, limit int) error {
	return New(code, field, "the %s has %d bytes; the limit is %d", field, n, limit)
}

// Text returns subject, text and cause of e, in one line.
func Text(e *tidegate.Error) string {
	text := e.Message
	if e.Err != nil {
		if text != "" {
			text += ": "
		}
		text += strings.ReplaceAll(e.Err.Error(), "\n", "; ")
	}
	if e.Code == tidegate.CodeTooManyRequests {
		// The text of the rule (RocketMQ: sending retry and throttling). Clients may look for it at
		// the beginning.
		if prefix := tidegate.ErrThrottled.Error(); !strings.HasPrefix(text, prefix) {
			text = strings.TrimSuffix(prefix+": "+text, ": ")
		}
		return text
	}
	switch {
	case text == "" && e.Subject == "":
		return e.Code.String()
	case text == "":
		return e.Subject + ": " + e.Code.String()
	case e.Subject != "" && !strings.Contains(text, e.Subject):
		return e.Subject + ": " + text
	}
	return text
}

// CodeOf returns the code of a failure that has one, or else that of an
// unknown one.
func CodeOf(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return e.Code
	}
	return tidegate.CodeInternalServerError
}

// PushBackOf returns the delay before the client's next attempt, or 0 if the error has none.
func PushBackOf(err error) time.Duration {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.RetryAfter > 0 {
		return e.RetryAfter
	}
	return 0
}

// Common returns the failure of a request about n things; at returns that of each. If all failed
// with one code, it is the failure with the longest wait. Otherwise it is nil.
func Common(n int, at func(i int) error) error {
	var worst error
	for i := range n {
		err := at(i)
		switch {
		case err == nil, i > 0 && CodeOf(err) != CodeOf(worst):
			return nil
		case i == 0 || PushBackOf(err) > PushBackOf(worst):
			worst = err
		}
	}
	return worst
}

const (
	// MaxMany bounds the messages, entries or handles of one request.
	MaxMany = 1000

	// MaxReceive is the most messages in one receive (RocketMQ: 32).
	MaxReceive = 32

	// MaxMessageID, MaxTraceContext and MaxBornHost are lengths that RocketMQ does
	// not bound, but that are kept with each message, in bytes.
	MaxMessageID    = 255
	MaxTraceContext = 4 << 10
	MaxBornHost     = 255
)

// LastYear is the last that times may be in which are kept as nanoseconds since 1970.
const LastYear = 2200

var latest = time.Date(LastYear, 1, 1, 0, 0, 0, 0, time.UTC)

// Storable reports whether a time can be kept as nanoseconds since 1970.
func Storable(t time.Time) bool { return !t.Before(time.Unix(0, 0)) && !t.After(latest) }

// A Cut is the failure of a request that gets no response: over gRPC it ends with Status, and over
// HTTP its connection is cut.
type Cut struct{ Status error }

// Error implements error.
func (e *Cut) Error() string { return e.Status.Error() }
