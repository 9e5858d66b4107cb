package cli

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Finish completes the tree of a program that has all its other commands.
func Finish(root *cobra.Command, a *App) {
	root.Version = version()
	root.AddCommand(versionCommand(a))
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(toolGroup)
	root.SetCompletionCommandGroupID(toolGroup)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	bashCompletion(root) // after SetOut: cobra's scripts go to the output of this time
	if root.Name() != original {
		rename(root, root)
	}
}

// original is the program that the texts of the commands name.
const original = "tidegate"

var mention = regexp.MustCompile(`\b` + original + ` ([a-z-]+)`)

// rename names the program in the texts of a command and its children. A mention of a command that
// the program does not have stays one of tidegate.
func rename(root, c *cobra.Command) {
	named := func(text string) string {
		return mention.ReplaceAllStringFunc(text, func(found string) string {
			word := strings.TrimPrefix(found, original+" ")
			if slices.ContainsFunc(root.Commands(), func(child *cobra.Command) bool { return child.Name() == word }) {
				return root.Name() + " " + word
			}
			return found
		})
	}
	c.Example, c.Long, c.Short = named(c.Example), named(c.Long), named(c.Short)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = named(f.Usage) })
	for _, child := range c.Commands() {
		rename(root, child)
	}
}

// topics are the texts of "tidegate help".
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "The exit codes of all commands", Long: fmt.Sprintf(`The exit codes of all commands:

  %-4d done
  %-4d failed for another reason
  %-4d wrong arguments or configuration, or not supported by this server
  %-4d no topic, group or message of this name
  %-4d not permitted
  %-4d throttled, or no space; the error has the time to wait
  %-4d no response: unreachable or timed out
  %-4d partly done
  %-4d interrupted by Ctrl-C before the work was done
  %-4d interrupted by SIGTERM before the work was done

A signal is the ordinary end, with 0, of a command that goes on until then: --follow,
--watch, top, dead-letters watch, console, serve, and receive --exec once its programs
have ended.

tidegate check alone has those of Nagios: 0 OK, 1 warning, 2 critical, 3 unknown.
tidegate receive --exec ends with 1 if its program cannot be executed, after
--max-failures-in-row, if its kill switch holds messages back at the end, and if all
of 20 or more messages failed. The exit codes of its programs
are the fates of the messages: 'tidegate help receive'.
With -o json an error is one JSON object on standard error, with the fields of the
HTTP API's errors, exit and hint.`,
			exitDone, exitFailed, exitUsage, exitNotFound, exitNotPermitted,
			exitThrottled, exitNoAnswer, exitPartly, exitInterrupted, exitTerminated)},
		{Use: "environment", Short: "The environment variables of client commands", Long: `The environment variables of client commands:

  TIDEGATE_CONTEXT       name of a context
  TIDEGATE_SERVER_GRPC   host:port of the broker or RocketMQ proxy
  TIDEGATE_SERVER_HTTP   URL of the broker's HTTP API
  TIDEGATE_SERVER_AMQP   amqp://host:port of an ActiveMQ Artemis, for tidegate-foreign
  TIDEGATE_SERVER_PULSAR pulsar://host:port of an Apache Pulsar, for tidegate-foreign
  TIDEGATE_ACCESS_KEY    access key
  TIDEGATE_SECRET        its secret, or the token of an Apache Pulsar
  XDG_CONFIG_HOME        directory of tidegate/contexts.yaml

A flag goes before the environment, and the environment before the context. With
--context the addresses of the environment do not count.
'tidegate context show' prints each value with its source. 'tidegate serve' has
variables of its own ('tidegate help serve').`},
		{Use: "times", Short: "The forms of times in arguments and results", Long: `The forms of times in arguments:

  2026-11-23T14:00:00Z   RFC 3339
  -15m                   a duration before now; 10m is one after now
  @1784887200            Unix seconds

Durations have units: 500ms, 10s, 1h30m. Tables show times relative to now on a
terminal, and in UTC otherwise; --time relative, local or utc chooses. JSON has
RFC 3339.`},
		{Use: "output", Short: "The formats of results", Long: `The formats of results (-o):

  table   the frequent columns
  wide    all columns, and texts in full
  json    one document, the body of the HTTP API
  jsonl   one JSON object a line
  name    one name a line, for xargs -n 1. A name with other characters than letters,
          digits and -_./:,@%+= is quoted, so that xargs and a POSIX shell take it as
          one word; a name with control characters only a shell

--columns selects columns, --sort sorts by one (-COLUMN descending), --limit bounds
the rows. Times in tables are relative on a terminal and UTC otherwise (--time).

On a terminal a row that is too wide takes several lines; columns that are 0 or empty
in all rows are left out, and texts, but never names and numbers, are cut with "…".
A note says so, and -o wide or --columns shows all. A result that does not go to a
terminal has each row in one line with all columns and whole texts.

In columns of numbers a table has 19 999, 1.2 GiB and 2m 03s on a terminal, and
otherwise 19999, bytes and seconds, so that each is one field for awk and sort. Texts
group digits on a terminal only, too.

Arguments take times as RFC 3339, as a duration from now (-15m), or as Unix seconds
(@1784887200).`},
	}
}

func versionCommand(a *App) *cobra.Command {
	return a.Local(&cobra.Command{
		Use: "version", GroupID: toolGroup,
		Short:   "Print the version, the commit and the platform",
		Example: "  tidegate version -o json",
	}, nil, func(_ context.Context, c *Call) error {
		v := buildOf()
		return c.Show(v, v.Version, []output.Field{
			{Name: "version", Value: v.Version}, {Name: "commit", Value: v.Commit}, {Name: "built", Value: v.Time}, {Name: "go", Value: v.Go}, {Name: "platform", Value: v.Platform},
		})
	}).Command
}

// A build describes the program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// A release sets these with -ldflags -X. Empty means the values that go build stamps.
var (
	releaseVersion string // without a leading v
	releaseCommit  string
	releaseTime    string // of the commit, RFC 3339
)

func buildOf() build {
	b := build{Version: version(), Commit: releaseCommit, Time: releaseTime, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || releaseVersion != "" {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				b.Commit += " with changes"
			}
		}
	}
	return b
}

// version returns the version of the program.
func version() string {
	if releaseVersion != "" {
		return "v" + releaseVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
