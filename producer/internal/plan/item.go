package plan

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/internal/list"
)

// An Item is one message of a queue. The caller sets the first part before
// [Queue.Add], and the second part while the item is in a request.
type Item struct {
	Owner   Owner
	Message *tidegate.Message
	Size    int // estimate of the encoded bytes

	Due   time.Time // not to be sent before
	Avoid string    // the endpoint where the last attempt failed
	Limit int       // the most messages of its next request; 0 for no limit

	copied   tidegate.Message // the message, if Copy was called
	alone    unit             // of a message without a message group
	unit     *unit            // nil before it is queued, and after it was removed from the queue
	place    list.Link[*Item] // in unit.items
	req      *Request         // that it is in, else nil
	asked    uint64           // Queue.asked when it became ready
	returned bool             // it was in a request before
}

// An Owner is the struct of the queue's user that has an item.
type Owner interface {
	// Share is the time that the message's next attempt gets.
	Share(now time.Time) time.Duration
}

// Copy replaces the item's message by a copy of msg. A send returns when its ctx ends, and its
// caller may then change msg while the transport still reads the message of a request under way.
func (it *Item) Copy(msg *tidegate.Message) {
	it.copied = *msg
	it.copied.Keys, it.copied.Properties = slices.Clone(msg.Keys), maps.Clone(msg.Properties)
	it.copied.Body = bytes.Clone(msg.Body)
	it.Message = &it.copied
}

// Request returns the request that the message is in, nil if there is none.
func (it *Item) Request() *Request { return it.req }

// Queued reports whether the message is in a queue, and in no request.
func (it *Item) Queued() bool { return it.unit != nil && it.req == nil }

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
