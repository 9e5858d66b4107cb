package view

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func TestStatusScreen(t *testing.T) {
	now := sampled(10)
	s := Status{Server: "127.0.0.1:8082", Ready: true}
	s.Fill(now.Topics, now.Groups, status.Throttles{Throttles: []status.LimitState{
		{Throttle: status.Throttle{Limit: "group backlog messages", Subject: "billing", Value: 1586, Mark: 1500, Resume: 1200, Unit: "messages"}, On: true},
	}})
	var b strings.Builder
	if err := output.Fields(&b, output.Options{}, s.Fields()); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	if err := (output.List[Problem]{Rows: s.Problems, Columns: ProblemColumns}).Print(&b, &b, output.Options{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.txt", b.String())
}

func TestGroupListScreen(t *testing.T) {
	var rows []Progress
	for _, g := range sampled(10).Groups {
		for _, s := range g.Topics {
			rows = append(rows, Progress{g.Name, s})
		}
	}
	for name, format := range map[string]output.Format{"group_list.txt": output.Table, "group_list_wide.txt": output.Wide} {
		var b strings.Builder
		if err := (output.List[Progress]{Rows: rows, Columns: GroupColumns}).Print(&b, &b, output.Options{Format: format}); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
}
