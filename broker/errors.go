package broker

import (
	"fmt"
	"strconv"

	"github.com/tidegate/tidegate"
)

func newError(code tidegate.Code, subject, format string, args ...any) *tidegate.Error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

func topicNotFound(name string) *tidegate.Error {
	return newError(tidegate.CodeTopicNotFound, name, "there is no such topic; create it first, for example with PUT /v1/topics/%s", name)
}

func groupNotFound(name string) *tidegate.Error {
	return newError(tidegate.CodeConsumerGroupNotFound, name, "there is no such consumer group; it is made on its first receive")
}

// closedError is an Error that matches tidegate.ErrClosed.
func closedError() error {
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the broker is closed or closing", Err: tidegate.ErrClosed}
}

// storeError tells of a failure below; nothing else is wrong with the request.
func storeError(err error) error {
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the broker could not read or write its data", Err: err}
}

// throttledError is what a refused send gets: 530 TOO_MANY_REQUESTS with the
// limit, the value and the mark at which sends are taken again (seed 004).
func throttledError(t Throttle) error {
	return &tidegate.Error{
		Code:       tidegate.CodeTooManyRequests,
		RetryAfter: t.RetryAfter,
		Message: strconv.Itoa(tidegate.ReplyTooManyRequests) + " TOO_MANY_REQUESTS: " + t.Limit + " of " + strconv.Quote(t.Subject) +
			" is " + strconv.FormatInt(t.Value, 10) + ", the limit is " + strconv.FormatInt(t.Mark, 10) +
			"; sends are taken again at " + strconv.FormatInt(t.Resume, 10),
	}
}
