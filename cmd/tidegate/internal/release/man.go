package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/cmd/tidegate/internal/tree"
)

// writeFiles writes man/*.1, man/*.7 and the scripts of completion.
func writeFiles(dir, version string, at time.Time) error {
	root := tree.Root(cli.New(strings.NewReader(""), os.Stdout, os.Stderr))
	for name, text := range manPages(root, version, at) {
		if err := writeFile(filepath.Join(dir, "man", name), text); err != nil {
			return err
		}
	}
	for _, c := range []struct{ shell, file string }{
		{"bash", "tidegate"}, {"zsh", "_tidegate"}, {"fish", "tidegate.fish"}, {"powershell", "tidegate.ps1"},
	} {
		var text strings.Builder
		root := tree.Root(cli.New(strings.NewReader(""), &text, os.Stderr))
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
