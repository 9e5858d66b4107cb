// Command release makes the files of a release that are not programs: manual pages and scripts of
// completion. The program tidegate does not link it.
//
//	go run ./cmd/tidegate/internal/release files -out dist/files
//	go run ./cmd/tidegate/internal/release nfpm dist/tidegate > nfpm.yaml
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/serve"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("give a command: files or nfpm")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	dir := f.String("out", "", "new or empty `directory` for the result")
	version := f.String("version", "devel", "`version` of the release")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	at, err := buildTime()
	if err != nil {
		return err
	}
	switch args[0] {
	case "files":
		if *dir == "" || f.NArg() > 0 {
			return fmt.Errorf("usage: files -out DIRECTORY")
		}
		return writeFiles(*dir, *version, at)
	case "nfpm":
		if f.NArg() != 1 {
			return fmt.Errorf("usage: nfpm PROGRAM")
		}
		text, err := nfpmConfig(".goreleaser.yaml", f.Arg(0), runtime.GOARCH, *version)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	return fmt.Errorf("there is no command %q; the commands are files and nfpm", args[0])
}

// buildTime is the time in all results: SOURCE_DATE_EPOCH, or 1970, so that the same input gives
// the same files.
func buildTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		text = "0"
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q; give seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// nfpmConfig turns the part nfpms of the GoReleaser configuration into a configuration of nfpm, for
// packages of one program without GoReleaser.
func nfpmConfig(config, program, arch, version string) ([]byte, error) {
	text, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	var file struct {
		NFPMs []map[string]any `yaml:"nfpms"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	if len(file.NFPMs) != 1 {
		return nil, fmt.Errorf("%s has %d entries of nfpms, want 1", config, len(file.NFPMs))
	}
	p := file.NFPMs[0]
	contents, ok := p["contents"].([]any)
	if !ok {
		return nil, fmt.Errorf("%s: nfpms has no contents", config)
	}
	p["contents"] = append(contents, map[string]any{
		"src": program, "dst": fmt.Sprint(p["bindir"]) + "/tidegate", "file_info": map[string]any{"mode": 0o755},
	})
	p["name"], p["version"], p["arch"], p["platform"] = p["package_name"], version, arch, "linux"
	for _, own := range []string{"package_name", "formats", "bindir"} { // of GoReleaser
		delete(p, own)
	}
	return yaml.Marshal(p)
}

// writeFiles writes man/*.1, man/*.7 and the scripts of completion.
func writeFiles(dir, version string, at time.Time) error {
	root := serve.Root(cli.New(strings.NewReader(""), os.Stdout, os.Stderr))
	for name, text := range manPages(root, version, at) {
		if err := writeFile(filepath.Join(dir, "man", name), text); err != nil {
			return err
		}
	}
	for _, c := range []struct{ shell, file string }{
		{"bash", "tidegate"}, {"zsh", "_tidegate"}, {"fish", "tidegate.fish"}, {"powershell", "tidegate.ps1"},
	} {
		var text strings.Builder
		root := serve.Root(cli.New(strings.NewReader(""), &text, os.Stderr))
		root.SetArgs([]string{"completion", c.shell})
		if err := root.Execute(); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, "completion", c.shell, c.file), text.String()); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // a file that everyone reads
}

// manPages returns the text of a page for each command, by the name of its file. Texts of "tidegate
// help" are in section 7.
func manPages(root *cobra.Command, version string, at time.Time) map[string]string {
	pages := map[string]string{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Deprecated != "" || c.Name() == "help" {
			return
		}
		pages[pageName(c)+"."+sectionOf(c)] = manPage(c, version, at)
		for _, below := range c.Commands() {
			visit(below)
		}
	}
	visit(root)
	return pages
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func sectionOf(c *cobra.Command) string {
	if !c.Runnable() && !c.HasSubCommands() {
		return "7"
	}
	return "1"
}

func manPage(c *cobra.Command, version string, at time.Time) string {
	c.InitDefaultHelpFlag()
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q %q %q \"tidegate %s\" \"tidegate\"\n", strings.ToUpper(pageName(c)), sectionOf(c), at.Format("2006-01-02"), version)
	fmt.Fprintf(&b, ".nh\n.ad l\n.SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	if c.Runnable() {
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n%s\n", roff(c.CommandPath()), roff(strings.TrimSpace(strings.TrimPrefix(c.UseLine(), c.CommandPath()))))
	}
	if text := strings.TrimSpace(c.Long); text != "" {
		b.WriteString(".SH DESCRIPTION\n.nf\n" + roff(text) + "\n.fi\n")
	}
	if below := subcommands(c); below != "" {
		b.WriteString(".SH COMMANDS\n" + below)
	}
	b.WriteString(options(c.NonInheritedFlags()))
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n" + roff(c.Example) + "\n.fi\n")
	}
	b.WriteString(".SH SEE ALSO\n")
	see := []string{"\\fBtidegate\\-exit\\-codes\\fR(7)", "\\fBtidegate\\-environment\\fR(7)", "\\fBtidegate\\-output\\fR(7)"}
	if c.HasParent() {
		see = append([]string{fmt.Sprintf("\\fB%s\\fR(1)", roff(pageName(c.Parent())))}, see...)
	}
	b.WriteString(strings.Join(see, ", ") + "\n")
	return b.String()
}

func subcommands(c *cobra.Command) string {
	var b strings.Builder
	for _, below := range c.Commands() {
		if below.Hidden || below.Name() == "help" {
			continue
		}
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(%s)\n%s\n", roff(pageName(below)), sectionOf(below), roff(below.Short))
	}
	return b.String()
}

func options(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		head := "\\fB" + roff("--"+f.Name) + "\\fR"
		if f.Shorthand != "" {
			head = "\\fB" + roff("-"+f.Shorthand) + "\\fR, " + head
		}
		if name != "" {
			head += " \\fI" + roff(name) + "\\fR"
		}
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && d != "0s" && !strings.Contains(usage, "(default") {
			usage += " (default " + d + ")"
		}
		fmt.Fprintf(&b, ".TP\n%s\n%s\n", head, roff(usage))
	})
	if b.Len() == 0 {
		return ""
	}
	return ".SH OPTIONS\n" + b.String()
}

// roff escapes a text: backslashes, hyphens, and points and apostrophes at the start of a line,
// which begin requests.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
