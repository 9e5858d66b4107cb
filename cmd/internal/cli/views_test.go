package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/assert"
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
			s := sentence(&f, output.UTC, noon)
			if !strings.HasPrefix(s, "billing ") || strings.Contains(s, "\x1b") || strings.Contains(s, "%!") || strings.HasSuffix(s, ".") {
				t.Errorf("%+v: %q", f, s)
			}
			if other := seen[s]; other != "" && other != state && f.Behind == nil {
				t.Errorf("%s and %s have one sentence: %s", other, state, s)
			}
			seen[s] = state
			f.Topic = "%RETRY%billing_orders"
			if redriven := sentence(&f, output.UTC, noon); redriven != s+" (it was redriven to the group alone)" {
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
	golden(t, "trace.txt", trace("orders", "01AB", &tr, output.UTC, noon))
	golden(t, "trace_pending.txt", trace("reminders", "01AC", &status.Trace{DeliverAt: in(time.Hour), Half: true}, output.Relative, noon))
}

// Each cause and each fate in the documentation of status.Failure has words of its own.
func TestFailedOfEachCauseAndFate(t *testing.T) {
	seen := map[string]bool{}
	for _, cause := range []string{"failed", "timeout", "negative_ack", "dead_letter", "reconsume_later"} {
		for _, fate := range []string{"retry", "blocked", "dead_letter", "parked", "retry_topic", "removed"} {
			s := failed(&status.Failure{Time: noon, Attempt: 2, Cause: cause, Fate: fate, Delay: settings.Duration(time.Minute), Reason: "r\x1b"}, output.UTC, noon)
			if seen[s] || strings.ContainsAny(s, "_\x1b") || !strings.HasPrefix(s, "2026-11-24T12:03:04Z: attempt 2 ") || !strings.Contains(s, `: r\x1b; `) {
				t.Errorf("%s, %s: %q", cause, fate, s)
			}
			seen[s] = true
		}
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with the file testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		assert.Must(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := assert.Value(os.ReadFile(path))(t)
	assert.That(t, got == string(want), "%s is (-update writes it)\n%s\nwant\n%s", name, got, want)
}

func TestMetrics(t *testing.T) {
	text := "# HELP tidegate_ready 1 while\n# TYPE tidegate_ready gauge\ntidegate_ready 1\n" +
		"tidegate_bucket{topic=\"a b\",le=\"+Inf\"} 12\ntidegate_seconds_sum 1.5e-05\n\n"
	for match, want := range map[string][]metric{
		"":        {{"tidegate_ready", "1"}, {`tidegate_bucket{topic="a b",le="+Inf"}`, "12"}, {"tidegate_seconds_sum", "1.5e-05"}},
		`topic=`:  {{`tidegate_bucket{topic="a b",le="+Inf"}`, "12"}},
		`_sum$`:   {{"tidegate_seconds_sum", "1.5e-05"}},
		`nothing`: {},
	} {
		if got, err := metrics(text, match); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", match, got, err, want)
		}
	}
	assert.That(t, assert.Err(metrics(text, "(")) != nil, "an invalid expression is accepted")
	if n := (metric{Value: "1.2345e+04"}).Number(); n != int64(12345) {
		t.Errorf("the number is %v", n)
	}
}

// The retries of RocketMQ's documents: 10s 30s 1m … 2h, 16 retries in 4h 45m 40s without handlers.
func TestScheduleOfTheLadder(t *testing.T) {
	m := time.Minute
	ladder := []time.Duration{10 * time.Second, 30 * time.Second, m, 2 * m, 3 * m, 4 * m, 5 * m, 6 * m, 7 * m, 8 * m, 9 * m, 10 * m, 20 * m, 30 * m, 60 * m, 120 * m}
	r := redelivery{
		MaxAttempts: 17, Steps: 16, Exhausted: "the message becomes a dead letter",
		Wait: func(attempt int) time.Duration { return ladder[min(attempt, len(ladder))-1] },
	}
	s := scheduleOf(r)
	if last := s.Attempts[16]; len(s.Attempts) != 17 || last.After != "4h45m40s" || last.Wait != "2h0m0s" || len(s.Findings) != 0 {
		t.Errorf("%d attempts, the last one %+v, findings %q", len(s.Attempts), last, s.Findings)
	}
	r.Handler = time.Second
	if s := scheduleOf(r); s.Attempts[16].After != "4h45m56s" || !strings.Contains(s.End, "4h 45m after the begin of the first one") {
		t.Errorf("with a handler of 1s: %+v, %q", s.Attempts[16], s.End)
	}
}

func TestScheduleFindings(t *testing.T) {
	second := func(int) time.Duration { return time.Second }
	for _, c := range []struct {
		name string
		r    redelivery
		want string // a part of the only finding; empty for none
	}{
		{"nothing", redelivery{MaxAttempts: 3, Steps: 2, Handler: time.Second, Lease: 2 * time.Second, Retention: time.Minute}, ""},
		{"one attempt", redelivery{MaxAttempts: 1}, "is not retried"},
		{"unused waits", redelivery{MaxAttempts: 3, Steps: 16}, "16 waits, and 3 attempts use 2"},
		{"retention", redelivery{MaxAttempts: 5, Steps: 1, Handler: time.Second, Retention: 5 * time.Second}, "attempt 4 comes 6s after the first"},
		{"lease", redelivery{MaxAttempts: 2, Handler: 3 * time.Second, Lease: 2 * time.Second}, "receives the message twice"},
		{"order", redelivery{MaxAttempts: 3, FIFO: true, Handler: time.Second}, "wait for up to 5s"},
	} {
		c.r.Wait = second
		got := scheduleOf(c.r).Findings
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	s := scheduleOf(redelivery{MaxAttempts: -1, FIFO: true, Wait: second})
	if len(s.Attempts) != 20 || !strings.HasPrefix(s.End, "no maximum") || !slices.ContainsFunc(s.Findings, func(f string) bool { return strings.Contains(f, "without end") }) {
		t.Errorf("without a maximum: %d attempts, %q, %q", len(s.Attempts), s.End, s.Findings)
	}
}

// The screen of status, by hand. The broker left out two of the groups with dead letters.
func TestStatusScreen(t *testing.T) {
	o := status.Overview{
		Version: "v0.1.0", Started: noon.Add(-76*time.Hour - 30*time.Second), Now: noon, Ready: true, Clients: 12,
		Storage: status.Storage{DiskBytes: 7 << 20, Fsyncs: 100, FsyncP99: settings.Duration(2500 * time.Microsecond)},
		Totals: status.Totals{
			Topics: 3, Groups: 2, Subscriptions: 2, Stored: status.Backlog{Messages: 5254, Bytes: 5<<20 + 200<<10},
			Backlog: status.Backlog{Messages: 1799}, WaitingRetry: 319, BlockedGroups: 3, OldestMS: 7_380_000, InRate: 120, OutRate: 87.4, DeadLettersStored: 63, DeadLettersHour: 41,
		},
		Wrong: status.Wrong{
			Throttles: status.Found[status.LimitState]{Count: 1, First: []status.LimitState{
				{Throttle: status.Throttle{Limit: "group backlog messages", Subject: "billing", Value: 1586, Mark: 1500, Resume: 1200, Unit: "messages", ResumesLeast: settings.Duration(6 * time.Minute), ResumesMost: settings.Duration(9 * time.Minute)}, On: true},
			}},
			Parked:  status.Found[status.GroupSummary]{Count: 1, First: []status.GroupSummary{{Group: "ledger", Topic: "pays", Parked: 212, ParkedGroups: 3}}},
			Blocked: status.Found[status.GroupSummary]{Count: 2, First: []status.GroupSummary{{Group: "ledger", Topic: "pays", Blocked: 16, BlockedGroups: 2}, {Group: "audit", Topic: "pays", Blocked: 1, BlockedGroups: 1}}},
			Behind: status.Found[status.GroupSummary]{Count: 2, First: []status.GroupSummary{
				{Group: "billing", Topic: "orders", Ready: 1204, Inflight: 64, UndeliveredMS: 252_000},
				{Group: "audit", Topic: "orders", Ready: 1, OldestMS: 61_000, UndeliveredMS: 60_000},
			}},
			Held: status.Found[status.GroupSummary]{Count: 2, First: []status.GroupSummary{
				{Group: "billing", Topic: "orders", Held: &status.Holding{Client: "web-1", Messages: 16, Since: noon.Add(-3725 * time.Second), Until: noon}},
				{Group: "audit", Topic: "orders", Held: &status.Holding{Messages: 1, Since: noon.Add(-time.Minute), Until: noon}},
			}},
			DeadLetters: status.Found[status.GroupSummary]{Count: 3, First: []status.GroupSummary{{Group: "billing", Topic: "orders", DeadLettersStored: 60, DeadLettersHour: 41}}},
		},
	}
	var b strings.Builder
	assert.Must(t, output.Fields(&b, output.Options{}, statusFields("127.0.0.1:8082", o)))
	b.WriteString("\n")
	assert.Must(t, (output.List[viewProblem]{Rows: wrong(o), Columns: problemColumns}).Print(&b, &b, output.Options{}))
	golden(t, "status.txt", b.String())
}

// The status of a broker that is not ready names the reason. A broker without messages has no ages
// and no fsyncs.
func TestStatusOfIdleBroker(t *testing.T) {
	o := status.Overview{Version: "v0.1.0", Started: noon, Now: noon.Add(1500 * time.Millisecond), NotReady: "the disk is full"}
	var b strings.Builder
	assert.Must(t, output.Fields(&b, output.Options{}, statusFields("127.0.0.1:8082", o)))
	for _, want := range []string{"up 1s\n", "not ready: the disk is full\n", "0 of them wait for a retry\ndisk     0 B\n"} {
		assert.That(t, strings.Contains(b.String(), want), "the screen lacks %q:\n%s", want, &b)
	}
	assert.Equal(t, "the problems are", len(wrong(o)), 0)
}

func TestGroupListScreen(t *testing.T) {
	rows := []status.GroupSummary{
		{Group: "billing", Topic: "orders", Ready: 1204, Inflight: 64, WaitingRetry: 318, Backlog: status.Backlog{Messages: 1586, Bytes: 3 << 20},
			OldestMS: 252_000, UndeliveredMS: 61_000, OutRate: 87, Waiting: 4, Acked: 3800, Redelivered: 70, DeadLetters: 60, DeadLettersHour: 41, DeadLettersStored: 57, Filtered: 12_000, Clients: 3},
		{Group: "ledger", Topic: "pays", WaitingRetry: 1, Parked: 212, ParkedGroups: 3, Backlog: status.Backlog{Messages: 213}, OldestMS: 7_380_000},
		{Group: "quiet"},
	}
	for name, format := range map[string]output.Format{"group_list.txt": output.Table, "group_list_wide.txt": output.Wide} {
		var b strings.Builder
		assert.Must(t, (output.List[status.GroupSummary]{Rows: rows, Columns: listColumns}).Print(&b, &b, output.Options{Format: format}))
		golden(t, name, b.String())
	}
}

// The screen of topic list, by hand.
func TestTopicListScreen(t *testing.T) {
	rows := []status.TopicSummary{
		{Name: "orders", Type: "NORMAL", Queues: 8, Stored: status.Backlog{Messages: 5000, Bytes: 5 << 20}, Backlog: status.Backlog{Messages: 1586, Bytes: 2 << 20}, OldestMS: 252_000, InRate: 87.4, OutRate: 12, Groups: 2, Throttle: &status.Throttle{Limit: "group backlog messages", Value: 1586, Mark: 1000}},
		{Name: "reminders", Type: "DELAY", Queues: 1, Delayed: status.Backlog{Messages: 12}},
		{Name: "%DLQ%billing", Type: "NORMAL", Queues: 1, Stored: status.Backlog{Messages: 41, Bytes: 4100}, Backlog: status.Backlog{Messages: 41, Bytes: 4100}, OldestMS: 7_380_000, Half: 1},
	}
	for name, format := range map[string]output.Format{"topic_list.txt": output.Table, "topic_list_wide.txt": output.Wide} {
		var b strings.Builder
		list := output.List[status.TopicSummary]{Rows: rows, Columns: topicColumns}
		assert.Must(t, list.Print(&b, &b, output.Options{Format: format}))
		golden(t, name, b.String())
	}
}

var noon = time.Date(2026, 11, 24, 12, 3, 4, 0, time.UTC)

// sampled is a broker with two groups, n seconds after noon: orders gets 100 messages a second,
// billing acknowledges 80 of them and 2 become dead letters; ledger makes no progress, with a
// parked group.
func sampled(n int64) *sample {
	return &sample{
		At: noon.Add(time.Duration(n) * time.Second),
		Ages: ages{
			Topics: map[string]int64{"orders": 252_000 + 1000*n, "pays": 7_380_000},
			Groups: map[[2]string]int64{{"billing", "orders"}: 252_000 + 1000*n, {"ledger", "pays"}: 7_380_000},
		},
		Wrong: status.Wrong{Throttles: status.Found[status.LimitState]{Count: 1}, Parked: status.Found[status.GroupSummary]{Count: 1}, DeadLetters: status.Found[status.GroupSummary]{Count: 1}},
		Topics: []status.Topic{
			{Name: "orders", AcceptedMessages: 5000 + 100*n, StoredMessages: 5000, StoredBytes: 5 << 20, Backlog: status.Backlog{Messages: 1586},
				Throttle: &status.Throttle{Limit: "group backlog messages"}},
			{Name: "pays", AcceptedMessages: 213, StoredMessages: 213, StoredBytes: 200 << 10, Backlog: status.Backlog{Messages: 213}},
			{Name: "%DLQ%billing", StoredMessages: 41},
		},
		Groups: []status.Group{
			{Name: "billing", DeadLetterTopics: []string{"%DLQ%billing"}, Group: settings.Group{}, Topics: []status.Subscription{
				{Topic: "orders", Ready: 1204, Inflight: 64, WaitingRetry: 318, Backlog: status.Backlog{Messages: 1586}, Acked: 3000 + 80*n, Redelivered: 7 * n, DeadLetters: 40 + 2*n},
			}},
			{Name: "ledger", Topics: []status.Subscription{
				{Topic: "pays", WaitingRetry: 1, Parked: 212, ParkedGroups: 3, Backlog: status.Backlog{Messages: 213}},
			}},
		},
	}
}

func frames(t *testing.T, n int, v topView) topFrame {
	t.Helper()
	var s sampler
	var f topFrame
	for i := range n {
		f = s.Frame(sampled(int64(i)), v.Topics)
	}
	f.Interval = "1s"
	rows := assert.Value(v.Rows(f.Rows))(t)
	f.Rows = rows
	return f
}

// The screens of top, by hand: the rates are those of the samples.
func TestTopScreens(t *testing.T) {
	groups, topics := topView{By: "backlog"}, topView{By: "in", Topics: true}
	for name, s := range map[string]topScreen{
		"top_first.txt":  {Frame: frames(t, 1, groups), View: groups},
		"top_groups.txt": {Frame: frames(t, 12, groups), View: groups},
		"top_topics.txt": {Frame: frames(t, 12, topics), View: topics},
		"top_failed.txt": {Frame: frames(t, 12, groups), View: groups, screenState: screenState{Failed: errors.New("connection refused\x1b[2J")}},
		"top_typing.txt": {Frame: frames(t, 12, topView{By: "dead", Match: "led*"}), View: topView{By: "dead", Match: "led*"}, Typing: true, screenState: screenState{Paused: true}},
	} {
		s.Server, s.Width, s.Height = "127.0.0.1:8082", 120, 24
		var b strings.Builder
		assert.Must(t, s.Write(&b, output.Options{}))
		golden(t, name, b.String())
	}
}

// The sum names the messages of blocked message groups if there are any.
func TestTopBlocked(t *testing.T) {
	f := frames(t, 1, topView{By: "backlog"})
	f.Total.Blocked = 16_000
	var b strings.Builder
	if err := (&topScreen{screenState: screenState{Width: 120, Height: 24}, Frame: f, View: topView{By: "backlog"}}).Write(&b, output.Options{}); err != nil || !strings.Contains(b.String(), "parked 212, blocked 16 000\n") {
		t.Errorf("%v, the screen is\n%s", err, b.String())
	}
	sample := sampled(1)
	sample.Groups[1].Topics[0].Blocked = 7
	if _, groups, total := sample.rows(); groups[1].Blocked != 7 || total.Blocked != 7 {
		t.Errorf("%d and %d blocked messages, want 7", groups[1].Blocked, total.Blocked)
	}
}

// No screen is larger than the terminal, for any size and any number of groups.
func TestTopFitsTheTerminal(t *testing.T) {
	f := frames(t, 3, topView{By: "backlog"})
	for i := range 200 {
		f.Rows = append(f.Rows, topRow{Group: fmt.Sprintf("group-%d-請求書", i), Topic: "orders"})
	}
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 60; height += 3 {
			s := topScreen{screenState: screenState{Server: "h", Width: width, Height: height}, Frame: f, View: topView{By: "backlog"}}
			var b strings.Builder
			assert.Must(t, s.Write(&b, output.Options{}))
			lines := strings.Split(b.String(), "\n")
			assert.MustThat(t, len(lines) <= height, "%d lines on a terminal of %d", len(lines), height)
			for _, l := range lines {
				if output.Width(l) > width {
					t.Fatalf("%q has %d columns, the terminal %d", l, output.Width(l), width)
				}
			}
		}
	}
}

// On 80 columns top shows long names and all numbers of the rows that it shows, and its keys.
func TestTopOn80Columns(t *testing.T) {
	f := frames(t, 3, topView{By: "backlog"})
	group, topic := "billing-worker-europe-west-prod", "orders.invoices.created.v2.eu1"
	f.Total = topRow{Backlog: 1_234_567, Inflight: 12_345, Retry: 1234, Parked: 56, Blocked: 78, In: 1204, Out: 1203, Retries: 12, Dead: 1.5}
	f.Rows = nil
	for i := range int64(200) {
		f.Rows = append(f.Rows, topRow{Group: fmt.Sprintf("%s-%d", group, i), Topic: topic, Ready: 12_345 + i, Inflight: 1, Retry: 2, Parked: 3, Backlog: 1_234_567, OldestMS: 7_380_000, In: 1.5, Out: 2.5, Retries: 3.5, Dead: 4.5, past: []float64{1, 2, 3}})
	}
	for name, view := range map[string]topView{"groups": {By: "backlog"}, "topics": {By: "backlog", Topics: true}} {
		s := topScreen{screenState: screenState{Server: "https://mq-broker-1.production.europe.example:8082", Width: 80, Height: 24}, Frame: f, View: view}
		var b strings.Builder
		assert.Must(t, s.Write(&b, output.Options{}))
		want := []string{topic, "12 345", "1 234 567", "2h 03m", "1.5", "4.5", "blocked 78", "dead letters 1.5/s", "not shown", "g groups or topics", "q quit"}
		if !view.Topics {
			want = append(want, group+"-0", group+"-5")
		}
		for _, part := range want {
			assert.That(t, strings.Contains(b.String(), part), "%s: %q is missing in\n%s", name, part, b.String())
		}
		if n := strings.Count(b.String(), "\n") + 1; n > 24 || n < 23 {
			t.Errorf("%s: %d lines:\n%s", name, n, b.String())
		}
	}
}

// A column that has shown a value stays on the screen when it is 0 again, so that the others keep
// their places.
func TestTopColumnsStay(t *testing.T) {
	f := frames(t, 3, topView{By: "backlog"})
	s := topScreen{screenState: screenState{Server: "h", Width: 70, Height: 24}, Frame: f, View: topView{By: "backlog"}}
	head := func(parked int64) string {
		s.Frame.Rows = []topRow{{Group: "billing", Topic: "orders", Ready: 12_345, Backlog: 12_345, Parked: parked, OldestMS: 1000, In: 1, Out: 1}}
		var b strings.Builder
		assert.Must(t, s.Write(&b, output.Options{}))
		return b.String()
	}
	if screen := head(0); strings.Contains(screen, "PARKED") {
		t.Fatalf("a column of zeros is shown, or the test does not see it:\n%s", screen)
	}
	for _, parked := range []int64{1, 0} {
		if screen := head(parked); !strings.Contains(screen, "PARKED") {
			t.Errorf("%d parked, and no column:\n%s", parked, screen)
		}
	}
}

// A restart of the broker begins its counters at 0: the rate is not negative. An unknown rate is
// not 0.
func TestTopRates(t *testing.T) {
	var s sampler
	first := s.Frame(sampled(10), false)
	if r := first.Rows[0].Out; r != -1 || r.String() != "-" {
		t.Errorf("the first rate is %v, want it unknown", float64(r))
	}
	later := sampled(3)
	later.At = noon.Add(12 * time.Second)
	if r := s.Frame(later, false).Rows[0].Out; r != 0 {
		t.Errorf("the rate after a restart is %v", float64(r))
	}
	next := sampled(4)
	next.At = noon.Add(14 * time.Second)
	if r := s.Frame(next, false).Rows[0].Out; r != 40 {
		t.Errorf("80 acknowledgements in 2 s are %v a second, want 40", float64(r))
	}
}

func TestTopOrder(t *testing.T) {
	f := frames(t, 3, topView{By: "backlog"})
	for _, c := range []struct {
		view topView
		want string
	}{
		{topView{By: "backlog"}, "billing ledger"},
		{topView{By: "backlog", Reverse: true}, "ledger billing"},
		{topView{By: "age"}, "ledger billing"},
		{topView{By: "dead"}, "billing ledger"},
		{topView{By: "out", Match: "led*"}, "ledger"},
		{topView{By: "in", Match: "orders"}, "billing"}, // by its topic
	} {
		rows := assert.Value(c.view.Rows(f.Rows))(t)
		var got []string
		for _, r := range rows {
			got = append(got, r.Group)
		}
		assert.That(t, strings.Join(got, " ") == c.want, "%+v gives %v, want %s", c.view, got, c.want)
	}
	for _, bad := range []topView{{By: "size"}, {By: "in", Match: "[a"}} {
		assert.That(t, assert.Err(bad.Rows(nil)) != nil, "%+v is accepted", bad)
	}
}

// The console and the command line have the same sentences about why a group does not consume.
func TestSentencesAreThoseOfTheConsole(t *testing.T) {
	text := assert.Value(os.ReadFile("../../../internal/console/files/en.js"))(t)
	theirs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ {2}'((?:why )?[a-z_ ]+)': '([^']*)',$`).FindAllStringSubmatch(string(text), -1) {
		theirs[m[1]] = m[2]
	}
	for key, text := range sentences {
		assert.That(t, text == theirs[key], "%s is %q here and %q in the console", key, text, theirs[key])
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
		if text, next := why("billing", &c.of, noon); text.Grouped() != c.text || next != c.next {
			t.Errorf("%s: %q and %q, want %q and %q", c.of.Why, text, next, c.text, c.next)
		}
	}
}

// The screen of top --clients fits the terminal, and shows control characters of clients as
// escapes.
func TestClientScreen(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	f := clientFrame{At: at, Interval: "1s", Total: 3, Versions: []status.ClientVersion{{Language: "GO", Version: "5.1.4", Clients: 2}, {Language: "JAVA", Version: "5.0.4", Clients: 1, Outdated: true}}}
	for i, topics := range [][]string{{"a", "b", "c", "d"}, {"orders"}, nil} {
		f.Clients = append(f.Clients, status.Client{
			ID: "host\x1b[31m-" + string(rune('a'+i)), Kind: "push_consumer", Language: "GO", Version: "5.1.4", Group: "billing", Topics: topics, Hidden: i,
			LastSeen: at.Add(-time.Duration(i) * time.Minute), Waiting: int64(i), Inflight: int64(3 - i),
		})
	}
	var b strings.Builder
	s := clientScreen{screenState: screenState{Server: "http://127.0.0.1:8080", Width: 110, Height: 20}, Frame: f, By: "inflight"}
	assert.Must(t, s.Write(&b, output.Options{}))
	golden(t, "topclients", b.String())
	b.Reset()
	s.Width, s.Height, s.Paused, s.Failed = 30, 8, true, errors.New("connection refused")
	assert.Must(t, s.Write(&b, output.Options{}))
	lines := strings.Split(b.String(), "\n")
	assert.That(t, len(lines) == 8 && !strings.Contains(b.String(), "\x1b"), "a small screen is %q", lines)
	for _, line := range lines {
		assert.That(t, output.Width(line) <= 30, "a line is too wide: %q", line)
	}
}

var known = map[byte]func(string, string) string{
	'v': func(v, _ string) string { return v },
	'a': func(_, arg string) string { return "<" + arg + ">" },
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                "",
		"plain":           "plain",
		"%v":              "x",
		"a%vb%v":          "axbx",
		`%v\n\t\r\0\\`:    "x\n\t\r\x00\\",
		"100%%":           "100%",
		"%a{k 1}%a{}%a %": "",
		"%a{k 1}%a{}%a":   "<k 1><><>",
		"{%v}":            "{x}",
		"%é":              "",
		`a\`:              "",
		`\x41`:            "",
		"%a{k":            "",
		"%q":              "",
	} {
		got, err := parse(text, known)
		if want == "" && text != "" {
			if err == nil {
				t.Errorf("Parse(%q) is accepted", text)
			} else if strings.HasPrefix(text, "%q") && !strings.Contains(err.Error(), "%a, %v and %%") {
				t.Errorf("the error of %q does not name the verbs: %v", text, err)
			}
			continue
		}
		if err != nil || got.Of("x") != want {
			t.Errorf("%q gives %q, %v; want %q", text, got.Of("x"), err, want)
		}
	}
}

// The output does not depend on the places at which a text is divided. The way around the filter
// is the stream itself.
func TestWriter(t *testing.T) {
	const text = "Łódź \x1b[2J\u009b注文\u202e\r\n\rx\xff\x9b\xe2\x80"
	const want = `Łódź \x1b[2J\u009b注文\u202e` + "\r\n" + `\x0dx\xff\x9b\xe2\x80`
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := newWriter(&out)
		for i := 0; i < len(text); i += size {
			part := []byte(text[i:min(i+size, len(text))])
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
			clear(part) // it belongs to the caller
		}
		assert.That(t, utf8.Valid(out.Bytes()), "in parts of %d bytes %q", size, out.String())
		if err := w.End(); err != nil || out.String() != want {
			t.Errorf("in parts of %d bytes %q, %v; want %q", size, out.String(), err, want)
		}
		out.Reset()
		if err := control(newWriter(w), enter); err != nil || out.String() != enter || unfiltered(w) != &out || unfiltered(&out) != &out {
			t.Errorf("a control sequence is %q, %v", out.String(), err)
		}
	}
	assert.Is(t, "the error is", assert.Err(newWriter(&failing{}).Write([]byte("x"))), os.ErrClosed)
	var out bytes.Buffer
	if err := draw(newWriter(&out), "a\x1b[31m\nb\r"); err != nil || out.String() != homeCursor+`a\x1b[31m`+clearLine+"\r\nb\\x0d"+clearLine+clearBelow {
		t.Errorf("the screen is %q, %v", out.String(), err)
	}
}

type failing struct{}

func (*failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

// A Reader returns the bytes and the error of its input.
func TestReader(t *testing.T) {
	text := strings.Repeat("0123456789", 30_000)
	broken := errors.New("broken")
	for name, in := range map[string]io.Reader{
		"at once": strings.NewReader(text), "in bytes": iotest.OneByteReader(strings.NewReader(text)), "end with data": iotest.DataErrReader(strings.NewReader(text)),
	} {
		if got, err := io.ReadAll(newReader(t.Context(), in)); err != nil || string(got) != text {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	assert.NoError(t, iotest.TestReader(newReader(t.Context(), strings.NewReader("abc")), []byte("abc")))
	if got, err := io.ReadAll(newReader(t.Context(), io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)))); !errors.Is(err, broken) || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
}

// A read that waits ends with ctx. The bytes before it are there.
func TestReaderEndsWithItsContext(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	r := newReader(ctx, in)
	go func() {
		_, _ = out.Write([]byte("abc"))
		cancel()
	}()
	assert.Is(t, "the error is", assert.Err(io.ReadAll(r)), context.Canceled)
	assert.Is(t, "the error of a later read is", assert.Err(r.Read(make([]byte, 1))), context.Canceled)
}

func TestTopKeys(t *testing.T) {
	k := &topCommand{topView: topView{By: "backlog"}}
	s := &topScreen{}
	for _, key := range []byte("srgpfab\x7fc\r") {
		assert.MustThat(t, !k.pressed(key, s), "the key %q ends top", key)
	}
	if want := (topView{By: "age", Reverse: true, Topics: true, Match: "ac"}); k.topView != want || !s.Paused || s.Typing {
		t.Errorf("the keys give %+v, paused %v, typing %v; want %+v", k.topView, s.Paused, s.Typing, want)
	}
	for _, key := range []byte{'q', 3} {
		assert.That(t, k.pressed(key, s), "the key %q does not end top", key)
	}
}

// While top draws on the whole screen, it prints no notes about a server that is away.
func TestTopPrintsNoNotes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	client := assert.Value(admin.New("http://127.0.0.1:1", admin.Options{}))(t)
	defer client.Close()
	notes := new(strings.Builder)
	k := &topCommand{Call: &Call{App: New(strings.NewReader(""), io.Discard, notes)}, client: client, every: time.Second}
	before := k.WaitingNotes()
	if err := k.live(ctx, topFrame{}); err != nil || before != notes || k.WaitingNotes() != io.Discard {
		t.Errorf("%v; notes are dropped before it, or printed on the screen", err)
	}
}

// A watch on a terminal prints no notes between its screens. Elsewhere it prints them.
func TestNotesOfAWatch(t *testing.T) {
	enough := errors.New("enough")
	for _, terminal := range []bool{true, false} {
		a := New(strings.NewReader(""), io.Discard, new(strings.Builder))
		a.Terminal = terminal
		c := a.Local(&cobra.Command{Use: "test"}, nil, func(context.Context, *Call) error { return nil })
		if err := c.Watch(t.Context(), time.Second, func(context.Context) error {
			assert.Equal(t, "on a terminal; it drops the notes", (c.WaitingNotes() == io.Discard), terminal)
			return enough
		}); !errors.Is(err, enough) {
			t.Error(err)
		}
	}
}

// An item that is stored while a query reads, in a part that the query has passed, is found by the
// next one: also if the query took longer than the overlap and has found later items. Each item is
// found once, and old ones are forgotten.
func TestRecent(t *testing.T) {
	start := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	type item struct{ queue, second int }
	stored := []item{{0, 0}, {1, 1}, {2, 2}}
	r := recent[item]{Since: start}
	found := map[item]int{}
	clock := 100
	// query reads the queues one after the other. Each takes a minute, in which messages arrive in
	// all of them.
	query := func() {
		for queue := range 3 {
			for _, i := range stored {
				if at := start.Add(time.Duration(i.second) * time.Second); i.queue == queue && !at.Before(r.Since) && r.New(i, at) {
					found[i]++
				}
			}
			clock += 60
			for q := range 3 {
				stored = append(stored, item{q, clock - 30 + q})
			}
		}
		r.Whole()
	}
	for range 20 {
		query()
	}
	last := clock - 3*60*2 // the two last queries may have passed them
	for _, i := range stored {
		if n := found[i]; n > 1 || n == 0 && i.second < last {
			t.Errorf("the item at %d s in queue %d was found %d times", i.second, i.queue, n)
		}
	}
	assert.That(t, len(r.seen) <= 40, "%d of %d items are kept", len(r.seen), len(stored))
	again := recent[int]{Since: start}
	again.New(1, start.Add(100*time.Second))
	again.Whole()
	again.Whole()
	if want := start.Add(95 * time.Second); !again.Since.Equal(want) {
		t.Errorf("after an item at 100 s the query begins at %v, want %v", again.Since, want)
	}
}
