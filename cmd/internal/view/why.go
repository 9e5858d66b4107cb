package view

import (
	"fmt"
	"regexp"
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

func phrase(key string, values ...any) output.Text {
	return output.Textf(argument.ReplaceAllStringFunc(sentences[key], func(found string) string {
		return fmt.Sprintf("%%[%d]v", found[1]-'0'+1) // {0} is the first
	}), values...)
}

var argument = regexp.MustCompile(`\{\d\}`)

// Why is the one sentence about why a group does not consume a topic, and the command that shows
// more, if there is one.
func Why(group string, s *status.Subscription, now time.Time) (text output.Text, next string) {
	key := "why " + s.Why
	show := func(flags string) string { return shell.LineFlags("tidegate group show", flags, group) }
	switch s.Why {
	case "parked":
		return phrase(key, output.Number(s.ParkedGroups), output.Number(s.Parked)), parkedCommand(group)
	case "blocked":
		return phrase(key, output.Number(s.BlockedGroups), output.Number(s.Blocked)), parkedCommand(group)
	case "held":
		return holding(s.Held, now), show(" --clients")
	case "filtered":
		return phrase(key, output.Number(s.Filtered), output.UTC.Time(s.CountsSince, now)), "tidegate clients list" + shell.Flag("group", group) + " -o wide"
	case "throttled":
		return phrase(key), "tidegate limits show"
	case "idle":
		return phrase(key), ""
	case "no_consumer":
		return phrase(key, output.Number(s.Ready)), show(" --clients")
	case "retrying":
		return phrase(key, output.Number(s.WaitingRetry)), show(" --schedule")
	case "working":
		return phrase(key, output.Number(s.Inflight), output.Number(s.Ready)), ""
	}
	return text, "" // an older broker, or a newer one
}

func parkedCommand(group string) string { return shell.Line("tidegate parked list", group) }

// holding is the sentence about the client that has held messages longest.
func holding(h *status.Holding, now time.Time) (text output.Text) {
	if h == nil {
		return text
	}
	client := phrase("lost client")
	if h.Client != "" {
		client = output.Textf("Client %s", h.Client)
	}
	return output.Textf("%s %s %s", client, phrase("holds", output.Count(h.Messages, "message"), output.Duration(now.Sub(h.Since).Truncate(time.Second)), output.UTC.Time(h.Since, now)),
		phrase("if it hangs", output.UTC.Time(h.Until, now)))
}
