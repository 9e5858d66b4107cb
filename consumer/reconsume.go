package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/transport"
)

// A ReconsumeMode selects how a failed message is consumed later; see [Simple.Reconsume].
type ReconsumeMode = transport.ReconsumeMode

// A RetryResult is the server's decision about a failed message.
type RetryResult = transport.RetryResult

// ReconsumeAfter returns an error for a handler that sends the message to the group's retry topic.
// The delivery is acknowledged, and the message is delivered as a new message of the retry topic
// after d, 1 s to 864 000 s. After the group's maximum of retries it becomes a dead letter. The
// returned error may be wrapped or joined. err is the failure; it may be nil.
//
// The group needs retry topics (RetryTopic.Enabled), and the consumer's credentials need the right
// to send to them. If the group has none, or the server is a RocketMQ, the message is retried in
// its own topic after the same delay, 12 h at most. Outcome.Disposition is Retried then, and
// Outcome.SettleErr has the reason.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms: reconsumeLater.
func ReconsumeAfter(d time.Duration, err error) error {
	return &decision.Reconsume{Mode: ReconsumeMode{Delay: max(d, 1)}, Err: err} // the server rejects delays that are too short
}

// ReconsumeLevel returns the error of [ReconsumeAfter] for one of the group's delay levels, from 1.
// By default these are RocketMQ's 18 delay levels; see [RetryLevel]. A level below 1 means 1.
func ReconsumeLevel(level int, err error) error {
	return &decision.Reconsume{Mode: ReconsumeMode{Level: max(level, 1)}, Err: err}
}

// ReconsumeNext returns the error of [ReconsumeLevel] with level 1 for a message's first retry,
// level 2 for its second, and so on up to the last level.
func ReconsumeNext(err error) error { return &decision.Reconsume{Err: err} }

// NegativeAck returns an error for a handler that negatively acknowledges the message: the server
// delivers the same message again after d, 864 000 s at most, with the next attempt number. Zero or
// less means the group's delay, 1 min by default. The returned error may be wrapped or joined. err
// is the failure; it may be nil.
//
// The group's maximum of attempts and the redelivery delay of address settings do not apply. The
// group's NegativeAck settings can set another maximum. On a RocketMQ the message is retried as by
// [RetryAfter], after 1 min if d is zero or less, and Outcome.SettleErr has the reason.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms: negativeAcknowledge.
func NegativeAck(d time.Duration, err error) error {
	return &decision.Reconsume{Mode: ReconsumeMode{Delay: max(d, 0), Negative: true}, Err: err}
}

// errReconsume is the reason why a message is retried in its own topic.
func errReconsume(d *tidegate.Delivery) error {
	return &tidegate.Error{
		Op: "Reconsume", Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeNotImplemented,
		Message: "the server supports neither retry topics nor negative acknowledgements; the message is retried in its own topic",
	}
}

// Reconsume sends a failed message to the group's retry topic. With mode.Negative the server
// delivers the same message again instead. Reconsume makes one attempt and returns the server's
// decision. The receipt handle of d is invalid afterwards.
//
// The error matches tidegate.ErrInvalidHandle if the invisible time is over. Its code is 50100 if
// the server has no retry topics and no negative acknowledgements, such as RocketMQ, 40000 if the
// group has no retry topics, and 40300 if the credentials may not send to them.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms.
func (s *Simple) Reconsume(ctx context.Context, d *tidegate.Delivery, mode ReconsumeMode) (result RetryResult, err error) {
	r, ok := s.transport.(transport.Reconsumer)
	if !ok {
		return RetryResult{}, fmt.Errorf("consumer: %w", errReconsume(d))
	}
	err = s.settle(ctx, d, func() (err error) {
		result, err = r.Reconsume(ctx, d, mode)
		return err
	})
	return result, err
}
