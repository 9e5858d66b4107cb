package broker

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

func newError(code tidegate.Code, subject, format string, args ...any) *tidegate.Error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// withOp names the operation in an error of the broker's own.
func withOp(op string, err error) error {
	if e, ok := err.(*tidegate.Error); ok && e.Op == "" { //nolint:errorlint // only an error that is not wrapped
		c := *e
		c.Op = op
		return &c
	}
	return err
}

func topicNotFound(name string) *tidegate.Error {
	if strings.Contains(name, ".") { // RocketMQ can have no such topic, and says so
		return newError(tidegate.CodeIllegalTopic, name,
			"there is no such topic, and a name with '.' is illegal for RocketMQ; this broker takes one: create it first, with PUT /v1/topics/%s", name)
	}
	return newError(tidegate.CodeTopicNotFound, name, "there is no such topic; create it first, for example with PUT /v1/topics/%s", name)
}

func groupNotFound(name string) *tidegate.Error {
	return newError(tidegate.CodeConsumerGroupNotFound, name, "there is no such consumer group; it is made on its first receive")
}

func invalidHandle(format string, args ...any) *tidegate.Error {
	return newError(tidegate.CodeInvalidReceiptHandle, "receipt handle", format, args...)
}

// illegalInvisibleTime refuses a time that is not between least and most. It begins
// with the words of RocketMQ's proxy, which clients look for.
func illegalInvisibleTime(subject string, d, least, most time.Duration) *tidegate.Error {
	bound := fmt.Sprintf("large. max is %d", most.Milliseconds())
	if d < least {
		bound = fmt.Sprintf("small. min is %d", least.Milliseconds())
	}
	return newError(tidegate.CodeIllegalInvisibleTime, subject, "the invisibleTime is too %s ms: the %s is %v; give %v to %v", bound, subject, d, least, most)
}

// consumptionTooLong refuses an invisible duration that ends later than a delivery may. It begins
// as illegalInvisibleTime does.
func consumptionTooLong(d, left, longest time.Duration) *tidegate.Error {
	return newError(tidegate.CodeIllegalInvisibleTime, "invisible duration",
		"the invisibleTime is too large. max is %d ms: the invisible duration is %v; a delivery may take %v in all (max_invisible_duration), of which %v are left; give no more, or end the delivery with a retry",
		left.Milliseconds(), d, longest, left)
}

// closedError is an Error that matches tidegate.ErrClosed.
func closedError() error {
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the broker is closed or closing", Err: tidegate.ErrClosed}
}

// storeError tells of a failure below; nothing else is wrong with the request.
func storeError(err error) error {
	return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "the broker could not read or write its data", Err: err}
}
