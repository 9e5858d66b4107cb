package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

var (
	_ transport.Transport      = (*Broker)(nil)
	_ transport.LiteSubscriber = (*Broker)(nil)
)

// ProducerSettings returns the broker's settings for producers: the defaults of "RocketMQ: sending
// retry and throttling", and the largest body.
func (b *Broker) ProducerSettings(ctx context.Context, endpoint string) (transport.ProducerSettings, error) {
	return b.engine.ProducerSettings(ctx, endpoint)
}

// ConsumerSettings returns the settings of a group for a topic, with the address settings of the
// topic. It creates the group if there is none.
func (b *Broker) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	return b.engine.ConsumerSettings(ctx, group, topic)
}

// Queues returns only transport.AnyQueue, because one receive serves all queues. The error is 40402
// if there is no such topic.
func (b *Broker) Queues(ctx context.Context, endpoint, topic string) ([]int, error) {
	return b.engine.Queues(ctx, endpoint, topic)
}

// Capabilities returns all capabilities of package transport. It ignores the endpoint.
func (b *Broker) Capabilities(endpoint string) transport.Capabilities {
	return b.engine.Capabilities(endpoint)
}

// Send stores messages of one or several topics. It returns a result for each message, in their
// order, when the accepted messages are on disk. The errors of a message are:
//
//   - 400xx, 413xx, 431xx: the message is invalid
//   - 40402: its topic does not exist
//   - 40014: its topic has another type
//   - tidegate.ErrThrottled: a limit or quota rejects it
//
// An invalid message rejects no other one. If a limit or quota rejects a message with a message
// group, Send also rejects the later messages of that group, so that they keep their order when
// they are sent again. If ctx ends while Send waits for the disk, the messages may be stored. If
// the topic stored the ID of a message within its duplicate window, the result is the first
// receipt, and the message is not stored again. Send keeps no reference to a message.
func (b *Broker) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	return b.engine.Send(ctx, msgs)
}

// Recall cancels a delayed message with the handle in its receipt, and returns the ID of the
// message when this is on disk. The error is 40401 if the message no longer waits for its delivery
// time, and 40000 for an invalid handle.
func (b *Broker) Recall(ctx context.Context, topicName, recallHandle string) (id string, err error) {
	return b.engine.Recall(ctx, topicName, recallHandle)
}

// Receive receives up to r.Max messages, at most 128, and waits for the first one up to r.Wait. It
// returns no deliveries and no error if there was no message. The attempt number of each delivery
// is written before Receive returns it; it is on disk if it is above 1.
//
// A receive with the AttemptID of an earlier receive repeats it. If the earlier receive still
// waits, Receive ends it. If deliveries of the earlier receive are still in flight, Receive returns
// them with the same attempts, the rest of their invisible durations, and new handles that replace
// the old ones. If none is in flight, Receive receives new messages, or returns none at once if
// r.Repeat is set.
//
// Receive creates a group that does not exist. The new group begins at the oldest message. Receive
// rejects an invisible duration out of bounds (40011), an AttemptID of more than 255 bytes, a
// negative Max or Wait, and a Queue below transport.AnyQueue. If ctx ends, Receive returns its
// cause and takes no message.
func (b *Broker) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return b.engine.Receive(ctx, r)
}

// Ack acknowledges deliveries. It returns when the acknowledgements are on disk. The result has an
// entry for each delivery, in their order: nil, or an error, which is 40013 if the handle is not
// valid any more. If ctx ends while Ack waits for the disk, the messages may be acknowledged, and
// the error has MaybeStored set.
func (b *Broker) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	return b.engine.Ack(ctx, ds)
}

// Settle ends a delivery by a verdict, and returns the fate of the message when it is on disk. If
// ctx ends meanwhile, the change may have happened, and the error has MaybeStored set. The error is
// 40013 if the handle is not valid any more.
//
//   - [transport.Release]: the message is ready at once. For a push consumer the attempt does not
//     count; for a simple consumer it counts as a timeout.
//
//   - [transport.Retry]: consuming failed. After its last attempt the message becomes a dead
//     letter, or is parked or blocked as [settings.Group].OnExhausted decides; a reason that is not
//     empty is recorded. If a push consumer received the message, and address settings with a
//     redelivery setting match its topic, the message is delivered again after their delay (0 by
//     default). Otherwise it is delivered again after v.Delay, counted from now;
//     [transport.BySchedule] means the retry interval of the topic and group for this attempt. The
//     error is 40011 if the delay is negative, or exceeds both MaxInvisibleDuration and the longest
//     interval of the group and topic.
//
//   - [transport.DeadLetter]: the message is a dead letter of its group at once. A repetition, or a
//     call after the group has finished the message, has no effect and no error; the fate is
//     transport.FateUntold then. It is also valid after the invisible duration, until another
//     consumer receives the message. In the last attempt of a FIFO group the message has the fate
//     that [settings.Group].OnExhausted specifies.
//
//   - [transport.Snooze]: the message is delivered again after v.Delay with the same attempt
//     number. Its message group waits meanwhile, as during a retry. The error is 40011 if the delay
//     is negative or above MaxInvisibleDuration.
//
//   - [transport.RetryTopic]: the delivery is acknowledged, and its message is stored again, as a
//     new message of the group's retry topic with a delivery time. After the maximum of retries it
//     is stored in the group's dead letter topic. A dead letter, or a retry of another group, is
//     retried like a new message of the topic that it is received from. If the process ends in
//     between, the group receives only the new message. The error is 40000 if the group has no
//     retry topics or v has both Delay and Level, and 40012 if the delay is invalid.
//
//   - [transport.NegativeAck]: the same message is delivered again after v.Delay; 0 means the
//     group's NegativeAck.Delay. The group's MaxAttempts and the delays of address settings do not
//     apply. After NegativeAck.MaxRedeliveries the message becomes a dead letter. The error is
//     40000 if v has a Level, and 40011 if the delay is negative or above 864 000 s.
func (b *Broker) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	return b.engine.Settle(ctx, d, v)
}

// Extend keeps the message invisible for dur from now on. It returns the handle that replaces
// d.Handle, when the change is on disk. A dur of 0 returns the message to the queue: for a simple
// consumer as a timeout, for a push consumer as a release, and the attempt does not count. A
// delivery ends at the latest MaxInvisibleDuration after it was handed out; changes do not extend
// this limit. The error is 40011 if dur is negative or exceeds the limit, and 40013 if the handle
// is not valid any more.
//
// With repeat, Extend repeats a call whose response was lost. If that call replaced d.Handle and
// nothing has replaced the new handle, it makes the change again and returns the same new handle. A
// dur of 0 cannot be repeated, because the release has invalidated the handle.
func (b *Broker) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	return b.engine.Extend(ctx, d, dur, repeat)
}

// SyncLite implements [transport.LiteSubscriber]. It creates lite topics and the group, bound to the
// parent, if they do not exist. A consumer that the broker has not heard of for 2 minutes, neither by
// SyncLite nor by a receive, has no lite topics any more. Further errors are 40402 if there is no such
// topic, and 40000 if it is not of the type LITE or if the group is bound to another topic or to none.
func (b *Broker) SyncLite(ctx context.Context, s transport.LiteSync) error {
	return b.engine.SyncLite(ctx, s)
}

// ServeLite implements [transport.LiteSubscriber]. A lite topic ends for a consumer when
// DeleteLiteTopic removes it, or when another consumer of an exclusive group subscribes to it. A
// later call for the same consumer ends the earlier one with the error 40000.
func (b *Broker) ServeLite(ctx context.Context, c transport.LiteConsumer, ended func(liteTopic string)) error {
	return b.engine.ServeLite(ctx, c, ended)
}
