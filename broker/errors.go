package broker

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

func newError(code tidegate.Code, subject, format string, args ...any) *tidegate.Error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
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
		RetryAfter: time.Duration(t.RetryAfter),
		Message:    strconv.Itoa(tidegate.ReplyTooManyRequests) + " TOO_MANY_REQUESTS: " + t.String(),
	}
}

// String tells a person which limit it is, the value and the marks, and what to do.
func (t Throttle) String() string {
	what := t.detail
	if what == "" {
		what = t.Limit
		if t.Subject != "" {
			what += " of " + strconv.Quote(t.Subject)
		}
		what += " is " + t.show(t.Value) + ", the limit is " + t.show(t.Mark) + "; sends are taken again at " + t.show(t.Resume)
	}
	return what + "; " + t.advice()
}

func (t Throttle) show(v int64) string {
	switch t.Unit {
	case unitMilliseconds:
		return (time.Duration(v) * time.Millisecond).String()
	case unitMessages, unitBytes:
		return strconv.FormatInt(v, 10)
	}
	return strconv.FormatInt(v, 10) + " " + t.Unit
}

// advice says what ends the throttle for good.
func (t Throttle) advice() string {
	switch t.Limit {
	case limitTopicRateMessages, limitTopicRateBytes:
		return "send more slowly, or raise the topic's max_rate"
	case limitFairShare:
		return "others have theirs; it ends when consumers have caught up"
	case limitColdReads:
		return "it ends when the groups that catch up are near the end"
	case limitFreeDisk, limitDiskFull:
		return "make room on the disk of the data directory, or add some; no restart is needed"
	case limitWriteStall, limitCompactionDebt:
		return "the disk does not keep up: send more slowly, or use a faster one"
	}
	return "consume faster, with more consumers, or raise max_backlog"
}
