package deadletter

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/fingerprint"
)

// A Letter is a dead letter.
type Letter struct {
	// Message is the message. Its Topic is the topic with the dead letter. Its Body is nil if the
	// letter was listed without bodies.
	Message tidegate.Message

	// Origin has the origin of the message and the reason why it became a dead letter. RocketMQ
	// records neither; there all fields except Redrives are zero.
	Origin tidegate.DeadLetter

	StoredAt time.Time // time at which it became a dead letter
	BodySize int       // in bytes

	page     string                   // of a Broker: start of its page, or of a page that begins with it
	filter   *status.DeadLetterFilter // of a Broker: of its page
	queue    int                      // of a Broker: its place
	offset   int64
	delivery *tidegate.Delivery // of a Queue
	born     time.Time          // of a Queue
}

// at tells a letter from others with its ID: the place of the original message, and its time if it
// was received.
func (l *Letter) at() string {
	at := strconv.Itoa(l.Origin.Queue) + "/" + strconv.FormatInt(l.Origin.Offset, 10)
	if !l.born.IsZero() {
		at += " born " + strconv.FormatInt(l.born.UnixMilli(), 10)
	}
	return at
}

// Generation returns the number of earlier redrives of the message.
func (l *Letter) Generation() int { return l.Origin.Redrives }

// Fingerprint returns a hash of the original topic and the first line of the reason, as 12
// hexadecimal digits. It ignores upper and lower case, words with digits and quoted texts in the
// reason. For example, "order 17 not found" and "order 18 not found" have the same fingerprint.
func (l *Letter) Fingerprint() string {
	return fingerprint.Of(l.Origin.Topic, l.Origin.Reason)
}

// A Filter selects the dead letters that match all of its fields. A zero field matches every
// letter.
type Filter struct {
	Topic       string    // topic of the original send
	MessageIDs  []string  // any of these
	Reason      string    // a part of the reason; upper and lower case differ
	Fingerprint string    // see Letter.Fingerprint
	Since       time.Time // it became a dead letter at this time or later
	Before      time.Time // it became a dead letter before this time

	// Match is called for dead letters that match all other fields, and reports whether to select
	// them. Nil means no further condition.
	Match func(*Letter) bool
}

// matches reports whether the filter selects a letter.
func (f *Filter) matches(l *Letter) bool {
	return (f.Topic == "" || f.Topic == l.Origin.Topic) &&
		(len(f.MessageIDs) == 0 || slices.Contains(f.MessageIDs, l.Message.ID)) &&
		strings.Contains(l.Origin.Reason, f.Reason) &&
		(f.Fingerprint == "" || f.Fingerprint == l.Fingerprint()) &&
		(f.Since.IsZero() || !l.StoredAt.Before(f.Since)) &&
		(f.Before.IsZero() || l.StoredAt.Before(f.Before)) &&
		(f.Match == nil || f.Match(l))
}

// onBroker is the part of the filter that a broker applies itself.
func (f *Filter) onBroker() status.DeadLetterFilter {
	return status.DeadLetterFilter{Topic: f.Topic, MessageIDs: f.MessageIDs, Reason: f.Reason, Since: f.Since, Before: f.Before}
}
