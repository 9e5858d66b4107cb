package status

import "time"

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
