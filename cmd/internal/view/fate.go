package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Sentence returns one sentence with the reason why a group has not consumed a message, or that it
// has consumed it.
func Sentence(f *status.Fate, style output.TimeStyle, now time.Time) string {
	text := sentence(f, style, now)
	if f.Topic != "" {
		text += " (it was redriven to the group alone)"
	}
	return text
}

func sentence(f *status.Fate, style output.TimeStyle, now time.Time) string {
	at := func(t time.Time) string {
		if style == output.Relative {
			return style.Time(t, now)
		}
		return "at " + style.Time(t, now)
	}
	again := attempt(f.Attempt+1, f.MaxAttempts)
	because := ""
	if reason := lastReason(f); reason != "" {
		because = ", because: " + output.Safe(reason)
	}
	group := output.Safe(f.Group)
	switch f.State {
	case "new":
		text := group + " has not received it: it is the next of its queue"
		if f.Ahead > 0 {
			text = fmt.Sprintf("%s has not received it: %s of its queue come first", group, output.Count(f.Ahead, "message"))
		}
		if f.Behind != nil {
			text += ", and " + theMessage(f.Behind) + " of its message group is not done"
		}
		return text + "; " + waiting(f.Waiting)
	case "ready":
		if f.Behind != nil {
			return fmt.Sprintf("%s holds it until %s of its message group is done", group, theMessage(f.Behind))
		}
		return fmt.Sprintf("%s delivers it to the next receive (%s); %s", group, again, waiting(f.Waiting))
	case "held":
		return fmt.Sprintf("%s holds it until %s of its message group is done", group, theMessage(f.Behind))
	case "inflight":
		text := fmt.Sprintf("%s has delivered it (%s), and its lease ends %s", group, attempt(f.Attempt, f.MaxAttempts), at(f.Due))
		if f.Owner != "" {
			text += " unless client " + output.Safe(f.Owner) + " extends it"
		}
		return text
	case "waiting_retry":
		if f.Blocked {
			return fmt.Sprintf("%s retries it without end, next %s (attempt %d), and its message group waits for it%s", group, at(f.Due), f.Attempt+1, because)
		}
		return fmt.Sprintf("%s retries it %s (%s)%s", group, at(f.Due), again, because)
	case "parked":
		redrive := shell.Mention(shell.Line("tidegate parked redrive", f.Group))
		if f.Behind != nil {
			return fmt.Sprintf("%s has parked its message group: it waits for %s%s; %s releases it", group, theMessage(f.Behind), because, redrive)
		}
		return fmt.Sprintf("%s has parked it and its message group %s, after %s%s; %s releases them", group, at(f.Due), output.Count(int64(f.Attempt), "attempt"), because, redrive)
	case "leaving":
		return group + " is writing it to the dead letters"
	case "dead_letter":
		if f.DeadLetter == nil {
			return group + " has given it up: its dead letter was sent back or purged, or it was sent again through a retry topic"
		}
		return fmt.Sprintf("%s has given it up after %s: it is a dead letter since %s%s; %s shows it",
			group, output.Count(int64(f.Attempt), "attempt"), style.Time(f.DeadLetter.StoredAt, now), because, shell.Mention(shell.Line("tidegate dead-letters show", f.Group, f.DeadLetter.MessageID)))
	}
	return group + " is done with it: it was acknowledged, or a filter, the start position or a rewind has skipped it"
}

// lastReason is the reason of a dead letter or a parked message group, or else that of the last
// failure.
func lastReason(f *status.Fate) string {
	if f.Reason != "" || len(f.Failures) == 0 {
		return f.Reason
	}
	return f.Failures[len(f.Failures)-1].Reason
}

// Failed returns one sentence about a failed delivery: the failure, its reason, and the action of
// the broker.
func Failed(f *status.Failure, style output.TimeStyle, now time.Time) string {
	what := map[string]string{
		"failed": "failed", "timeout": "was not settled before its lease ended", "negative_ack": "was returned for a later delivery",
		"dead_letter": "was given up by the consumer", "reconsume_later": "was sent to the retry topic by the consumer",
	}[f.Cause]
	client := ""
	if f.Client != "" {
		client = " at client " + output.Safe(f.Client)
	}
	text := fmt.Sprintf("%s: attempt %d%s %s", style.Time(f.Time, now), f.Attempt, client, cmp.Or(what, output.Safe(f.Cause)))
	if f.Reason != "" {
		text += ": " + output.Safe(f.Reason)
	}
	after := " after " + output.Duration(time.Duration(f.Delay))
	then := map[string]string{
		"retry": "delivered again" + after, "blocked": "delivered again" + after + ", and its message group waits", "dead_letter": "it became a dead letter",
		"parked": "its message group is parked", "retry_topic": "delivered again" + after + " from the retry topic", "removed": "it was removed",
	}[f.Fate]
	return text + "; " + cmp.Or(then, output.Safe(f.Fate))
}

// attempt is "attempt 3 of 17", or "attempt 3" without a maximum.
func attempt(n, most int) string {
	if most <= 0 || n > most {
		return fmt.Sprintf("attempt %d", n)
	}
	return fmt.Sprintf("attempt %d of %d", n, most)
}

func waiting(n int64) string {
	switch n {
	case 0:
		return "no consumer waits for messages"
	case 1:
		return "1 receive waits for messages"
	}
	return fmt.Sprintf("%v receives wait for messages", output.Number(n))
}

// theMessage names a message: by its ID, or by its place if it has none.
func theMessage(m *status.StoredMessage) string {
	if m == nil {
		return "an earlier message"
	}
	return "message " + cmp.Or(output.Safe(m.ID), fmt.Sprintf("%d of queue %d", m.Offset, m.Queue))
}

// Redriven has the messages before and after a redrive with a new ID, which an edited dead letter
// has.
type Redriven struct {
	As    string `json:"redriven_as,omitempty"`   // ID of the message that was sent back
	First string `json:"redriven_from,omitempty"` // ID of the message before all redrives
}

// Text returns a line for each message with the command that traces it.
func (r Redriven) Text(trace func(id string) string) (text string) {
	if r.First != "" {
		text += fmt.Sprintf("  it was sent back for the dead letter of message %s: %s\n", output.Safe(r.First), trace(r.First))
	}
	if r.As != "" {
		text += fmt.Sprintf("  its dead letter was sent back as message %s: %s\n", output.Safe(r.As), trace(r.As))
	}
	return text
}

// Trace returns the text of a trace in one topic: the messages, each with the beginning of its body
// and a sentence for each group.
func Trace(topic, id string, t *status.Trace, style output.TimeStyle, now time.Time) string {
	var b strings.Builder
	name := output.Safe(topic)
	if !t.DeliverAt.IsZero() {
		fmt.Fprintf(&b, "message %s waits for its delivery time in topic %s: %s\n", output.Safe(id), name, style.Time(t.DeliverAt, now))
	}
	if t.Half {
		fmt.Fprintf(&b, "message %s belongs to a transaction in topic %s that was neither committed nor rolled back: no group receives it\n", output.Safe(id), name)
	}
	for i := range t.Messages {
		m := &t.Messages[i]
		fmt.Fprintf(&b, "message %s in topic %s, queue %d, offset %d, stored %s", output.Safe(m.ID), name, m.Queue, m.Offset, style.Time(m.StoredAt, now))
		if m.MessageGroup != "" {
			fmt.Fprintf(&b, ", message group %s", output.Safe(m.MessageGroup))
		}
		b.WriteString("\n")
		if body := Body(m.Body, m.BodyText); body != "" {
			fmt.Fprintf(&b, "  its body has %v: %s\n", output.Bytes(m.BodySize), output.Safe(FirstLine(body)))
		}
		for g := range m.Groups {
			fmt.Fprintf(&b, "  %s\n", Sentence(&m.Groups[g], style, now))
			for i := range m.Groups[g].Failures {
				fmt.Fprintf(&b, "    %s\n", Failed(&m.Groups[g].Failures[i], style, now))
			}
		}
		group, letters := strings.CutPrefix(topic, tidegate.DeadLetterTopic(""))
		switch {
		case len(m.Groups) > 0:
		case letters:
			fmt.Fprintf(&b, "  it is a dead letter of group %s there\n", output.Safe(group))
		default:
			b.WriteString("  no group receives from the topic\n")
		}
	}
	return b.String()
}
