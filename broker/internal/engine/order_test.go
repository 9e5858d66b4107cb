package engine

import (
	"slices"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// appendingOf returns the Append of one message of each message group to one topic; "" means no
// message group.
func appendingOf(groups ...string) (*appending, *Topic) {
	to := newDirectory()["FIFO"]
	a := &appending{
		Sending: NewSending(SendingConfig{Throttled: new(Counters)}), messages: make([]Incoming, len(groups)),
		topics: make([]*Topic, len(groups)), results: make([]transport.SendResult, len(groups)),
	}
	for i := range a.topics {
		a.topics[i] = to
		a.messages[i].Message = &tidegate.Message{Topic: to.Name(), MessageGroup: groups[i]}
	}
	return a, to
}

// After a rejected message, the later messages of its message group are rejected with the same
// error. Earlier messages, other message groups and messages without a group are not.
func TestRejectionsKeepTheOrder(t *testing.T) {
	t.Parallel()
	full := &tidegate.Error{Code: tidegate.CodeTooManyRequests, Message: "full"}
	for name, c := range map[string]struct {
		groups   []string
		rejected int // the message that a limit rejects
		want     []int
	}{
		"the first of a group":    {[]string{"a", "a", "b", "a"}, 0, []int{0, 1, 3}},
		"the second of a group":   {[]string{"a", "a", "b", "a"}, 1, []int{1, 3}},
		"the last of a group":     {[]string{"a", "a", "b", "a"}, 3, []int{3}},
		"a message without group": {[]string{"", "", "a"}, 0, []int{0}},
	} {
		a, to := appendingOf(c.groups...)
		a.reject(c.rejected, to, full, "backlog")
		var got []int
		for i := range c.groups {
			if i == c.rejected || a.rejectedBefore(i, to) {
				got = append(got, i)
			}
			if err := a.results[i].Err; err != nil && codeOf(err) != tidegate.CodeTooManyRequests {
				t.Errorf("%s: message %d: %v", name, i, err)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the messages %v are rejected, want %v", name, got, c.want)
		}
	}
}

// If the whole rest is rejected, messages that have a result keep it.
func TestRejectAllKeepsResults(t *testing.T) {
	t.Parallel()
	a, _ := appendingOf("a", "a", "")
	a.topics[1] = nil // it is stored, or a duplicate
	a.rejectAll(&tidegate.Error{Code: tidegate.CodeTooManyRequests}, "room")
	for i, want := range []tidegate.Code{tidegate.CodeTooManyRequests, 0, tidegate.CodeTooManyRequests} {
		if got := codeOf(a.results[i].Err); got != want {
			t.Errorf("message %d: code %d, want %d", i, got, want)
		}
	}
}

// A message waits behind a suspected duplicate of its message group in the same topic until the
// next write.
func TestMessagesWaitBehindASuspectedDuplicate(t *testing.T) {
	t.Parallel()
	all := newDirectory()
	one, other := all["FIFO"], all["NORMAL"]
	var o order
	o.begin()
	o.suspect(one, "a")
	o.suspect(one, "")
	for i, c := range []struct {
		to    *Topic
		group string
		want  bool
	}{{one, "a", true}, {one, "b", false}, {one, "", false}, {other, "a", false}, {one, "a", true}} {
		if got := o.hold(i, c.to, c.group); got != c.want {
			t.Errorf("message of group %q of topic %s waits: %t, want %t", c.group, c.to.Name(), got, c.want)
		}
	}
	if !slices.Equal(o.held, []int{0, 4}) {
		t.Errorf("the messages %v wait, want the first and the last", o.held)
	}
	o.begin()
	if o.hold(0, one, "a") || len(o.held) > 0 {
		t.Error("a message waits in the next write")
	}
}
