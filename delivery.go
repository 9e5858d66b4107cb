package tidegate

import (
	"maps"
	"strconv"
	"time"
)

// A Delivery is one handing-out of a message to a consumer group. It is plain
// data: acknowledging it is a method of the consumer that received it.
type Delivery struct {
	Message

	// ConsumerGroup is the group that the message was delivered to.
	ConsumerGroup string

	// Attempt is the number of this delivery: 1 the first time.
	Attempt int

	// Handle names this delivery, not the message: after the next delivery,
	// or a change of the invisible duration, an older handle is refused with
	// [ErrInvalidHandle]. It means something only to Endpoint.
	Handle string

	// Endpoint is the server that delivered, and so the one to acknowledge to.
	Endpoint string

	Queue  int   // the queue's number within the topic
	Offset int64 // of the message in that queue

	// TransactionID names the transaction that the message was committed with, as
	// Receipt.TransactionID does for the producer. Empty for other messages.
	TransactionID string

	BornAt    time.Time // when the producer made it, by its clock
	BornHost  string    // the producer's host
	StoredAt  time.Time // when the server stored it, by its clock
	StoreHost string    // the server's host

	// InvisibleUntil is when the server delivers the message again unless it
	// was acknowledged, by the clock of who received it: a transport reckons it from how long the
	// server says that this is. Zero where the server does not tell.
	InvisibleUntil time.Time
}

// The names of the properties that a dead letter carries beside those of the
// original message. DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID are RocketMQ's
// own; the others are tidegate's. A program that sends may not set them.
const (
	PropertyDeadLetterTopic     = "DLQ_ORIGIN_TOPIC"
	PropertyDeadLetterMessageID = "DLQ_ORIGIN_MESSAGE_ID"
	PropertyDeadLetterQueue     = "DLQ_ORIGIN_QUEUE"
	PropertyDeadLetterOffset    = "DLQ_ORIGIN_OFFSET"
	PropertyDeadLetterGroup     = "DLQ_GROUP"
	PropertyDeadLetterAttempts  = "DLQ_ATTEMPTS"
	PropertyDeadLetterReason    = "DLQ_REASON"
)

// The properties in which servers of RocketMQ's protocol repeat the message group and the
// transaction ID of a delivery. [Delivery] has fields for them; they are not among its Properties,
// and a program that sends may not set them.
const (
	PropertyMessageGroup  = "__SHARDINGKEY"
	PropertyTransactionID = "__transactionId__"
)

// The properties that a message in a retry topic carries (TDMQ for Pulsar: retry and dead letters).
const (
	PropertyRealTopic       = "REAL_TOPIC"        // the topic that the message was sent to
	PropertyOriginMessageID = "ORIGIN_MESSAGE_ID" // the ID that it was sent with
	PropertyRetryTopic      = "RETRY_TOPIC"       // the retry topic
	PropertyReconsumeTimes  = "RECONSUMETIMES"    // how often it was retried
)

// The properties that the broker adds to a dead or expired message where address settings decide
// its destination (Artemis: undelivered messages).
const (
	PropertyOriginalAddress   = "_AMQ_ORIG_ADDRESS"    // the topic that it was in
	PropertyOriginalQueue     = "_AMQ_ORIG_QUEUE"      // whose copy it was: the consumer group
	PropertyOriginalMessageID = "_AMQ_ORIG_MESSAGE_ID" // its ID
	PropertyExpired           = "_AMQ_ACTUAL_EXPIRY"   // when it was found to be too old, in milliseconds since 1970
)

// PropertyDeadLetterRedrives says how often a message was sent back from the dead letters. It stays
// with a message that was, and comes back with it if it becomes a dead letter again. Unlike the
// others it may be sent, so that such a message can be passed on.
const PropertyDeadLetterRedrives = "DLQ_REDRIVES"

// DeadLetterPrefix and a group's name make the topic of the group's dead letters.
const DeadLetterPrefix = "%DLQ%"

// DeadLetterTopic returns the topic of a consumer group's dead letters.
func DeadLetterTopic(group string) string { return DeadLetterPrefix + group }

// A DeadLetter tells where a dead letter comes from and why it is one.
type DeadLetter struct {
	Topic     string // that the message was sent to
	MessageID string
	Queue     int
	Offset    int64
	Group     string // the consumer group that could not consume it
	Attempts  int    // deliveries made before the message was given up
	Reason    string
	Redrives  int // how often it had been sent back from the dead letters before
}

// DeadLetter returns where the message came from, and false if it does not
// tell: then it is no dead letter, or one of a real RocketMQ 5.2, which keeps no
// origin. A number that is missing or cannot be read is 0.
func (m *Message) DeadLetter() (DeadLetter, bool) {
	topic, ok := m.Properties[PropertyDeadLetterTopic]
	if !ok {
		return DeadLetter{}, false
	}
	d := DeadLetter{
		Topic:     topic,
		MessageID: m.Properties[PropertyDeadLetterMessageID],
		Group:     m.Properties[PropertyDeadLetterGroup],
		Reason:    m.Properties[PropertyDeadLetterReason],
	}
	// The letter itself counts more than a number.
	d.Queue, _ = strconv.Atoi(m.Properties[PropertyDeadLetterQueue])
	d.Offset, _ = strconv.ParseInt(m.Properties[PropertyDeadLetterOffset], 10, 64)
	d.Attempts, _ = strconv.Atoi(m.Properties[PropertyDeadLetterAttempts])
	d.Redrives, _ = strconv.Atoi(m.Properties[PropertyDeadLetterRedrives])
	return d, true
}

// Forward returns a message for topic with the tag, keys, message group, properties,
// trace context and body of the delivery, whose bytes it shares. It leaves out what
// belongs to the delivered message alone: the ID, since a copy is another message, the
// delivery time, and the properties that servers add, such as the origin of a dead letter.
func (d *Delivery) Forward(topic string) *Message {
	m := d.Message.Clone()
	m.ID, m.Topic, m.DeliverAt = "", topic, time.Time{}
	maps.DeleteFunc(m.Properties, func(name, value string) bool { return ReservedProperty(name) || value == "" })
	return m
}
