package serving

import (
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/transport"
)

// Incoming is a message to store, with the data of its producer.
type Incoming = engine.Incoming

// A Holder counts the deliveries in flight of a client.
type Holder = consume.Holder

// NewHolder returns the holder of a client without deliveries.
func NewHolder(id string) *Holder { return consume.NewHolder(id) }

// A Poll is a receive request with further fields for servers.
type Poll struct {
	transport.ReceiveRequest

	// Owner identifies the receiving client. Its heartbeats ([Broker.Touch]) keep its deliveries
	// invisible, in place of InvisibleDuration: for a minute after the last heartbeat, and for 3
	// hours in all. Empty means that InvisibleDuration applies.
	Owner string

	// Holder counts the deliveries in flight of the receiving client, and names it in the failures
	// of the group. Nil means that the client is not known.
	Holder *Holder

	// Encoder encodes a response while the attempts of its deliveries are written. The caller must
	// discard the result unless Poll returns the deliveries without an error. Prepare must not wait
	// or call the broker. If it panics, Poll returns an error, and the messages are delivered again
	// after their invisible duration. Nil means none.
	Encoder engine.Encoder

	// Memory is the memory for the bodies that Poll keeps for the caller. If Admit returns an
	// error, Poll returns fewer messages, or the error if there are none. Admit must not wait or
	// call the broker. Nil means that Poll admits all.
	Memory engine.Memory

	// Watch stays behind if Poll has taken all messages that it could take; then Watch.Left is
	// true. The caller ends each watch. Nil means none.
	Watch *Watch
}

// A Watch reports once that a receive may find a message.
type Watch = engine.Watch

// NewWatch returns a watch that calls ready once, unless it ends before. ready runs under locks of
// the engine: it must neither block nor call the engine.
func NewWatch(ready func()) *Watch { return engine.NewWatch(ready) }

// A Reconsumed is the result of Broker.ReconsumeLater.
type Reconsumed struct {
	Topic     string    `json:"topic"`               // new topic of the message: the group's retry topic or dead letter topic
	MessageID string    `json:"message_id"`          // new ID of the message
	Times     int       `json:"reconsume_times"`     // retries, including this one
	DeliverAt time.Time `json:"deliver_at,omitzero"` // delivery time; zero means at once

	// DeadLetter is set if the message had the maximum of retries.
	DeadLetter bool `json:"dead_letter"`
}

// A RetryPolicy is the redelivery policy that the broker announces to the clients of a group.
type RetryPolicy struct {
	MaxAttempts int           // deliveries of one message; -1 means no maximum
	Ladder      backoff.Steps // the interval after the first failure, the second, ...; the last one repeats
}
