package failures

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/cmd/internal/terminal"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// letters returns the selected dead letters, the oldest of each queue first, or the newest with
// --newest. Close ends the use of the source. On a RocketMQ or Artemis queue
// and offset are not known: -1.
func (s *selection) letters(ctx context.Context, c *call.Call, bodies bool) (all iter.Seq2[status.DeadLetter, error], closing func() error, err error) {
	server, err := c.Server()
	if err != nil {
		return nil, nil, err
	}
	if !server.WithoutHTTP() {
		filter, err := s.filter(c)
		if err != nil {
			return nil, nil, err
		}
		client, err := c.Admin(ctx)
		if err != nil {
			return nil, nil, err
		}
		q := status.DeadLetterQuery{DeadLetterFilter: filter, In: s.in, Text: bodies, Newest: s.newest}
		return call.Connected(ctx, c, client.AllDeadLetters(ctx, c.Args[0], q)), func() error { return nil }, nil
	}
	src, filter, closing, err := s.source(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	return func(yield func(status.DeadLetter, error) bool) {
		for l, err := range deadletter.List(ctx, src, filter, bodies) {
			if err != nil {
				yield(status.DeadLetter{}, err)
				return
			}
			if !yield(letterOf(l), nil) {
				return
			}
		}
	}, closing, nil
}

// letterOf returns a letter as a tidegate broker returns it if the query asks for text.
func letterOf(l *deadletter.Letter) status.DeadLetter {
	m := l.Message
	body, text := httpapi.Text(m.Body)
	return status.DeadLetter{
		MessageID: m.ID, Queue: -1, Offset: -1, StoredAt: l.StoredAt, MessageGroup: m.MessageGroup, Tag: m.Tag, Keys: m.Keys,
		TraceContext: m.TraceContext, BodySize: l.BodySize, Body: body, BodyText: text, Properties: m.Properties, Origin: l.Origin,
	}
}

func newDeadLettersList(a *call.App) *cobra.Command {
	s := &selection{}
	var bodies bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the dead letters of a consumer group, the oldest first",
		Example: `  tidegate dead-letters list billing --since -1h --limit 20
  tidegate dead-letters list billing --newest --limit 20
  tidegate dead-letters list billing --class 5f1c9a`,
	}
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *call.Call) (err error) {
		all, closing, err := s.letters(ctx, c, bodies)
		if err != nil {
			return err
		}
		defer func() { err = joinClose(err, closing) }()
		if c.Format.Format == output.JSONL && c.Sort == "" { // any number, in constant memory
			return eachLetter(c, all)
		}
		most := c.Limit
		if most == 0 {
			most = 1000
		}
		var letters []status.DeadLetter
		more := false
		for l, err := range all {
			if err != nil {
				return err
			}
			if more = len(letters) == most; more {
				break
			}
			letters = append(letters, l)
		}
		if more {
			c.Note("the %s %s; --limit shows more, and -o jsonl all", map[bool]string{false: "oldest", true: "newest"}[s.newest], output.Number(int64(most)))
		}
		return call.PrintList(c, output.List[status.DeadLetter]{
			Rows:    letters,
			Columns: view.LetterColumns,
			Name:    func(l status.DeadLetter) string { return l.MessageID },
			Document: func(ls []status.DeadLetter) any {
				return map[string]any{"dead_letters": call.NotNil(ls), "complete": !more}
			},
			Empty: noLetters(c.Args[0], s),
		})
	})
	s.registerReading(c)
	s.registerNewest(c)
	c.Flags().BoolVar(&bodies, "bodies", false, "include the bodies, in JSON")
	return c
}

// eachLetter prints a JSON object for each letter, at most --limit.
func eachLetter(c *call.Call, all iter.Seq2[status.DeadLetter, error]) error {
	n := 0
	for l, err := range all {
		if err != nil {
			return err
		}
		if n++; c.Limit > 0 && n > c.Limit {
			return nil
		}
		if err := output.Line(c.Out, l); err != nil {
			return err
		}
	}
	return nil
}

func joinClose(err error, closing func() error) error {
	if cerr := closing(); err == nil {
		return cerr
	}
	return err
}

func newDeadLettersExport(a *call.App) *cobra.Command {
	s := &selection{}
	c := &cobra.Command{
		Use:   "export",
		Short: "Print dead letters with their bodies, a JSON object a line",
		Long: `Prints dead letters with their bodies, a JSON object a line: a copy before a purge,
or the input of another program. The field body_text has the body if it is UTF-8,
and otherwise the field body has it in base64. The dead letters stay.`,
		Example: `  tidegate dead-letters export billing > letters.jsonl
  tidegate dead-letters export billing --class 5f1c9a --since -24h > letters.jsonl`,
	}
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *call.Call) (err error) {
		all, closing, err := s.letters(ctx, c, true)
		if err != nil {
			return err
		}
		defer func() { err = joinClose(err, closing) }()
		return eachLetter(c, all)
	})
	s.registerReading(c)
	s.registerNewest(c)
	return c
}

// A watchCommand has the flags of dead-letters watch.
type watchCommand struct {
	*call.Call
	selection
	exec  string
	every time.Duration
	lines *output.Stream[status.DeadLetter]
}

func newDeadLettersWatch(a *call.App) *cobra.Command {
	w := &watchCommand{}
	c := &cobra.Command{
		Use:   "watch",
		Short: "Print each new dead letter, or run a program for it",
		Long: `Prints a line for each dead letter from now on, or from --since on, until Ctrl-C.
With --exec it runs a program by the shell for each: the dead letter as JSON is its
standard input. A program that fails is reported, and the watch continues, also after
a restart of the broker. --limit ends the watch after a number of dead letters.`,
		Example: `  tidegate dead-letters watch billing --since -1h --limit 1
  tidegate dead-letters watch billing --since -1h --limit 1 --exec 'cat >> letters.jsonl'`,
	}
	w.Call = a.Remote(c, []string{"GROUP"}, func(ctx context.Context, _ *call.Call) error { return command.Ordinary(ctx, w.run(ctx)) })
	w.register(c)
	c.Flags().StringVar(&w.exec, "exec", "", "run this `program` for each dead letter")
	c.Flags().DurationVar(&w.every, "every", time.Second, "interval of the queries")
	return c
}

func (w *watchCommand) run(ctx context.Context) error {
	if w.every < 100*time.Millisecond {
		return command.Usagef(w.Command, "--every is %v; the shortest interval is 100ms", w.every)
	}
	client, err := w.Admin(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := w.Bounded(ctx)
	_, err = client.Group(bounded, w.Args[0]) // a wrong name would be silent
	cancel()
	if err != nil {
		return w.UnknownGroup(ctx, client, err)
	}
	q := status.DeadLetterQuery{In: w.in, Text: w.exec != ""}
	if q.DeadLetterFilter, err = w.filter(w.Call); err != nil {
		return err
	}
	if q.Since.IsZero() {
		if q.Since, err = w.Now(ctx); err != nil {
			return err
		}
	}
	recent := call.Recent[[2]int64]{Since: q.Since} // by queue and offset
	var outage call.Outage
	for n := 0; ; {
		q.Since = recent.Since
		var failed error
		for l, err := range client.AllDeadLetters(ctx, w.Args[0], q) {
			if err != nil {
				failed = err
				break
			}
			if !recent.New([2]int64{int64(l.Queue), l.Offset}, l.StoredAt) {
				continue
			}
			if err := w.letter(ctx, l); err != nil {
				return err
			}
			if n++; w.Limit > 0 && n >= w.Limit {
				return nil
			}
		}
		if !outage.Outlived(w.Call, failed) {
			return failed
		}
		if failed == nil {
			recent.Whole()
		}
		if err := backoff.Sleep(ctx, w.every); err != nil {
			return err
		}
	}
}

// letter prints one dead letter, or runs the program.
func (w *watchCommand) letter(ctx context.Context, l status.DeadLetter) error {
	if w.exec == "" {
		if w.JSON() {
			return output.Line(w.Out, l)
		}
		if w.Format.Format == output.Name {
			_, err := fmt.Fprintln(w.Out, output.Word(l.MessageID))
			return err
		}
		if w.lines == nil {
			var err error
			if w.lines, err = output.NewStream(output.List[status.DeadLetter]{Columns: view.WatchColumns}, w.ListOptions()); err != nil {
				return w.Usage(err)
			}
		}
		return w.lines.Print(w.Out, l, time.Now())
	}
	var text bytes.Buffer
	if err := output.Line(&text, l); err != nil {
		return err
	}
	p := shell.New(ctx, w.exec, nil, "TIDEGATE_MESSAGE_ID="+l.MessageID, "TIDEGATE_TOPIC="+l.Origin.Topic)
	p.Stdin, p.Stdout, p.Stderr = &text, terminal.Unfiltered(w.Out), terminal.Unfiltered(w.Err)
	if err := p.Run(); err != nil && ctx.Err() == nil {
		w.Note("the program failed for %s: %v", output.Safe(l.MessageID), err)
	}
	return context.Cause(ctx)
}

func newDeadLettersShow(a *call.App) *cobra.Command {
	s := &selection{}
	c := &cobra.Command{
		Use:     "show",
		Short:   "Show one dead letter with its body",
		Example: "  tidegate dead-letters show billing ID",
	}
	a.Leaf(c, []string{"GROUP", "ID"}, func(ctx context.Context, c *call.Call) (err error) {
		s.ids = c.Args[1:]
		all, closing, err := s.letters(ctx, c, true)
		if err != nil {
			return err
		}
		defer func() { err = joinClose(err, closing) }()
		for l, err := range all {
			if err != nil {
				return err
			}
			err = c.Show(l, l.MessageID, view.LetterFields(l))
			if err == nil && !c.JSON() && c.Format.Format != output.Name {
				flags := shell.Flag("id", l.MessageID) + s.place()
				if !c.Terminal {
					flags += " --yes"
				}
				c.Note("send it back: %s; with changes: --edit 'sed s/OLD/NEW/', --set-tag, --set-key, --set-property", c.Here(shell.LineFlags(c.Command.Root().Name()+" dead-letters redrive", flags, c.Args[0])))
			}
			return err
		}
		return call.NotFound(fmt.Sprintf("group %s has no dead letter with the ID %s", output.Safe(c.Args[0]), output.Safe(c.Args[1])))
	})
	c.Flags().StringVar(&s.in, "in", "", "`topic` with the dead letters (default %DLQ%GROUP)")
	s.registerAs(c)
	return c
}
