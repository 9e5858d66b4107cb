package serve

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Each error names the line, the name, the value and the legal values.
var badFiles = []struct{ file, want string }{
	{"grcp: x", `f:1: "grcp" is unknown; did you mean grpc?`},
	{"max-backlog: 1", `f:1: "max-backlog" is unknown; did you mean max_backlog?`},
	{"zzzzzzzz: 1", `f:1: "zzzzzzzz" is unknown; the names are grpc, http`},
	{"data: a\n\ndata: b", `f:3: "data" is repeated, first in line 1`},
	{"data:", "f:1: data has no value"},
	{"data: [a]", "f:1: data is a list; give a single value"},
	{"data: !secret a", `f:1: data is a value with a YAML tag (a text that begins with !), which is not permitted here; quote the value; gi`},
	{"data: &d x\nadvertise: *d", `f:2: advertise is a YAML alias (a text that begins with *), which is not permitted here; quote the value; give a `},
	{"{a: b}: c", "f:1: a mapping is not a name"},
	{"- a", "f:1: a list; give \"key: value\""},
	{"just text", `f:1: "just text"; give "key: value"`},
	{"a: b\n  c: d", "f:2: this is not YAML: mapping values are not allowed"},
	{"grpc: 'x", "f:1: this is not YAML"},
	{"data: a\n---\ndata: b", "f:2: a second YAML document begins"},
	{"data: a\nhttp: \xff", "f:2: the line is not UTF-8"},
	{"data: a\n# \x01", "f:2: byte 3 of the line is the control character 0x01"},
	{"grpc: here", `f:1: grpc is "here": give host:port`},
	{"grpc: 127.0.0.1:x", `f:1: grpc is "127.0.0.1:x": give host:port with a port of 0 to 65535`},
	{"http: 0.0.0.0:1", `f:1: http is "0.0.0.0:1", which other machines`},
	{"http_hosts:\n- a.example\n- b.example:8082", `f:3: http_hosts is "a.example,b.example:8082": server options: HTTPHosts has "b.example:8082"; give host names`},
	{"console: false", `f:1: console is "false": give on or off`},
	{"advertise: h:0", `f:1: advertise is "h:0": server options: Advertise is "h:0": give host:port with a host and a port from 1 to 6`},
	{"max_backlog: 1k", `f:1: max_backlog is "1k": give a whole number`},
	{"max_backlog_bytes: -1", `f:1: max_backlog_bytes is "-1": MaxBacklog is 0 messages and -1 bytes; neither may be negative, 0 is no limit`},
	{"max_backlog: {messages: 1}", "f:1: max_backlog is a mapping; give a single value"},
	{"max_backlog_age: 3", `f:1: max_backlog_age is "3": give a duration such as "3s"`},
	{"min_free_disk_bytes: -2", `f:1: min_free_disk_bytes is "-2": Pressure.min_free_disk_bytes is -2; give -1 or more`},
	{"topics:\n  t:\n    max_rate:\n      messages_per_second: -1", `f:4: topics.t.max_rate.messages_per_second is -1; give a number above 0, or 0 for no limit`},
	{"max_client_rate: NaN", `f:1: max_client_rate is "NaN": ClientQuota is NaN messages per second with a burst of 0; give a rate above 0 and`},
	{"max_request_bytes: 16777216", `f:1: max_request_bytes is "16777216": give 17825792 to 1073741824, or 0 for the default`},
	{"min_long_polling: -3s", `f:1: min_long_polling is "-3s": server options: MinLongPolling is -3s; it must not be negative, 0 means th`},
	{"insecure: yes", `f:1: insecure is "yes": give true or false`},
	{"log_level: loud", `f:1: log_level is "loud": give debug, info, warn or error`},
	{"topic:\n- a\n- b:ODD", `f:3: topic is "a,b:ODD": give NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE after the colon`},
	{"topic:\n- a\n- [b]", `f:3: topic is a list; give a single value`},
	{"topic: t:FIFO\ntopics:\n  t:\n    type: NORMAL", `f:1: topic is "t:FIFO", but its type in f:4 is NORMAL`},
	{"topics: [t]", "f:1: topics is a list"},
	{"topics:\n  a..b: {}", `f:2: topics.a..b has an invalid name: "topic"`},
	{"groups:\n  g: {fifo: true, retry_topic: {enabled: true}}", `f:2: groups.g.retry_topic.enabled is true, and the group`},
	{"address_settings:\n  a..b: {}", `f:2: address_settings.a..b has an invalid name: the pattern "a..b" has an empty word; give a word between`},
	{"address_settings:\n  '#': {redelivery_delay: 1}", `f:2: "redelivery_delay" is unknown in address_settings.#; did you mean redelivery-delay?`},
	{"address_settings:\n  t: {redelivery-delay: 1.5}", `f:2: address_settings.t.redelivery-delay is "1.5": "1.5" is not a time; give whole milliseconds`},
	{"topics:\n  t:\n    quues: 3", `f:3: "quues" is unknown in topics.t; did you mean queues?`},
	{"topics:\n  t:\n    queues: 1025", `f:3: topics.t.queues is 1025; give 1 to 1024`},
	{"topics:\n  t:\n    max_backlog: 3", `f:3: topics.t.max_backlog is "3"; give "key: value"`},
	{"groups:\n  g:\n    max_backlog:\n      bytes: -3", `f:3: groups.g.max_backlog is 0 messages and -3 bytes; neither may be negative, 0 is no limit`},
	{"groups:\n  g:\n    retry: 10s 30 1m", `f:3: groups.g.retry is "10s 30 1m": backoff: step 2 of 3, "30", is not a duration`},
	{"max_backlog_age: 50ms", `f:1: max_backlog_age is "50ms": MaxBacklog.age is 50ms; give 100ms or more`},
	{"groups:\n  g:\n    max_backlog: {age: 50ms}", `f:3: groups.g.max_backlog.age is 50ms; give 100ms or more`},
	{"topics:\n  t:\n    max_rate:\n      burst: 5", `f:4: topics.t.max_rate.burst is 5; it must not be negative, and needs messages_per_second`},
	{"min_invisible_duration: 13h", `f:1: min_invisible_duration is "13h0m0s": MinInvisibleDuration is 13h0m0s and MaxInvisibleDuration is 12h0m0s`},
	{"min_long_polling: 30s", `f:1: min_long_polling is "30s": server options: MinLongPolling is 30s and MaxLongPolling is 20s; the`},
	{"max_invisible_duration: 876001h", `f:1: max_invisible_duration is "876001h0m0s": MaxInvisibleDuration is 876001h0m0s; give at most 876000h0m0s`},
	{"max_client_burst: 5", `f:1: max_client_burst is "5": ClientQuota is 0 messages per second with a burst of 5; give a rate above 0 and a`},
	{"producer_backoff_multiplier: 0.9", `f:1: producer_backoff_multiplier is "0.9": server options: ProducerBackoff: backoff: Exponential.Multiplier is`},
	{"groups:\n  '': {}", `f:2: groups. has an invalid name: "consumer`},
}

func TestBadFiles(t *testing.T) {
	for _, c := range badFiles {
		err := check("f", c.file)
		assert.That(t, err != nil && strings.HasPrefix(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"), "%q:\ngot  %v\nwant %s...", c.file, err, c.want)
	}
}

// As over HTTP, 0 means the default.
func TestZeroIsTheDefault(t *testing.T) {
	for _, text := range []string{
		"access:\n  max_clock_skew: 0s",
		"max_compaction_debt_bytes: 0",
		"max_write_stall: 0s",
		"cold_distance_bytes: 0",
		"transaction_timeout: 0s",
		"transaction_check_max: 0",
		"topics:\n  t:\n    queues: 0",
		"topics:\n  t:\n    duplicate_window: 0s",
		"topics:\n  t:\n    retention:\n      time: 0s",
		"groups:\n  g:\n    max_attempts: 0",
		"groups:\n  g:\n    retry: ''",
		"groups:\n  g:\n    fifo_retry_interval: 0s",
		"max_long_polling: 0s",
		"producer_max_attempts: 0",
	} {
		assert.NoError(t, check("f", text), "%q", text)
	}
}

// check is load for a text.
func check(name, text string) error {
	_, err := merge(name, []byte(text), nil, nil)
	return err
}

// The error lists all faults: first those of the file by line, then the others.
func TestAllFaultsAtOnce(t *testing.T) {
	env, _ := environment([]string{"TIDEGATE_HTTP=y"})
	_, err := merge("f", []byte("topics:\n  t: {queues: x}\nlog_level: loud\nnope: 1\ngrpc: 12x\nmax_backlog: x\n"), env,
		values{"data": {{"\xff", origin{Name: "--data"}}}, "max_backlog": {{"1", origin{Name: "--max-backlog"}}}})
	got := err.Error()
	for i, w := range []string{"f:2: topics.t.queues", "f:3: log_level", `f:4: "nope"`, "f:5: grpc", "f:6: max_backlog", "--data is", "TIDEGATE_HTTP is"} {
		lines := strings.Split(got, "\n")
		assert.MustThat(t, len(lines) == 7 && strings.HasPrefix(lines[i], w), "line %d is not %q...:\n%s", i+1, w, got)
	}
}

func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "data: file\nlog_level: warn\nlog_format: json\ntopic: [a, b]\nmax_backlog: 5\n"
	assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
	env, hints := environment([]string{
		"TIDEGATE_LOG_LEVEL=debug", "TIDEGATE_LOG_FORMAT=", "TIDEGATE_TOPIC=c,d:FIFO", "TIDEGATE_MAX_BACKLOG=6", "TIDEGATE_GRCP=x", "TIDEGATE_PORT_80_TCP=x", "GRPC=x",
	})
	flags := values{}
	for _, text := range []string{"7", "8"} { // the last one counts
		assert.Must(t, (&flagValue{key: "max_backlog", flag: "max-backlog", into: flags}).Set(text))
	}
	c := assert.Value(load(file, env, flags))(t)
	s := c.settings
	for _, x := range []struct{ key, got, want, from string }{
		{"grpc", s.grpc, "127.0.0.1:8081", "default"},
		{"data", s.broker.Dir, "file", file + ":1"},
		{"log_level", s.logLevel, "debug", "TIDEGATE_LOG_LEVEL"},
		{"log_format", s.logFormat, "json", file + ":3"},
		{"topic", strings.Join(s.topics, " "), "c d:FIFO", "TIDEGATE_TOPIC"},
		{"max_backlog", fmt.Sprint(s.broker.MaxBacklog.Messages), "8", "--max-backlog"},
	} {
		if x.got != x.want || c.from[x.key].Comment() != x.from {
			t.Errorf("%s is %q from %s, want %q from %s", x.key, x.got, c.from[x.key].Comment(), x.want, x.from)
		}
	}
	if want := []string{"TIDEGATE_GRCP is not a setting; did you mean TIDEGATE_GRPC?"}; !slices.Equal(hints, want) {
		t.Errorf("hints %q, want %q", hints, want)
	}
}

func TestExampleFile(t *testing.T) {
	c := assert.Value(load("tidegate.example.yaml", nil, nil))(t)
	example := assert.Value(os.ReadFile("tidegate.example.yaml"))(t)
	keys := slices.Concat(leaves(reflect.TypeFor[settings.Topic]()), leaves(reflect.TypeFor[settings.Group]()),
		leaves(reflect.TypeFor[settings.Address]()), leaves(reflect.TypeFor[keyDeclaration]()))
	for _, row := range c.table() {
		keys = append(keys, row.key)
	}
	for _, k := range keys {
		if inner := k[strings.LastIndex(k, ".")+1:]; !regexp.MustCompile(`(?m)(^|[# {])` + inner + `:|also .*\b` + inner + `\b`).Match(example) {
			t.Errorf("it does not show %s", k)
		}
	}
	// The example has the default of each setting, except of four that it demonstrates.
	defaults := defaultSettings().table()
	for i, row := range c.settings.table() {
		if got, want := text(row.at), text(defaults[i].at); got != want && !slices.Contains([]string{"data", "topic", "max_backlog", "max_backlog_bytes"}, row.key) {
			t.Errorf("it has %s: %s, and the default is %s", row.key, got, want)
		}
	}
	orders := settings.Topic{
		Type: settings.TopicNormal, Queues: 8, DuplicateWindow: settings.Duration(2 * time.Minute), MaxBacklog: settings.Limit{Messages: 50000},
		Retention: settings.Retention{Time: settings.Duration(72 * time.Hour)},
	}
	if got := c.topics["orders"]; !reflect.DeepEqual(got, orders) {
		t.Errorf("orders is %+v, want %+v", got, orders)
	}
	assert.Slices(t, "the ladder of billing is", c.groups["billing"].Retry, backoff.RetryLadder())
}

// The help shows every setting with its default, and the names of a file are those over HTTP.
func TestHelpShowsEverySetting(t *testing.T) {
	var help, stderr strings.Builder
	if code := run(t.Context(), []string{"serve", "--help"}, &help, &stderr); code != 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	for _, row := range defaultSettings().table() {
		line := regexp.MustCompile(`(?m)^ +--` + flagName(row.key) + `[ \[].*$`).FindString(help.String())
		preset := text(row.at)
		if _, boolean := row.at.(*bool); line == "" || preset != "" && preset != "0" && preset != "0s" && !boolean && !strings.Contains(line, "(default "+preset+")") {
			t.Errorf("--help does not show %s with the default %q: %q", row.key, preset, line)
		}
	}
	for _, name := range slices.Concat(leaves(reflect.TypeFor[settings.Topic]()), leaves(reflect.TypeFor[settings.Group]()), leaves(reflect.TypeFor[settings.Address]())) {
		assert.That(t, name != "" && !strings.HasSuffix(name, "."), "a field without a name: %q", name)
	}
}

// leaves returns the names of a struct's fields and of those within it.
func leaves(typ reflect.Type) (names []string) {
	for f := range typ.Fields() {
		name := declare.Name(f)
		if f.Type.Kind() == reflect.Struct {
			for _, inner := range leaves(f.Type) {
				names = append(names, name+"."+inner)
			}
			continue
		}
		names = append(names, name)
	}
	return names
}

// apply accepts the names at the top of a file that serve reads, and no others.
func TestApplyKnowsTheNames(t *testing.T) {
	want := map[string]bool{}
	for _, row := range (&config{settings: defaultSettings()}).table() {
		name, _, _ := strings.Cut(row.key, ".")
		want[name] = true
	}
	known := append([]string{declare.PartTopics, declare.PartGroups, declare.PartAddresses}, declare.OfServe...)
	for _, name := range known {
		assert.That(t, want[name], "serve has no setting %s", name)
		delete(want, name)
	}
	for name := range want {
		t.Errorf("add %s to declare.OfServe", name)
	}
}

// elsewhere has the options of broker and server without a setting of their own, each with the
// reason.
var elsewhere = map[string]string{
	"broker.Logger": "log_level and log_format", "server.Logger": "likewise",
	"broker.MaxBodySize": "that of RocketMQ, whose clients refuse more",
	"broker.CacheBytes":  "the operating system caches the files besides",
	"broker.Memory":      "data that outlives a broker in memory is for tests",

	"server.TLS": "tls", "server.RequireTLS": "tls", "server.Access": "access",
	"server.BrokerName":       "there is one broker",
	"server.HandshakeTimeout": "a bound that no client comes near",
	"server.Intercept":        "is a function",
	"server.Version":          "that of the program",
	"server.NoConsole":        "console, which is on or off",
	"server.ProducerBackoff":  "producer_backoff_initial, producer_backoff_multiplier and producer_backoff_max",

	"broker.AcceptDataLoss":       "--accept-data-loss, which is for one start",
	"server.MaxSilentConnections": "max_connections, of which it is a half",
}

// Every option of the broker and the server is a setting, or there is a reason.
func TestEveryOptionHasASetting(t *testing.T) {
	s := defaultSettings()
	set, names := map[any]bool{}, map[string]bool{}
	for _, row := range s.table() {
		set[row.at] = true
	}
	var look func(v reflect.Value, name string)
	look = func(v reflect.Value, name string) {
		_, other := elsewhere[name]
		if v.Kind() == reflect.Struct && !other {
			for f, inner := range v.Fields() {
				if f.IsExported() {
					look(inner, name+"."+f.Name)
				}
			}
			return
		}
		names[name] = true
		assert.That(t, set[v.Addr().Interface()] != other, "%s: is a setting: %t, has a reason not to be one: %t", name, !other, other)
	}
	look(reflect.ValueOf(&s.broker).Elem(), "broker")
	look(reflect.ValueOf(&s.server).Elem(), "server")
	for name := range elsewhere {
		assert.That(t, names[name], "%s is no option", name)
	}
}

// The console is on unless the file turns it off, also in the spellings that are false in YAML 1.1.
func TestConsoleSetting(t *testing.T) {
	for text, none := range map[string]bool{"": false, "console: on": false, "console: off": true, "console: 'off'": true} {
		c := assert.Value(merge("f", []byte(text), nil, nil))(t)
		if _, so := c.settings.options(); so.NoConsole != none {
			t.Errorf("%q: NoConsole is %t, want %t", text, so.NoConsole, none)
		}
	}
}

// A value outside of the default bounds is legal if the file changes the bounds too.
func TestSettingsThatGoTogether(t *testing.T) {
	c := assert.Value(merge("f", []byte("min_long_polling: 30s\nmax_long_polling: 1m\nmin_invisible_duration: 13h\nmax_invisible_duration: 24h\n"+
		"max_client_burst: 5\nmax_client_rate: 0.5\nproducer_max_attempts: 7\nproducer_backoff_initial: 3m\nproducer_backoff_multiplier: 2\nproducer_backoff_max: 5m\n"), nil, nil))(t)
	bo, so := c.settings.options()
	if so.MinLongPolling != 30*time.Second || so.MaxLongPolling != time.Minute || bo.MinInvisibleDuration != 13*time.Hour || bo.MaxInvisibleDuration != 24*time.Hour ||
		bo.ClientQuota.Burst != 5 || bo.ClientQuota.MessagesPerSecond != 0.5 || so.ProducerMaxAttempts != 7 ||
		so.ProducerBackoff.Initial != 3*time.Minute || so.ProducerBackoff.Multiplier != 2 || so.ProducerBackoff.Max != 5*time.Minute {
		t.Errorf("%+v, %+v, %+v", bo, so, so.ProducerBackoff)
	}
}

// Declaring an auto-created group or dead-letter queue in a file makes it permanent, even with
// unchanged settings. It no longer counts in max_auto_groups, and the broker does not delete it.
func TestDeclaredIsNotAutoCreated(t *testing.T) {
	b, err := broker.Open(broker.Options{MinInvisibleDuration: 1})
	assert.Must(t, err)
	defer b.Close()
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), "orders", settings.Topic{Queues: 1})))
	if _, err := b.PutAddressSettings(t.Context(), "orders", settings.Address{
		MaxDeliveryAttempts: new(1), AutoCreateDeadLetterResources: new(true), DeadLetterAddress: new("DLA"),
	}); err != nil {
		t.Fatal(err)
	}
	if r := b.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute})
	if err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	assert.Must(t, assert.Err(b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry})))
	automatic := func() (both [2]bool) {
		t.Helper()
		topic := assert.Value(b.Topic("DLQ.orders"))(t)
		group := assert.Value(b.Group("billing"))(t)
		return [2]bool{topic.AutoCreated, group.AutoCreated}
	}
	assert.MustEqual(t, "auto-created", automatic(), [2]bool{true, true})
	queue, err := b.TopicSettings("DLQ.orders") // as it would be declared
	assert.Must(t, err)
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "topics:\n  DLQ.orders: {}\ngroups:\n  billing: {}\n")
	c := assert.Value(load(file, nil, nil))(t)
	c.topics["DLQ.orders"] = queue
	for _, want := range [][]string{{"topics.DLQ.orders", "groups.billing"}, nil} { // the second time nothing is left to change
		changed, err := put(t.Context(), c, b)
		assert.That(t, err == nil && slices.Equal(changed, want), "changed %q, %v; want %q", changed, err, want)
	}
	assert.Equal(t, "declared, and still auto-created", automatic(), [2]bool{false, false})
}

func shown(t *testing.T, c *config) string {
	t.Helper()
	var b strings.Builder
	assert.Must(t, c.show(&b))
	return b.String()
}

// The output of --print-config is a file with the same settings.
func roundTrip(t *testing.T, c *config) {
	t.Helper()
	text := shown(t, c)
	for _, k := range c.keys {
		if len(k.Secret) > 0 {
			return // it is not shown
		}
	}
	again, err := merge("printed", []byte(text), nil, nil)
	assert.MustThat(t, err == nil, "%v\n%s", err, text)
	assert.That(t, reflect.DeepEqual(c.settings, again.settings), "settings %+v became %+v\n%s", c.settings, again.settings, text)
	same(t, c.topics, again.topics)
	same(t, c.groups, again.groups)
	same(t, c.addresses, again.addresses)
}

func same[T any](t *testing.T, a, b map[string]T) {
	t.Helper()
	assert.That(t, len(a) == len(b), "%d became %d", len(a), len(b))
	for name, s := range a {
		assert.That(t, reflect.DeepEqual(s, b[name]), "%s: %+v became %+v", name, s, b[name])
	}
}

func TestRoundTrip(t *testing.T) {
	for _, text := range []string{
		"", "data: 'null'", "data: \"~\\n\\U0001F600 # \\x07\\e: -\"", "data: '- x: # y'", "data: 2026-11-21", "data: 0x10",
		"advertise: h:1\ninsecure: true\nhttp: '[::]:1'\nhttp_hosts: [a.example, b]\ntopic: [a, b:FIFO, c:TRANSACTION]\ntransaction_timeout: 1s\ntransaction_check_max: -1\nmax_client_rate: 0.3\nstop_timeout: 0s",
		"topics: {a: {queues: 3}, null: {type: FIFO}, 'true': {}, _x: }\ngroups: {g: {max_attempts: -1}, -1: {}, h: {fifo: true, retry: 1ms 1h30m, max_backlog: {bytes: 9223372036854775807}}}",
		"topics: {a: {duplicate_window: -1s}}",
		"address_settings: {'#': {dead-letter-address: '', redelivery-delay: 1m, redelivery-delay-multiplier: 1e-3}, 'a.*': {max-delivery-attempts: -1}, '*': {}}",
	} {
		c, err := merge("f", []byte(text), nil, nil)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		roundTrip(t, c)
	}
	c := assert.Value(load("tidegate.example.yaml", nil, nil))(t)
	roundTrip(t, c)
}

func TestShowPrintsOrigins(t *testing.T) {
	env, _ := environment([]string{"TIDEGATE_HTTP=127.0.0.1:1"})
	c := assert.Value(merge("f", []byte("data: d\ntopics:\n  t:\n    max_backlog:\n      bytes: 3"), env, values{"insecure": {{"true", origin{Name: "--insecure"}}}}))(t)
	text := strings.Join(strings.Fields(shown(t, c)), " ")
	for _, w := range []string{
		"grpc: 127.0.0.1:8081 # default", "http: 127.0.0.1:1 # TIDEGATE_HTTP", "data: d # f:1", "insecure: true # --insecure",
		"topics: t: # f:3 max_backlog: # f:4 bytes: 3 # f:5",
	} {
		assert.That(t, strings.Contains(text, w), "it does not contain %q:\n%s", w, text)
	}
}

// No text makes the parser panic. Every fault has a line of the text. A valid file can be printed
// and read again.
func FuzzParse(f *testing.F) {
	for _, c := range badFiles {
		f.Add(c.file)
	}
	for _, c := range badAccess {
		f.Add(c.file)
	}
	f.Add(goodAccess)
	f.Add("data: \"\\0\"\ntopic: a,b:FIFO\ntopics: {t: {type: FIFO}}\ngroups: {g: {retry: 1s 2s}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := merge("f", []byte(text), nil, nil)
		bad, _ := errors.AsType[faults](err)
		for _, x := range bad {
			assert.That(t, x.File == "f" && x.Line >= 1 && x.Line <= 1+strings.Count(text, "\n")+strings.Count(text, "\r"), "%q: the fault has line %d: %s", text, x.Line, x.Text)
			if s := x.String(); s == "" || strings.Contains(s, "\n") {
				t.Errorf("%q: the fault is %q", text, s)
			}
		}
		if err == nil {
			roundTrip(t, c)
		}
	})
}

// The program accepts each of its commands in the README. serve runs with --print-config.
func TestReadmeCommands(t *testing.T) {
	t.Chdir("../../../..")
	readme := assert.Value(os.ReadFile("README.md"))(t)
	lines := regexp.MustCompile(`(?m)^ {4}go run \./cmd/tidegate (.*)$`).FindAllStringSubmatch(string(readme), -1)
	assert.MustThat(t, len(lines) >= 3, "the README has %d commands of this program", len(lines))
	for _, l := range lines {
		args := strings.Fields(l[1])
		if args[0] == "serve" && !slices.Contains(args, "--print-config") {
			args = append(args, "--print-config")
		}
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 0 || stdout.Len() == 0 || stderr.Len() > 0 {
			t.Errorf("%q: exit status %d\n%s%s", args, code, stdout.String(), stderr.String())
		}
	}
}
