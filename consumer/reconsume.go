package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/transport"
)

// A ReconsumeMode is the way in which a message that could not be consumed is consumed later; see
// [Simple.Reconsume].
type ReconsumeMode = transport.ReconsumeMode

// A RetryResult is what becomes of a message that could not be consumed.
type RetryResult = transport.RetryResult

// ReconsumeAfter returns an error with which a handler sends the message to the group's retry
// topic, from which it is delivered as a new message after d, 1 s to 864 000 s. The delivery is
// acknowledged. After the number of retries that the group allows the message becomes a dead
// letter. The group needs retry topics (RetryTopic.Enabled), and the consumer's credentials the
// right to send to them. It may be wrapped or joined. err, which may be nil, is the failure.
//
// If the server cannot or will not do that, as a RocketMQ, or a group without retry topics, the
// message is retried in its own topic after the same delay, 12 h at most; Outcome.Disposition is
// Retried and Outcome.SettleErr the reason.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms: reconsumeLater.
func ReconsumeAfter(d time.Duration, err error) error {
	return &decision.Reconsume{Mode: ReconsumeMode{Delay: max(d, 1)}, Err: err} // too short ones are the server's to refuse
}

// ReconsumeLevel is [ReconsumeAfter] with the delay of one of the group's levels, the first of them
// 1. By default these are RocketMQ's 18 delay levels; see [RetryLevel]. A level below 1 means 1.
func ReconsumeLevel(level int, err error) error {
	return &decision.Reconsume{Mode: ReconsumeMode{Level: max(level, 1)}, Err: err}
}

// ReconsumeNext is [ReconsumeLevel] with level 1 for a message's first retry, level 2 for its
// second, and so on up to the last level.
func ReconsumeNext(err error) error { return &decision.Reconsume{Err: err} }

// NegativeAck returns an error with which a handler has the same message delivered again after d,
// 864 000 s at most, with the next attempt number. Zero or less means the group's delay, which is 1
// min by default. Neither the group's maximum of attempts nor the redelivery delay of address
// settings count; the group's NegativeAck settings can have a maximum of their own. Where the
// server cannot do that, as a RocketMQ, the message is retried after the same delay as by
// [RetryAfter], and Outcome.SettleErr is the reason. It may be wrapped or joined. err may be nil.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms: negativeAcknowledge.
func NegativeAck(d time.Duration, err error) error {
	return &decision.Reconsume{Mode: ReconsumeMode{Delay: max(d, 0), Negative: true}, Err: err}
}

// errReconsume is the reason why a message is retried in its own topic.
func errReconsume(d *tidegate.Delivery) error {
	return &tidegate.Error{
		Op: "Reconsume", Subject: d.Topic, Endpoint: d.Endpoint, Code: tidegate.CodeNotImplemented,
		Message: "the server has neither retry topics nor negative acknowledgements; the message is retried in its own topic",
	}
}

// Reconsume ends the delivery of a message that could not be consumed: through the group's retry
// topic, or, with mode.Negative, by delivering the same message again. It makes one attempt, and
// returns what becomes of the message. d is not valid afterwards. The error matches
// tidegate.ErrInvalidHandle if the invisible time was over; its code is 50100 if the server has
// neither, as a RocketMQ, 40000 if the group has no retry topics, and 40300 if the credentials may
// not send to them.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms.
func (s *Simple) Reconsume(ctx context.Context, d *tidegate.Delivery, mode ReconsumeMode) (RetryResult, error) {
	r, ok := s.transport.(transport.Reconsumer)
	if !ok {
		return RetryResult{}, fmt.Errorf("consumer: %w", errReconsume(d))
	}
	return r.Reconsume(ctx, d, mode)
}
