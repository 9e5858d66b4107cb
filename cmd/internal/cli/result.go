package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Options are the flags of the output.
func (c *Call) Options() output.Options {
	return output.Options{Format: c.Format.Chosen, Columns: c.columns, NoHeaders: c.noHeaders, Sort: c.Sort, Limit: c.Limit, Times: c.Times.Chosen, Plain: !c.Shown(), Width: c.Columns}
}

// ListOptions are Options for the table of a list. Without such a table the flags for columns and
// rows have no effect, of which the user is informed.
func (c *Call) ListOptions() output.Options {
	c.listed = true
	return c.Options()
}

// Selected reports whether the user has selected columns or rows of a table.
func (c *Call) Selected() bool {
	return len(c.columns) > 0 || c.Sort != "" || c.Limit > 0 || c.noHeaders
}

// enough reports whether a list with so many rows needs no further page: it has more than --limit,
// and they are in the order of the server.
func (c *Call) enough(rows int) bool { return c.Limit > 0 && rows > c.Limit && c.Sort == "" }

// noteUnused notes the flags for columns and rows that the command has ignored.
func (c *Call) noteUnused() {
	for _, name := range []string{"columns", "no-headers", "sort"} {
		if f := c.Command.Flags().Lookup(name); f.Changed && !c.listed {
			c.Note("--%s has no effect: this command prints no list", name)
		}
	}
}

// JSON reports whether the result is JSON.
func (c *Call) JSON() bool { return c.Format.Chosen == output.JSON || c.Format.Chosen == output.JSONL }

// Show prints one subject: as JSON document, or as names and values.
func (c *Call) Show(document any, name string, fields []output.Field) error {
	switch c.Format.Chosen {
	case output.JSON:
		return output.Encode(c.Out, document)
	case output.JSONL:
		return output.Line(c.Out, document)
	case output.Name:
		_, err := fmt.Fprintln(c.Out, output.Word(name))
		return err
	}
	return output.Fields(c.Out, c.Options(), fields)
}

// Tables reports whether the result is for people: neither JSON nor names alone.
func (c *Call) Tables() bool { return !c.JSON() && c.Format.Chosen != output.Name }

// printTable prints a further table of a result, with a line before it. The flags for columns and
// rows belong to the first table.
func printTable[T any](c *Call, l output.List[T]) error {
	if len(l.Rows) > 0 {
		fmt.Fprintln(c.Out)
	}
	c.listed = true
	return l.Print(c.Out, c.Err, output.Options{Format: c.Format.Chosen, NoHeaders: c.noHeaders, Times: c.Times.Chosen, Plain: !c.Shown(), Width: c.Columns})
}

// printList prints a list. Its error is one of the flags or of the output.
func printList[T any](c *Call, l output.List[T]) error {
	err := l.Print(c.Out, c.Err, c.ListOptions())
	if _, written := errors.AsType[*fs.PathError](err); err == nil || written { // for example on a full disk
		return err
	}
	return c.Usage(err)
}

// Usage is an error of wrong arguments: exit code 2.
func (c *Call) Usage(err error) error {
	return UsageError{Err: err, Command: c.Command.CommandPath()}
}

// time reads the value of a flag that is a time; the zero time if the flag is not given.
func (c *Call) time(flag, text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	if t, err = output.ParseTime(text, time.Now()); err != nil {
		err = usagef(c.Command, "--%s: %v", flag, err)
	}
	return t, err
}

// Note prints a note to stderr. Its further lines are indented, because they can be those of
// others.
func (c *Call) Note(format string, args ...any) {
	text := output.Textf(format, args...)
	note := text.String()
	if c.Watched {
		note = text.Grouped()
	}
	fmt.Fprintln(c.Err, indented(note))
}

// A progressLine is a line on a terminal that counts. It is for one goroutine.
type progressLine struct {
	c       *Call
	N       int64 // the counted messages
	started time.Time
	shown   time.Time
}

// newProgress returns a line that counts from 0.
func newProgress(c *Call) *progressLine { return &progressLine{c: c, started: time.Now()} }

// Step counts and shows the count at most five times a second.
func (p *progressLine) Step(counts bool) {
	if counts {
		p.N++
	}
	now := time.Now()
	if p.c.Watched && now.Sub(p.shown) >= 200*time.Millisecond {
		p.shown = now
		_ = control(p.c.Err, "\r"+output.Textf("%s, %s a second ", output.Number(p.N), output.Number(float64(p.N)/max(now.Sub(p.started).Seconds(), 1e-3))).Grouped()) // a note
	}
}

// End removes the line.
func (p *progressLine) End() {
	if !p.shown.IsZero() {
		_ = control(p.c.Err, "\r\x1b[K") // a note
	}
}

// Destructive adds the flags of a command that cannot be undone.
func (c *Call) Destructive() *cobra.Command {
	f := c.Command.Flags()
	f.StringVar(&c.Yes, "yes", "", "do it without a question; on a protected context --yes=`NAME` with the name of the subject")
	f.Lookup("yes").NoOptDefVal = "true"
	f.BoolVar(&c.DryRun, "dry-run", false, "print the effect, and do nothing")
	return c.Command
}

// Confirm asks before an action that cannot be undone: by a question on a terminal, or else by
// --yes, and by --yes=NAME on a protected context. It returns nil if the command may continue.
func (c *Call) Confirm(question, name string) error {
	s, err := c.Server()
	if err != nil {
		return err
	}
	switch {
	case s.Protect && c.Yes == name:
		return nil
	case s.Protect:
		return usagef(c.Command, "the context %q is protected: repeat the command with --yes=%s", s.Name, output.Quote(name))
	case c.Yes == "true" || c.Yes == name:
		return nil
	case c.Yes != "":
		return usagef(c.Command, "--yes=%s does not name %s", c.Yes, name)
	case !c.Terminal:
		return usagef(c.Command, "without a terminal this needs --yes; --dry-run shows the effect")
	}
	fmt.Fprintf(c.Err, "%s [y/N] ", question)
	var answer string
	if _, err := fmt.Fscanln(c.In, &answer); err != nil && !errors.Is(err, io.EOF) && err.Error() != "unexpected newline" {
		return err
	}
	if answer != "y" && answer != "yes" {
		return errors.New("not done")
	}
	return nil
}
