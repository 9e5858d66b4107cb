package main

import (
	"context"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
	"github.com/tidegate/tidegate/internal/assert"
)

// A site is a broker with the names and numbers of a real one: a topic with its group, a FIFO topic
// with a group that parks, long message IDs, and several problems at once.
type site struct {
	*tool
	subjects [4]string
	id       string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{newTool(t), [4]string{"orders.invoices.created.v2.eu1", "billing-worker-europe-west-prod", "payments.transfers.outgoing.v1", "ledger-worker-europe-west-prod1"},
		"01a2b3c4d5e6f708192a3b4c5d6e7f8091a2-orders-invoice-00004711"}
	orders, billing, payments, ledger := s.subjects[0], s.subjects[1], s.subjects[2], s.subjects[3]
	s.must("topic", "create", orders)
	s.must("topic", "create", payments, "type=FIFO")
	s.must("topic", "create", "reminders.customers.overdue.v3", "type=DELAY")
	s.must("group", "create", billing)
	s.must("group", "create", ledger, "fifo=true", "on_exhausted=park", "max_attempts=1")
	s.must("group", "create", "shipping-worker-europe-west-pr1", "fifo=true", "on_exhausted=block", "max_attempts=1")
	s.must("address", "set", "orders.#", "max-delivery-attempts=4")
	s.must("send", orders, "no such account in the ledger of the year 2026, please look at it", "--id", s.id, "--key", "order-0000471100, customer-000081512", "--tag", "invoice-created", "--count", "1")
	s.must("receive", billing, orders, "--then", "dead=the ledger has no such account: 12ab34cd-0000-4711-8151-0123456789ab (IllegalStateException)", "--max", "1")
	s.must("send", orders, `{"order":4711,"customer":"0815","lines":[{"article":"a-1","price":12.5},{"article":"a-2","price":99}]}`, "--count", "12344", "--key", "order-4711")
	s.must("receive", billing, orders, "--then", "retry", "--max", "3")
	for _, account := range []string{"account-de-0000000000004711", "account-de-0000000000004712"} {
		for range 2 {
			s.must("send", payments, "no money", "--message-group", account)
		}
	}
	s.must("receive", ledger, payments, "--max", "2", "--then", "retry")
	s.must("receive", "shipping-worker-europe-west-pr1", payments, "--max", "1", "--then", "retry")
	s.must("send", "reminders.customers.overdue.v3", "later", "--in", "10m")
	s.must("context", "add", "target", "--grpc", s.grpc, "--http", s.http)
	s.must("context", "add", "production-europe-west-message-broker", "--grpc", "mq-broker-1.production.europe.example:8081", "--http", "https://mq-broker-1.production.europe.example:8082", "--access-key", "billing-operator")
	idle, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go run(idle, []string{"receive", "idle-worker-europe-west-prod-01", "reminders.customers.overdue.v3", "--then", "ack", "--follow"}, s.app(io.Discard, io.Discard))
	for s.must("clients", "list", "-o", "name").stdout == "" {
		runtime.Gosched()
	}
	return s
}

// args are the words of a command, which changes nothing that others need.
func (s *site) args(c *cobra.Command) []string {
	name := strings.Join(words(c), " ")
	args := resultArgs(s.tool, c, s.subjects, s.id)
	if c.Flags().Lookup("timeout") == nil {
		args = args[:slices.Index(args, "--timeout")]
	}
	switch name {
	case "bench send", "bench receive", "bench e2e":
		args = []string{"bench", c.Name(), "--duration", "100ms", "--warmup", "0s", "--rounds", "1"}
		if name == "bench receive" {
			args = append(args, "--messages", "2000")
		}
	case "address set":
		args = append(args, "max-delivery-attempts=4")
	case "topic set":
		args[slices.Index(args, "queues=5")] = "queues=9"
	case "move":
		args = append(args, "--group", s.subjects[1], "--dry-run", "--to-topic", s.subjects[2])
	}
	return args
}

// each calls show for each command that prints a result for people, with its output there. It
// returns the names of the commands with a result.
func (s *site) each(t *testing.T, terminal bool, flags []string, show func(name string, args []string, r result)) (seen []string) {
	t.Helper()
	for _, c := range leaves(serve.Root(&cli.App{Env: os.Getenv})) {
		name := strings.Join(words(c), " ")
		if slices.Contains([]string{"console", "bench compare", "context use", "context remove", "context add", "dead-letters export", "api"}, name) {
			continue // without a text for people
		}
		s.terminal = false
		args := append(s.args(c), flags...)
		s.terminal = terminal
		r := s.bounded("topics: {x1: {}}", args...)
		if strings.TrimSpace(r.stdout) != "" {
			seen = append(seen, name)
		}
		show(name, args, r)
	}
	s.terminal = false
	return seen
}

// unbroken are lines that a terminal wraps, because a person copies from them: a command, and a
// word that alone is longer than the terminal.
var unbroken = regexp.MustCompile(`^ *(tidegate [a-z].*|\S+)$`)

// On a terminal of 80 columns no command prints a longer line, and the names that commands take as
// arguments, those of -o name, are whole.
func TestTerminalOf80Columns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	useless := []string{"address delete", "group create", "topic create", "limits set", "recall"}     // without a subject
	prose := []string{"trace", "doctor", "context test", "dead-letters show", "context show", "send"} // sentences and data, of which lines are copied
	for _, flags := range [][]string{nil, {"-o", "wide"}} {
		seen := s.each(t, true, flags, func(name string, args []string, r result) {
			assert.That(t, r.code == 0 || r.stdout != "" || slices.Contains(useless, name), "%s ends with %d: %s", strings.Join(args, " "), r.code, r.stderr)
			for line := range strings.Lines(r.stdout) {
				line = strings.TrimSuffix(line, "\n")
				if output.Width(line) > 80 && !unbroken.MatchString(line) && !slices.Contains(prose, name) {
					t.Errorf("%s prints a line of %d columns:\n%s", strings.Join(args, " "), output.Width(line), r.stdout[:min(len(r.stdout), 4000)])
					break
				}
			}
			if slices.Contains(prose, name) || strings.HasPrefix(name, "bench") || strings.HasSuffix(name, "redrive") || name == "receive" || name == "metrics" || name == "move" { // they are not the same the next time
				return
			}
			names := s.run(append(slices.Clone(args), "-o", "name")...)
			for id := range strings.Lines(names.stdout) {
				if id = strings.Trim(id, "'\n"); names.code == 0 && r.stdout != "" && !strings.Contains(r.stdout, id) {
					t.Errorf("%s cuts %s:\n%s", strings.Join(args, " "), id, r.stdout)
				}
			}
		})
		assert.That(t, len(seen) >= 30, "only %d commands print a result, the test does not see the others: %q", len(seen), seen)
	}
}

// What a program reads has no numbers with spaces between their digits.
func TestPipedNumbersArePlain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	grouped := regexp.MustCompile(`(^|[^0-9A-Za-z.:-])[0-9]{1,3}[ \x{00a0}\x{2007}\x{2009}\x{202f}][0-9]{3}([^0-9]|$)`)
	plain := ""
	s.each(t, false, nil, func(_ string, args []string, r result) {
		for stream, text := range map[string]string{"stdout": r.stdout, "stderr": r.stderr} {
			if found := grouped.FindString(text); found != "" {
				t.Errorf("%s: %s has %q:\n%s", strings.Join(args, " "), stream, found, text)
			}
		}
		plain += r.stdout
	})
	assert.That(t, strings.Contains(plain, "12344"), "no output has the large number, the test does not see it")
	s.terminal = true
	for _, args := range [][]string{{"status"}, {"topic", "list"}, {"topic", "show", s.subjects[0]}, {"group", "show", s.subjects[1]}} {
		if out := s.bounded("", args...).stdout; !regexp.MustCompile(`12 3\d{2} `).MatchString(out) {
			t.Errorf("on a terminal %q prints no groups of digits:\n%s", args, out)
		}
	}
}
