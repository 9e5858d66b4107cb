package consumer

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/transport"
)

// Reconsume returns an error for a handler that consumes the message later, as Apache Pulsar's
// clients do. The returned error may be wrapped or joined. err is the failure; it may be nil.
//
// Without mode.Negative the message goes to the group's retry topic: the delivery is acknowledged,
// and the message is delivered as a new message of the retry topic after mode.Delay, or after the
// delay of mode.Level. The zero mode selects level 1 for a message's first retry, level 2 for its
// second, and so on. After the group's maximum of retries the message becomes a dead letter. The
// group needs retry topics (RetryTopic.Enabled), and the consumer's credentials need the right to
// send to them.
//
// With mode.Negative the server delivers the same message again, with the next attempt number. The
// group's maximum of attempts and the redelivery delay of address settings do not apply; the
// group's NegativeAck settings can set another maximum.
//
// If the server rejects the mode or the group has no retry topics, the message is retried in its
// own topic after the same delay, 0 to 12 h, as by [RetryIn]. Outcome.Disposition is [Retried]
// then, and Outcome.SettleErr has the reason. On a RocketMQ this is always the case: there the
// levels are 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h, and a negative
// acknowledgement without a delay is retried after 1 min.
//
// Source: TDMQ for Apache Pulsar, message retry and dead letter mechanisms: reconsumeLater,
// negativeAcknowledge.
func Reconsume(mode transport.ReconsumeMode, err error) error {
	return &decision.Reconsume{Mode: mode, Err: err}
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
func (s *Simple) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (result transport.RetryResult, err error) {
	err = s.settle(ctx, d, func() (err error) {
		result, err = s.transport.Reconsume(ctx, d, mode)
		return err
	})
	return result, err
}
