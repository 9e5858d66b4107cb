package messages

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

// overlap is the time before the last message from which a follow queries again: a message of
// another queue can become visible after one that has a later time.
const overlap = 5 * time.Second

// A seenKey identifies a message: by its place, or if it is delayed by its ID.
type seenKey struct {
	queue  int
	offset int64
	id     string
}

// followed prints the messages from --from on, and each new one, until Ctrl-C or --limit. It
// outlives a server that is away, except at first.
func (l *look) followed(ctx context.Context) error {
	switch {
	case l.follow < 100*time.Millisecond:
		return command.Usagef(l.Command, "--follow is %v; the shortest interval is 100ms", l.follow)
	case l.until != "" || l.query.After != "":
		return command.Usagef(l.Command, "--follow has no end; it excludes --to and --after")
	}
	if l.query.Newest { // --from last: from now on
		l.query.Newest, l.query.Since = false, time.Now()
	}
	most := 0
	if l.Command.Flags().Changed("limit") {
		most = l.Limit
	}
	l.Limit, l.scan = 0, 0
	if l.JSON() {
		l.Format.Format = output.JSONL
	}
	seen := map[seenKey]time.Time{} // the messages since query.Since
	for n, first := 0, true; ; first = false {
		err := l.read(ctx, l.Args[0])
		l.from = "" // it is in query.Since
		if err != nil && (first || command.ExitCode(err) != command.ExitNoAnswer) {
			return err
		}
		latest := l.query.Since
		for i := range l.found.Messages {
			m := &l.found.Messages[i]
			key := seenKey{m.Queue, m.Offset, ""}
			if l.query.Delayed {
				key.id = m.ID
			}
			if _, again := seen[key]; again {
				continue
			}
			seen[key] = m.StoredAt
			if m.StoredAt.After(latest) {
				latest = m.StoredAt
			}
			if err := l.line(m); err != nil {
				return err
			}
			if n++; most > 0 && n >= most {
				return nil
			}
		}
		if next := latest.Add(-overlap); next.After(l.query.Since) {
			l.query.Since = next
			maps.DeleteFunc(seen, func(_ seenKey, at time.Time) bool { return at.Before(next) })
		}
		if l.interrupted(ctx) {
			return nil
		}
	}
}

// interrupted waits before the next look, and reports whether Ctrl-C has ended the wait.
func (l *look) interrupted(ctx context.Context) bool { return call.Sleep(ctx, l.follow) != nil }

// line prints one message.
func (l *look) line(m *status.StoredMessage) error {
	switch {
	case l.JSON():
		return output.Line(l.Out, *m)
	case l.bodies:
		_, err := io.WriteString(l.Out, view.Messages([]status.StoredMessage{*m}))
		return err
	case l.Format.Format == output.Name:
		_, err := fmt.Fprintln(l.Out, output.Word(m.ID))
		return err
	}
	now := time.Now()
	var line strings.Builder
	i := 0
	for _, c := range view.MessageColumns(l.query.Delayed) {
		if c.Wide {
			continue
		}
		text := cmp.Or(l.Options().Cell(c.Cell(*m), now), "-") // an empty cell would shift the others
		if i == len(l.widths) {
			l.widths = append(l.widths, 0)
		}
		l.widths[i] = max(l.widths[i], output.Width(text))
		line.WriteString(text + strings.Repeat(" ", l.widths[i]-output.Width(text)+2))
		i++
	}
	_, err := fmt.Fprintln(l.Out, strings.TrimRight(line.String(), " "))
	return err
}
