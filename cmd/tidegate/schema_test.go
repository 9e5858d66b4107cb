package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A documented command prints JSON objects with a schema of the HTTP API.
type documented struct {
	args   string // -o jsonl: an object for each row
	schema string
	beside string // further keys, which are no part of the API
}

// documents are the commands in the order in which the test runs them.
var documents = []documented{
	{args: "topic create pays type=FIFO -o json", schema: "Topic"},
	{args: "topic set pays retention.time=1h -o json", schema: "Topic"},
	{args: "topic show orders -o json", schema: "Topic"},
	{args: "topic purge pays --dry-run -o json", schema: "Purged"},
	{args: "topic purge pays --yes -o jsonl", schema: "Purged"},
	{args: "topic show orders --queues -o json", schema: "Topic", beside: "queue_states"},
	{args: "topic list -o jsonl", schema: "TopicSummary"},
	{args: "group create ledger fifo=true -o json", schema: "Group"},
	{args: "group set ledger max_attempts=3 -o json", schema: "Group"},
	{args: "group show billing -o json", schema: "Group"},
	{args: "group show billing --queues --clients --schedule -o json", schema: "Group", beside: "queue_states schedules clients"},
	{args: "group list -o jsonl", schema: "GroupSummary"},
	{args: "group rewind billing orders --to latest --dry-run -o jsonl", schema: "QueueRewind"},
	{args: "status -o json", schema: "Overview"},
	{args: "clients list -o json", schema: "ClientPage"},
	{args: "clients list -o jsonl", schema: "Client"},
	{args: "audit -o json", schema: "AuditPage"},
	{args: "audit -o jsonl", schema: "AuditRecord"},
	{args: "peek orders -o json", schema: "MessagePage"},
	{args: "peek orders -o jsonl", schema: "StoredMessage"},
	{args: "peek orders --follow --limit 1 -o jsonl", schema: "StoredMessage"},
	{args: "peek reminders --delayed -o jsonl", schema: "StoredMessage"},
	{args: "find orders --key 4711 -o json", schema: "MessagePage"},
	{args: "find orders --key 4711 -o jsonl", schema: "StoredMessage"},
	{args: "trace DEAD --topic orders -o json", schema: "Trace", beside: "topic"}, // in topics
	{args: "dead-letters top billing -o json", schema: "DeadLetterClassPage"},
	{args: "dead-letters top billing -o jsonl", schema: "DeadLetterClass", beside: "sample"},
	{args: "dead-letters list billing --bodies -o json", schema: "DeadLetterPage", beside: "complete"},
	{args: "dead-letters list billing -o jsonl", schema: "DeadLetter"},
	{args: "dead-letters show billing DEAD -o json", schema: "DeadLetter"},
	{args: "dead-letters export billing", schema: "DeadLetter"},
	{args: "dead-letters watch billing --since -1h --limit 1 -o jsonl", schema: "DeadLetter"},
	{args: "parked list parking -o json", schema: "ParkedPage"},
	{args: "parked list parking -o jsonl", schema: "ParkedGroup"},
	{args: "limits set max_backlog.messages=3 --yes -o json", schema: "ThrottleState"},
	{args: "limits show -o json", schema: "ThrottleState"},
	{args: "limits show --all -o jsonl", schema: "LimitState"},
	{args: "limits set max_backlog.messages=0 --yes -o json", schema: "ThrottleState"},
	{args: "address set orders.# max-delivery-attempts=4 -o json", schema: "AddressSetting"},
	{args: "address show orders.# -o json", schema: "AddressSetting"},
	{args: "address test orders -o json", schema: "TopicAddressSettings"},
	{args: "address list -o jsonl", schema: "AddressSetting"},
	{args: "receive billing orders --then release -o jsonl", schema: "Delivery"},
	{args: "send orders x -o json", schema: "SendResult", beside: "attempts"},
	{args: "recall reminders HANDLE -o json", schema: "RecallResult"},
	{args: "parked redrive parking --yes -o json", schema: "ParkedRedrive"},
	{args: "dead-letters purge billing --dry-run -o json", schema: "DeadLetterPurge"},
	{args: "dead-letters purge billing --yes -o json", schema: "DeadLetterPurge"},
}

// own are the commands whose JSON is not of the HTTP API: the result of a job, of several requests,
// or of none.
var own = []string{
	"address delete", "api", "apply", "bench compare", "bench e2e", "bench receive", "bench send", "check", "console", "context add",
	"context list", "context remove", "context show", "context test", "context use", "dead-letters redrive", "doctor", "export", "group delete",
	"group lag", "metrics", "move", "retry preview", "topic delete", "top", "version",
}

// Each command that prints a subject of the HTTP API prints it with the schema of openapi.yaml,
// and with no further keys but those of the table.
func TestJSONIsThatOfTheAPI(t *testing.T) {
	t.Parallel()
	doc := assert.Value(openapi3.NewLoader().LoadFromFile("../../broker/server/openapi.yaml"))(t)
	tl := newTool(t, "--topic", "orders")
	tl.must("topic", "create", "reminders", "type=DELAY")
	tl.must("topic", "create", "parks", "type=FIFO")
	tl.must("group", "create", "parking", "fifo=true", "on_exhausted=park", "max_attempts=1")
	tl.must("send", "parks", "no money", "--message-group", "account-7")
	tl.must("receive", "parking", "parks", "--max", "1", "--then", "retry")
	tl.must("send", "orders", "10 EUR", "--key", "4711", "--tag", "t", "-p", "shop=5")
	dead := strings.TrimSpace(tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=no such account", "-o", "name").stdout)
	tl.must("send", "orders", "20 EUR", "--key", "4711", "--tag", "t", "-p", "shop=5")
	handle := document[struct {
		Handle string `json:"recall_handle"`
	}](t, tl.must("send", "reminders", "later", "--in", "10m", "-o", "json").stdout).Handle
	tl.consumer("watching", "reminders")
	names := strings.NewReplacer("DEAD", dead, "HANDLE", handle)
	for _, c := range documents {
		args := strings.Fields(names.Replace(c.args))
		r := tl.must(args...)
		objects := []string{r.stdout}
		if strings.HasSuffix(c.args, "jsonl") || args[1] == "export" {
			objects = slices.Collect(strings.Lines(r.stdout))
		}
		assert.That(t, len(objects) != 0, "%s: no row", c.args)
		for _, text := range objects {
			for _, fault := range faults(doc.Components.Schemas[c.schema], text, c) {
				t.Errorf("tidegate %s: %s: %s", c.args, fault, text)
			}
		}
	}
	for _, c := range leaves(serve.Root(&cli.App{Env: func(string) string { return "" }})) {
		name := strings.Join(words(c), " ")
		listed := slices.Contains(own, name)
		if tested := slices.ContainsFunc(documents, func(d documented) bool { return strings.HasPrefix(d.args+" ", name+" ") }); tested == listed {
			t.Errorf("tidegate %s is in both lists of this test, or in none", name)
		}
	}
}

// consumer connects a consumer until the end of the test: the commands forget their own clients.
func (tl *tool) consumer(group, topic string) {
	tl.t.Helper()
	client := assert.Value(rocketmq.New(tl.grpc, rocketmq.Options{}))(tl.t)
	tl.t.Cleanup(func() { client.Close() })
	c := assert.Value(consumer.NewSimple(client, consumer.Subscription{Group: group, Topic: topic}, consumer.SimpleOptions{LongPolling: time.Millisecond}))(tl.t)
	if ds, err := c.Receive(tl.t.Context(), 1); len(ds) > 0 || err != nil {
		tl.t.Fatalf("received %d messages, error %v", len(ds), err)
	}
}

// faults returns how a JSON object differs from a schema.
func faults(schema *openapi3.SchemaRef, text string, c documented) (all []string) {
	if schema == nil {
		return []string{"openapi.yaml has no schema " + c.schema}
	}
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return []string{err.Error()}
	}
	objects := []map[string]any{object}
	switch list, _ := object["topics"].([]any); {
	case c.schema == "Trace":
		objects = nil
		for _, topic := range list {
			objects = append(objects, topic.(map[string]any))
		}
	case c.schema == "DeadLetterClassPage":
		for _, class := range object["classes"].([]any) {
			delete(class.(map[string]any), "sample") // tested by rows
		}
	}
	for _, o := range objects {
		for key := range strings.FieldsSeq(c.beside) {
			if _, ok := o[key]; !ok {
				all = append(all, "there is no "+key)
			}
			delete(o, key)
		}
		if err := schema.Value.VisitJSON(o, openapi3.MultiErrors()); err != nil {
			all = append(all, err.Error())
		}
	}
	if len(objects) == 0 {
		all = append(all, "it is empty")
	}
	return all
}
