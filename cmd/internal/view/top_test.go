package view

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

var noon = time.Date(2026, 11, 24, 12, 3, 4, 0, time.UTC)

// sampled is a broker with two groups, n seconds after noon: orders gets 100 messages a second,
// billing acknowledges 80 of them and 2 become dead letters; ledger makes no progress, with a
// parked group.
func sampled(n int64) *Sample {
	return &Sample{
		At: noon.Add(time.Duration(n) * time.Second),
		Ages: Ages{
			Topics: map[string]int64{"orders": 252_000 + 1000*n, "pays": 7_380_000},
			Groups: map[[2]string]int64{{"billing", "orders"}: 252_000 + 1000*n, {"ledger", "pays"}: 7_380_000},
		},
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

func frames(t *testing.T, n int, v TopView) TopFrame {
	t.Helper()
	var s Sampler
	var f TopFrame
	for i := range n {
		f = s.Frame(sampled(int64(i)), v.Topics)
	}
	f.Interval = "1s"
	rows, err := v.Rows(f.Rows)
	if err != nil {
		t.Fatal(err)
	}
	f.Rows = rows
	return f
}

// The screens of top, by hand: the rates are those of the samples.
func TestTopScreens(t *testing.T) {
	groups, topics := TopView{By: "backlog"}, TopView{By: "in", Topics: true}
	for name, s := range map[string]TopScreen{
		"top_first.txt":  {Frame: frames(t, 1, groups), View: groups},
		"top_groups.txt": {Frame: frames(t, 12, groups), View: groups},
		"top_topics.txt": {Frame: frames(t, 12, topics), View: topics},
		"top_failed.txt": {Frame: frames(t, 12, groups), View: groups, Failed: errors.New("connection refused\x1b[2J")},
		"top_typing.txt": {Frame: frames(t, 12, TopView{By: "dead", Match: "led*"}), View: TopView{By: "dead", Match: "led*"}, Typing: true, Paused: true},
	} {
		s.Server, s.Width, s.Height = "127.0.0.1:8082", 120, 24
		var b strings.Builder
		if err := s.Write(&b, output.Options{}); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}

// The sum names the messages of blocked message groups if there are any.
func TestTopBlocked(t *testing.T) {
	f := frames(t, 1, TopView{By: "backlog"})
	f.Total.Blocked = 16_000
	var b strings.Builder
	if err := (&TopScreen{Frame: f, View: TopView{By: "backlog"}, Width: 120, Height: 24}).Write(&b, output.Options{}); err != nil || !strings.Contains(b.String(), "parked 212, blocked 16 000\n") {
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
	f := frames(t, 3, TopView{By: "backlog"})
	for i := range 200 {
		f.Rows = append(f.Rows, TopRow{Group: fmt.Sprintf("group-%d-請求書", i), Topic: "orders"})
	}
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 60; height += 3 {
			s := TopScreen{Server: "h", Frame: f, View: TopView{By: "backlog"}, Width: width, Height: height}
			var b strings.Builder
			if err := s.Write(&b, output.Options{}); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(b.String(), "\n")
			if len(lines) > height {
				t.Fatalf("%d lines on a terminal of %d", len(lines), height)
			}
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
	f := frames(t, 3, TopView{By: "backlog"})
	group, topic := "billing-worker-europe-west-prod", "orders.invoices.created.v2.eu1"
	f.Total = TopRow{Backlog: 1_234_567, Inflight: 12_345, Retry: 1234, Parked: 56, Blocked: 78, In: 1204, Out: 1203, Retries: 12, Dead: 1.5}
	f.Rows = nil
	for i := range int64(200) {
		f.Rows = append(f.Rows, TopRow{Group: fmt.Sprintf("%s-%d", group, i), Topic: topic, Ready: 12_345 + i, Inflight: 1, Retry: 2, Parked: 3, Backlog: 1_234_567, OldestMS: 7_380_000, In: 1.5, Out: 2.5, Retries: 3.5, Dead: 4.5, past: []float64{1, 2, 3}})
	}
	for name, view := range map[string]TopView{"groups": {By: "backlog"}, "topics": {By: "backlog", Topics: true}} {
		s := TopScreen{Server: "https://mq-broker-1.production.europe.example:8082", Frame: f, View: view, Width: 80, Height: 24}
		var b strings.Builder
		if err := s.Write(&b, output.Options{}); err != nil {
			t.Fatal(err)
		}
		want := []string{topic, "12 345", "1 234 567", "2h 03m", "1.5", "4.5", "blocked 78", "dead letters 1.5/s", "not shown", "g groups or topics", "q quit"}
		if !view.Topics {
			want = append(want, group+"-0", group+"-5")
		}
		for _, part := range want {
			if !strings.Contains(b.String(), part) {
				t.Errorf("%s: %q is missing in\n%s", name, part, b.String())
			}
		}
		if n := strings.Count(b.String(), "\n") + 1; n > 24 || n < 23 {
			t.Errorf("%s: %d lines:\n%s", name, n, b.String())
		}
	}
}

// A column that has shown a value stays on the screen when it is 0 again, so that the others keep
// their places.
func TestTopColumnsStay(t *testing.T) {
	f := frames(t, 3, TopView{By: "backlog"})
	s := TopScreen{Server: "h", Frame: f, View: TopView{By: "backlog"}, Width: 70, Height: 24}
	head := func(parked int64) string {
		s.Frame.Rows = []TopRow{{Group: "billing", Topic: "orders", Ready: 12_345, Backlog: 12_345, Parked: parked, OldestMS: 1000, In: 1, Out: 1}}
		var b strings.Builder
		if err := s.Write(&b, output.Options{}); err != nil {
			t.Fatal(err)
		}
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
	var s Sampler
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
	f := frames(t, 3, TopView{By: "backlog"})
	for _, c := range []struct {
		view TopView
		want string
	}{
		{TopView{By: "backlog"}, "billing ledger"},
		{TopView{By: "backlog", Reverse: true}, "ledger billing"},
		{TopView{By: "age"}, "ledger billing"},
		{TopView{By: "dead"}, "billing ledger"},
		{TopView{By: "out", Match: "led*"}, "ledger"},
		{TopView{By: "in", Match: "orders"}, "billing"}, // by its topic
	} {
		rows, err := c.view.Rows(f.Rows)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, r.Group)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v gives %v, want %s", c.view, got, c.want)
		}
	}
	for _, bad := range []TopView{{By: "size"}, {By: "in", Match: "[a"}} {
		if _, err := bad.Rows(nil); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
