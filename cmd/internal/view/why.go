package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// sentences are the texts of the values of status.Subscription.Why, and their parts. The web
// console has the same ones, with the same keys (files/en.js of internal/console).
var sentences = map[string]string{
	"why parked":      "Parked after the last attempt: {0} message groups, {1} messages. Look at the reason, then release them.",
	"why blocked":     "Blocked by a message that is retried without end: {0} message groups, {1} messages behind it. Look at the reason.",
	"why filtered":    "No message has matched the filter of the consumer: it skipped all {0} since {1}. Compare the filter with the tags and properties of the messages.",
	"why throttled":   "Nothing is left for the group, and the broker rejects new messages of the topic for a limit.",
	"why idle":        "Nothing is left for the group: it has acknowledged, skipped by a filter or passed everything.",
	"why no_consumer": "Ready: {0}, in flight: none. No consumer receives them: start a consumer of this group.",
	"why retrying":    "Waiting for their retry: {0}. Nothing else is left to deliver.",
	"why working":     "{0} in flight, {1} ready.",
	"holds":           "holds {0}, the first for {1}, since {2}.",
	"if it hangs":     "If its handler hangs, restart it. Each message is delivered again when its lease ends: the first at {0}, unless the client extends it.",
	"lost client":     "A client from before the restart of the broker",
}

func phrase(key string, values ...string) string {
	text := sentences[key]
	for i, v := range values {
		text = strings.ReplaceAll(text, fmt.Sprintf("{%d}", i), v)
	}
	return text
}

// Why is the one sentence about why a group does not consume a topic, and the command that shows
// more, if there is one.
func Why(group string, s *status.Subscription, now time.Time) (text, next string) {
	number, key := output.Number, "why "+s.Why
	show := func(flags string) string { return shell.LineFlags("tidegate group show", flags, group) }
	switch s.Why {
	case "parked":
		return phrase(key, number(s.ParkedGroups), number(s.Parked)), parkedCommand(group)
	case "blocked":
		return phrase(key, number(s.BlockedGroups), number(s.Blocked)), parkedCommand(group)
	case "held":
		return holding(s.Held, now), show(" --clients")
	case "filtered":
		return phrase(key, number(s.Filtered), output.UTC.Time(s.CountsSince, now)), "tidegate clients list" + shell.Flag("group", group) + " -o wide"
	case "throttled":
		return phrase(key), "tidegate limits show"
	case "idle":
		return phrase(key), ""
	case "no_consumer":
		return phrase(key, number(s.Ready)), show(" --clients")
	case "retrying":
		return phrase(key, number(s.WaitingRetry)), show(" --schedule")
	case "working":
		return phrase(key, number(s.Inflight), number(s.Ready)), ""
	}
	return "", "" // an older broker, or a newer one
}

func parkedCommand(group string) string { return shell.Line("tidegate parked list", group) }

// holding is the sentence about the client that has held messages longest.
func holding(h *status.Holding, now time.Time) string {
	if h == nil {
		return ""
	}
	client := phrase("lost client")
	if h.Client != "" {
		client = "Client " + h.Client
	}
	return client + " " + phrase("holds", output.Count(h.Messages, "message"), output.Duration(now.Sub(h.Since).Truncate(time.Second)), output.UTC.Time(h.Since, now)) +
		" " + phrase("if it hangs", output.UTC.Time(h.Until, now))
}
