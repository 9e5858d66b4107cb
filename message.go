package tidegate

import (
	"maps"
	"slices"
	"time"
)

// A Message is what a producer sends. A send never changes the caller's
// value; do not change one while a send with it is under way. Goroutines may
// send one value at the same time: with an empty ID they are different messages,
// with an ID they are one. [Message.Validate] checks what needs no server.
type Message struct {
	// ID names the message for its whole life: over attempts, failover and
	// dead letters. Any text of at most 255 bytes that is not blank, in UTF-8.
	// Empty: the producer makes one (see [NewMessageID]).
	ID string

	// Topic is the topic to send to: 1 to 127 characters of [%|a-zA-Z0-9_-],
	// and on a tidegate broker also words of these joined by '.'.
	Topic string

	// Tag is one word that a subscription can filter on, without '|' and
	// control characters. Empty: no tag.
	Tag string

	// Keys are words that the message can be looked up by, none of them blank
	// or with a control character. Nil: none.
	Keys []string

	// MessageGroup orders messages: those of one group are delivered in the
	// order in which they were stored. At most 63 bytes. Empty: no order.
	// Only topics of type FIFO take messages with a group.
	MessageGroup string

	// DeliverAt is the earliest time of delivery, at most 24 h ahead; one that
	// is past is now. Zero: at once. Only topics of type DELAY take messages
	// with one, and then without a message group.
	DeliverAt time.Time

	// Properties are the user's own words, in UTF-8: at most 128 of them, 16 KiB
	// in all with tag and keys. Names that [ReservedProperty] knows and empty values
	// are refused. Nil: none.
	Properties map[string]string

	// TraceContext is the W3C trace context of the sender, at most 4 KiB. Empty: none.
	TraceContext string

	// Body is the payload: 1 byte to 4 MiB, or what the server says instead.
	Body []byte
}

// Clone returns a copy that shares nothing with m but the bytes of Body.
func (m *Message) Clone() *Message {
	c := *m
	c.Keys = slices.Clone(m.Keys)
	c.Properties = maps.Clone(m.Properties)
	return &c
}

// A Receipt tells where an accepted message lies.
type Receipt struct {
	MessageID string
	Topic     string
	Queue     int   // the queue's number; -1 where the server does not tell, as RocketMQ's protocol does not, and before its delivery time
	Offset    int64 // in that queue; -1 if it is not known, and before its delivery time

	// Endpoint is the server that accepted the message.
	Endpoint string

	// RecallHandle names a message with a delivery time that is still ahead, to
	// take it back. Empty for others, and where the server gives none.
	RecallHandle string

	// TransactionID names the transaction of a half message. Empty for other messages.
	TransactionID string

	// Spooled is true if no server has the message yet: the producer's spool has it on
	// the local disk and sends it later, with the same ID. Queue and Offset are -1,
	// and Endpoint is empty.
	Spooled bool

	// Attempts is how many attempts the send took, the first included.
	// A transport, which makes one, leaves it 0; the producer sets it.
	Attempts int
}
