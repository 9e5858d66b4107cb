package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/httpapi"
)

func newDeadLetters(a *App) *cobra.Command {
	c := parent(failureGroup, "dead-letters", "Find, send back and remove dead letters", "  tidegate dead-letters top billing",
		newDeadLettersTop(a), newDeadLettersList(a), newDeadLettersShow(a), newDeadLettersExport(a), newDeadLettersWatch(a), newDeadLettersRedrive(a), newDeadLettersPurge(a))
	c.Aliases = []string{"dlq"}
	return c
}

// A selection has the flags that select dead letters.
type selection struct {
	topic, reason, class, since, before, in, as string
	ids                                         []string
	newest                                      bool
}

func (s *selection) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.topic, "topic", "", "only of messages that were sent to this `topic`")
	f.StringVar(&s.reason, "reason", "", "only with this `text` in the reason")
	f.StringSliceVar(&s.ids, "id", nil, "only with these message `IDs`")
	f.StringVar(&s.class, "class", "", "only with this `fingerprint` ('tidegate dead-letters top GROUP')")
	f.StringVar(&s.since, "since", "", "only from this `time` on, for example -1h")
	f.StringVar(&s.before, "before", "", "only before this `time`")
	f.StringVar(&s.in, "in", "", "`topic` with the dead letters (default %DLQ%GROUP)")
}

// registerReading adds the flags of commands that also read the letters of a RocketMQ.
func (s *selection) registerReading(c *cobra.Command) {
	s.register(c)
	s.registerAs(c)
}

// registerNewest adds the flag of commands that read letters in an order.
func (s *selection) registerNewest(c *cobra.Command) {
	c.Flags().BoolVar(&s.newest, "newest", false, "begin with the newest of each queue; on a tidegate broker")
}

// registerAs adds the flag for a RocketMQ, where letters are received.
func (s *selection) registerAs(c *cobra.Command) {
	c.Flags().StringVar(&s.as, "as", "", "on RocketMQ: the consumer `group` that receives the dead letters, with at least 100 attempts")
}

func (s *selection) times(c *Call) (since, before time.Time, err error) {
	since, err = c.time("since", s.since)
	before, berr := c.time("before", s.before)
	return since, before, cmp.Or(err, berr)
}

// filter is the selection for the HTTP API.
func (s *selection) filter(c *Call) (status.DeadLetterFilter, error) {
	since, before, err := s.times(c)
	return status.DeadLetterFilter{Topic: s.topic, MessageIDs: s.ids, Reason: s.reason, Fingerprint: s.class, Since: since, Before: before}, err
}

// source returns the dead letters of a group: over HTTP, or on a RocketMQ or a foreign server by
// receiving them. Close ends it.
func (s *selection) source(ctx context.Context, c *Call) (src deadletter.Source, f deadletter.Filter, closing func() error, err error) {
	since, before, err := s.times(c)
	if err != nil {
		return nil, f, nil, err
	}
	f = deadletter.Filter{Topic: s.topic, MessageIDs: s.ids, Reason: s.reason, Fingerprint: s.class, Since: since, Before: before}
	server, err := c.Server()
	if err != nil {
		return nil, f, nil, err
	}
	if !server.WithoutHTTP() {
		client, err := c.Admin(ctx)
		return deadletter.Broker{Client: client, Group: c.Args[0], In: s.in}, f, func() error { return nil }, err
	}
	if s.newest {
		return nil, f, nil, usagef(c.Command, "--newest is for a tidegate broker: a RocketMQ delivers the oldest first")
	}
	as := s.as
	if as == "" && server.foreign() != nil {
		as = c.Args[0] // all groups that receive them share the queue or subscription
	}
	if as == "" {
		return nil, f, nil, usagef(c.Command, "on RocketMQ --as GROUP is required: a consumer group for this purpose only, for example by mqadmin updateSubGroup -g GROUP -r 1000")
	}
	t, _, err := c.Transport(ctx)
	if err != nil {
		return nil, f, nil, err
	}
	return deadletter.Queue{Transport: t, Group: c.Args[0], As: as}, f, t.Close, nil
}

func newDeadLettersTop(a *App) *cobra.Command {
	s := &selection{}
	c := &cobra.Command{
		Use:   "top",
		Short: "Group the dead letters of a consumer group by their cause",
		Long: `Groups the dead letters of a consumer group by their cause. Reasons that differ only
in numbers and quoted texts are one class. EXAMPLE is the message ID of one letter,
of the 20 largest classes. The classes are those that the broker counted. With a flag
that selects letters by more than their topic, and on a RocketMQ, the command reads
all letters instead.`,
		Example: `  tidegate dead-letters top billing
  tidegate dead-letters top billing --since -1h`,
	}
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *Call) error {
		page, classes, err := s.classes(ctx, c)
		if err != nil {
			return err
		}
		if page.Other != nil {
			c.Note("%s are of classes above the broker's limit; --since -720h reads them", output.Count(page.Other.Count, "further dead letter"))
		}
		defer s.nextOfTop(c, classes)
		return printList(c, output.List[class]{
			Rows:    classes,
			Columns: classColumns,
			Document: func(ks []class) any {
				return struct {
					status.DeadLetterClassPage
					Classes []class `json:"classes"`
				}{page, ks}
			},
			Empty: noLetters(c.Args[0], s),
		})
	})
	s.registerReading(c)
	return c
}

// maxClasses is the number of classes that a broker counts for a group in a topic, and the longest
// page of them.
const maxClasses = 1000

// classes returns the classes of the selected letters, the largest first: those that the broker
// counted, or else those of the letters. The page has the sums.
func (s *selection) classes(ctx context.Context, c *Call) (page status.DeadLetterClassPage, rows []class, err error) {
	server, err := c.Server()
	if err != nil {
		return page, nil, err
	}
	counted := s.reason+s.class+s.since+s.before == "" && len(s.ids) == 0
	if !server.WithoutHTTP() && counted {
		client, err := c.Admin(ctx)
		if err != nil {
			return page, nil, err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		page, err = client.DeadLetterClasses(ctx, c.Args[0], status.DeadLetterClassQuery{Topic: s.topic, In: s.in, Limit: maxClasses})
		rows = viewCounted(page)
		if err == nil {
			err = s.examples(ctx, c, client, rows)
		}
		return page, rows, err
	}
	src, filter, closing, err := s.source(ctx, c)
	if err != nil {
		return page, nil, err
	}
	classes, err := deadletter.Summarize(ctx, src, filter)
	rows = read(classes)
	for _, k := range rows {
		page.Letters += k.Count
	}
	return page, rows, errors.Join(err, closing())
}

// maxExamples is the number of classes for which a letter is looked for.
const maxExamples = 20

// examples adds the newest letter that a call finds to each of the largest classes.
func (s *selection) examples(ctx context.Context, c *Call, client *admin.Client, rows []class) error {
	for i := range rows[:min(len(rows), maxExamples)] {
		q := status.DeadLetterQuery{DeadLetterFilter: status.DeadLetterFilter{Fingerprint: rows[i].Fingerprint}, In: s.in, Limit: 1, Newest: true}
		page, err := client.DeadLetters(ctx, c.Args[0], q)
		if err != nil {
			return err
		}
		for _, l := range page.DeadLetters {
			rows[i].Sample = []string{l.MessageID}
		}
	}
	return nil
}

// place returns the flags that name the source of the letters.
func (s *selection) place() string { return output.Flag("in", s.in) + output.Flag("as", s.as) }

// nextOfTop notes the commands for the largest class.
func (s *selection) nextOfTop(c *Call, classes []class) {
	if len(classes) == 0 || c.JSON() || c.Format.Chosen == output.Name {
		return
	}
	program, group := c.Command.Root().Name(), c.Args[0]
	if id := classes[0].Example(); id != "" {
		c.Note("one of the largest class: %s", c.Here(output.CommandFlags(program+" dead-letters show", s.place(), group, id)))
	}
	c.Note("send the class back: %s", c.Here(output.CommandFlags(program+" dead-letters redrive", output.Flag("class", classes[0].Fingerprint)+s.place(), group)))
}

func noLetters(group string, s *selection) string {
	text := "no dead letters of group " + output.Safe(group)
	if s.topic+s.reason+s.class+s.since+s.before != "" || len(s.ids) > 0 {
		text += " that the flags select"
	}
	return text
}

func newDeadLettersPurge(a *App) *cobra.Command {
	s := &selection{}
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove dead letters permanently",
		Example: `  tidegate dead-letters purge billing --before -720h --yes
  tidegate dead-letters purge billing --class 5f1c9a --dry-run`,
	}
	c := a.Remote(cmd, []string{"GROUP"}, func(ctx context.Context, c *Call) error {
		filter, err := s.filter(c)
		if err != nil {
			return err
		}
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		if filter.Before.IsZero() {
			filter.Before = time.Now() // the letters that the question counts, and none that come later
		}
		n, err := count(ctx, c, client, c.Args[0], status.DeadLetterQuery{DeadLetterFilter: filter, In: s.in})
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%s of group %s", output.Count(n, "dead letter"), output.Safe(c.Args[0]))
		switch {
		case n == 0:
			c.Note("%s", noLetters(c.Args[0], s))
			return printPurge(c, 0)
		case c.DryRun:
			c.Note("would remove %s", what)
			return printPurge(c, n)
		}
		if err := c.Confirm("remove "+what+"?", c.Args[0]); err != nil {
			return err
		}
		total := int64(0)
		err = httpapi.Pages("", func(after string) (string, error) {
			p, err := client.PurgeDeadLetters(ctx, c.Args[0], status.DeadLetterSelection{DeadLetterFilter: filter, In: s.in, After: after})
			total += p.Purged
			return p.Next, err
		})
		if err != nil {
			return errors.Join(err, fmt.Errorf("%s were removed before it", output.Number(total)))
		}
		c.Note("removed %s", output.Count(total, "dead letter"))
		return printPurge(c, total)
	})
	s.register(cmd)
	c.NoLimit("this removes all dead letters that the other flags select")
	return c.Destructive()
}

// printPurge prints the result of a purge as JSON. A person has read it in the note.
func printPurge(c *Call, n int64) error { return respond(c, status.DeadLetterPurge{Purged: n}) }

// count counts the dead letters of a group that a query selects, on the broker.
func count(ctx context.Context, c *Call, client *admin.Client, group string, q status.DeadLetterQuery) (total int64, err error) {
	err = httpapi.Pages(q.After, func(after string) (string, error) {
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		q.After = after
		page, err := client.CountDeadLetters(ctx, group, q)
		total += page.Count
		return page.Next, err
	})
	return total, err
}

// letters returns the selected dead letters, the oldest of each queue first, or the newest with
// --newest. Close ends the use of the source. On a RocketMQ or a foreign server queue and offset
// are not known: -1.
func (s *selection) letters(ctx context.Context, c *Call, bodies bool) (all iter.Seq2[status.DeadLetter, error], closing func() error, err error) {
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
		return connected(ctx, c, client.AllDeadLetters(ctx, c.Args[0], q)), func() error { return nil }, nil
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
		MessageID: m.ID, Queue: -1, Offset: -1, StoredAt: l.StoredAt, MessageGroup: m.MessageGroup, LiteTopic: m.LiteTopic, Priority: m.Priority,
		Tag: m.Tag, Keys: m.Keys,
		TraceContext: m.TraceContext, BodySize: l.BodySize, Body: body, BodyText: text, Properties: m.Properties, Origin: l.Origin,
	}
}

func newDeadLettersList(a *App) *cobra.Command {
	s := &selection{}
	var bodies bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the dead letters of a consumer group, the oldest first",
		Example: `  tidegate dead-letters list billing --since -1h --limit 20
  tidegate dead-letters list billing --newest --limit 20
  tidegate dead-letters list billing --class 5f1c9a`,
	}
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *Call) (err error) {
		all, closing, err := s.letters(ctx, c, bodies)
		if err != nil {
			return err
		}
		defer func() { err = joinClose(err, closing) }()
		if c.Format.Chosen == output.JSONL && c.Sort == "" { // any number, in constant memory
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
		return printList(c, output.List[status.DeadLetter]{
			Rows:    letters,
			Columns: letterColumns,
			Document: func(ls []status.DeadLetter) any {
				return map[string]any{"dead_letters": notNil(ls), "complete": !more}
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
func eachLetter(c *Call, all iter.Seq2[status.DeadLetter, error]) error {
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

func newDeadLettersExport(a *App) *cobra.Command {
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
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *Call) (err error) {
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
	*Call
	selection
	exec  string
	every time.Duration
}

func newDeadLettersWatch(a *App) *cobra.Command {
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
	w.Call = a.Remote(c, []string{"GROUP"}, func(ctx context.Context, _ *Call) error { return ordinary(ctx, w.run(ctx)) })
	w.register(c)
	c.Flags().StringVar(&w.exec, "exec", "", "run this `program` for each dead letter")
	c.Flags().DurationVar(&w.every, "every", time.Second, "interval of the queries")
	return c
}

func (w *watchCommand) run(ctx context.Context) error {
	if w.every < 100*time.Millisecond {
		return usagef(w.Command, "--every is %v; the shortest interval is 100ms", w.every)
	}
	client, err := w.Admin(ctx)
	if err != nil {
		return err
	}
	err = w.within(ctx, func(ctx context.Context) error {
		_, err := client.Group(ctx, w.Args[0]) // a wrong name would be silent
		return err
	})
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
	f := follower[[2]int64, status.DeadLetter]{
		Call: w.Call, every: w.every, most: w.Limit, columns: watchColumns, recent: recent[[2]int64]{Since: q.Since},
		name: func(l status.DeadLetter) string { return l.MessageID },
		key:  func(l status.DeadLetter) ([2]int64, time.Time) { return [2]int64{int64(l.Queue), l.Offset}, l.StoredAt },
	}
	if w.exec != "" {
		f.print = func(l status.DeadLetter) error { return w.program(ctx, l) }
	}
	return f.run(ctx, func(ctx context.Context) error {
		q.Since = f.Since
		for l, err := range client.AllDeadLetters(ctx, w.Args[0], q) {
			if err != nil {
				return err
			}
			if err := f.item(l); err != nil {
				return err
			}
		}
		return nil
	})
}

// program runs the program for one dead letter.
func (w *watchCommand) program(ctx context.Context, l status.DeadLetter) error {
	var text bytes.Buffer
	if err := output.Line(&text, l); err != nil {
		return err
	}
	p := newProgram(ctx, w.exec, nil, "TIDEGATE_MESSAGE_ID="+l.MessageID, "TIDEGATE_TOPIC="+l.Origin.Topic)
	p.Stdin, p.Stdout, p.Stderr = &text, unfiltered(w.Out), unfiltered(w.Err)
	if err := p.Run(); err != nil && ctx.Err() == nil {
		w.Note("the program failed for %s: %v", output.Safe(l.MessageID), err)
	}
	return context.Cause(ctx)
}

func newDeadLettersShow(a *App) *cobra.Command {
	s := &selection{}
	c := &cobra.Command{
		Use:     "show",
		Short:   "Show one dead letter with its body",
		Example: "  tidegate dead-letters show billing ID",
	}
	a.Leaf(c, []string{"GROUP", "ID"}, func(ctx context.Context, c *Call) (err error) {
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
			err = c.Show(l, l.MessageID, letterFields(l))
			if err == nil && !c.JSON() && c.Format.Chosen != output.Name {
				flags := output.Flag("id", l.MessageID) + s.place()
				if !c.Terminal {
					flags += " --yes"
				}
				c.Note("send it back: %s; with changes: --edit 'sed s/OLD/NEW/', --set-tag, --set-key, --set-property", c.Here(output.CommandFlags(c.Command.Root().Name()+" dead-letters redrive", flags, c.Args[0])))
			}
			return err
		}
		return notFound(fmt.Sprintf("group %s has no dead letter with the ID %s", output.Safe(c.Args[0]), output.Safe(c.Args[1])))
	})
	c.Flags().StringVar(&s.in, "in", "", "`topic` with the dead letters (default %DLQ%GROUP)")
	s.registerAs(c)
	return c
}
