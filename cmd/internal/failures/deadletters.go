package failures

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/httpapi"
)

func newDeadLetters(a *call.App) *cobra.Command {
	c := call.Parent(call.FailureGroup, "dead-letters", "Find, send back and remove dead letters", "  tidegate dead-letters top billing",
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

func (s *selection) times(c *call.Call) (since, before time.Time, err error) {
	now := time.Now()
	for _, t := range []struct {
		name, text string
		at         *time.Time
	}{{"since", s.since, &since}, {"before", s.before, &before}} {
		if t.text == "" {
			continue
		}
		if *t.at, err = output.ParseTime(t.text, now); err != nil {
			return since, before, command.Usagef(c.Command, "--%s: %v", t.name, err)
		}
	}
	return since, before, nil
}

// filter is the selection for the HTTP API.
func (s *selection) filter(c *call.Call) (status.DeadLetterFilter, error) {
	since, before, err := s.times(c)
	return status.DeadLetterFilter{Topic: s.topic, MessageIDs: s.ids, Reason: s.reason, Fingerprint: s.class, Since: since, Before: before}, err
}

// source returns the dead letters of a group: over HTTP, or on a RocketMQ or Artemis by receiving
// them. Close ends it.
func (s *selection) source(ctx context.Context, c *call.Call) (src deadletter.Source, f deadletter.Filter, closing func() error, err error) {
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
		return nil, f, nil, command.Usagef(c.Command, "--newest is for a tidegate broker: a RocketMQ delivers the oldest first")
	}
	as := s.as
	if as == "" && server.Kind == connection.AMQP {
		as = c.Args[0] // all groups that receive them share the queue
	}
	if as == "" {
		return nil, f, nil, command.Usagef(c.Command, "on RocketMQ --as GROUP is required: a consumer group for this purpose only, for example by mqadmin updateSubGroup -g GROUP -r 1000")
	}
	t, _, err := c.Transport(ctx)
	if err != nil {
		return nil, f, nil, err
	}
	return deadletter.Queue{Transport: t, Group: c.Args[0], As: as}, f, t.Close, nil
}

func newDeadLettersTop(a *call.App) *cobra.Command {
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
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *call.Call) error {
		page, classes, err := s.classes(ctx, c)
		if err != nil {
			return err
		}
		if page.Other != nil {
			c.Note("%s are of classes above the broker's limit; --since -720h reads them", output.Count(page.Other.Count, "further dead letter"))
		}
		defer s.nextOfTop(c, classes)
		return call.PrintList(c, output.List[view.Class]{
			Rows:    classes,
			Columns: view.ClassColumns,
			Name:    func(k view.Class) string { return k.Fingerprint },
			Document: func(ks []view.Class) any {
				return struct {
					status.DeadLetterClassPage
					Classes []view.Class `json:"classes"`
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
func (s *selection) classes(ctx context.Context, c *call.Call) (page status.DeadLetterClassPage, rows []view.Class, err error) {
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
		rows = view.Counted(page)
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
	rows = view.Read(classes)
	for _, k := range rows {
		page.Letters += k.Count
	}
	return page, rows, errors.Join(err, closing())
}

// maxExamples is the number of classes for which a letter is looked for.
const maxExamples = 20

// examples adds the newest letter that a call finds to each of the largest classes.
func (s *selection) examples(ctx context.Context, c *call.Call, client *admin.Client, rows []view.Class) error {
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
func (s *selection) place() string { return shell.Flag("in", s.in) + shell.Flag("as", s.as) }

// nextOfTop notes the commands for the largest class.
func (s *selection) nextOfTop(c *call.Call, classes []view.Class) {
	if len(classes) == 0 || c.JSON() || c.Format.Format == output.Name {
		return
	}
	program, group := c.Command.Root().Name(), c.Args[0]
	if id := classes[0].Example(); id != "" {
		c.Note("one of the largest class: %s", c.Here(shell.LineFlags(program+" dead-letters show", s.place(), group, id)))
	}
	c.Note("send the class back: %s", c.Here(shell.LineFlags(program+" dead-letters redrive", shell.Flag("class", classes[0].Fingerprint)+s.place(), group)))
}

func noLetters(group string, s *selection) string {
	text := "no dead letters of group " + output.Safe(group)
	if s.topic+s.reason+s.class+s.since+s.before != "" || len(s.ids) > 0 {
		text += " that the flags select"
	}
	return text
}

func newDeadLettersPurge(a *call.App) *cobra.Command {
	s := &selection{}
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove dead letters permanently",
		Example: `  tidegate dead-letters purge billing --before -720h --yes
  tidegate dead-letters purge billing --class 5f1c9a --dry-run`,
	}
	c := a.Remote(cmd, []string{"GROUP"}, func(ctx context.Context, c *call.Call) error {
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
		n, err := count(ctx, c, client, status.DeadLetterQuery{DeadLetterFilter: filter, In: s.in})
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
		for at := (httpapi.Cursor{}); ; {
			p, err := client.PurgeDeadLetters(ctx, c.Args[0], status.DeadLetterSelection{DeadLetterFilter: filter, In: s.in, After: at.After})
			total += p.Purged
			var more bool
			if err == nil {
				more, err = at.Advance(p.Next)
			}
			if err != nil {
				return errors.Join(err, fmt.Errorf("%s were removed before it", output.Number(total)))
			}
			if !more {
				c.Note("removed %s", output.Count(total, "dead letter"))
				return printPurge(c, total)
			}
		}
	})
	s.register(cmd)
	c.NoLimit("this removes all dead letters that the other flags select")
	return c.Destructive()
}

// printPurge prints the result of a purge as JSON. A person has read it in the note.
func printPurge(c *call.Call, n int64) error {
	if !c.JSON() {
		return nil
	}
	return c.Show(status.DeadLetterPurge{Purged: n}, "", nil)
}

// count counts the dead letters that a query selects, on the broker.
func count(ctx context.Context, c *call.Call, client *admin.Client, q status.DeadLetterQuery) (total int64, err error) {
	for at := (httpapi.Cursor{After: q.After}); ; {
		q.After = at.After
		bounded, cancel := c.Bounded(ctx)
		page, err := client.CountDeadLetters(bounded, c.Args[0], q)
		cancel()
		if err != nil {
			return 0, err
		}
		total += page.Count
		if more, err := at.Advance(page.Next); !more {
			return total, err
		}
	}
}
