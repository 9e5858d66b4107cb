package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
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

func operatorsPage(t *testing.T) string {
	t.Helper()
	text := assert.Value(os.ReadFile("../../OPERATORS.md"))(t)
	return string(text)
}

func clustersPage(t *testing.T) string {
	t.Helper()
	return string(assert.Value(os.ReadFile("../../CLUSTERS.md"))(t))
}

// The page has a row for each alert rule, and no other.
func TestOperatorsPageHasAllAlerts(t *testing.T) {
	rules := assert.Value(os.ReadFile("../../broker/server/monitoring/alerts.yml"))(t)
	var want, got []string
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		want = append(want, m[1])
	}
	for _, m := range regexp.MustCompile("`(Tidegate[A-Z]\\w+)`").FindAllStringSubmatch(operatorsPage(t), -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	assert.That(t, len(want) != 0 && slices.Equal(got, want), "the page has %q, want %q", got, want)
}

// The commands of the page back up a broker that works, and a broker on the backup has its
// messages.
func TestBackupAsDescribed(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)<!-- example: backup -->\n```sh\n(.*?)```").FindStringSubmatch(operatorsPage(t))
	assert.MustThat(t, block != nil, "the page has no commands for a backup")
	dir := t.TempDir()
	data, snapshots, backup := filepath.Join(dir, "data"), filepath.Join(dir, "snapshots"), filepath.Join(dir, "backup")
	tl := newTool(t, "--data", data, "--snapshot-dir", snapshots, "--topic", "orders")
	tl.must("send", "orders", "before")
	sh := exec.CommandContext(t.Context(), "sh", "-euc", block[1])
	sh.Env = append(tl.environ(installed(t)), "BACKUP="+backup)
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tl.must("send", "orders", "after")
	restored := newTool(t, "--data", backup)
	got := lines[received](t, restored.must("receive", "billing", "orders", "--then", "ack", "--max", "2", "--wait", "1s", "-o", "jsonl").stdout)
	assert.That(t, len(got) == 1 && got[0].BodyText == "before", "the restored broker has %+v", got)
	if left, err := os.ReadDir(snapshots); err != nil || len(left) > 0 {
		t.Errorf("the snapshot is still there: %v (%v)", left, err)
	}
}

// Each command of the pages exists, with its flags.
func TestPagesNameCommands(t *testing.T) {
	tl := &tool{t: t}
	for name, page := range map[string]struct {
		text  string
		least int // of commands
	}{"OPERATORS.md": {operatorsPage(t), 10}, "CLUSTERS.md": {clustersPage(t), 10}} {
		found := 0
		for _, m := range regexp.MustCompile("`(tidegate [a-z][^`]*)`|(?m)^(tidegate [^>\n]*)").FindAllStringSubmatch(page.text, -1) {
			words := strings.Fields(strings.ReplaceAll(m[1]+m[2], "'", ""))[1:]
			tl.must(append(words, "--help")...)
			found++
		}
		assert.That(t, found >= page.least, "%s: %d commands were found", name, found)
	}
}

const cluster = `
topics:
  orders: {type: FIFO, queues: 4, max_backlog: {messages: 1000}}
  payments:
groups:
  billing: {fifo: true, max_attempts: 5, retry: 1s 2s}
address_settings:
  orders.#: {max-delivery-attempts: 4}
`

// A file is applied once: the second time nothing changes. Settings that it does not name stay, and
// the export of one broker makes another the same, also as a configuration of serve.
func TestApplyAndExport(t *testing.T) {
	tl := newTool(t)
	file := filepath.Join(tl.home, "cluster.yaml")
	assert.Must(t, os.WriteFile(file, []byte(cluster), 0o600))
	dry := tl.must("apply", file, "--dry-run")
	assert.That(t, strings.Contains(dry.stdout, "topic orders: new\n") && strings.Contains(dry.stdout, "max_backlog.messages: default -> 1000\n"), "the dry run printed\n%s", dry.stdout)
	tl.fails(3, "", "topic", "show", "orders") // the dry run created no topic
	tl.must("apply", file)
	tl.must("apply", file).is("").notes("nothing changes")
	tl.must("topic", "set", "orders", "retention.time=1h")
	assert.Equal(t, "a setting that the file does not name changed", tl.must("apply", file).stdout, "")
	exported := tl.must("export").stdout
	assert.Must(t, os.WriteFile(file, []byte(exported), 0o600))
	for name, other := range map[string]*tool{"apply": newTool(t), "serve --config": newTool(t, "--config", file)} {
		if name == "apply" {
			other.must("apply", file)
		}
		other.must("export").is(exported)
	}
}

// export --mqadmin prints the commands that create the topics and groups on a RocketMQ, and the
// settings that RocketMQ lacks. The options are those of mqadmin: updateTopic has -r and -w for the
// queues of each broker and -a for attributes; updateSubGroup has -r for the deliveries after the
// first one, -o for the order, -p for the retry schedule in milliseconds and --attributes. The attributes
// of lite topics are those of RocketMQ 5.5: TopicAttributes has minutes, up to 30 days, and
// SubscriptionGroupAttributes the rest.
func TestExportForMqadmin(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=4", "max_backlog.messages=1000")
	tl.must("topic", "create", "accounts", "type=FIFO")
	tl.must("group", "create", "billing", "max_attempts=4", "retry=1s 10s")
	tl.must("group", "create", "booking", "fifo=true", "on_exhausted=park", "fifo_retry_interval=500ms")
	tl.must("group", "create", "patient", "max_attempts=-1")
	tl.must("topic", "create", "sessions", "type=LITE", "lite.expiry=90s", "lite.max_topics=5")
	tl.must("topic", "create", "requests", "type=LITE", "lite.expiry=721h")
	tl.must("group", "create", "agents", "fifo=true", "lite.topic=sessions", "lite.max_topics=7", "lite.exclusive=true")
	tl.must("address", "set", "orders", "max-delivery-attempts=4")
	tl.must("send", "orders", "a")
	tl.must("receive", "audit", "orders", "--max", "1", "--then", "dead=x") // creates audit and its dead letter queue
	tl.must("receive", "watch", "accounts", "--max", "1", "--then", "ack", "--wait", "0s")
	tl.must("export", "--mqadmin").is(`mqadmin updateTopic -n NAMESERVER -c CLUSTER -t accounts -r 8 -w 8 -a +message.type=FIFO
mqadmin updateTopic -n NAMESERVER -c CLUSTER -t orders -r 4 -w 4 -a +message.type=NORMAL
mqadmin updateTopic -n NAMESERVER -c CLUSTER -t requests -r 1 -w 1 -a +message.type=LITE
mqadmin updateTopic -n NAMESERVER -c CLUSTER -t sessions -r 1 -w 1 -a +message.type=LITE,+lite.topic.expiration=2
mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g agents -r 16 -o true --attributes +lite.bind.topic=sessions,+lite.sub.client.quota=7,+lite.sub.model=Exclusive
mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g audit -r 16
mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g billing -r 3 -p '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,10000]}}'
mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g booking -r 16 -o true -p '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[500]}}'
mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g patient -r 1000000
mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g watch -r 16 -o true
# RocketMQ lacks max_backlog={"messages":1000} of topic orders
# RocketMQ lacks lite.expiry=721h0m0s of topic requests
# RocketMQ lacks lite.max_topics=5 of topic sessions
# RocketMQ lacks on_exhausted="park" of group booking
# RocketMQ lacks max-delivery-attempts=4 of address settings orders
`)
	tl.must("export", "--mqadmin", "--name-server", "a:9876;b:9876", "--cluster", "DefaultCluster").prints("mqadmin updateTopic -n 'a:9876;b:9876' -c DefaultCluster -t orders ")
	var doc struct {
		Commands   []string `json:"commands"`
		NotCarried []string `json:"not_carried"`
	}
	decode(t, tl.must("export", "--mqadmin", "-o", "json").stdout, &doc)
	assert.That(t, len(doc.Commands) == 10 && len(doc.NotCarried) == 5, "the document has %+v", doc)
	tl.fails(2, "belong to --mqadmin", "export", "--cluster", "DefaultCluster")
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	tl.run("move", "accounts", "--group", "booking", "--to", "rmq", "--to-topic", "nope", "--yes", "--other-groups").exits(3).
		notes("mqadmin updateTopic -n NAMESERVER -c CLUSTER -t nope -r 8 -w 8 -a +message.type=FIFO", "mqadmin updateSubGroup -n NAMESERVER -c CLUSTER -g booking -r 16 -o true")
}

// apply --prune removes what a file does not declare. A file of which it would read only a part, or
// another part than serve, is an error, and nothing is applied or removed.
func TestApplyReadsTheWholeFile(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "payments")
	tl.must("send", "payments", "a message")
	for _, c := range map[string]struct{ text, says string }{
		"nothing to apply":    {"grpc: 127.0.0.1:1", "no topics, groups or address_settings"},
		"two documents":       {"topics:\n  orders: {}\n---\ntopics:\n  payments: {}\n", "standard input:3: a second YAML document begins here"},
		"the same part":       {"topics:\n  payments: {}\ntopics:\n  orders: {}\n", `standard input:3: "topics" is repeated, first in line 1`},
		"the same topic":      {"topics:\n  orders: {queues: 9}\n  orders: {queues: 10}\n", `standard input:3: "orders" is repeated, first in line 2`},
		"indented too little": {"topics:\n  orders: {}\npayments:\n  queues: 8\n", `standard input:3: "payments" is unknown`},
		"mistyped part":       {"topics:\n  orders: {}\ngroup:\n  payments: {}\n", `standard input:3: "group" is unknown; did you mean groups?`},
		"an alias":            {"topics:\n  orders: &a {queues: 9}\n  payments: *a\n", "topics.payments is a YAML alias"},
		"a merge":             {"topics:\n  orders: &a {queues: 9}\n  payments: {<<: *a}\n", `"<<" is unknown in topics.payments`},
		"no value":            {"topics:\n  orders: {queues: }\n", "topics.orders.queues has no value"},
		"hexadecimal":         {"topics:\n  orders: {queues: 0x9}\n", "give a whole number"},
		"a fraction":          {"topics:\n  orders: {queues: 9.0}\n", "give a whole number"},
		"not true or false":   {"groups:\n  billing: {fifo: yes}\n", "give true or false"},
		"a list of settings":  {"topics:\n  orders: [queues]\n", "topics.orders is a list"},
		"UTF-16":              {"\xff\xfet\x00", "standard input:1: the text is UTF-16"},
	} {
		for _, args := range [][]string{{"apply", "-", "--dry-run"}, {"apply", "-", "--prune", "--yes"}} {
			tl.input(c.text, args...).exits(2).is("").notes(c.says)
		}
	}
	if out := tl.must("peek", "payments", "--columns", "text", "--no-headers").stdout; strings.TrimSpace(out) != "a message" {
		t.Errorf("payments has %q", out)
	}
	tl.must("topic", "show", "orders", "-o", "json").prints(`"queues": 8`)
	for _, text := range []string{
		"\xef\xbb\xbftopics: {orders: {queues: 9, max_backlog: {bytes: 1MiB, age: 1m}}, payments: }\n", "# a comment\n---\ntopics: {orders: , payments: {}}\n...\n",
	} {
		tl.pipe(text, "apply", "-", "--prune", "--yes")
	}
	tl.must("topic", "show", "orders", "-o", "json").prints(`"queues": 9`, `"bytes": 1048576`, `"age": "1m0s"`)
}

// A shell completes the names of topics and groups from the server, and nothing without one.
func TestCompletion(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "payments")
	tl.must("group", "create", "billing")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"topic", "show", ""}, "orders\npayments\n"},
		{[]string{"topic", "show", "pa"}, "payments\n"},
		{[]string{"receive", "billing", "o"}, "orders\n"},
		{[]string{"group", "show", ""}, "billing\n"},
		{[]string{"topic", "show", "orders", ""}, ""},
	} {
		got := tl.must(append([]string{"__complete"}, c.args...)...).stdout
		if names, _, _ := strings.Cut(got, ":"); names != c.want {
			t.Errorf("%q completes to %q, want %q", c.args, names, c.want)
		}
	}
	tl.env["TIDEGATE_SERVER_HTTP"] = "http://127.0.0.1:1"
	if got := tl.must("__complete", "topic", "show", ""); !strings.HasPrefix(got.stdout, ":") {
		t.Errorf("without a server: %q", got.stdout)
	}
}

// The command serves the console for a broker whose own console is off, and forwards the API.
func TestConsole(t *testing.T) {
	tl := newTool(t, "--console", "off")
	tl.must("topic", "create", "orders")
	ctx, stop := context.WithCancel(t.Context())
	var stdout, stderr lockedBuffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"console"}, tl.app(&stdout, &stderr))
	}()
	link := regexp.MustCompile(`^(http://127\.0\.0\.1:\d+)/console/#token=(\S+)\n$`)
	for !link.MatchString(stdout.String()) {
		select {
		case c := <-code:
			t.Fatalf("the command ended with %d: %s%s", c, stdout.String(), stderr.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	m := link.FindStringSubmatch(stdout.String())
	if resp, err := http.Get(m[1] + "/console/"); err != nil || resp.StatusCode != 200 {
		t.Errorf("GET /console/: %+v, %v", resp, err)
	}
	login := assert.Value(http.NewRequestWithContext(ctx, "POST", m[1]+"/v1/session", http.NoBody))(t)
	login.Header.Set("Authorization", "Bearer "+m[2])
	session := assert.Value(http.DefaultClient.Do(login))(t)
	var half struct{ Token string }
	assert.Must(t, json.NewDecoder(session.Body).Decode(&half), "POST /v1/session: %s", session.Status)
	list := assert.Value(http.NewRequestWithContext(ctx, "GET", m[1]+"/v1/topics", http.NoBody))(t)
	for _, c := range session.Cookies() {
		list.AddCookie(c)
	}
	list.Header.Set("X-Tidegate-Session", half.Token)
	resp := assert.Value(http.DefaultClient.Do(list))(t)
	if text, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || err != nil || !strings.Contains(string(text), "orders") {
		t.Errorf("GET /v1/topics: %s %s, %v", resp.Status, text, err)
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("after Ctrl-C the exit code is %d: %s", c, stderr.String())
	}
}

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

// A redrive says in its question, its dry run and its result which other groups receive the
// messages, and how to avoid it. It says nothing if the failed group is the only one, or if the
// messages go to it alone.
func TestRedriveNamesTheGroups(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "pays")
	bury := func(group, topic string) {
		t.Helper()
		tl.must("send", topic, "1 EUR")
		tl.must("receive", group, topic, "--max", "1", "--then", "dead=unknown currency")
	}
	asks := func(args ...string) string {
		t.Helper()
		tl.terminal = true
		defer func() { tl.terminal = false }()
		r := tl.input("n\n", append([]string{"dead-letters", "redrive", "billing"}, args...)...)
		assert.That(t, r.code == 1 && strings.Contains(r.stderr, "[y/N]"), "%q: exit code %d, %s", args, r.code, r.stderr)
		return r.stderr
	}
	edit := []string{"--edit", "sed s/EUR/USD/"}
	bury("billing", "orders")
	if text := asks(edit...); strings.Contains(text, "all groups") {
		t.Errorf("the question names other groups than the only one: %s", text)
	}
	tl.must(append([]string{"dead-letters", "redrive", "billing", "--yes"}, edit...)...).lacks("all groups")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=again")
	bury("billing", "pays")
	tl.must("receive", "ledger", "orders", "--max", "2", "--then", "ack")
	advice := "; --to-group-only sends to group billing alone"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{edit, "all groups of topics orders, pays: billing, ledger" + advice},
		{nil, "all groups of topics orders, pays: billing, ledger" + advice},
		{[]string{"--topic", "orders"}, "all groups of topic orders: billing, ledger" + advice},
		{[]string{"--topic", "pays"}, ""},
		{[]string{"--set-tag", "x", "--to", "orders"}, "all groups of topic orders: billing, ledger; a topic of group billing alone, given by --to, avoids it"},
		{append([]string{"--to-group-only"}, edit...), ""},
	} {
		if text := asks(tt.args...); !strings.Contains(text, tt.want) || strings.Contains(text, "all groups") != (tt.want != "") {
			t.Errorf("%q asks %q, want %q", tt.args, text, tt.want)
		}
		if out := tl.must(append([]string{"dead-letters", "redrive", "billing", "--dry-run"}, tt.args...)...).stdout; strings.Contains(out, "they would go to") != (tt.want != "") || !strings.Contains(out, tt.want) {
			t.Errorf("the dry run of %q prints %s, want %q", tt.args, out, tt.want)
		}
	}
	r := tl.must("dead-letters", "redrive", "billing", "--topic", "orders", "--set-tag", "x", "--yes", "-o", "json")
	if got := strings.Join(strings.Fields(r.stdout), ""); !strings.Contains(got, `"to":{"topics":["orders"],"groups":["billing","ledger"]}`) {
		t.Errorf("the result as JSON is %s", r.stdout)
	}
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	tl.must("receive", "other", "orders", "--max", "1", "--then", "ack", "--wait", "1s", "--context", "rmq")
	if text := asks("--context", "rmq", "--as", "repair", "--set-tag", "x"); !strings.Contains(text, "all groups of the topic of each message; ") {
		t.Errorf("without the HTTP API it asks %q", text)
	}
}

// Edits of body, tag, keys and properties, alone and together, for one letter or all, to all groups
// or to the failed one. Each has its journal line, its new ID and its trace, and a second run sends
// nothing.
func TestRedriveEditsFields(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]bool{"all groups": false, "group": true} {
		t.Run(name, func(t *testing.T) {
			tl := newTool(t, "--topic", "orders")
			var ids []string
			for i := range 2 {
				ids = append(ids, strings.TrimSpace(tl.must("send", "orders", fmt.Sprint(i, " EUR"), "--tag", "old", "--key", "k", "-p", "a=1", "-p", "b=2", "-o", "name").stdout))
			}
			tl.must("receive", "billing", "orders", "--max", "2", "--then", "dead=unknown currency")
			tl.must("receive", "ledger", "orders", "--max", "2", "--then", "ack")
			redrive := []string{"dead-letters", "redrive", "billing", "--journal", filepath.Join(tl.home, "journal")}
			if alone {
				redrive = append(redrive, "--to-group-only")
			}
			flags := []string{"--set-tag", "new", "--set-key", "x,y", "--set-key", "z", "--set-property", "c=3=4", "--set-property", "b=5", "--unset-property", "a"}
			tl.must(append(append(redrive, "--dry-run", "--edit", "sed s/EUR/USD/"), flags...)...).prints("0 EUR -> 0 USD; tag old -> new; keys k -> x,y z; property a 1 -> none; property b 2 -> 5; property c none -> 3=4")
			one := append(append(redrive, "--id", ids[0], "--yes", "--edit", "sed s/EUR/USD/"), flags...)
			tl.must(one...).notes(ids[0] + " was sent as " + ids[0] + ".redrive-1")
			tl.fails(3, "", one...) // the second run
			const format = "%b|%T|%k|%p{a}|%p{b}|%p{c}"
			got := tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "--format", format).stdout
			if want := "0 USD|new|x,y,z||5|3=4"; strings.TrimSpace(got) != want {
				t.Errorf("the group received %q, want %q", got, want)
			}
			tl.must("trace", ids[0]).prints("its dead letter was sent back as message " + ids[0] + ".redrive-1")
			if text := tl.must("trace", ids[0]+".redrive-1").stdout; !strings.Contains(text, "billing") || strings.Contains(text, "ledger") == alone {
				t.Errorf("the trace of the new message is %s", text)
			}
			tl.must(append(redrive[:5:5], append(redrive[5:], "--journal", filepath.Join(tl.home, "second"), "--reason", "currency", "--yes", "--unset-tag", "--unset-keys")...)...)
			if got := tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "--format", format).stdout; strings.TrimSpace(got) != "1 EUR|||1|2|" {
				t.Errorf("without tag and keys %q came", got)
			}
			if r := tl.run("receive", "ledger", "orders", "--max", "1", "--then", "ack", "--wait", "100ms"); (r.stdout == "") != alone {
				t.Errorf("the other group received %q", r.stdout)
			}
			tl.must("audit", "-o", "jsonl").prints(ids[0] + ".redrive-1")
		})
	}
}

// Values that no message can have, and flags that contradict each other, are errors before anything
// is sent. Limits that depend on the message are errors of its letter, which stays.
func TestRedriveEditMistakes(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	id := strings.TrimSpace(tl.must("send", "orders", "1 EUR", "--tag", "old", "-p", "a=1", "-o", "name").stdout)
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=unknown currency")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--edit", ""}, "--edit is empty"},
		{[]string{"--set-tag", ""}, "--unset-tag removes the tag"},
		{[]string{"--set-tag", "a|b"}, "tag"},
		{[]string{"--set-tag", "a", "--unset-tag"}, "exclude each other"},
		{[]string{"--set-key", ""}, "--unset-keys removes all keys"},
		{[]string{"--set-key", " "}, "key"},
		{[]string{"--set-key", "a", "--unset-keys"}, "exclude each other"},
		{[]string{"--set-property", "a"}, "the form is NAME=VALUE"},
		{[]string{"--set-property", "=1"}, "is empty, reserved"},
		{[]string{"--set-property", "a="}, "--unset-property a removes it"},
		{[]string{"--set-property", "a=1", "--set-property", "a=2"}, "given twice"},
		{[]string{"--set-property", "a=1", "--unset-property", "a"}, "exclude each other"},
		{[]string{"--set-property", "TAGS=1"}, `"TAGS" is empty, reserved`},
		{[]string{"--set-property", "DLQ_REDRIVES=0"}, "the redrive sets this property"},
		{[]string{"--set-property", "a\x1bb=1"}, "control character"},
		{[]string{"--set-property", "a=" + strings.Repeat("x", protocol.MaxPropertiesSize)}, "16384"},
		{[]string{"--unset-property", ""}, "give the name"},
		{[]string{"--unset-property", "DLQ_REASON"}, "belongs to the servers"},
	} {
		tl.fails(2, tt.want, append([]string{"dead-letters", "redrive", "billing", "--yes"}, tt.args...)...)
	}
	var many []string
	for i := range protocol.MaxProperties {
		many = append(many, "--set-property", fmt.Sprintf("p%d=1", i))
	}
	for want, args := range map[string][]string{
		"the message has 129 properties; the limit is 128":                                        many,
		"the flags did not change the message, which has these values; leave them out":            {"--set-tag", "old", "--set-property", "a=1", "--unset-property", "b"},
		"the program of --edit did not change the body; correct the program, or leave out --edit": {"--edit", "cat", "--set-tag", "new"},
		"the program of --edit failed":                                                            {"--edit", "exit 3"},
		"the body is empty; give at least one byte":                                               {"--edit", "true"},
	} {
		for _, alone := range []string{"--to-group-only", "--to-group-only=false"} {
			tl.run(append([]string{"dead-letters", "redrive", "billing", "--yes", "--max-failures", "1", alone}, args...)...).exits(7).notes(id+" failed: edit: ", want)
		}
	}
	tl.must("dead-letters", "list", "billing", "-o", "name").is(id + "\n")
}

// A program of --edit that puts a byte order mark before a body is named, in a dry run too. The
// body is sent as it is, and one that had the mark before is no news.
func TestEditWithAByteOrderMark(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "100 EUR")
	tl.must("receive", "billing", "orders", "--then", "dead", "--max", "1")
	edit := []string{"dead-letters", "redrive", "billing", "--edit", `printf '\357\273\277'; sed 's/EUR/USD/'`}
	for _, further := range []string{"--dry-run", "--yes"} {
		if r := tl.run(append(edit, further)...); r.code != 0 || strings.Count(r.stderr, "byte order mark") != 1 {
			t.Errorf("%s: %+v", further, r)
		}
	}
	if got := tl.bodies("billing", "orders", 1); len(got) != 1 || got[0] != "\xef\xbb\xbf100 USD" {
		t.Errorf("the body is %q", got)
	}
	tl.must("send", "orders", "\xef\xbb\xbfagain")
	tl.must("receive", "audit", "orders", "--then", "dead", "--max", "3")
	tl.must("dead-letters", "redrive", "audit", "--edit", "sed 's/$/ and again/'", "--dry-run").lacks("byte order mark")
}
