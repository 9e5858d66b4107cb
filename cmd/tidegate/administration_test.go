package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
)

// squeezed is a text with one space between words.
func squeezed(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// topic list selects topics by state and by their highest figures.
func TestTopicList(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "pays")
	tl.must("topic", "create", "empty")
	tl.must("topic", "create", "later", "type=DELAY")
	tl.must("send", "orders", "a", "--count", "3")
	tl.must("send", "pays", "a")
	tl.must("send", "later", "a", "--in", "1h")
	tl.must("topic", "create", "full", "max_backlog.messages=1")
	tl.must("send", "full", "a")
	tl.run("send", "full", "b", "--ack-timeout", "1ms")
	for _, c := range []struct{ flags, want string }{
		{"", "empty 0 0\nfull 1 0\nlater 0 1\norders 3 0\npays 1 0\n"},
		{"--match *r*", "later 0 1\norders 3 0\n"},
		{"--state delayed", "later 0 1\n"},
		{"--state empty", "empty 0 0\n"},
		{"--state throttled", "full 1 0\n"},
		{"--top 1", "orders 3 0\n"},
		{"--top 2 --by stored --sort name --match *s", "orders 3 0\npays 1 0\n"},
	} {
		r := tl.must(append([]string{"topic", "list", "--no-headers", "--columns", "name,backlog,delayed"}, strings.Fields(c.flags)...)...)
		if got := squeezed(r.stdout); got != c.want {
			t.Errorf("topic list %s prints\n%s\nwant\n%s", c.flags, r.stdout, c.want)
		}
	}
	tl.must("topic", "list", "--state", "throttled", "--match", "x*").notes("in the state throttled with a name like x*")
	for _, flags := range []string{"--state=slow", "--top=-1", "--top=1 --by=size", "--by=age", "--match=[a"} {
		tl.run(append([]string{"topic", "list"}, strings.Fields(flags)...)...).exits(2).is("")
	}
}

// topic show and group show have the positions in each queue, and the times of retries.
func TestShowQueuesAndSchedule(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")
	tl.must("send", "orders", "a", "--count", "5")
	tl.must("receive", "billing", "orders", "--max", "2", "--then", "ack")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "retry=20m")
	if got, want := squeezed(tl.must("topic", "show", "orders", "--queues").stdout), "\n0 0 5 5 "; !strings.Contains(got, want) {
		t.Errorf("topic show --queues prints\n%s\nwant %q", got, want)
	}
	topic := document[struct {
		Name        string
		QueueStates []status.Queue `json:"queue_states"`
	}](t, tl.must("topic", "show", "orders", "--queues", "-o", "json").stdout)
	if q := topic.QueueStates; topic.Name != "orders" || len(q) != 1 || q[0].End != 5 || q[0].Messages != 5 {
		t.Errorf("the JSON is %+v", topic)
	}
	got := squeezed(tl.must("group", "show", "billing", "--queues", "--schedule").stdout)
	for _, want := range []string{"\nTOPIC QUEUE BEGIN CURSOR END UNDELIVERED UNFINISHED OLDEST\norders 0 0 3 5 2 1 ", "\nTOPIC DUE RETRIES LEASES-END\norders within 30m 00s 1 0\n"} {
		assert.That(t, strings.Contains(got, want), "group show prints\n%s\nwithout %q", got, want)
	}
	group := document[struct {
		QueueStates []status.GroupQueue        `json:"queue_states"`
		Schedules   map[string]status.Schedule `json:"schedules"`
	}](t, tl.must("group", "show", "billing", "--queues", "--schedule", "-o", "json").stdout)
	if q := group.QueueStates; len(q) != 1 || q[0].Cursor != 3 || time.Until(group.Schedules["orders"].NextRetry) < 19*time.Minute {
		t.Errorf("the JSON is %+v", group)
	}
	tl.fails(3, "", "group", "show", "billing", "--topic", "pays") // a topic from which the group has not received
	if tl.must("receive", "idle", "orders", "--max", "1", "--then", "ack"); !strings.Contains(tl.must("group", "show", "idle", "--schedule").stderr, "No message is in flight") {
		t.Error("an empty schedule prints no note")
	}
}

// A dry run of rewind and purge has the counts, and changes nothing.
func TestPlans(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")
	tl.must("send", "orders", "abcd", "--count", "5")
	tl.must("receive", "billing", "orders", "--max", "2", "--then", "ack")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "retry=20m")
	for _, c := range []struct{ flags, row, note string }{
		{"--to earliest", "0 3 0 3 0 1\n", "3 offsets back, 0 offsets forward, 1 unfinished message taken"},
		{"--to latest", "0 3 5 0 2 1\n", "0 offsets back, 2 offsets forward, 1 unfinished message taken"},
		{"--queue 0=1", "0 3 1 2 0 1\n", "2 offsets back, 0 offsets forward, 1 unfinished message taken"},
	} {
		args := append([]string{"group", "rewind", "billing", "orders", "--no-headers"}, strings.Fields(c.flags)...)
		for range 2 { // the first changed nothing
			r := tl.must(append(args, "--dry-run")...)
			assert.That(t, squeezed(r.stdout) == c.row && strings.Contains(r.stderr, c.note), "%s: %q, %q; want %q, %q", c.flags, r.stdout, r.stderr, c.row, c.note)
		}
	}
	if r := tl.must("group", "rewind", "billing", "orders", "--queue", "0=1", "--yes", "--no-headers"); squeezed(r.stdout) != "0 3 1 2 0 1\n" {
		t.Errorf("the rewind printed %q", r.stdout)
	}
	for _, flags := range []string{"", "--to=earliest --queue=0=1", "--queue=a=1", "--queue=0=-1", "--to=yesterday"} {
		tl.fails(2, "", append([]string{"group", "rewind", "billing", "orders", "--yes"}, strings.Fields(flags)...)...)
	}
	tl.fails(3, "Did you mean billing?", "group", "rewind", "biling", "orders", "--to", "earliest", "--yes") // a wrong name
	for range 2 {
		tl.must("topic", "purge", "orders", "--dry-run").noted("would remove 5 messages of orders, 20 B\n")
	}
	tl.must("topic", "purge", "orders", "--yes").noted("removed 5 messages, 20 B\n")
}

// apply --prune removes subjects that the file does not name, of the kinds that the file has.
// Without --prune-auto-created it keeps auto-created subjects.
func TestPrune(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("topic", "create", "old")
	tl.must("send", "old", "a")
	tl.must("group", "create", "declared")
	tl.must("address", "set", "old.#", "max-delivery-attempts=3")
	tl.must("receive", "billing", "old", "--max", "1", "--then", "dead=x")
	tl.must("address", "set", "orders", "dead-letter-address=dead", "auto-create-dead-letter-resources=true")
	tl.must("send", "orders", "a")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=x")
	file := filepath.Join(tl.home, "cluster.yaml")
	assert.Must(t, os.WriteFile(file, []byte("topics: {orders: {}, dead: {}}\ngroups: {other: {}}\n"), 0o600))
	want := "group declared: removed, with a backlog of 0 messages\ntopic old: removed, with 1 message\n"
	if r := tl.must("apply", file, "--prune", "--dry-run"); !strings.HasSuffix(r.stdout, want) {
		t.Errorf("the dry run printed\n%s\nwant\n%s", r.stdout, want)
	}
	tl.fails(2, "--yes", "apply", file, "--prune") // without --yes
	exist := func(when string, want map[string]bool) {
		t.Helper()
		for subject, exists := range want {
			noun, name, _ := strings.Cut(subject, " ")
			if r := tl.run(noun, "show", name); (r.code == 0) != exists || !exists && r.code != 3 {
				t.Errorf("%s: %s show %s ends with %d", when, noun, name, r.code)
			}
		}
	}
	exist("before", map[string]bool{"topic old": true, "group declared": true, "group other": false})
	if r := tl.must("apply", file, "--prune", "--yes"); !strings.HasSuffix(r.stdout, want) {
		t.Errorf("it printed\n%s\nwant\n%s", r.stdout, want)
	}
	tl.must("export").prints("other").lacks("    billing:", "DLQ.orders")
	exist("after it", map[string]bool{"topic orders": true, "topic old": false, "topic %DLQ%billing": true, "topic DLQ.orders": true, "group declared": false, "group billing": true, "group other": true, "address old.#": true})
	tl.must("apply", file, "--prune", "--prune-auto-created", "--yes")
	exist("after the second", map[string]bool{"topic orders": true, "topic %DLQ%billing": false, "topic DLQ.orders": false, "group billing": false, "group other": true, "address old.#": true})
	assert.Equal(t, "the third time", tl.must("apply", file, "--prune", "--yes").stderr, "nothing changes\n")
	tl.fails(2, "", "apply", file, "--prune-auto-created")
}

// audit lists changes over HTTP, the newest first, and the flags select some.
func TestAuditCommand(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("topic", "set", "orders", "retention.time=1h")
	tl.must("topic", "create", "pays")
	tl.must("topic", "purge", "orders", "--yes")
	for flags, want := range map[string]string{
		"":                       "purgeTopic orders\nputTopic pays\nputTopic orders\n",
		"--limit 1":              "purgeTopic orders\n",
		"--subject orders":       "purgeTopic orders\nputTopic orders\n",
		"--operation purgeTopic": "purgeTopic orders\n",
		"--key unknown":          "",
		"--since -1h --sort operation --subject pays": "putTopic pays\n",
	} {
		r := tl.must(append([]string{"audit", "--no-headers", "--columns", "operation,subject"}, strings.Fields(flags)...)...)
		if got := squeezed(r.stdout); got != want {
			t.Errorf("audit %s prints\n%s\nwant\n%s", flags, r.stdout, want)
		}
	}
	page := document[status.AuditPage](t, tl.must("audit", "-o", "json").stdout)
	assert.That(t, len(page.Records) == 3 && page.Records[0].Result == "ok" && page.Records[0].Peer != "", "the JSON is %+v", page)
	tl.fails(2, "", "audit", "--since", "yesterday") // a wrong time
}
