package view

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

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
	if err := output.Fields(&b, output.Options{}, StatusFields("127.0.0.1:8082", o)); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	if err := (output.List[Problem]{Rows: Wrong(o), Columns: ProblemColumns}).Print(&b, &b, output.Options{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.txt", b.String())
}

// The status of a broker that is not ready names the reason. A broker without messages has no ages
// and no fsyncs.
func TestStatusOfIdleBroker(t *testing.T) {
	o := status.Overview{Version: "v0.1.0", Started: noon, Now: noon.Add(1500 * time.Millisecond), NotReady: "the disk is full"}
	var b strings.Builder
	if err := output.Fields(&b, output.Options{}, StatusFields("127.0.0.1:8082", o)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"up 1s\n", "not ready: the disk is full\n", "0 of them wait for a retry\ndisk     0 B\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the screen lacks %q:\n%s", want, &b)
		}
	}
	if got := Wrong(o); len(got) != 0 {
		t.Errorf("the problems are %+v, want none", got)
	}
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
		if err := (output.List[status.GroupSummary]{Rows: rows, Columns: ListColumns}).Print(&b, &b, output.Options{Format: format}); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}
