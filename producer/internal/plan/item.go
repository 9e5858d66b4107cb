package plan

import (
	"time"

	"github.com/tidegate/tidegate"
)

// An Item is one message of a queue: of a T of the user. The caller sets the first part before
// [Queue.Add], and the second part while the item is in a request.
type Item[T Sharer, C any] struct {
	Of      T // the struct of the user that has the item
	Message *tidegate.Message
	Size    int // estimate of the encoded bytes

	Due   time.Time   // not to be sent before
	By    *Lane[T, C] // whose server is not to get the message before Until; nil if none requested that
	Until time.Time
	Avoid string // the endpoint where the last attempt failed
	Limit int    // the most messages of its next request; 0 for no limit

	held     tidegate.Message  // the message, if SetMessage was called
	alone    unit[T, C]        // of a message without a message group
	unit     *unit[T, C]       // nil before it is queued, and after it was removed from the queue
	place    Link[*Item[T, C]] // in unit.items
	req      *Request[T, C]    // that it is in, else nil
	asked    uint64            // Queue.asked when it became ready
	returned bool              // it was in a request before
}

// blocked reports whether the server of l requested to get the message later.
func (it *Item[T, C]) blocked(l *Lane[T, C], now time.Time) bool {
	return it.By == l && now.Before(it.Until)
}

// A Sharer is a struct of the queue's user that has an item.
type Sharer interface {
	// Share is the time that the message's next attempt gets.
	Share(now time.Time) time.Duration
}

// SetMessage sets the item's message, with a new ID if msg has none. The message shares the body,
// the keys and the properties of msg.
func (it *Item[T, C]) SetMessage(msg *tidegate.Message) {
	it.held = *msg
	if it.held.ID == "" {
		it.held.ID = tidegate.NewMessageID()
	}
	it.Message, it.Size = &it.held, SizeOf(&it.held)
}

// Request returns the request that the message is in, nil if there is none.
func (it *Item[T, C]) Request() *Request[T, C] { return it.req }

// Queued reports whether the message is in a queue, and in no request.
func (it *Item[T, C]) Queued() bool { return it.unit != nil && it.req == nil }

// SizeOf estimates the encoded size of a message from above.
func SizeOf(m *tidegate.Message) int {
	size := 512 + len(m.Body) + len(m.ID) + len(m.Topic) + len(m.Tag) + len(m.MessageGroup) + len(m.TraceContext)
	for _, k := range m.Keys {
		size += len(k) + 8
	}
	for k, v := range m.Properties {
		size += len(k) + len(v) + 16
	}
	return size
}
