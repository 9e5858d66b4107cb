// Package view turns the state of a broker into the rows, screens and sentences that users read. It
// has no I/O and no clock.
package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// A Problem is one thing that is wrong now, with the command that shows more.
type Problem struct {
	Kind    string      `json:"kind"` // throttle, parked, blocked, backlog, behind, dead-letters
	Subject string      `json:"subject"`
	Text    output.Text `json:"text"`
	Next    string      `json:"next"` // a command
}

// Troubled lists the problems of groups, the largest first. Stored has the stored messages of each
// topic.
func Troubled(groups []status.Group, stored map[string]int64) []Problem {
	type ranked struct {
		Problem
		weight int64
	}
	var out []ranked
	for _, g := range groups {
		for _, s := range g.Topics {
			subject := g.Name + " in " + s.Topic
			if s.ParkedGroups > 0 {
				out = append(out, ranked{Problem{"parked", subject, output.Textf("%s with %s wait after a failed message", output.Count(s.ParkedGroups, "message group"), output.Count(s.Parked, "message")),
					parkedCommand(g.Name)}, s.Parked})
			}
			if s.BlockedGroups > 0 {
				out = append(out, ranked{Problem{"blocked", subject, blockedText(s.BlockedGroups, s.Blocked), parkedCommand(g.Name)}, s.BlockedGroups})
			}
			if s.Ready > 0 && s.Inflight == 0 {
				out = append(out, ranked{Problem{"backlog", subject, output.Textf("%s ready and none in flight: does a consumer run?", output.Count(s.Ready, "message")),
					shell.Line("tidegate group show", g.Name)}, s.Ready})
			}
		}
		if n := DeadLetters(g, stored); n > 0 {
			out = append(out, ranked{Problem{"dead-letters", g.Name, output.Textf("%s of messages that failed in all attempts", output.Count(n, "dead letter")), shell.Line("tidegate dead-letters top", g.Name)}, n})
		}
	}
	slices.SortStableFunc(out, func(a, b ranked) int { return cmp.Compare(b.weight, a.weight) })
	list := make([]Problem, len(out))
	for i, r := range out {
		list[i] = r.Problem
	}
	return list
}

// ProblemText returns problems for a terminal, each with its text and the command that shows more.
// Lines of the text fit the terminal; a command is one line, so that it can be copied.
func ProblemText(list []Problem, columns int) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%s\n", output.Wrap(output.Safe(p.Kind)+": "+output.Safe(p.Subject), columns))
		text := output.Wrap(output.Safe(p.Text.Grouped()), columns-2)
		fmt.Fprintf(&b, "  %s\n  %s\n", strings.ReplaceAll(text, "\n", "\n  "), output.Safe(p.Next))
	}
	return b.String()
}

// blockedText describes blocked message groups with the messages that wait in them.
func blockedText(groups, messages int64) output.Text {
	return output.Textf("%s with %s waiting behind a message that is retried without end", output.Count(groups, "message group"), output.Count(messages, "message"))
}

// DeadLetters returns the number of stored dead letters of a group. Stored has the stored messages
// of each topic.
func DeadLetters(g status.Group, stored map[string]int64) int64 {
	var n int64
	for _, topic := range g.DeadLetterTopics {
		n += stored[topic]
	}
	return n
}
