package call

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// Options are the flags of the output.
func (c *Call) Options() output.Options {
	return output.Options{Format: c.Format.Format, Columns: c.columns, NoHeaders: c.noHeaders, Sort: c.Sort, Limit: c.Limit, Times: c.Times.TimeStyle, Plain: !c.Shown(), Width: c.Columns}
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

// noteUnused notes the flags for columns and rows that the command has ignored.
func (c *Call) noteUnused() {
	for _, name := range []string{"columns", "no-headers", "sort"} {
		if f := c.Command.Flags().Lookup(name); f.Changed && !c.listed {
			c.Note("--%s has no effect: this command prints no list", name)
		}
	}
}

// JSON reports whether the result is JSON.
func (c *Call) JSON() bool { return c.Format.Format == output.JSON || c.Format.Format == output.JSONL }

// Show prints one subject: as JSON document, or as names and values.
func (c *Call) Show(document any, name string, fields []output.Field) error {
	switch c.Format.Format {
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
func (c *Call) Tables() bool { return !c.JSON() && c.Format.Format != output.Name }

// PrintTable prints a further table of a result, with a line before it. The flags for columns and
// rows belong to the first table.
func PrintTable[T any](c *Call, l output.List[T]) error {
	if len(l.Rows) > 0 {
		fmt.Fprintln(c.Out)
	}
	c.listed = true
	return l.Print(c.Out, c.Err, output.Options{Format: c.Format.Format, NoHeaders: c.noHeaders, Times: c.Times.TimeStyle, Plain: !c.Shown(), Width: c.Columns})
}

// PrintList prints a list. Its error is one of the flags or of the output.
func PrintList[T any](c *Call, l output.List[T]) error {
	err := l.Print(c.Out, c.Err, c.ListOptions())
	if _, written := errors.AsType[*fs.PathError](err); err == nil || written { // for example on a full disk
		return err
	}
	return c.Usage(err)
}

// Usage is an error of wrong arguments: exit code 2.
func (c *Call) Usage(err error) error {
	return command.UsageError{Err: err, Command: c.Command.CommandPath()}
}

// Note prints a note to stderr. Its further lines are indented, because they can be those of
// others.
func (c *Call) Note(format string, args ...any) {
	text := output.Textf(format, args...)
	note := text.String()
	if c.Watched {
		note = text.Grouped()
	}
	fmt.Fprintln(c.Err, command.Indented(note))
}
