package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
)

// leaves are all commands that do something, except those of cobra.
func leaves(c *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, child := range c.Commands() {
		switch name := child.Name(); {
		case name == "completion", name == "help", child.IsAdditionalHelpTopicCommand():
		case child.HasSubCommands():
			out = append(out, leaves(child)...)
		default:
			out = append(out, child)
		}
	}
	return out
}

func tree() *cobra.Command { return root(&cli.App{Env: os.Getenv}) }

func words(c *cobra.Command) []string { return strings.Fields(c.CommandPath())[1:] }

// arguments are arguments and flags with which a command begins its work.
func arguments(c *cobra.Command) []string {
	args := words(c)
	for _, arg := range strings.Fields(c.Use)[1:] {
		switch {
		case strings.HasPrefix(arg, "["):
		case arg == "METHOD":
			args = append(args, "GET")
		case arg == "PATH":
			args = append(args, "/v1/topics")
		case arg == "FILE":
			args = append(args, "-")
		default:
			args = append(args, "x1")
		}
	}
	if args[0] == "retry" {
		args = append(args, "x1") // without a name it needs no server
	}
	if args[0] == "move" {
		args = append(args, "--group", "x1", "--to", "target")
	}
	for flag, value := range map[string]string{"yes": "true", "then": "ack", "ack-timeout": "1s", "to": "earliest", "key": "1", "timeout": "1s"} {
		if f := c.Flags().Lookup(flag); f != nil && (flag != "to" || args[0] == "group") {
			args = append(args, "--"+flag+"="+value)
		}
	}
	return args
}

// works are the commands that all foreign systems support.
var works = []string{"send", "receive", "status", "check", "doctor", "dead-letters top", "dead-letters list", "dead-letters show",
	"dead-letters redrive", "dead-letters export", "move", "bench send", "bench receive", "bench e2e"} // check has only the broker itself

// Each command has a short text and an example that names this program, and exit code 2 for an
// unknown flag. No text names a command of this program as one of tidegate.
func TestTree(t *testing.T) {
	tl := onPeer(t, &amqppeer.Peer{})
	all := leaves(tree())
	assert.MustThat(t, len(all) >= 30, "the tree has %d commands: this test no longer sees them", len(all))
	for _, c := range all {
		path := words(c)
		if c.Short == "" || !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: the short text is %q, the examples %q", c.CommandPath(), c.Short, c.Example)
		}
		r := tl.run(append(path, "--help")...)
		if r.code != 0 || !strings.Contains(r.stdout, "Usage:") || strings.Contains(r.stdout, "'tidegate "+path[0]) || strings.Contains(r.stdout, "\n  tidegate "+path[0]) {
			t.Errorf("%s --help: exit code %d, %s", c.CommandPath(), r.code, r.stdout)
		}
		if r := tl.run(append(slices.Clone(path), "--nope")...); r.code != 2 || !strings.Contains(r.stderr, "'tidegate-foreign") || r.stdout != "" {
			t.Errorf("%s --nope: exit code %d, %q, %q", c.CommandPath(), r.code, r.stdout, r.stderr)
		}
	}
}

// The arguments and flags of each example, in the help and in both READMEs, are those of its command.
func TestExamplesParse(t *testing.T) {
	dir := t.TempDir()
	stub := "#!/bin/sh\nfor a; do printf '%s\\n' \"$a\"; done >> \"$LINES\"\n"
	assert.Must(t, os.WriteFile(filepath.Join(dir, "tidegate-foreign"), []byte(stub), 0o700))
	for _, name := range []string{"invoice.pdf", "cluster.yaml", "orders.jsonl"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	examples := map[string]string{} // each line, and the path of its command
	for _, c := range leaves(tree()) {
		for line := range strings.Lines(c.Example) {
			examples[strings.TrimSpace(line)] = c.CommandPath()
		}
	}
	for _, name := range []string{"README.md", "../../transport/amqp/README.md"} {
		n := len(examples)
		for line := range strings.Lines(string(assert.Value(os.ReadFile(name))(t))) {
			if line, ok := strings.CutPrefix(line, "    tidegate-foreign "); ok {
				examples["tidegate-foreign "+strings.TrimSpace(line)] = ""
			}
		}
		assert.That(t, len(examples) > n, "%s has no example that the help lacks: this test no longer sees them", name)
	}
	for line, path := range examples {
		func() {
			lines := filepath.Join(dir, "arguments")
			assert.Must(t, os.WriteFile(lines, nil, 0o600))
			cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LINES="+lines)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
				return
			}
			text := assert.Value(os.ReadFile(lines))(t)
			args := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			fresh := tree() // with flags that no example has set
			found, rest, err := fresh.Find(args)
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil || !found.Runnable() || path != "" && found.CommandPath() != path {
				t.Errorf("%s is %q of %s, want %s: %v", line, args, found.CommandPath(), path, err)
			}
		}()
	}
}

// Without a server a command that a foreign system supports ends with code 6. The others end with
// code 2 and name the system's own command, or that it has none.
func TestTreeWithoutServer(t *testing.T) {
	t.Run("Artemis", func(t *testing.T) {
		tl := on(t, "127.0.0.1:1")
		tl.must("context", "add", "target", "--amqp", "amqp://127.0.0.1:2")
		treeWithoutServer(t, tl, "Artemis", artemis().Instead, works)
	})
	t.Run("Pulsar", func(t *testing.T) {
		tl := onPulsar(t, "pulsar://127.0.0.1:1")
		tl.must("context", "add", "target", "--pulsar", "pulsar://127.0.0.1:2")
		treeWithoutServer(t, tl, "Pulsar", apachePulsar().Instead, append([]string{"peek", "find"}, works...))
	})
}

func treeWithoutServer(t *testing.T, tl *tool, system string, others map[string]string, works []string) {
	seen := map[string]bool{}
	for _, c := range leaves(tree()) {
		path := words(c)
		name := strings.Join(path, " ")
		if name == "version" || name == "bench compare" || path[0] == "context" && name != "context test" {
			continue
		}
		args := arguments(c)
		if path[0] == "bench" {
			args = append(args, "--topic", "x1", "--into-existing")
		}
		r := tl.input("topics: {x1: {}}", args...)
		if slices.Contains(works, name) || name == "context test" {
			want := 6
			if path[0] == "check" {
				want = 2 // critical
			}
			assert.That(t, r.code == want, "%s: exit code %d, want %d\n%s%s", name, r.code, want, r.stdout, r.stderr)
			continue
		}
		instead := others[name]
		seen[name] = true
		want := system + " has no command for it."
		if instead != "" {
			want = "On " + system + " use: " + instead
		}
		if path[0] == "recall" {
			continue // needs a connection, see TestRecall
		}
		lacks := name + " needs the HTTP API of a tidegate broker, which " + system + " does not have"
		if r.code != 2 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, lacks) {
			t.Errorf("%s: exit code %d, want 2 with %q and %q: %s%s", name, r.code, lacks, want, r.stdout, r.stderr)
		}
	}
	for name := range others {
		if !seen[name] {
			t.Errorf("Instead has %q, which is no command that %s lacks", name, system)
		}
	}
}
