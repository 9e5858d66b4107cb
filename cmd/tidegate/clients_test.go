package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
)

// receiveAs receives a message over HTTP as a client of this ID.
func (tl *tool) receiveAs(id, group, topic string) {
	tl.t.Helper()
	r := assert.Value(http.NewRequestWithContext(tl.t.Context(), "POST", tl.http+"/v1/groups/"+group+"/topics/"+topic+"/receive", strings.NewReader(`{"max": 1}`)))(tl.t)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Mq-Client-Id", id)
	answer := assert.Value(http.DefaultClient.Do(r))(tl.t)
	if answer.Body.Close(); answer.StatusCode != 200 {
		tl.t.Fatalf("a receive: %s", answer.Status)
	}
}

// clients list and top --clients show the connected clients. Their flags select some of them.
func TestClients(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "pays")
	tl.must("clients", "list").notes("no client")
	tl.must("send", "orders", "a", "--count", "2")
	tl.receiveAs("one", "billing", "orders")
	tl.receiveAs("one", "billing", "orders")
	tl.receiveAs("two", "ledger", "pays")
	for flags, want := range map[string]string{
		"":                         "one http billing orders 0 2\ntwo http ledger pays 0 0\n",
		"--group ledger":           "two http ledger pays 0 0\n",
		"--topic orders":           "one http billing orders 0 2\n",
		"--match t*":               "two http ledger pays 0 0\n",
		"--kind http --sort -id":   "two http ledger pays 0 0\none http billing orders 0 2\n",
		"--limit 1":                "one http billing orders 0 2\n",
		"--language GO --outdated": "", "--version 5 --idle 1h": "",
	} {
		r := tl.must(append([]string{"clients", "list", "--no-headers", "--columns", "id,kind,group,topics,waiting,flight"}, strings.Fields(flags)...)...)
		if got := squeezed(r.stdout); got != want {
			t.Errorf("clients list %s prints\n%s\nwant\n%s", flags, got, want)
		}
	}
	page := document[status.ClientPage](t, tl.must("clients", "list", "-o", "json", "--group", "billing").stdout)
	assert.That(t, len(page.Clients) == 1 && page.Total == 1 && page.Clients[0].Inflight == 2 && strings.HasPrefix(page.Clients[0].Address, "127.0.0.1:"), "the JSON is %+v", page)
	if r := tl.must("group", "show", "billing", "--clients"); !strings.Contains(squeezed(r.stdout), "\none http - - billing orders ") {
		t.Errorf("group show --clients prints\n%s", r.stdout)
	}
	group := document[struct{ Clients status.ClientPage }](t, tl.must("group", "show", "ledger", "--clients", "-o", "json").stdout)
	assert.That(t, len(group.Clients.Clients) == 1 && group.Clients.Clients[0].ID == "two", "the JSON of group show is %+v", group)
	assert.Equal(t, "the names are", tl.must("clients", "list", "-o", "name").stdout, "one\ntwo\n")
	tl.must("clients", "list", "-o", "wide").prints("ADDRESS", "127.0.0.1:")
	for by, want := range map[string]string{"--by=inflight": "one 2\ntwo 0\n", "--by=idle": "one 2\ntwo 0\n", "--reverse": "two 0\none 2\n", "--match=two": "two 0\n"} {
		r := tl.must("top", "--clients", "--once", "--no-headers", "--columns", "id,flight", by)
		if got := squeezed(r.stdout); got != want {
			t.Errorf("top --clients %s prints\n%s\nwant\n%s", by, got, want)
		}
	}
	if r := tl.must("top", "--clients", "--once", "-o", "jsonl"); strings.Count(r.stdout, "\n") != 1 || !strings.Contains(r.stdout, `"total":2`) {
		t.Errorf("a line of top --clients is %q", r.stdout)
	}
	for limit, want := range map[string]string{"0": "one two", "1": "one", "2": "one two"} {
		r := tl.must("top", "--clients", "--once", "--limit", limit, "-o", "jsonl")
		var ids []string
		page := document[status.ClientPage](t, r.stdout)
		for _, c := range page.Clients {
			ids = append(ids, c.ID)
		}
		if got := strings.Join(ids, " "); got != want || page.Total != 2 {
			t.Errorf("top --clients --limit %s has %q of %d clients, want %q of 2", limit, got, page.Total, want)
		}
	}
	for _, wrong := range [][]string{{"clients", "list", "--kind", "robot"}, {"clients", "list", "--idle", "-1s"}, {"clients", "list", "--match", "[a"},
		{"top", "--clients", "--topics"}, {"top", "--clients", "--by", "backlog"}, {"top", "--by", "idle"}} {
		tl.fails(2, "", wrong...)
	}
}

// A redrive to one group leaves the other groups of the topic alone. It needs a tidegate broker.
func TestRedriveToGroupOnly(t *testing.T) {
	t.Parallel()
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead")
	tl.must("receive", "ledger", "orders", "--max", "1", "--then", "ack")
	redrive := []string{"dead-letters", "redrive", "billing", "--to-group-only", "--journal", filepath.Join(tl.home, "journal")}
	tl.must(append(redrive, "--dry-run", "-o", "json")...).prints(`"redriven": 1`)
	tl.must(append(redrive, "--yes", "-o", "json")...).prints(`"redriven": 1`)
	for group, want := range map[string]string{"ledger": "", "billing": "a"} {
		if r := tl.run("receive", group, "orders", "--max", "1", "--then", "ack", "--format", "%b"); strings.TrimSpace(r.stdout) != want {
			t.Errorf("group %s receives %q, want %q; %s", group, r.stdout, want, r.stderr)
		}
	}
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	for _, wrong := range [][]string{{"--to", "orders"}, {"--edit", ""}} {
		tl.fails(2, wrong[0], append(redrive, append(wrong, "--yes")...)...)
	}
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	tl.fails(2, "needs --to TOPIC on RocketMQ", append(redrive, "--as", "x", "--yes", "--context", "rmq")...) // on RocketMQ
}
