package view

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
)

// The console and the command line have the same sentences about why a group does not consume.
func TestSentencesAreThoseOfTheConsole(t *testing.T) {
	text, err := os.ReadFile("../../../internal/console/files/en.js")
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ {2}'((?:why )?[a-z_ ]+)': '([^']*)',$`).FindAllStringSubmatch(string(text), -1) {
		theirs[m[1]] = m[2]
	}
	for key, text := range sentences {
		if text != theirs[key] {
			t.Errorf("%s is %q here and %q in the console", key, text, theirs[key])
		}
	}
}

func TestWhy(t *testing.T) {
	for _, c := range []struct {
		of         status.Subscription
		text, next string
	}{
		{status.Subscription{Why: "parked", ParkedGroups: 3, Parked: 1212},
			"Parked after the last attempt: 3 message groups, 1 212 messages. Look at the reason, then release them.", "tidegate parked list billing"},
		{status.Subscription{Why: "blocked", BlockedGroups: 1, Blocked: 16},
			"Blocked by a message that is retried without end: 1 message groups, 16 messages behind it. Look at the reason.", "tidegate parked list billing"},
		{status.Subscription{Why: "held", Held: &status.Holding{Client: "web-1", Messages: 1, Since: noon.Add(-time.Hour), Until: noon.Add(time.Minute)}},
			"Client web-1 holds 1 message, the first for 1h 00m, since 2026-11-24T11:03:04Z. If its handler hangs, restart it. " +
				"Each message is delivered again when its lease ends: the first at 2026-11-24T12:04:04Z, unless the client extends it.", "tidegate group show billing --clients"},
		{status.Subscription{Why: "filtered", Filtered: 5, CountsSince: noon},
			"No message has matched the filter of the consumer: it skipped all 5 since 2026-11-24T12:03:04Z. Compare the filter with the tags and properties of the messages.",
			"tidegate clients list --group billing -o wide"},
		{status.Subscription{Why: "throttled"}, "Nothing is left for the group, and the broker rejects new messages of the topic for a limit.", "tidegate limits show"},
		{status.Subscription{Why: "idle"}, "Nothing is left for the group: it has acknowledged, skipped by a filter or passed everything.", ""},
		{status.Subscription{Why: "no_consumer", Ready: 9}, "Ready: 9, in flight: none. No consumer receives them: start a consumer of this group.", "tidegate group show billing --clients"},
		{status.Subscription{Why: "retrying", WaitingRetry: 2}, "Waiting for their retry: 2. Nothing else is left to deliver.", "tidegate group show billing --schedule"},
		{status.Subscription{Why: "working", Inflight: 4, Ready: 7}, "4 in flight, 7 ready.", ""},
		{status.Subscription{}, "", ""}, // an older broker
	} {
		if text, next := Why("billing", &c.of, noon); text.Grouped() != c.text || next != c.next {
			t.Errorf("%s: %q and %q, want %q and %q", c.of.Why, text, next, c.text, c.next)
		}
	}
}
