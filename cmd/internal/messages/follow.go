package messages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

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
		now, err := l.Now(ctx)
		if err != nil {
			return err
		}
		l.query.Newest, l.query.Since = false, now
	}
	most := 0
	if l.Command.Flags().Changed("limit") {
		most = l.Limit
	}
	l.Limit, l.scan = 0, 0
	if l.JSON() {
		l.Format.Format = output.JSONL
	}
	var recent call.Recent[seenKey]
	n := 0
	l.each = func(messages []status.StoredMessage) error {
		for i := range messages {
			m := &messages[i]
			key := seenKey{m.Queue, m.Offset, ""}
			if l.query.Delayed {
				key.id = m.ID
			}
			if !recent.New(key, m.StoredAt) {
				continue
			}
			if err := l.line(m); err != nil {
				return err
			}
			if n++; most > 0 && n >= most {
				return errEnough
			}
		}
		return nil
	}
	var outage call.Outage
	for first := true; ; first = false {
		err := l.read(ctx, l.Args[0])
		if first {
			l.from, recent.Since = "", l.query.Since // of --from
		}
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil && (first || ctx.Err() != nil), !outage.Outlived(l.Call, err):
			return err
		case err == nil:
			recent.Whole()
			l.query.Since = recent.Since
		}
		if l.interrupted(ctx) {
			return nil
		}
	}
}

// errEnough ends a follow after --limit messages.
var errEnough = errors.New("enough messages")

// interrupted waits before the next look, and reports whether Ctrl-C has ended the wait.
func (l *look) interrupted(ctx context.Context) bool { return backoff.Sleep(ctx, l.follow) != nil }

// line prints one message.
func (l *look) line(m *status.StoredMessage) error {
	switch {
	case l.JSON():
		return output.Line(l.Out, *m)
	case l.bodies:
		_, err := io.WriteString(l.Out, view.Messages([]status.StoredMessage{*m}, l.Columns))
		return err
	case l.Format.Format == output.Name:
		_, err := fmt.Fprintln(l.Out, output.Word(m.ID))
		return err
	}
	if l.lines == nil {
		var err error
		if l.lines, err = output.NewStream(output.List[status.StoredMessage]{Columns: view.MessageColumns(l.query.Delayed)}, l.ListOptions()); err != nil {
			return l.Usage(err)
		}
	}
	return l.lines.Print(l.Out, *m, time.Now())
}
