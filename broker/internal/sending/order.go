package sending

import (
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// An order keeps the messages of one message group in the order of their Append: a message is not
// stored while an earlier one is not, but may be stored later. The zero value is ready for use.
type order struct {
	rejected map[group]rejection // message groups with a message that was rejected for now
	behind   map[group]bool      // message groups with a suspected duplicate, in this write
	held     []int               // messages that wait behind one of these duplicates, in this write
}

// A group is a message group of a topic.
type group struct {
	topic *topic.Topic
	name  string
}

// A rejection is the first rejected message of a message group.
type rejection struct {
	at    int
	err   error
	limit string // the limit that rejected it; empty for another reason
}

// begin begins a write.
func (o *order) begin() { o.behind, o.held = nil, nil }

// suspect notes that a message was left out of a write because it may be a duplicate.
func (o *order) suspect(t *topic.Topic, name string) {
	if name == "" {
		return
	}
	if o.behind == nil {
		o.behind = map[group]bool{}
	}
	o.behind[group{t, name}] = true
}

// hold reports whether a message must wait behind one that was left out, and notes it if so.
func (o *order) hold(i int, t *topic.Topic, name string) bool {
	if name == "" || !o.behind[group{t, name}] {
		return false
	}
	o.held = append(o.held, i)
	return true
}

// reject rejects a message for now. The later messages of its message group will be rejected too.
func (a *appending) reject(i int, t *topic.Topic, err error, limit string) {
	a.results[i].Err = refusal.WithOp("SendMessage", err)
	if limit != "" {
		a.Throttled.Add(limit)
	}
	if name := a.messages[i].MessageGroup; name != "" {
		if a.order.rejected == nil {
			a.order.rejected = map[group]rejection{}
		}
		if r, ok := a.order.rejected[group{t, name}]; !ok || i < r.at {
			a.order.rejected[group{t, name}] = rejection{i, err, limit}
		}
	}
}

// rejectedBefore rejects a message if an earlier one of its message group was rejected for now.
func (a *appending) rejectedBefore(i int, t *topic.Topic) bool {
	name := a.messages[i].MessageGroup
	if name == "" {
		return false
	}
	r, ok := a.order.rejected[group{t, name}]
	if !ok || i < r.at {
		return false
	}
	a.reject(i, t, r.err, r.limit)
	return true
}

// rejectAll rejects all messages that have no result yet.
func (a *appending) rejectAll(err error, limit string) {
	for i, t := range a.topics {
		if t != nil {
			a.reject(i, t, err, limit)
		}
	}
}
