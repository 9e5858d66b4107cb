package tidegate

import (
	"maps"
	"slices"
	"time"
)

// A Message is one message as a producer sends it.
//
// A send does not change the Message. Do not change it before the send has returned. Several
// goroutines may send the same Message at the same time. If ID is empty, each send creates a
// separate message; otherwise all of them send the same message.
//
// [Message.Validate] checks the limits of the fields, except those that depend on the server.
type Message struct {
	// ID identifies the message across attempts, failover and dead letters. It is valid UTF-8 of at
	// most 255 bytes and not blank. Empty means that the producer creates one, as [NewMessageID]
	// does.
	ID string

	// Topic is the destination: 1 to 127 characters of [%|a-zA-Z0-9_-]. The tidegate broker also
	// accepts several such words joined by '.'.
	Topic string

	// Tag is a word by which subscriptions can filter messages. It has no '|' and no control
	// characters. Empty means no tag.
	Tag string

	// Keys are words for looking up the message. A key is not blank and has no control character.
	// Nil means none.
	Keys []string

	// MessageGroup orders messages: the broker delivers the messages of one group in the order in
	// which it stored them. At most 63 bytes. Only topics of type FIFO accept it. Empty means no
	// order.
	MessageGroup string

	// DeliverAt is the earliest time of delivery, at most 24 h ahead. A time in the past means now.
	// Only topics of type DELAY accept it, and only without a message group. Zero means immediate
	// delivery.
	DeliverAt time.Time

	// Properties are pairs of UTF-8 strings for the application: at most 128, and at most 16 KiB
	// together with tag and keys. Values must not be empty, and [ReservedProperty] must be false
	// for each name. Nil means none.
	Properties map[string]string

	// TraceContext is the W3C trace context of the sender, at most 4 KiB. Empty means none.
	TraceContext string

	// Body is the payload, from 1 byte to the server's maximum, by default 4 MiB.
	Body []byte
}

// Clone returns a copy of m that shares only the bytes of Body.
func (m *Message) Clone() *Message {
	c := *m
	c.Keys = slices.Clone(m.Keys)
	c.Properties = maps.Clone(m.Properties)
	return &c
}

// A Receipt describes an accepted message: its ID, its position and the server that has it.
type Receipt struct {
	MessageID string
	Topic     string
	// Queue is the number of the queue. It is -1 before the delivery time of a delayed message and
	// on servers that do not report it: RocketMQ's protocol has no field for it.
	Queue int
	// Offset is the position in the queue. It is -1 before the delivery time of a delayed message,
	// and if it is not known.
	Offset int64

	// Endpoint is the server that accepted the message.
	Endpoint string

	// RecallHandle identifies a delayed message for Recall. It is empty for other messages, and if
	// the server cannot recall messages.
	RecallHandle string

	// TransactionID identifies the transaction of a half message. It is empty for other messages.
	TransactionID string

	// Spooled is true if no server has the message yet: the producer's spool has stored it on the
	// local disk and sends it later, with the same ID. Queue and Offset are -1 then, and Endpoint
	// is empty.
	Spooled bool

	// Attempts is the number of attempts that the send took, including the first. The producer sets
	// it; a transport makes one attempt and leaves it 0.
	Attempts int
}
