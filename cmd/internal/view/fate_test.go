package view

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Each state of the document of the API has a sentence of its own, that names the group.
func TestSentenceOfEachState(t *testing.T) {
	states := []string{"new", "ready", "held", "inflight", "waiting_retry", "parked", "leaving", "dead_letter", "done"}
	seen := map[string]string{}
	for _, state := range states {
		for _, f := range []status.Fate{
			{}, {Attempt: 2, MaxAttempts: 17, Due: noon}, {Attempt: 20, MaxAttempts: 17, Blocked: true}, {Behind: &status.StoredMessage{ID: "M1"}}, {Behind: &status.StoredMessage{Offset: 7}, Reason: "r\x1b"},
			{DeadLetter: &status.DeadLetter{MessageID: "M2", StoredAt: noon}}, {Waiting: 1}, {Waiting: 5, Ahead: 1}, {Owner: "c@1"},
		} {
			f.Group, f.State = "billing", state
			s := Sentence(&f, output.UTC, noon)
			if !strings.HasPrefix(s, "billing ") || strings.Contains(s, "\x1b") || strings.Contains(s, "%!") || strings.HasSuffix(s, ".") {
				t.Errorf("%+v: %q", f, s)
			}
			if other := seen[s]; other != "" && other != state && f.Behind == nil {
				t.Errorf("%s and %s have one sentence: %s", other, state, s)
			}
			seen[s] = state
			f.Topic = "%RETRY%billing_orders"
			if redriven := Sentence(&f, output.UTC, noon); redriven != s+" (it was redriven to the group alone)" {
				t.Errorf("after a redrive to the group: %q", redriven)
			}
		}
	}
}

func TestTraceScreen(t *testing.T) {
	in := noon.Add
	tr := status.Trace{Messages: []status.TracedMessage{
		{StoredMessage: status.StoredMessage{ID: "01AB", Queue: 3, Offset: 12, StoredAt: in(-time.Minute), BodySize: 1536, BodyText: "10 EUR\x1b[2J\nand more"}, Groups: []status.Fate{
			{Group: "audit", State: "done"},
			{Group: "billing", State: "waiting_retry", Attempt: 2, MaxAttempts: 17, Due: in(10 * time.Minute), Failures: []status.Failure{
				{Time: in(-50 * time.Second), Attempt: 1, Client: "host@7", Cause: "timeout", Fate: "retry", Delay: settings.Duration(10 * time.Second)},
				{Time: in(-30 * time.Second), Attempt: 2, Cause: "failed", Reason: "no such account\x1b", Fate: "retry", Delay: settings.Duration(10*time.Minute + 30*time.Second)},
			}},
			{Group: "mail", State: "inflight", Attempt: 1, MaxAttempts: 17, Due: in(30 * time.Second), Owner: "host@7"},
			{Group: "new", State: "new", Ahead: 1204},
			{Group: "shipping", State: "dead_letter", Attempt: 3, MaxAttempts: 3, Reason: "no such street", DeadLetter: &status.DeadLetter{MessageID: "01AB", StoredAt: in(-10 * time.Second)}},
		}},
		{StoredMessage: status.StoredMessage{ID: "01AB", Offset: 99, BodySize: 2, Body: []byte{0xff, 0}, StoredAt: in(-time.Second), MessageGroup: "account-7"}, Groups: []status.Fate{
			{Group: "ledger", State: "parked", Attempt: 5, MaxAttempts: 5, Due: in(-time.Hour), Reason: "no money"},
			{Group: "report", State: "held", Behind: &status.StoredMessage{ID: "01AA"}},
			{Group: "slow", State: "waiting_retry", Blocked: true, Attempt: 40, MaxAttempts: 5, Due: in(time.Second)},
		}},
	}, Complete: true}
	golden(t, "trace.txt", Trace("orders", "01AB", &tr, output.UTC, noon))
	golden(t, "trace_pending.txt", Trace("reminders", "01AC", &status.Trace{DeliverAt: in(time.Hour), Half: true}, output.Relative, noon))
}

// Each cause and each fate in the documentation of status.Failure has words of its own.
func TestFailedOfEachCauseAndFate(t *testing.T) {
	seen := map[string]bool{}
	for _, cause := range []string{"failed", "timeout", "negative_ack", "dead_letter", "reconsume_later"} {
		for _, fate := range []string{"retry", "blocked", "dead_letter", "parked", "retry_topic", "removed"} {
			s := Failed(&status.Failure{Time: noon, Attempt: 2, Cause: cause, Fate: fate, Delay: settings.Duration(time.Minute), Reason: "r\x1b"}, output.UTC, noon)
			if seen[s] || strings.ContainsAny(s, "_\x1b") || !strings.HasPrefix(s, "2026-11-24T12:03:04Z: attempt 2 ") || !strings.Contains(s, `: r\x1b; `) {
				t.Errorf("%s, %s: %q", cause, fate, s)
			}
			seen[s] = true
		}
	}
}
