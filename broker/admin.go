package broker

import (
	"context"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// AbandonedTransactions is the topic of half messages that were unresolved after the last check.
// They have the properties of dead letters, with the original topic and the number of checks.
// RocketMQ keeps them in TRANS_CHECK_MAX_TIME_TOPIC, which its clients cannot read.
const AbandonedTransactions = engine.AbandonedTransactions

// PutTopic creates a topic or changes its settings, and returns when this is on disk. The error is
// 40000 for invalid settings, another type than before, or fewer queues than before.
func (b *Broker) PutTopic(ctx context.Context, name string, c settings.Topic) (status.Topic, error) {
	return b.engine.PutTopic(ctx, name, c, nil)
}

// TopicSettings returns the settings of a topic, with defaults. The error is 40402 if there is no
// such topic. The call is cheap.
func (b *Broker) TopicSettings(name string) (settings.Topic, error) {
	return b.engine.TopicSettings(name)
}

// Topic returns a topic. The error is 40402 if there is no such topic.
func (b *Broker) Topic(name string) (status.Topic, error) { return b.engine.Topic(name) }

// Topics returns all topics by name, including topics of dead letters.
func (b *Broker) Topics() []status.Topic { return b.engine.Topics() }

// PurgeTopic removes all messages of a topic that were stored before the call: ready ones, those in
// flight, those that wait for a retry or their delivery time, and half messages. It returns their
// number and bytes once the removal is on disk. Groups continue with the next message, and offsets
// are not used again. Receipt handles and transaction IDs of removed messages are no longer valid,
// and the duplicate window forgets their message IDs. Dead letters of the topic's messages stay,
// because they are messages of another topic. The error's code is 40402 if there is no such topic.
// If ctx ends, a part of the messages may be removed.
func (b *Broker) PurgeTopic(ctx context.Context, name string) (status.Backlog, error) {
	return b.engine.PurgeTopic(ctx, name)
}

// DeleteTopic removes a topic with its messages and the progress of groups in it, and returns when
// this is on disk. The error is 40402 if there is no such topic.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	return b.engine.DeleteTopic(ctx, name, nil)
}

// PutGroup creates a consumer group or changes its settings, and returns when this is on disk. The
// change also applies to messages in flight. The error is 40000 for invalid settings, and for
// another value of FIFO after the group has received.
func (b *Broker) PutGroup(ctx context.Context, name string, c settings.Group) (status.Group, error) {
	return b.engine.PutGroup(ctx, name, c, nil)
}

// PatchGroup changes the settings of a consumer group, and returns when this is on disk. It calls
// change with a copy of the settings, while no other change of settings is under way; change must
// not wait. An auto-created group becomes permanent. The error is that of change, 40403 if there is
// no such group, or one of PutGroup; then nothing has changed.
func (b *Broker) PatchGroup(ctx context.Context, name string, change func(*settings.Group) error) (status.Group, error) {
	return b.engine.PatchGroup(ctx, name, change, nil)
}

// CheckGroup returns the error that PutGroup would return for the settings, as the group is now. It
// changes nothing.
func (b *Broker) CheckGroup(name string, c settings.Group) error {
	return b.engine.CheckGroup(name, c)
}

// Group returns a consumer group. The error is 40403 if there is no such group.
func (b *Broker) Group(name string) (status.Group, error) { return b.engine.Group(name) }

// Groups returns all consumer groups by name.
func (b *Broker) Groups() []status.Group { return b.engine.Groups() }

// DeleteGroup removes a consumer group with its progress, and returns when this is on disk. Its
// dead letters stay, because they are messages of their own topic. The error is 40403 if there is
// no such group.
func (b *Broker) DeleteGroup(ctx context.Context, name string) error {
	return b.engine.DeleteGroup(ctx, name, nil)
}

// Rewind moves a group to another position of a topic, backward or forward. All queues change in
// one write. Rewind returns the result by queue when this write is on disk. The group loses its
// unfinished messages in these queues: older handles are invalid (40013), attempts count from 1
// again, and message groups are no longer parked. Dead letters stay, so a message that is consumed
// again can have a second dead letter. The group's backlog changes at once, and so do throttles
// that depend on it. The measured drain rate does not count skipped messages. Rewind waits while
// retention or a purge removes messages; ctx ends that wait.
//
// A group that never received from the topic begins at the position. The error is 40403 or 40402 if
// the group or the topic does not exist, and 40000 if the position is invalid.
func (b *Broker) Rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	return b.engine.Rewind(ctx, group, topic, to)
}

// PutAddressSettings replaces the settings of a pattern, and returns when this is on disk. The
// settings apply at once to the topics that match matches, also to messages in flight, except for
// delays that have begun. The error is 40000, with all faults, for an invalid pattern, for invalid
// settings, and if MaxAddressSettings is reached.
func (b *Broker) PutAddressSettings(ctx context.Context, match string, s settings.Address) (status.Address, error) {
	return b.engine.PutAddressSettings(ctx, match, s, nil)
}

// AddressSettings returns the settings of a pattern. The error is 40400 if the pattern has none,
// and 40000 if it is invalid.
func (b *Broker) AddressSettings(match string) (status.Address, error) {
	return b.engine.AddressSettings(match)
}

// AllAddressSettings returns the settings of all patterns, by precedence. If several patterns match
// a topic, each field has the value of the first pattern that sets it. The order is:
//
//  1. more words that are no wildcard,
//  2. more words that must match,
//  3. fewer '#',
//  4. plain words further to the left.
func (b *Broker) AllAddressSettings() []status.Address { return b.engine.AllAddressSettings() }

// TopicAddressSettings returns the merged settings of all patterns that match a topic, and these
// patterns by precedence. The topic need not exist.
func (b *Broker) TopicAddressSettings(topic string) status.TopicAddress {
	return b.engine.TopicAddressSettings(topic)
}

// DeleteAddressSettings removes the settings of a pattern, and returns when this is on disk. The
// error is 40400 if the pattern has none, and 40000 if it is invalid.
func (b *Broker) DeleteAddressSettings(ctx context.Context, match string) error {
	return b.engine.DeleteAddressSettings(ctx, match, nil)
}

// Parked returns the message groups of a consumer group that wait behind a failed message: parked
// ones (OnExhaustedPark) and blocked ones (OnExhaustedBlock). It can read from the store. The error
// is 40403 if there is no such group, 40402 if the query names a topic that does not exist, and
// 40000 if State or Limit is invalid.
func (b *Broker) Parked(group string, q status.ParkedQuery) (status.ParkedPage, error) {
	return b.engine.Parked(group, q)
}

// RedriveParked makes the messages of parked message groups ready again, in order, the failed
// message first. It returns when this is on disk. Attempts count from 1 again. If the dead letter
// of a failed message cannot be written, the message group stays parked. If RedriveParked returns
// an error, the result counts the message groups that were redriven before it. The error is 40403
// or 40402 if the group or the topic does not exist, and 40401 if the named message group is not
// parked. If ctx ends, the call ends between two topics.
func (b *Broker) RedriveParked(ctx context.Context, group string, sel status.ParkedSelection) (status.ParkedRedrive, error) {
	return b.engine.RedriveParked(ctx, group, sel)
}

// DeadLetters returns a page of the dead letters of a group, without consuming them. It also works
// for a deleted group. In a topic other than %DLQ%group it returns only the dead letters of the
// group. It can read from the store, and waits for nothing else. The error is
//
//   - 40403 if there is neither such a group nor a dead letter of it,
//   - 40402 if the query names a topic that does not exist,
//   - 40000 if After or Limit is invalid.
func (b *Broker) DeadLetters(group string, q status.DeadLetterQuery) (status.DeadLetterPage, error) {
	return b.engine.DeadLetters(group, q, 0)
}

// RedriveDeadLetters sends dead letters of a group back to their topics, in the selected order, and
// returns when this is on disk. The broker stores each as the newest message of its topic and
// removes the dead letter in the same write, so neither a crash nor a repetition creates a second
// copy. Every group of the topic receives the message, beginning with attempt 1.
//
// The message keeps its ID, body, keys, tag, message group and properties, except for those of a
// dead letter. The duplicate window does not apply. protocol.PropertyDeadLetterRedrives counts the
// redrives. A message from a retry topic gets the ID of its original send again and loses the
// properties of a retry, so its retries count from 1 again. A FIFO topic accepts only messages with
// a message group, and other topics only messages without one. A delayed message is ready at once,
// because its delivery time has passed.
//
// With sel.ToGroupOnly only the group receives the message, through the topic %RETRY%group_topic,
// which the first such redrive creates. Its receives from the original topic also take from this
// topic. The delivery has the original topic, and the retry settings are those of the original
// topic. The error is 40000 if the group is FIFO, and 40403 if it does not exist any more.
//
// With sel.Edit the one selected letter is stored with the changes, under a new ID; otherwise the
// same holds as for an unedited one. The error is that of a send if the changed message is invalid.
//
// A throttle of the topic ends the call: the error matches tidegate.ErrThrottled, and the result
// has the number of redriven messages and Next to continue later. One redrive or purge runs at a
// time; RedriveDeadLetters waits for the others. If ctx ends or the broker is closed
// (tidegate.ErrClosed), this wait ends, and a redrive ends between two writes. The result is valid
// with an error too: it counts the messages redriven before it. Other errors are those of
// DeadLetters, and 40402 if To does not exist.
func (b *Broker) RedriveDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterRedrive, error) {
	return b.engine.RedriveDeadLetters(ctx, group, sel)
}

// PurgeDeadLetters removes dead letters of a group permanently, and returns when this is on disk.
// It waits, and returns errors, as RedriveDeadLetters does. A receive from the topic of the dead
// letters that is under way may still deliver them.
func (b *Broker) PurgeDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterPurge, error) {
	return b.engine.PurgeDeadLetters(ctx, group, sel)
}

// Snapshot writes a consistent copy of the data directory to dir, while the broker works. All
// requests that were acknowledged before the call are in the copy. To restore it, copy it to
// Options.Dir of a broker that is not running. A file copy of a running broker's directory is not
// supported: Open rejects it if its files are of different moments.
//
// dir must not exist, and must be on the file system of Options.Dir, because the copy has links to
// files of the broker. Sends and settlements wait while the logs are copied, some milliseconds.
// Other calls of Snapshot wait for this one. If the call fails, it removes the incomplete copy. The
// error of a broker without Options.Dir has code 40000.
func (b *Broker) Snapshot(ctx context.Context, dir string) error {
	return b.engine.Snapshot(ctx, dir)
}

// LiteTopics returns a page of the lite topics of a topic, by name. The error is 40402 if there is no
// such topic, and 40000 if it is not of the type LITE or the limit is invalid.
func (b *Broker) LiteTopics(topic string, q status.LiteTopicQuery) (status.LiteTopicPage, error) {
	return b.engine.LiteTopics(topic, q)
}

// DeleteLiteTopic removes a lite topic with its messages, consumed or not, and takes it from its
// consumers. It returns when this is on disk. The error is 40400 if there is no such lite topic.
func (b *Broker) DeleteLiteTopic(ctx context.Context, topic, name string) error {
	return b.engine.DeleteLiteTopic(ctx, topic, name)
}
