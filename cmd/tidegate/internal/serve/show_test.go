package serve

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

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
