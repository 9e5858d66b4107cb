package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// leaves are all commands that do something, except those of the broker and of cobra.
func leaves(c *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, child := range c.Commands() {
		switch name := child.Name(); {
		case slices.Contains([]string{"serve", "config", "completion", "help"}, name), child.IsAdditionalHelpTopicCommand():
		case child.HasSubCommands():
			out = append(out, leaves(child)...)
		default:
			out = append(out, child)
		}
	}
	return out
}

func words(c *cobra.Command) []string { return strings.Fields(c.CommandPath())[1:] }

// placeholders are arguments of the right number for a command.
func placeholders(c *cobra.Command) []string {
	var args []string
	for _, arg := range strings.Fields(c.Use)[1:] {
		switch {
		case strings.HasPrefix(arg, "["):
		case arg == "METHOD":
			args = append(args, "GET")
		case arg == "PATH":
			args = append(args, "/v1/topics")
		default:
			args = append(args, "x1")
		}
	}
	return args
}

// Each command has a short text, an example that names it, and exit code 2 for an unknown flag or
// too many arguments. The error is JSON with -o json.
func TestTree(t *testing.T) {
	tl := newTool(t)
	all := leaves(serve.Root(&cli.App{Env: os.Getenv}))
	assert.MustThat(t, len(all) >= 30, "the tree has %d commands: this test no longer sees them", len(all))
	for _, c := range all {
		path := words(c)
		t.Run(strings.Join(path, " "), func(t *testing.T) {
			assert.That(t, c.Short != "" && !strings.HasSuffix(c.Short, "."), "the short text is %q", c.Short)
			assert.That(t, strings.Contains(c.Example, c.CommandPath()), "no example names the command: %q", c.Example)
			tl.run(append(path, "--help")...).exits(0).prints("Usage:")
			for name, args := range map[string][]string{
				"unknown flag":       {"--nope"},
				"too many arguments": {"a", "b", "c=d", "e", "f"},
			} {
				if strings.Contains(c.Use, "...") && name != "unknown flag" {
					continue // takes any number
				}
				tl.run(append(slices.Clone(path), args...)...).exits(2).is("").notes("--help")
			}
			r := tl.run(append(slices.Clone(path), "-o", "json", "a", "b", "c", "d=", "e", "f", "--nope")...)
			var problem struct{ Exit int }
			if err := json.Unmarshal([]byte(r.stderr), &problem); err != nil || problem.Exit != 2 && r.code != 2 {
				t.Errorf("the error with -o json is %q: %v", r.stderr, err)
			}
		})
	}
}

// A command that needs a server ends with code 6 if no server responds.
func TestTreeWithoutServer(t *testing.T) {
	tl := newTool(t)
	tl.env["TIDEGATE_SERVER_GRPC"], tl.env["TIDEGATE_SERVER_HTTP"] = "127.0.0.1:1", "http://127.0.0.1:1"
	tl.must("context", "add", "target", "--grpc", "127.0.0.1:2")
	for _, c := range leaves(serve.Root(&cli.App{Env: os.Getenv})) {
		path := words(c)
		if path[0] == "version" || path[0] == "context" && path[1] != "test" {
			continue
		}
		args := append(slices.Clone(path), placeholders(c)...)
		if path[0] == "apply" {
			args[1] = "-"
		}
		if c.Name() == "compare" {
			continue // of files
		}
		if path[0] == "retry" {
			args = append(args, "x1") // without a name it needs no server
		}
		if path[0] == "move" {
			args = append(args, "--group", "x1", "--to", "target")
		}
		args = append(args, "--timeout", "1s", "--no-retry")
		for flag, value := range map[string]string{"yes": "true", "then": "ack", "ack-timeout": "1s", "to": "earliest", "key": "1"} {
			if f := c.Flags().Lookup(flag); f != nil && (flag != "to" || path[0] == "group") {
				args = append(args, "--"+flag+"="+value)
			}
		}
		t.Run(strings.Join(path, " "), func(t *testing.T) {
			t.Parallel()
			r := tl.input("topics: {x1: {}}", args...)
			want := 6
			if path[0] == "check" {
				want = 2 // critical
			}
			assert.That(t, r.code == want && !strings.Contains(r.stderr, "panic"), "exit code %d, want %d\n%s%s", r.code, want, r.stdout, r.stderr)
		})
	}
}

// On RocketMQ a command that needs the HTTP API ends with code 2. It names RocketMQ's own command,
// or that RocketMQ has none.
func TestTreeOnRocketMQ(t *testing.T) {
	tl := newTool(t)
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	works := []string{"send", "receive", "recall", "retry preview", "status", "check", "doctor", "dead-letters top", "dead-letters list", "dead-letters show",
		"dead-letters redrive", "dead-letters export", "move", "bench send", "bench receive", "bench e2e", "bench compare", "version"}
	for _, c := range leaves(serve.Root(&cli.App{Env: os.Getenv})) {
		path := words(c)
		if slices.Contains(works, strings.Join(path, " ")) || path[0] == "context" {
			continue
		}
		args := append(append(slices.Clone(path), placeholders(c)...), "--context", "rmq")
		for flag, value := range map[string]string{"to": "earliest", "key": "1"} {
			if c.Flags().Lookup(flag) != nil {
				args = append(args, "--"+flag+"="+value)
			}
		}
		if path[0] == "apply" {
			args[1] = "-"
		}
		r := tl.input("topics: {x1: {}}", args...)
		if r.code != 2 || !strings.Contains(r.stderr, "On RocketMQ use: mqadmin ") && !strings.Contains(r.stderr, "RocketMQ has no command for it") {
			t.Errorf("%s: exit code %d, %s", strings.Join(path, " "), r.code, r.stderr)
		}
	}
	tl.fails(2, "mqadmin consumerProgress", "group", "show", "g", "--context", "rmq")
	tl.fails(2, "has no command for it", "parked", "list", "g", "--context", "rmq")
}

// Each line of each example runs in a shell and ends in order.
func TestExamples(t *testing.T) {
	bin := installed(t)
	// With the race detector each program starts slowly, so a run has a fifth of the examples, with
	// a random start. The step "random tests" of .ci/run has all.
	part, n := model.Rounds(5), rand.IntN(5)
	for _, c := range leaves(serve.Root(&cli.App{Env: os.Getenv})) {
		for line := range strings.Lines(c.Example) {
			line = strings.TrimSpace(line)
			if n++; n%5 >= part {
				continue
			}
			t.Run(line, func(t *testing.T) {
				t.Parallel()
				example(t, bin, c, line)
			})
		}
	}
}

// installed returns a directory with the program tidegate.
func installed(t *testing.T) string {
	t.Helper()
	path := assert.Value(filepath.Abs(os.Args[0]))(t)
	bin := t.TempDir()
	script := "#!/bin/sh\n" + asProgram + "=1 exec '" + path + "' \"$@\"\n"
	assert.Must(t, os.WriteFile(filepath.Join(bin, "tidegate"), []byte(script), 0o700))
	return bin
}

// environ is the environment of a shell with the program in its path.
func (tl *tool) environ(bin string) []string {
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	for name, value := range tl.env {
		env = append(env, name+"="+value)
	}
	return env
}

func example(t *testing.T, bin string, c *cobra.Command, line string) {
	tl := newTool(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"invoice.pdf": "%PDF", "charge.sh": "#!/bin/sh\ncat >> charged.txt\n", "cluster.yaml": "topics: {invoices: {queues: 2}}\n", "orders.jsonl": `{"queue":1,"body_text":"a"}`} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	secret := filepath.Join(tl.home, ".mq")
	assert.Must(t, os.WriteFile(secret, []byte("sesame\n"), 0o600))
	line = strings.NewReplacer("1000000 |", "1000 |", "proxy.example:8081", tl.grpc).Replace(line)
	if c.Name() == "doctor" {
		line = strings.ReplaceAll(line, "proxy.example:8081", tl.grpc)
	}
	if c.Name() == "receive" && strings.Contains(line, "--exec") {
		line += " --max 1"
	}
	short := strings.HasPrefix(line, "tidegate bench") && c.Name() != "compare"
	if short {
		line = strings.ReplaceAll(line, "--messages 10000", "--messages 500") + " --rounds 1 --duration 100ms --warmup 0s"
	}
	if c.Name() == "compare" {
		tl.must("bench", "send", "--rounds", "3", "--duration", "100ms", "--warmup", "0s", "--json", filepath.Join(dir, "before.json"))
		line = "cp before.json after.json && " + line
	}
	if c.Name() == "console" {
		line = "timeout --foreground --preserve-status -s INT 2 " + line // it serves until Ctrl-C, of which one is enough
	}
	prepare(t, tl, c, &line)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir, cmd.Env = dir, tl.environ(bin)
	text, err := cmd.CombinedOutput()
	if exit, _ := errors.AsType[*exec.ExitError](err); short && exit != nil && exit.ExitCode() == 7 {
		return // the machine was too busy for valid figures
	}
	assert.That(t, err == nil || c.Name() == "check", "%s: %v\n%s", line, err, text)
}

// prepare creates the subjects of an example: topics, groups, a dead letter, a delayed message,
// contexts.
func prepare(t *testing.T, tl *tool, c *cobra.Command, line *string) {
	t.Helper()
	if c.Name() == "create" {
		return
	}
	tl.must("topic", "create", "orders")
	tl.must("topic", "create", "copies")
	tl.must("topic", "create", "pays", "type=FIFO")
	tl.must("topic", "create", "reminders", "type=DELAY")
	tl.must("topic", "create", "sessions", "type=LITE")
	tl.must("group", "create", "billing")
	tl.must("group", "create", "ledger", "fifo=true", "on_exhausted=park", "max_attempts=1")
	tl.must("address", "set", "orders.#", "max-delivery-attempts=4")
	tl.must("send", "orders", "10 EUR")
	tl.must("send", "sessions", "hello", "--lite-topic", "session-17")
	if c.Name() == "find" || c.Name() == "trace" {
		sent := strings.TrimSpace(tl.must("send", "orders", "no such account", "--key", "4711", "-o", "name").stdout)
		*line = strings.Replace(*line, "orders ID", "orders "+sent, 1)
		*line = strings.Replace(*line, "trace ID", "trace "+sent, 1)
		tl.must("receive", "billing", "orders", "--max", "1", "--then", "retry=1m")
	}
	dead := strings.TrimSpace(tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=no such account", "-o", "name").stdout)
	var delayed struct {
		Handle string `json:"recall_handle"`
	}
	assert.Must(t, json.Unmarshal([]byte(tl.must("send", "reminders", "later", "--in", "10m", "-o", "json").stdout), &delayed))
	tl.must("context", "add", "prod", "--grpc", tl.grpc, "--http", tl.http)
	tl.must("context", "add", "dev", "--grpc", tl.grpc, "--http", tl.http)
	if c.Name() == "receive" {
		tl.must("send", "orders", "good", "--count", "100")
	}
	if c.Name() == "move" {
		other := newTool(t, "--topic", "orders")
		tl.must("context", "add", "cluster", "--grpc", other.grpc, "--http", other.http)
	}
	if strings.HasPrefix(c.CommandPath(), "tidegate parked") {
		tl.must("send", "pays", "no money", "--message-group", "account-7")
		tl.must("receive", "ledger", "pays", "--max", "1", "--then", "retry")
	}
	class := strings.TrimSpace(tl.must("dead-letters", "top", "billing", "-o", "name").stdout)
	*line = strings.NewReplacer("5f1c9a", class, " HANDLE", " "+delayed.Handle, "billing ID", "billing "+dead, "--id ID", "--id "+dead).Replace(*line)
}

// The completion of bash works in a shell without the package bash-completion. Bash itself splits
// the line into COMP_WORDS, also at = and :.
func TestBashCompletionAlone(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "order-returns")
	script := filepath.Join(tl.home, "completion.bash")
	write(t, script, tl.must("completion", "bash").stdout)
	bin := t.TempDir()
	assert.Must(t, os.Symlink(os.Args[0], filepath.Join(bin, "tidegate")))
	for _, c := range []struct {
		line  string   // up to the cursor
		words []string // of bash
		want  []string
	}{
		{"tidegate dead-l", []string{"tidegate", "dead-l"}, []string{"dead-letters"}},
		{"tidegate topic cre", []string{"tidegate", "topic", "cre"}, []string{"create"}},
		{"tidegate topic show ord", []string{"tidegate", "topic", "show", "ord"}, []string{"order-returns", "orders"}},
		{"tidegate topic show ", []string{"tidegate", "topic", "show", ""}, []string{"order-returns", "orders"}},
		{"tidegate topic list --no-h", []string{"tidegate", "topic", "list", "--no-h"}, []string{"--no-headers"}},
		{"tidegate topic list --context=x --no-h", []string{"tidegate", "topic", "list", "--context", "=", "x", "--no-h"}, []string{"--no-headers"}},
		{"tidegate nothing ", []string{"tidegate", "nothing", ""}, nil},
	} {
		var quotedWords []string
		for _, w := range c.words {
			quotedWords = append(quotedWords, "'"+w+"'")
		}
		bash := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile", "-c", `
set -u
unset -f _init_completion _get_comp_words_by_ref __ltrim_colon_completions 2>/dev/null
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=(`+strings.Join(quotedWords, " ")+`) COMP_TYPE=9 COMP_KEY=9
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
set +u
__start_tidegate
printf '%s\n' "${COMPREPLY[@]}"`, "bash", script, c.line)
		bash.Env = append(os.Environ(), asProgram+"=1", "PATH="+bin+":"+os.Getenv("PATH"), "XDG_CONFIG_HOME="+tl.home,
			"TIDEGATE_SERVER_GRPC="+tl.grpc, "TIDEGATE_SERVER_HTTP="+tl.http)
		out, err := bash.CombinedOutput()
		assert.That(t, err == nil, "%s: %v\n%s", c.line, err, out)
		var got []string
		for word := range strings.FieldsSeq(string(out)) {
			if !strings.HasPrefix(word, "(") {
				got = append(got, word)
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%q is completed by %q, want %q", c.line, got, c.want)
		}
	}
}

// send --template makes messages that differ; receive -f prints the parts that its verbs name.
func TestTemplateAndFormat(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1", "type=FIFO")
	tl.must("send", "orders", `{"n": %n, "c": "100%%"}`, "--template", "--count", "2", "--key", "k%n", "--tag", "t%n", "--message-group", "g", "-p", "shop=s%n")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "retry=0s")
	r := tl.must("receive", "billing", "orders", "--max", "2", "--then", "ack", "-f", `%t %q %o %k %T %g %a %p %p{shop} %p{x}|%B %b%%\n`)
	want := "orders 0 0 k1 t1 g 2 shop=s1 s1 |21 {\"n\": 1, \"c\": \"100%\"}%\n" + "orders 0 1 k2 t2 g 1 shop=s2 s2 |21 {\"n\": 2, \"c\": \"100%\"}%\n"
	assert.That(t, r.stdout == want, "receive -f prints\n%s\nwant\n%s", r.stdout, want)
	tl.pipe("a\nb\n", "send", "orders", "<%n:%l>", "--lines", "--template", "--message-group", "g", "--key", "%l")
	tl.must("receive", "billing", "orders", "--max", "2", "--then", "ack", "-f", "%k%b ").is("a<1:a> b<2:b> ")
	tl.must("send", "orders", "%i %r{10} %c", "--template", "--message-group", "g")
	if got := strings.Fields(tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "-f", "%i %b").stdout); len(got) != 4 || len(got[1]) != 34 || len(got[2]) != 1 || !strings.HasSuffix(got[3], "Z") {
		t.Errorf("an ID, a random number and a time are %q", got)
	}
	for _, args := range [][]string{
		{"send", "orders", "%x", "--template"}, {"send", "orders", "a", "--template", "--key", "%"}, {"send", "orders", "--template", "--lines"},
		{"send", "orders", "--template", "--jsonl"}, {"receive", "billing", "orders", "-f", "%x", "--then", "ack"}, {"receive", "billing", "orders", "-f", "%b", "--raw", "--then", "ack"},
		{"receive", "billing", "orders", "-f", "%b", "-o", "json", "--then", "ack"}, {"receive", "billing", "orders", "--then", "ask"}, {"receive", "billing", "orders", "--then", "ask=1"},
	} {
		tl.fails(2, "", args...)
	}
	tl.must("send", "orders", "\x1b[2J", "--message-group", "g")
	tl.terminal = true
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "-f", "%b").is(`\x1b[2J`)
}

// receive --then ask settles each message by the user's choice, and releases the other messages
// when the user quits.
func TestReceiveThenAsk(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")
	for i := range 6 {
		tl.must("send", "orders", fmt.Sprintf("m%d", i+1))
	}
	tl.terminal = true
	tl.pipe("a\nnonsense\ndead=no such account\nr=1h\n\nq\n", "receive", "billing", "orders", "--then", "ask", "-f", `%b\n`).is("m1\nm2\nm3\nm4\nm5\n").notes("it is release, ack, retry[=TIME], dead[=REASON]")
	tl.terminal = false
	tl.must("dead-letters", "list", "billing", "--columns", "reason", "--no-headers").is("no such account\n")
	tl.must("receive", "billing", "orders", "--max", "3", "--wait", "1s", "--then", "ack", "-f", "%b ").is("m4 m5 m6 ")
	if got := squeezed(tl.must("group", "list", "--no-headers", "--columns", "group,retry,acked").stdout); got != "billing 1 4\n" {
		t.Errorf("the group has %q", got)
	}
}

// The commands of the README run in their order.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme := assert.Value(os.ReadFile("../../README.md"))(t)
	block := regexp.MustCompile("(?s)<!-- example: commands -->\n```sh\n(.*?)```").FindSubmatch(readme)
	assert.MustThat(t, block != nil, "the README has no example of the commands")
	tl := newTool(t, "--topic", "orders")
	dir := t.TempDir()
	charge := "#!/bin/sh\necho 'unknown currency EUR' >&2\nexit 1\n"
	assert.Must(t, os.WriteFile(filepath.Join(dir, "charge.sh"), []byte(charge), 0o700))
	bin := installed(t)
	n := 0
	for line := range strings.Lines(string(block[1])) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if strings.Contains(line, "--exec") {
			tl.must("send", "orders", "7 EUR")
			line += " --max 1"
		}
		if strings.Contains(line, "CLASS") {
			var class struct{ Fingerprint string }
			assert.Must(t, json.Unmarshal([]byte(tl.must("dead-letters", "top", "billing", "-o", "jsonl").stdout), &class))
			line = strings.Replace(line, "CLASS", class.Fingerprint, 1)
		}
		if strings.HasPrefix(line, "tidegate bench") {
			line += " --duration 100ms --warmup 0s || [ $? = 7 ]" // a busy machine has no valid figures
		}
		n++
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir, cmd.Env = dir, tl.environ(bin)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, text)
		}
	}
	assert.That(t, n >= 5, "the example has %d commands: this test no longer sees them", n)
	if got := lines[received](t, tl.must("receive", "billing", "orders", "--then", "ack", "-o", "jsonl", "--wait", "10ms").stdout); len(got) != 1 || got[0].BodyText != "7 USD" {
		t.Errorf("after the example the topic has %+v, want the corrected message", got)
	}
}
