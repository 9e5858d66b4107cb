package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// A Progress is the state of a group in one topic: a row of group list, and an object of its JSON
// lines.
type Progress struct {
	Group string `json:"group"`
	status.Subscription
}

// GroupColumns are the columns of group list.
var GroupColumns = []output.Column[Progress]{
	{Name: "GROUP", Cell: func(p Progress) any { return p.Group }},
	{Name: "TOPIC", Cell: func(p Progress) any { return cmp.Or(p.Topic, "-") }},
	{Name: "READY", Cell: func(p Progress) any { return p.Ready }},
	{Name: "FLIGHT", Cell: func(p Progress) any { return p.Inflight }},
	{Name: "RETRY", Cell: func(p Progress) any { return p.WaitingRetry }},
	{Name: "PARKED", Cell: func(p Progress) any { return p.Parked }},
	{Name: "BACKLOG", Cell: func(p Progress) any { return p.Backlog.Messages }},
	{Name: "BYTES", Wide: true, Cell: func(p Progress) any { return output.Bytes(p.Backlog.Bytes) }},
	{Name: "ACKED", Wide: true, Cell: func(p Progress) any { return p.Acked }},
	{Name: "REDELIVERED", Wide: true, Cell: func(p Progress) any { return p.Redelivered }},
	{Name: "DIED", Cell: func(p Progress) any { return p.DeadLetters }},
	{Name: "NOTE", Cell: func(p Progress) any { return progressNote(p) }},
}

// progressNote is the next command for a group that needs help.
func progressNote(p Progress) string {
	switch {
	case p.ParkedGroups > 0:
		return fmt.Sprintf("%s parked: tidegate parked list %s", output.Count(p.ParkedGroups, "message group"), p.Group)
	case p.BlockedGroups > 0:
		return output.Count(p.BlockedGroups, "message group") + " blocked by a failing message"
	}
	return ""
}

// Attempts is a maximum of attempts.
func Attempts(n int) string {
	if n < 0 {
		return "none"
	}
	return output.Number(int64(n))
}

// Ladder is the retry schedule of a group with the sum of its waits.
func Ladder(g settings.Group) string {
	if g.FIFO {
		return output.Duration(g.Interval(1)) + " each"
	}
	n := g.MaxAttempts - 1
	if n < 0 {
		n = len(g.Ladder())
	}
	var waits []string
	var sum time.Duration
	for attempt := 1; attempt <= n && attempt <= 100; attempt++ {
		sum += g.Interval(attempt)
		if attempt <= 8 {
			waits = append(waits, output.Duration(g.Interval(attempt)))
		}
	}
	text := strings.Join(waits, " ")
	if n > 8 {
		text += fmt.Sprintf(" … (%d waits)", n)
	}
	return cmp.Or(text, "no retry") + ", " + output.Duration(sum) + " in all"
}
