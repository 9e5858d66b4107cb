package messages

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// print writes one message, and its body to --dump.
func (r *receiveCommand) print(out *bufio.Writer, n int, d *tidegate.Delivery) error {
	if r.dump != "" {
		path := filepath.Join(r.dump, fmt.Sprintf("%06d-%s", n, unsafeInFile.ReplaceAllString(d.ID, "_")))
		if err := os.WriteFile(path, d.Body, 0o600); err != nil {
			_ = os.Remove(path) // half a body; it may not exist
			return fmt.Errorf("the body of message %s cannot be written; it was not settled: %w", output.Safe(d.ID), err)
		}
	}
	switch {
	case r.form != "":
		_, err := out.WriteString(r.format.Of(shown{d, r.Shown() || terminal.Is(r.Out)}))
		return err
	case r.raw:
		_, err := fmt.Fprintf(out, "%s\n", d.Body)
		return err
	case r.JSON():
		return output.Line(out, httpapi.DeliveryOf(d, true, time.Now()))
	case r.Format.Format == output.Name:
		_, err := fmt.Fprintln(out, output.Word(d.ID))
		return err
	}
	fmt.Fprintf(out, "%s\n", output.Flow(head(d, r.Times.TimeStyle), r.Columns, 4))
	return r.body(out, string(d.Body))
}

// mostLines is the number of lines of a body on a terminal.
const mostLines = 50

// body prints a body below its head. On a terminal long lines are cut at its width, and many lines
// after the first ones.
func (r *receiveCommand) body(out *bufio.Writer, text string) error {
	n, cut := 0, 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if n++; r.Shown() && n > mostLines {
			cut++
			continue
		}
		safe := output.Safe(line)
		if r.Columns > 8 {
			safe = output.Cut(line[:min(len(line), 8*r.Columns)], r.Columns-2)
		}
		fmt.Fprintf(out, "  %s\n", safe)
	}
	if cut > 0 {
		fmt.Fprintf(out, "  … %s more; --raw prints all\n", output.Count(int64(cut), "line"))
	}
	return nil
}

var unsafeInFile = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// head returns the parts of the line above a body: the fields that are set, and the attempt if it
// is not the first.
func head(d *tidegate.Delivery, style output.TimeStyle) []string {
	parts := []string{output.Safe(d.ID), fmt.Sprintf("queue %d", d.Queue), fmt.Sprintf("offset %d", d.Offset)}
	if d.Attempt > 1 {
		parts = append(parts, fmt.Sprintf("attempt %d", d.Attempt))
	}
	for _, p := range []struct{ name, value string }{
		{"tag", d.Tag}, {"keys", strings.Join(d.Keys, ",")}, {"group", d.MessageGroup},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+output.Safe(p.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		parts = append(parts, output.Safe(name+"="+d.Properties[name]))
	}
	return append(parts, style.Time(d.BornAt, time.Now()))
}
