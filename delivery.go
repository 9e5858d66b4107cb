package tidegate

import (
	"crypto/rand"
	"encoding/binary"
	"maps"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/internal/protocol"
)

// A Delivery is one delivery of a message to a consumer group. It is plain data; the consumer that
// received it has the methods that settle it.
type Delivery struct {
	Message

	// ConsumerGroup is the group that received the message.
	ConsumerGroup string

	// Attempt is the number of this delivery of the message, from 1.
	Attempt int

	// Handle identifies this delivery, not the message. The next delivery of the message and each
	// change of its invisible duration replace the handle; the server then rejects the old one with
	// [ErrInvalidHandle]. Only the server at Endpoint can use it. If the server has no handles, as
	// over AMQP, only the transport that received the delivery can use it, until it is closed.
	Handle string

	// Endpoint is the server that delivered the message. Acknowledgements go to it.
	Endpoint string

	Queue  int   // number of the queue within the topic; -1 if the server does not report it
	Offset int64 // position of the message in that queue; -1 if the server does not report it

	// TransactionID identifies the transaction that committed the message. It is empty for other
	// messages.
	TransactionID string

	BornAt    time.Time // time of the send, in the producer's clock
	BornHost  string    // the producer's host
	StoredAt  time.Time // time of storage, in the server's clock; zero if the server does not report it
	StoreHost string    // the server's host

	// InvisibleUntil is the time at which the server delivers an unacknowledged message again, in
	// the receiver's clock. The transport computes it from the remaining duration in the response.
	// Zero means that the server did not report it.
	InvisibleUntil time.Time
}

// A Filter selects messages by tag or by SQL. The zero value selects all.
type Filter struct {
	// Expression is "*" or empty for all messages, or tags joined by "||".
	Expression string
	// SQL means that Expression is a SQL92 expression.
	SQL bool
}

// DeadLetterTopic returns the topic of a consumer group's dead letters: "%DLQ%" and the group's
// name.
func DeadLetterTopic(group string) string { return protocol.DeadLetterPrefix + group }

// A DeadLetter is the origin of a dead letter and the reason why it became one.
type DeadLetter struct {
	Topic     string `json:"topic"` // topic of the original send
	MessageID string `json:"message_id"`
	Queue     int    `json:"queue"`    // as Delivery.Queue
	Offset    int64  `json:"offset"`   // as Delivery.Offset
	Group     string `json:"group"`    // consumer group that could not consume the message
	Attempts  int    `json:"attempts"` // deliveries before the message became a dead letter
	Reason    string `json:"reason"`
	// Redrives is the number of earlier redrives of the message. The property DLQ_REDRIVES has it,
	// and a redriven message keeps the property. A producer may send a message with it, so programs
	// can forward redriven messages.
	Redrives int `json:"redrives"`
}

// DeadLetter returns the origin of a dead letter. It also returns the origin of an expired message
// that a tidegate broker has moved to an expiry address; Group, Attempts and Reason are zero then.
// It returns false for other messages, and for the dead letters of RocketMQ 5.2, which have no
// origin. A number that is missing or malformed is 0.
func (m *Message) DeadLetter() (DeadLetter, bool) {
	topic, ok := m.Properties[protocol.PropertyDeadLetterTopic]
	if !ok {
		return DeadLetter{}, false
	}
	d := DeadLetter{
		Topic:     topic,
		MessageID: m.Properties[protocol.PropertyDeadLetterMessageID],
		Group:     m.Properties[protocol.PropertyDeadLetterGroup],
		Reason:    m.Properties[protocol.PropertyDeadLetterReason],
	}
	// A malformed number does not make the dead letter unreadable.
	d.Queue, _ = strconv.Atoi(m.Properties[protocol.PropertyDeadLetterQueue])
	d.Offset, _ = strconv.ParseInt(m.Properties[protocol.PropertyDeadLetterOffset], 10, 64)
	d.Attempts, _ = strconv.Atoi(m.Properties[protocol.PropertyDeadLetterAttempts])
	d.Redrives, _ = strconv.Atoi(m.Properties[protocol.PropertyDeadLetterRedrives])
	return d, true
}

// Forward returns a message for topic with the tag, keys, message group, lite topic, priority,
// properties, trace context and body of the delivery. It shares the bytes of the body.
//
// The result is a new message: it has no ID and no delivery time, and none of the properties that
// servers add, such as the origin of a dead letter. Forward also removes properties with an empty
// value, because a send rejects them.
func (d *Delivery) Forward(topic string) *Message {
	m := d.Message.Clone()
	m.ID, m.Topic, m.DeliverAt = "", topic, time.Time{}
	maps.DeleteFunc(m.Properties, func(name, value string) bool { return ReservedProperty(name) || value == "" })
	return m
}

// idEpoch is where the seconds in a message ID count from.
var idEpoch = time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)

var idHost, idSequence = newIDHost()

// newIDHost returns the random part that identifies this process. RocketMQ uses
// the network card's address; random bytes do the same for containers, whose
// addresses repeat.
func newIDHost() (host [8]byte, seq *atomic.Uint32) {
	if _, err := rand.Read(host[:6]); err != nil {
		binary.BigEndian.PutUint32(host[:4], uint32(time.Now().UnixNano()))
	}
	binary.BigEndian.PutUint16(host[6:], uint16(os.Getpid()))
	return host, new(atomic.Uint32)
}

// NewMessageID returns a new unique ID: 34 upper-case hexadecimal digits in the form of RocketMQ
// 5's message IDs, version 01 (rocketmq-clients, docs/message_id.md). Several goroutines may call
// it at the same time.
func NewMessageID() string {
	var b [17]byte
	b[0] = 1
	copy(b[1:9], idHost[:])
	binary.BigEndian.PutUint32(b[9:13], uint32(time.Since(idEpoch)/time.Second))
	binary.BigEndian.PutUint32(b[13:17], idSequence.Add(1))
	var text [2 * len(b)]byte
	for i, c := range b {
		text[2*i], text[2*i+1] = hexDigits[c>>4], hexDigits[c&15]
	}
	return string(text[:])
}

// hexDigits are upper-case, which encoding/hex does not have.
const hexDigits = "0123456789ABCDEF"
