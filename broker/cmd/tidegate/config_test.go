package main

import (
	"encoding"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
)

// Each fault names the line, the name, the value and what is legal.
var badFiles = []struct{ file, want string }{
	{"grcp: x", `f:1: "grcp" is unknown: did you mean grpc?`},
	{"max-backlog: 1", `f:1: "max-backlog" is unknown: did you mean max_backlog?`},
	{"\nlogLevel: info", `f:2: "logLevel" is unknown: did you mean log_level?`},
	{"zzzzzzzz: 1", `f:1: "zzzzzzzz" is unknown: known are grpc, http,`},
	{"data: a\n\ndata: b", `f:3: "data" is there twice, first in line 1`},
	{"data:", "f:1: data has no value"},
	{"data: [a]", "f:1: data is a list: give a single value"},
	{"data: !secret a", "f:1: data is a value with the tag !secret"},
	{"data: &d x\nadvertise: *d", "f:2: advertise is an alias (*d)"},
	{"topics: {t: &t {}, u: *t}", "f:1: topics.u is an alias (*t)"},
	{"{a: b}: c", "f:1: a mapping is no name"},
	{"- a", "f:1: a list: give \"key: value\""},
	{"just text", `f:1: "just text": give "key: value"`},
	{"a: b\n  c: d", "f:2: this is not YAML: mapping values are not allowed"},
	{"grpc: 'x", "f:1: this is not YAML"},
	{"grpc: 127.0.0.1:1\n\thttp: x", "f:2: this is not YAML"},
	{"data: a\n---\ndata: b", "f:2: a second YAML document begins"},
	{"data: a\nhttp: \xff", "f:2: a byte is not UTF-8"},
	{"data: a\n# \x01", "f:2: byte 3 of the line is the control character 0x01"},
	{"grpc: here", `f:1: grpc is "here": give host:port`},
	{"grpc: 127.0.0.1:x", `f:1: grpc is "127.0.0.1:x": give host:port with a port of 0 to 65535`},
	{"http: 0.0.0.0:1", `f:1: http is "0.0.0.0:1": other machines`},
	{"http_hosts:\n- a.example\n- b.example:8082", `f:3: http_hosts is "b.example:8082": server options: HTTPHosts has "b.example:8082": give names of hosts without scheme and port, such as broker.example`},
	{"http_hosts: 'https://a.example'", `f:1: http_hosts is "https://a.example": server options: HTTPHosts has "https://a.example"`},
	{"http_hosts: '*.example'", `f:1: http_hosts is "*.example"`},
	{"advertise: h:0", `f:1: advertise is "h:0": give host:port with a port of 1 to 65535`},
	{"max_backlog: 1k", `f:1: max_backlog is "1k": give a whole number of 0 or more`},
	{"max_backlog_bytes: -1", `f:1: max_backlog_bytes is "-1": give a whole number of 0 or more`},
	{"max_backlog: {messages: 1}", "f:1: max_backlog is a mapping: give a single value"},
	{"max_backlog_age: 3", `f:1: max_backlog_age is "3": give a duration such as "3s"`},
	{"min_free_disk_bytes: -2", `f:1: min_free_disk_bytes is "-2": give a whole number of -1 or more`},
	{"max_compaction_debt_bytes: 0", `f:1: max_compaction_debt_bytes is "0": give a whole number of 1 or more, or -1 for no limit`},
	{"max_compaction_debt_bytes: -2", `f:1: max_compaction_debt_bytes is "-2": give a whole number of -1 or more`},
	{"max_write_stall: 0s", `f:1: max_write_stall is "0s": give a duration above 0s, or -1s for no limit`},
	{"cold_distance_bytes: 0", `f:1: cold_distance_bytes is "0": give a whole number of 1 or more`},
	{"max_write_stall: soon", `f:1: max_write_stall is "soon": give a duration`},
	{"topics:\n  t:\n    max_rate:\n      messages_per_second: -1", `f:4: topics.t.max_rate.messages_per_second is "-1": give a number of 0 or more`},
	{"max_client_rate: .nan", `f:1: max_client_rate is ".nan": give a number`},
	{"max_client_rate: NaN", `f:1: max_client_rate is "NaN": give a number`},
	{"stop_timeout: 3", `f:1: stop_timeout is "3": give a duration such as "3s"`},
	{"max_request_bytes: 16777216", `f:1: max_request_bytes is "16777216": give a whole number of 17825792 to 1073741824, or 0 for the default`},
	{"min_long_polling: -3s", `f:1: min_long_polling is "-3s": give a duration of 0s or more`},
	{"insecure: yes", `f:1: insecure is "yes": give true or false`},
	{"log_level: loud", `f:1: log_level is "loud": give debug, info, warn or error`},
	{"log_format: xml", `f:1: log_format is "xml": give text or json`},
	{"topic:\n- a\n- b:ODD", `f:3: topic is "b:ODD": after the colon comes NORMAL, FIFO, DELAY or TRANSACTION`},
	{"topic: t:transaction", `f:1: topic is "t:transaction": after the colon comes`},
	{"transaction_timeout: 0s", `f:1: transaction_timeout is "0s": give a duration above 0s`},
	{"transaction_check_max: 0", `f:1: transaction_check_max is "0": give a whole number of 1 or more, or -1 for ever`},
	{"topics: {t: {transaction: {check_interval: -1s}}}", `f:1: topics.t.transaction.check_interval is "-1s": give a duration of 0s or more`},
	{"topic:\n- a\n- [b]", `f:3: topic is a list: give a single value`},
	{"topic: t:FIFO\ntopics:\n  t:\n    type: NORMAL", `f:1: topic is "t:FIFO", but f:4 makes it NORMAL`},
	{"topics: [t]", "f:1: topics is a list"},
	{"topics: {t: {max_backlog: 500}}", `f:1: topics.t.max_backlog is "500": give "key: value", one on each line, of messages, bytes, age`},
	{"topics:\n  t: 3", `f:2: topics.t is "3": give "key: value"`},
	{"topics:\n  a..b: {}", `f:2: topics.a..b has a name that cannot be`},
	{"groups:\n  g: {fifo: true, retry_topic: {enabled: true}}", `f:2: groups.g.retry_topic.enabled is true and fifo too`},
	{"groups:\n  g: {retry_topic: {levels: 1s 1ms}}", `f:2: groups.g.retry_topic.levels level 2 is 1ms`},
	{"groups:\n  g: {retry_topic: {naming: 2.8}}", `f:2: groups.g.retry_topic.naming is "2.8": give 2.9.2, 2.7.2 or 2.6.1`},
	{"address_settings:\n  a..b: {}", `f:2: address_settings.a..b has a pattern that cannot be: the pattern "a..b" has an empty word`},
	{"address_settings:\n  '#': {redelivery_delay: 1}", `f:2: "redelivery_delay" is unknown in address_settings.#: did you mean redelivery-delay?`},
	{"address_settings:\n  t: {redelivery-delay: 1.5}", `f:2: address_settings.t.redelivery-delay is "1.5": "1.5" is no time: give whole milliseconds`},
	{"address_settings:\n  t: {redelivery-collision-avoidance-factor: 2}", `f:2: address_settings.t.redelivery-collision-avoidance-factor is "2": redelivery-collision-avoidance-factor is 2: give 0.0 to 1.0`},
	{"address_settings:\n  t: {max-delivery-attempts: 0}", `f:2: address_settings.t.max-delivery-attempts is "0"`},
	{"topics:\n  t:\n    quues: 3", `f:3: "quues" is unknown in topics.t: did you mean queues?`},
	{"topics:\n  t:\n    queues: 1025", `f:3: topics.t.queues is "1025": give a whole number of 1 to 1024`},
	{"topics:\n  t:\n    queues: 0", `f:3: topics.t.queues is "0"`},
	{"topics:\n  t:\n    type: fifo", `f:3: topics.t.type is "fifo": give NORMAL, FIFO, DELAY or TRANSACTION`},
	{"topics:\n  t:\n    duplicate_window: 0s", `f:3: topics.t.duplicate_window is "0s": give a duration above 0s, or -1s`},
	{"topics:\n  t:\n    retention:\n      time: 0s", `f:4: topics.t.retention.time is "0s": give a duration above 0s, or -1s for ever`},
	{"topics:\n  t:\n    retention: {bytes: -1}", `f:3: topics.t.retention.bytes is "-1": give a whole number of 0 or more`},
	{"topics:\n  t:\n    max_backlog: 3", `f:3: topics.t.max_backlog is "3": give "key: value"`},
	{"topics:\n  t:\n    max_backlog:\n      message: 3", `f:4: "message" is unknown in topics.t.max_backlog: did you mean messages?`},
	{"groups:\n  g:\n    max_backlog:\n      bytes: -3", `f:4: groups.g.max_backlog.bytes is "-3": give a whole number of 0 or more`},
	{"groups:\n  g:\n    max_attempts: 0", `f:3: groups.g.max_attempts is "0": give a whole number of 1 or more, or -1 for ever`},
	{"groups:\n  g:\n    retry: 10s 30 1m", `f:3: groups.g.retry is "10s 30 1m": backoff: step 2 of 3, "30", is no duration`},
	{"groups:\n  g:\n    retry: ''", `f:3: groups.g.retry is "": give a ladder`},
	{"groups:\n  g:\n    fifo_retry_interval: 0s", `f:3: groups.g.fifo_retry_interval is "0s": give a duration above 0s`},
	{"max_backlog_age: 50ms", `f:1: max_backlog_age is "50ms": MaxBacklog.age is 50ms: give 100ms or more`},
	{"topics:\n  t:\n    max_backlog: {age: 50ms}", `f:3: topics.t.max_backlog.age is 50ms: give 100ms or more`},
	{"groups:\n  g:\n    max_backlog: {age: 50ms}", `f:3: groups.g.max_backlog.age is 50ms: give 100ms or more`},
	{"topics:\n  t:\n    max_rate:\n      burst: 5", `f:4: topics.t.max_rate.burst is 5: it may not be negative, and needs messages_per_second`},
	{"min_invisible_duration: 13h", `f:1: min_invisible_duration is 13h0m0s, more than max_invisible_duration, 12h0m0s`},
	{"min_long_polling: 30s", `f:1: min_long_polling is 30s, more than max_long_polling, 20s`},
	{"max_long_polling: 4s", `f:1: max_long_polling is 4s, less than min_long_polling, 5s`},
	{"max_long_polling: 0s", `f:1: max_long_polling is "0s": give a duration above 0s`},
	{"max_invisible_duration: 876001h", `f:1: max_invisible_duration is "876001h": MaxInvisibleDuration is 876001h0m0s: give at most 876000h0m0s`},
	{"max_client_burst: 5", `f:1: max_client_burst needs max_client_rate beside it`},
	{"max_client_burst: -1", `f:1: max_client_burst is "-1": give a whole number of 0 to`},
	{"producer_max_attempts: 0", `f:1: producer_max_attempts is "0": give a whole number of 1 to`},
	{"producer_backoff_multiplier: 0.9", `f:1: producer_backoff_multiplier is "0.9": give a number of 1 or more`},
	{"producer_backoff_initial: 3m", `f:1: producer_backoff_initial is 3m0s, more than producer_backoff_max, 2m0s`},
	{"groups:\n  '': {}", `f:2: groups. has a name that cannot be`},
}

func TestBadFiles(t *testing.T) {
	for _, c := range badFiles {
		err := check("f", c.file)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q:\ngot  %v\nwant %s...", c.file, err, c.want)
		}
	}
}

// check is load for a text.
func check(name, text string) error {
	doc, bad := parse(name, []byte(text))
	_, more := merge(doc, nil, nil)
	return append(bad, more...).err()
}

// All faults come at once, those of the file by line and before the others.
func TestAllFaultsAtOnce(t *testing.T) {
	doc, bad := parse("f", []byte("topics:\n  t: {queues: x}\nlog_level: loud\nnope: 1\ngrpc: x\n"))
	env, _ := environment([]string{"TIDEGATE_HTTP=y"})
	_, more := merge(doc, env, values{"data": {{"\xff", origin{name: "--data"}}}, "grpc": {{"127.0.0.1:1", origin{name: "--grpc"}}}})
	got := append(bad, more...).err().Error()
	for i, w := range []string{"f:2: topics.t.queues", "f:3: log_level", `f:4: "nope"`, "f:5: grpc", "TIDEGATE_HTTP is", "--data is"} {
		lines := strings.Split(got, "\n")
		if len(lines) != 6 || !strings.HasPrefix(lines[i], w) {
			t.Fatalf("line %d is not %q...:\n%s", i+1, w, got)
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "data: file\nlog_level: warn\nlog_format: json\ntopic: [a, b]\nmax_backlog: 5\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env, hints := environment([]string{
		"TIDEGATE_LOG_LEVEL=debug", "TIDEGATE_LOG_FORMAT=", "TIDEGATE_TOPIC=c,d:FIFO", "TIDEGATE_MAX_BACKLOG=6", "TIDEGATE_GRCP=x", "TIDEGATE_PORT_80_TCP=x", "GRPC=x",
	})
	flags := values{}
	for _, text := range []string{"7", "8"} { // the last one counts
		if err := (&flagValue{key: "max_backlog", flag: "max-backlog", into: flags}).Set(text); err != nil {
			t.Fatal(err)
		}
	}
	c, err := load(file, env, flags)
	if err != nil {
		t.Fatal(err)
	}
	s := c.settings
	for _, x := range []struct{ key, got, want, from string }{
		{"grpc", s.value.grpc, "127.0.0.1:8081", "default"},
		{"data", s.value.data, "file", file + ":1"},
		{"log_level", s.value.logLevel, "debug", "TIDEGATE_LOG_LEVEL"},
		{"log_format", s.value.logFormat, "json", file + ":3"},
		{"topic", strings.Join(s.value.topics, " "), "c d:FIFO", "TIDEGATE_TOPIC"},
		{"max_backlog", fmt.Sprint(s.value.limits.MaxBacklog.Messages), "8", "--max-backlog"},
	} {
		if x.got != x.want || s.from[x.key].comment() != x.from {
			t.Errorf("%s is %q from %s, want %q from %s", x.key, x.got, s.from[x.key].comment(), x.want, x.from)
		}
	}
	if want := []string{"TIDEGATE_GRCP is no setting: did you mean TIDEGATE_GRPC?"}; !slices.Equal(hints, want) {
		t.Errorf("hints %q, want %q", hints, want)
	}
}

func TestExampleFile(t *testing.T) {
	c, err := load("tidegate.example.yaml", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range [][]string{keysOf(settingRules), keysOf(topicRules), keysOf(groupRules), keysOf(addressRules)} {
		text, _ := os.ReadFile("tidegate.example.yaml")
		for _, k := range keys {
			_, inner, nested := strings.Cut(k, ".")
			if !nested {
				inner = k
			}
			if !strings.Contains(string(text), inner+":") {
				t.Errorf("it does not show %s", k)
			}
		}
	}
	orders := broker.TopicConfig{
		Type: broker.TopicNormal, Queues: 8, DuplicateWindow: broker.Duration(2 * time.Minute), MaxBacklog: broker.Limit{Messages: 50000},
		Retention: broker.Retention{Time: broker.Duration(72 * time.Hour)},
	}
	if got := c.topics["orders"].value; !reflect.DeepEqual(got, orders) {
		t.Errorf("orders is %+v, want %+v", got, orders)
	}
	if got := c.groups["billing"].value.Retry; !slices.Equal(got, backoff.RetryLadder()) {
		t.Errorf("the ladder of billing is %v", got)
	}
}

// A field that is added to a topic or group needs a rule here.
func TestEveryFieldHasARule(t *testing.T) {
	for what, pair := range map[string][2][]string{
		"topics":           {fieldsOf(reflect.TypeFor[broker.TopicConfig](), ""), keysOf(topicRules)},
		"groups":           {fieldsOf(reflect.TypeFor[broker.GroupConfig](), ""), keysOf(groupRules)},
		"address_settings": {fieldsOf(reflect.TypeFor[broker.AddressSettings](), ""), keysOf(addressRules)},
	} {
		if slices.Sort(pair[1]); !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s have the fields %q over HTTP, and %q in a file", what, pair[0], pair[1])
		}
	}
	if n := leaves(reflect.TypeFor[settings]()); n != len(settingRules) {
		t.Errorf("settings has %d fields and %d rules", n, len(settingRules))
	}
}

// leaves counts the fields of a struct and of those within it.
func leaves(typ reflect.Type) int {
	if typ.Kind() != reflect.Struct {
		return 1
	}
	n := 0
	for f := range typ.Fields() {
		n += leaves(f.Type)
	}
	return n
}

func fieldsOf(typ reflect.Type, prefix string) []string {
	var names []string
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct && !f.Type.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			names = append(names, fieldsOf(f.Type, prefix+name+".")...)
			continue
		}
		names = append(names, prefix+name)
	}
	slices.Sort(names)
	return names
}
