package tidegate_test

import (
	"fmt"
	"go/ast"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/consumer"
)

// demands are what users of message brokers ask for, collected from the issues of their clients.
// Each has a test whose doc comment names its number: "Demand 45", "demand 45" or "Row 45".
var demands = map[int]string{
	1:  "hopeless errors are not retried",
	2:  "throttling has a policy of its own",
	3:  "the client's maximum of attempts holds",
	4:  "a busy broker gets every message",
	5:  "a black hole does not use up the timeout",
	6:  "the end of a context ends the wait for a retry",
	7:  "retries have jitter",
	8:  "a backoff does not overflow",
	9:  "a retry goes to another server",
	10: "asynchronous sends are bounded",
	11: "a send keeps its timeout while the broker is down",
	12: "retry options hold for every way to send",
	13: "widespread failures cause no storm",
	14: "the server decides when to return",
	15: "messages wait on the local disk",
	16: "sends fail over, and back",
	17: "the producer reports what it did not send",
	18: "closing flushes",
	19: "an unknown topic is an error",
	20: "one bad message does not fail its neighbours",
	21: "a send is stored once",
	22: "duplicates are consumed once",
	23: "a kit proves that a handler is idempotent",
	24: "a delayed retry stays the same message",
	25: "a failure waits before the next delivery",
	26: "the schedule holds for every kind of failure",
	27: "delays are accurate",
	28: "a due retry wakes the waiting poll",
	29: "no option is ignored",
	30: "attempts survive restarts",
	31: "the maximum of attempts has one meaning",
	32: "an unread message spends no attempt",
	33: "not now, without an attempt",
	34: "the error chooses the delay",
	35: "a permanent error is a dead letter",
	36: "each message has the attempts of its topic, tag or property",
	37: "the outage of a dependency makes no dead letters",
	38: "retries and fresh messages do not starve each other",
	39: "calls that retry return errors",
	40: "one layer retries",
	41: "a long delay occupies no worker",
	42: "expected failures do not flood the log",
	43: "dead letters are sent back, each once",
	44: "a redrive has a rate, a filter, a dry run and an audit",
	45: "every dead letter is reachable",
	46: "a message keeps its parts on every way back",
	47: "a dead letter has a reason",
	48: "metadata of failures is bounded",
	49: "generated names do not collide",
	50: "a message that nobody keeps is not lost",
	51: "the last attempt is announced",
	52: "the dead letter comes at once",
	53: "dead letters do not go round",
	54: "a flood of dead letters stops the consumer",
	55: "a lease is extended while its handler works",
	56: "an extension is no failure",
	57: "leases are longer than extensions take",
	58: "a handler learns that its lease is lost",
	59: "the handle is replaced by a success only",
	60: "buffered messages keep their leases",
	61: "a poisoned message group blocks, goes on or is parked",
	62: "a retry keeps the order of its message group",
	63: "a FIFO receive can be repeated",
	64: "later messages of a group wait behind the one that fails",
	65: "a stop is bounded and accounted for",
	66: "starts and stops leak nothing",
	67: "messages flow again after a restart",
	68: "a bad server causes no panic",
	69: "a stuck handler is reported and replaced",
}

// lastDemand is the largest number of the collection.
const lastDemand = 73

var demandRef = regexp.MustCompile(`\b(?:[Dd]emand|Row) (\d+)\b`)

// Every demand has a test that names it.
func TestDemandsHaveTests(t *testing.T) {
	named := map[int]bool{}
	for _, s := range load(t, sources) {
		if !s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			for _, m := range demandRef.FindAllStringSubmatch(strings.Join(strings.Fields(f.Doc.Text()), " "), -1) {
				n, err := strconv.Atoi(m[1])
				if err != nil || n < 1 || n > lastDemand {
					t.Errorf("%s: %s names demand %s, which does not exist", fset.Position(f.Pos()), f.Name.Name, m[1])
				}
				named[n] = true
			}
		}
	}
	for n, text := range demands {
		if !named[n] {
			t.Errorf("demand %d (%s) has no test: name it in the doc comment of the test that shows it", n, text)
		}
	}
}

// Every option of a consumer is set by a test of package consumer or of one below
// internal/endtoend.
//
// Demand 29.
func TestConsumerOptionsAreTested(t *testing.T) {
	set := map[string]bool{}
	for _, s := range load(t, sources) {
		if !s.test() || s.dir != "consumer" && !under(s.dir, "internal/endtoend") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok {
					set[key.Name] = true
				}
			case *ast.AssignStmt:
				for _, left := range n.Lhs {
					if field, ok := left.(*ast.SelectorExpr); ok {
						set[field.Sel.Name] = true
					}
				}
			}
			return true
		})
	}
	var missing []string
	for _, options := range []any{consumer.PushOptions{}, consumer.SimpleOptions{}, consumer.KillSwitch{}, consumer.Subscription{}} {
		typ := reflect.TypeOf(options)
		for field := range typ.Fields() {
			if !set[field.Name] {
				missing = append(missing, fmt.Sprintf("%s.%s", typ, field.Name))
			}
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("no test sets %s", strings.Join(missing, ", "))
	}
}
