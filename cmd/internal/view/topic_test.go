package view

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// The screen of topic list, by hand.
func TestTopicListScreen(t *testing.T) {
	rows := []status.TopicSummary{
		{Name: "orders", Type: "NORMAL", Queues: 8, Stored: status.Backlog{Messages: 5000, Bytes: 5 << 20}, Backlog: status.Backlog{Messages: 1586, Bytes: 2 << 20}, OldestMS: 252_000, InRate: 87.4, OutRate: 12, Groups: 2, Throttle: &status.Throttle{Limit: "group backlog messages", Value: 1586, Mark: 1000}},
		{Name: "reminders", Type: "DELAY", Queues: 1, Delayed: status.Backlog{Messages: 12}},
		{Name: "%DLQ%billing", Type: "NORMAL", Queues: 1, Stored: status.Backlog{Messages: 41, Bytes: 4100}, Backlog: status.Backlog{Messages: 41, Bytes: 4100}, OldestMS: 7_380_000, Half: 1},
	}
	for name, format := range map[string]output.Format{"topic_list.txt": output.Table, "topic_list_wide.txt": output.Wide} {
		var b strings.Builder
		list := output.List[status.TopicSummary]{Rows: rows, Columns: TopicColumns}
		if err := list.Print(&b, &b, output.Options{Format: format}); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}
