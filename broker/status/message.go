package status

import "time"

// A StoredMessage is a message in a queue of a topic. It was not delivered by reading it.
type StoredMessage struct {
	ID           string    `json:"id"`
	Queue        int       `json:"queue"`
	Offset       int64     `json:"offset"`
	StoredAt     time.Time `json:"stored_at"`
	BornAt       time.Time `json:"born_at,omitzero"` // time of the send
	Tag          string    `json:"tag,omitempty"`
	MessageGroup string    `json:"message_group,omitempty"`
	BodySize     int64     `json:"body_size"` // in bytes, also without Body

	// DeliverAt is the delivery time of a delayed message, which is in no queue yet: its Queue and
	// Offset are -1. Zero for other messages.
	DeliverAt time.Time `json:"deliver_at,omitzero"`

	// The following fields are empty unless the query asks for Contents or Text.

	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	TraceContext string            `json:"trace_context,omitempty"` // W3C traceparent of the send
	Body         []byte            `json:"body,omitempty"`
	BodyText     string            `json:"body_text,omitempty"` // instead of Body, if the query asks for text
}

// A MessageFilter selects messages that match each field that is not empty.
type MessageFilter struct {
	ID           string
	Tag          string
	MessageGroup string
	Key          string            // one of the message's keys
	Properties   map[string]string // the message has all of them
	Contains     string            // a part of the body, byte by byte
}

// A MessageQuery selects one page of the stored messages of a topic, consumed or not.
type MessageQuery struct {
	MessageFilter

	// Queue selects one queue. Nil means all. Offset is the first offset of that queue, or with
	// Newest the last one; nil means no bound.
	Queue  *int
	Offset *int64

	// Since and Before bound the time at which messages were stored; Before is exclusive. Zero
	// means no bound.
	Since, Before time.Time

	// Delayed selects the messages that wait for their delivery time instead of those in the
	// queues. It excludes Queue, Offset and Newest.
	Delayed bool

	Newest   bool   // the newest messages first
	Contents bool   // include bodies, keys and properties
	Text     bool   // include them, a body in UTF-8 as BodyText
	Limit    int    // at most 1000; 0 means 100
	After    string // Next of the previous page with the same query; empty means the first page
}

// A MessagePage is one page of messages, in the order in which they were stored; in a topic with
// more than 64 queues, queue by queue. A call reads a bounded number of messages, so a page can
// have fewer messages than the limit, or none, before the last page.
type MessagePage struct {
	Messages []StoredMessage `json:"messages"`

	Scanned  int64     `json:"scanned"`           // messages that this call looked at
	Left     int64     `json:"left"`              // messages from here to the end of the query, about
	Reached  time.Time `json:"reached,omitzero"`  // when the last of the scanned messages was stored
	Complete bool      `json:"complete"`          // nothing is left
	Next     string    `json:"next,omitempty"`    // After of the next page; empty if Complete
	Corrupt  int64     `json:"corrupt,omitempty"` // messages that cannot be read
}
