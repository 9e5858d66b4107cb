package status

import (
	"time"

	"github.com/tidegate/tidegate"
)

// A DeadLetter is a dead letter in its topic.
type DeadLetter struct {
	MessageID    string            `json:"message_id"`
	Queue        int               `json:"queue"` // queue of the dead letter, as is Offset
	Offset       int64             `json:"offset"`
	StoredAt     time.Time         `json:"stored_at"` // time at which it became a dead letter
	BornAt       time.Time         `json:"born_at"`   // time of the send
	BornHost     string            `json:"born_host,omitempty"`
	MessageGroup string            `json:"message_group,omitempty"`
	LiteTopic    string            `json:"lite_topic,omitempty"`
	Priority     int               `json:"priority,omitempty"`
	Tag          string            `json:"tag,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	TraceContext string            `json:"trace_context,omitempty"` // W3C traceparent of the send
	BodySize     int               `json:"body_size"`               // in bytes, also without Body
	Body         []byte            `json:"body,omitempty"`          // nil unless the query asks for bodies
	BodyText     string            `json:"body_text,omitempty"`     // instead of Body, if the query asks for text
	Properties   map[string]string `json:"properties,omitempty"`

	// Origin is the message that became a dead letter, with the reason. It is zero for a message
	// that was sent to the topic. Properties do not repeat it.
	Origin tidegate.DeadLetter `json:"origin"`
}

// A DeadLetterFilter selects the dead letters of a group that match each field that is not zero.
// The zero value selects all.
type DeadLetterFilter struct {
	Topic      string    `json:"topic,omitempty"`       // topic of the original send
	MessageIDs []string  `json:"message_ids,omitempty"` // any of these
	Reason     string    `json:"reason,omitempty"`      // a part of the reason
	Since      time.Time `json:"since,omitzero"`        // it became a dead letter at this time or later
	Before     time.Time `json:"before,omitzero"`       // it became a dead letter before this time

	// Fingerprint is that of the original topic and the reason, see DeadLetterClass.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// A DeadLetterQuery selects one page of dead letters.
type DeadLetterQuery struct {
	DeadLetterFilter
	In     string // topic with the dead letters, see Group.DeadLetterTopics; empty means %DLQ%group
	After  string // Next of the previous page; empty means the first page
	Limit  int    // at most 1000; 0 means 100
	Bodies bool   // include the bodies
	Text   bool   // include them, a body in UTF-8 as BodyText
	Newest bool   // the newest letter of each queue first, and the queues in descending order
}

// A DeadLetterPage is one page of dead letters, the oldest of each queue first, unless the query
// has Newest. A page that is not the last can have fewer dead letters than the limit, or none,
// because a call reads a bounded number of messages.
type DeadLetterPage struct {
	DeadLetters []DeadLetter `json:"dead_letters"`
	Next        string       `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A DeadLetterSelection selects the dead letters of a redrive or purge.
type DeadLetterSelection struct {
	DeadLetterFilter

	// In is the topic with the dead letters, see Group.DeadLetterTopics. Empty means %DLQ%group. If
	// a message has a dead letter in each of two topics, a redrive from both sends it twice.
	In string `json:"dead_letter_topic,omitempty"`

	After string `json:"after,omitempty"` // Next of the previous result; empty means from the first letter
	Limit int    `json:"limit,omitempty"` // dead letters of this call, at most 100 000; 0 means 1000

	// To is the target topic of a redrive. Empty means the topic of each message's original send.
	To string `json:"to,omitempty"`

	// ToGroupOnly redrives to the group alone: the other groups of the topic do not receive the
	// message again. The group must not be FIFO, and To must be empty. For redrives only.
	ToGroupOnly bool `json:"to_group_only,omitempty"`

	// MaxRedrives excludes messages with at least that many earlier redrives. Zero means no bound.
	// For redrives only.
	MaxRedrives int `json:"max_redrives,omitempty"`

	// Edit changes the one letter that MessageIDs selects. After must be empty, and Newest false.
	// For redrives only. Nil means no change.
	Edit *DeadLetterEdit `json:"edit,omitempty"`

	// SentAs is the ID of the message that the client has sent in place of the one selected letter,
	// for example with a changed body. The audit has it in the query of the record; the broker does
	// not check it. For purges only.
	SentAs string `json:"-"`

	// Newest is that of DeadLetterQuery.
	Newest bool `json:"newest,omitempty"`

	// DryRun changes nothing. The result has the counts that the call would have without a
	// throttle.
	DryRun bool `json:"dry_run,omitempty"`
}

// A DeadLetterEdit changes a dead letter that a redrive sends back. The message group, the trace
// context and the properties that the edit does not name stay.
type DeadLetterEdit struct {
	// Queue and Offset are the place of the dead letter. The redrive has no effect if the dead
	// letter with this place and the selected ID is gone.
	Queue  int   `json:"queue"`
	Offset int64 `json:"offset"`

	// ID is the new ID of the message. Empty means the first ID of the message, followed by
	// ".redrive-" and the number of the redrive.
	ID string `json:"id,omitempty"`

	Body     []byte `json:"body,omitempty"`      // empty means the body stays, unless BodyText is set
	BodyText string `json:"body_text,omitempty"` // instead of Body

	Tag  *string  `json:"tag,omitzero"`  // an empty text removes the tag; nil means that it stays
	Keys []string `json:"keys,omitzero"` // instead of all keys; nil means that they stay

	// Properties has the new values of properties. Nil removes a property.
	Properties map[string]*string `json:"properties,omitempty"`
}

// A DeadLetterRedrive is the result of a redrive of dead letters.
type DeadLetterRedrive struct {
	Redriven int64 `json:"redriven"`

	// SentAs is the ID of the message that was stored for an edited dead letter. Empty without an
	// edit, and if nothing was sent.
	SentAs string `json:"sent_as,omitempty"`

	// NoTarget and TooOften are the numbers of dead letters that were not sent: because the topic
	// does not exist or does not accept such a message, and because of MaxRedrives.
	NoTarget int64 `json:"no_target"`
	TooOften int64 `json:"too_often"`

	// Next is the position to continue at. Empty at the end.
	Next string `json:"next,omitempty"`

	// Throttle is the throttle that ended the call before its limit. Nil if none did.
	Throttle *Throttle `json:"throttle,omitempty"`
}

// A DeadLetterCount is the number of dead letters that match a filter, among those that one call
// looked at.
type DeadLetterCount struct {
	Count int64  `json:"count"`
	Next  string `json:"next,omitempty"` // position to continue at; empty at the end
}

// A DeadLetterPurge is the result of a purge of dead letters.
type DeadLetterPurge struct {
	Purged int64  `json:"purged"`
	Next   string `json:"next,omitempty"` // position to continue at; empty at the end
}

// A DeadLetterClass counts the dead letters of a group in a topic whose reasons have one
// fingerprint: "order 17 not found" and "order 18 not found" are of one class.
type DeadLetterClass struct {
	Fingerprint string    `json:"fingerprint,omitempty"` // see deadletter.Letter.Fingerprint
	Topic       string    `json:"topic,omitempty"`       // topic of the original sends
	Reason      string    `json:"reason,omitempty"`      // of the latest letter, at most 256 bytes
	Count       int64     `json:"count"`                 // letters; a redrive or a removal subtracts its letters
	Share       float64   `json:"share"`                 // of all counted letters of the group in the topic, from 0 to 1
	First       time.Time `json:"first"`                 // when the first letter since the class had none was stored
	Last        time.Time `json:"last"`                  // when the last letter was stored
	MaxRedrives int       `json:"max_redrives"`          // the largest number of earlier redrives of a letter
}

// A DeadLetterClassQuery selects one page of classes.
type DeadLetterClassQuery struct {
	Topic string // topic of the original sends; empty means all
	In    string // topic with the dead letters, see Group.DeadLetterTopics; empty means %DLQ%group
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A DeadLetterClassPage is one page of classes, the largest first. The broker counts a dead letter
// when it stores the letter, so the page needs no search.
type DeadLetterClassPage struct {
	// Letters is the number of dead letters of the group in the topic that are counted. Messages
	// that were sent to the topic, and letters that were stored by a version without classes, are
	// not.
	Letters int64             `json:"letters"`
	Classes []DeadLetterClass `json:"classes"`

	// Other has the letters beyond the limits of 1000 classes for a group in a topic and 50 000 for
	// the broker. Nil if there are none.
	Other *DeadLetterClass `json:"other,omitempty"`

	Next string `json:"next,omitempty"` // After of the next page; empty on the last page
}
