package broker

import (
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A sendOrder keeps the messages of one message group in the order of their
// Append: none is stored while one before it is not, but may be later. Its zero
// value is ready for use.
type sendOrder struct {
	refused map[inOrder]refused // of which a message was refused for now
	behind  map[inOrder]bool    // of which a message is suspected to be a duplicate, in this write
	held    []int               // messages that wait behind one of these, in this write
}

// inOrder is a message group of a topic.
type inOrder struct {
	topic *topic.Topic
	group string
}

type refused struct {
	at    int // the first of them
	err   error
	limit string // that refused it; empty for another reason
}

// begin begins a write.
func (o *sendOrder) begin() { o.behind, o.held = nil, nil }

// suspect notes that a message was left out of a write: whether it is a duplicate is not known yet.
func (o *sendOrder) suspect(t *topic.Topic, group string) {
	if group == "" {
		return
	}
	if o.behind == nil {
		o.behind = map[inOrder]bool{}
	}
	o.behind[inOrder{t, group}] = true
}

// hold reports whether a message has to wait behind one that was left out, and notes that it does.
func (o *sendOrder) hold(i int, t *topic.Topic, group string) bool {
	if group == "" || !o.behind[inOrder{t, group}] {
		return false
	}
	o.held = append(o.held, i)
	return true
}

// refuse refuses a message for now, and has those behind it in its message group refused too.
func (a *appending) refuse(i int, t *topic.Topic, err error, limit string) {
	a.results[i].Err = fail.WithOp("SendMessage", err)
	if limit != "" {
		a.broker.counters.countThrottled(limit)
	}
	if group := a.msgs[i].MessageGroup; group != "" {
		if a.order.refused == nil {
			a.order.refused = map[inOrder]refused{}
		}
		if r, ok := a.order.refused[inOrder{t, group}]; !ok || i < r.at {
			a.order.refused[inOrder{t, group}] = refused{i, err, limit}
		}
	}
}

// refusedBefore refuses a message if one before it in its message group was refused for now.
func (a *appending) refusedBefore(i int, t *topic.Topic) bool {
	group := a.msgs[i].MessageGroup
	if group == "" {
		return false
	}
	r, ok := a.order.refused[inOrder{t, group}]
	if !ok || i < r.at {
		return false
	}
	a.refuse(i, t, r.err, r.limit)
	return true
}

// refuseAll refuses all messages that were not refused before.
func (a *appending) refuseAll(err error, limit string) {
	for i, t := range a.topics {
		if t != nil {
			a.refuse(i, t, err, limit)
		}
	}
}
