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

// A Progress is the state of a group in one topic.
type Progress struct {
	Group string `json:"group"`
	status.Subscription
}

// ListColumns are the columns of group list. The broker leaves a rate out that is 0 or not known.
var ListColumns = []output.Column[status.GroupSummary]{
	{Name: "GROUP", Cell: func(g status.GroupSummary) any { return g.Group }},
	{Name: "TOPIC", Cell: func(g status.GroupSummary) any { return cmp.Or(g.Topic, "-") }},
	{Name: "READY", Cell: func(g status.GroupSummary) any { return g.Ready }},
	{Name: "FLIGHT", Cell: func(g status.GroupSummary) any { return g.Inflight }},
	{Name: "RETRY", Cell: func(g status.GroupSummary) any { return g.WaitingRetry }},
	{Name: "PARKED", Cell: func(g status.GroupSummary) any { return g.Parked }},
	{Name: "BLOCKED", Cell: func(g status.GroupSummary) any { return g.Blocked }},
	{Name: "BACKLOG", Cell: func(g status.GroupSummary) any { return g.Backlog.Messages }},
	{Name: "BYTES", Wide: true, Cell: func(g status.GroupSummary) any { return output.Bytes(g.Backlog.Bytes) }},
	{Name: "OLDEST", Cell: func(g status.GroupSummary) any { return milliseconds(g.OldestMS) }},
	{Name: "UNDELIVERED", Wide: true, Cell: func(g status.GroupSummary) any { return milliseconds(g.UndeliveredMS) }},
	{Name: "OUT/S", Cell: func(g status.GroupSummary) any { return knownRate(g.OutRate) }},
	{Name: "DRAINS", Cell: drains},
	{Name: "CLIENTS", Wide: true, Cell: func(g status.GroupSummary) any { return g.Clients }},
	{Name: "WAITING", Wide: true, Cell: func(g status.GroupSummary) any { return g.Waiting }},
	{Name: "ACKED", Wide: true, Cell: func(g status.GroupSummary) any { return g.Acked }},
	{Name: "FILTERED", Wide: true, Cell: func(g status.GroupSummary) any { return g.Filtered }},
	{Name: "REDELIVERED", Wide: true, Cell: func(g status.GroupSummary) any { return g.Redelivered }},
	{Name: "DIED", Wide: true, Cell: func(g status.GroupSummary) any { return g.DeadLetters }},
	{Name: "DEAD", Cell: func(g status.GroupSummary) any { return g.DeadLettersStored }},
	{Name: "DEAD/H", Wide: true, Cell: func(g status.GroupSummary) any { return g.DeadLettersHour }},
	{Name: "NOTE", Cell: func(g status.GroupSummary) any { return progressNote(g.Group, g.ParkedGroups, g.BlockedGroups, g.Held) }},
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func knownRate(r float64) output.Rate {
	if r == 0 {
		return -1
	}
	return output.Rate(r)
}

// drains is the time in which a group finishes its backlog if nothing else is sent; nil if that is
// not known.
func drains(g status.GroupSummary) any {
	switch {
	case g.Backlog.Messages == 0:
		return time.Duration(0)
	case g.OutRate == 0:
		return nil
	}
	return time.Duration(float64(g.Backlog.Messages) / g.OutRate * float64(time.Second)).Round(time.Second)
}

// GroupColumns are the columns of the topics in group show.
var GroupColumns = []output.Column[Progress]{
	{Name: "GROUP", Cell: func(p Progress) any { return p.Group }},
	{Name: "TOPIC", Cell: func(p Progress) any { return cmp.Or(p.Topic, "-") }},
	{Name: "READY", Cell: func(p Progress) any { return p.Ready }},
	{Name: "FLIGHT", Cell: func(p Progress) any { return p.Inflight }},
	{Name: "RETRY", Cell: func(p Progress) any { return p.WaitingRetry }},
	{Name: "PARKED", Cell: func(p Progress) any { return p.Parked }},
	{Name: "BLOCKED", Cell: func(p Progress) any { return p.Blocked }},
	{Name: "BACKLOG", Cell: func(p Progress) any { return p.Backlog.Messages }},
	{Name: "BYTES", Wide: true, Cell: func(p Progress) any { return output.Bytes(p.Backlog.Bytes) }},
	{Name: "ACKED", Wide: true, Cell: func(p Progress) any { return p.Acked }},
	{Name: "FILTERED", Cell: func(p Progress) any { return p.Filtered }},
	{Name: "REDELIVERED", Wide: true, Cell: func(p Progress) any { return p.Redelivered }},
	{Name: "DIED", Cell: func(p Progress) any { return p.DeadLetters }},
}

// HeldBy names the client that holds its messages longest.
func HeldBy(h *status.Holding, now time.Time) output.Text {
	client := "a client from before the restart of the broker"
	if h.Client != "" {
		client = "client " + h.Client
	}
	return output.Textf("%s has held %s for %s", client, output.Count(h.Messages, "message"), output.Duration(now.Sub(h.Since).Truncate(time.Second)))
}

// progressNote is the next command for a group that needs help.
func progressNote(group string, parked, blocked int64, held *status.Holding) any {
	switch {
	case parked > 0:
		return output.Textf("%s parked: %s", output.Count(parked, "message group"), parkedCommand(group))
	case blocked > 0:
		return output.Textf("%s blocked: %s", output.Count(blocked, "message group"), parkedCommand(group))
	case held.Long(time.Now()):
		return HeldBy(held, time.Now())
	}
	return ""
}

// Attempts is a maximum of attempts.
func Attempts(n int) any {
	if n < 0 {
		return "none"
	}
	return n
}

// Ladder is the retry schedule of a group with the sum of its waits.
func Ladder(g settings.Group) output.Text {
	if g.FIFO {
		return output.Textf("%s each", output.Duration(g.Interval(1)))
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
	return output.Textf("%s, %s in all", cmp.Or(text, "no retry"), output.Duration(sum))
}
