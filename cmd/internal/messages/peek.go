package messages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A look has the flags of peek and find.
type look struct {
	*call.Call
	query        status.MessageQuery
	queue        int
	offset       int64
	since, until string
	from         string // since, without the words of peek
	properties   []string
	bodies       bool
	scan         int64 // most messages to look at

	found   status.MessagePage // with the messages of all pages
	scanned int64
	hidden  bool                               // contents are not permitted
	each    func([]status.StoredMessage) error // of each page, instead of found
	follow  time.Duration
	lines   *output.Stream[status.StoredMessage] // of --follow
}

// filters adds the flags that peek and find share.
func (l *look) filters(c *cobra.Command, scan int64) {
	f := c.Flags()
	f.IntVar(&l.queue, "queue", -1, "only messages of this `queue`")
	f.Int64Var(&l.offset, "offset", -1, "first `offset` of --queue, or the last one if the newest messages come first")
	f.StringVar(&l.query.Tag, "tag", "", "only messages with this `tag`")
	f.StringVar(&l.query.Key, "key", "", "only messages that have this `key`")
	f.StringVar(&l.query.MessageGroup, "message-group", "", "only messages of this message `group`")
	f.StringArrayVarP(&l.properties, "property", "p", nil, "only messages with this property, `NAME=VALUE`")
	f.StringVar(&l.query.Contains, "contains", "", "only messages whose body contains this `text`")
	f.BoolVar(&l.bodies, "bodies", false, "print whole bodies instead of the first line")
	f.Int64Var(&l.scan, "scan", scan, "most messages to look at; 0 means all")
	f.StringVar(&l.query.After, "after", "", "`position` at which the command before ended")
}

func newPeek(a *call.App) *cobra.Command {
	l := &look{}
	c := &cobra.Command{
		Use: "peek", GroupID: call.MessageGroup,
		Short: "Look at messages of a topic without receiving them",
		Long: `Prints messages of a topic, consumed or not, without receiving them: no group, no
lease and no attempt is involved. Bodies, keys and properties need the permission to
receive from the topic; without it only the other columns are printed.

With --delayed it prints the messages that wait for their delivery time instead: they
are in no queue yet.

With --follow it continues with new messages, until Ctrl-C or --limit; --from last
then means from now on.`,
		Example: `  tidegate peek orders
  tidegate peek orders --from last --limit 3 --bodies
  tidegate peek orders --from -15m --tag paid -o jsonl
  tidegate peek reminders --delayed
  tidegate peek orders --from -1h --follow --limit 1`,
		Annotations: map[string]string{call.MQAdmin: "printMsg -t TOPIC"},
	}
	l.Call = a.Remote(c, []string{"TOPIC"}, func(ctx context.Context, _ *call.Call) error { return l.peek(ctx) })
	l.filters(c, 100_000)
	f := c.Flags()
	f.BoolVar(&l.query.Delayed, "delayed", false, "the messages that wait for their delivery time")
	f.StringVar(&l.query.ID, "id", "", "only messages with this `ID`")
	f.StringVar(&l.since, "from", "first", "the first message: `first`, last (the newest first), or a time")
	f.StringVar(&l.until, "to", "", "only messages stored before this `time`")
	f.DurationVar(&l.follow, "follow", 0, "continue with new messages, looking for them at each `interval`")
	f.Lookup("follow").NoOptDefVal = "1s"
	f.Lookup("limit").DefValue = "10"
	l.Limit = 10
	return c
}

func (l *look) peek(ctx context.Context) error {
	switch l.from = l.since; l.from {
	case "first":
		l.from = ""
	case "last":
		l.from, l.query.Newest = "", true
	}
	if l.query.Delayed && (l.query.Newest || l.queue >= 0 || l.offset >= 0) {
		return command.Usagef(l.Command, "--delayed excludes --from last, --queue and --offset: the messages are in no queue yet, in the order of their sends")
	}
	if l.Command.Flags().Changed("follow") {
		return command.Ordinary(ctx, l.followed(ctx))
	}
	if err := l.read(ctx, l.Args[0]); err != nil {
		return err
	}
	return l.print("no message of " + output.Safe(l.Args[0]) + " matches")
}

func newFind(a *call.App) *cobra.Command {
	l := &look{}
	c := &cobra.Command{
		Use: "find", GroupID: call.MessageGroup,
		Short: "Find messages of a topic by ID, key, property, tag or text",
		Long: `Finds messages of a topic, consumed or not, and notes how far it looked. There is no
index: it reads the messages between --since and --before. With an ID of RocketMQ's
form these times are taken from the ID, if they are not given.

It exits with 3 if there is no such message, and with 7 if it did not look at all
messages; the note then has the flags that continue.`,
		Example: `  tidegate find orders ID
  tidegate find orders --key 4711
  tidegate find orders --contains 'no such account' --since -1h --limit 20`,
		Annotations: map[string]string{call.MQAdmin: "queryMsgByKey -t TOPIC -k KEY"},
	}
	l.Call = a.Remote(c, []string{"TOPIC", "[ID]"}, func(ctx context.Context, _ *call.Call) error { return l.find(ctx) })
	l.filters(c, 1_000_000)
	f := c.Flags()
	f.StringVar(&l.since, "since", "", "only messages stored at this `time` or later")
	f.StringVar(&l.until, "before", "", "only messages stored before this `time`")
	f.BoolVar(&l.query.Newest, "newest", false, "the newest messages first")
	f.Lookup("limit").DefValue = "100"
	l.Limit = 100
	return c
}

func (l *look) find(ctx context.Context) error {
	if len(l.Args) == 2 {
		l.query.ID = l.Args[1]
		l.byID()
	}
	l.from = l.since
	q := &l.query
	if q.ID == "" && q.Key == "" && q.Tag == "" && q.MessageGroup == "" && q.Contains == "" && len(l.properties) == 0 {
		return command.Usagef(l.Command, "no search condition: give an ID, or --key, --property, --tag, --message-group or --contains; 'tidegate peek' shows all messages")
	}
	if err := l.read(ctx, l.Args[0]); err != nil {
		return err
	}
	if err := l.print(""); err != nil || len(l.found.Messages) > 0 {
		return err
	}
	if !l.found.Complete {
		return fmt.Errorf("no such message so far: %w", command.ErrPartly)
	}
	return call.NotFound(fmt.Sprintf("no such message is stored in topic %s; it looked at %s", output.Safe(l.Args[0]), output.Count(l.scanned, "message")))
}

// byID bounds the time of the search by the time in the ID, if no other bounds are given.
func (l *look) byID() {
	first, redrives := protocol.CutRedrive(l.query.ID)
	if born, ok := view.BornAt(first); ok && l.since == "" && l.until == "" {
		l.since = born.Add(-2 * time.Second).Format(time.RFC3339)
		if redrives > 0 {
			return // it was sent back at any time since
		}
		l.until = born.Add(10 * time.Minute).Format(time.RFC3339)
		l.Note("looking from %s to %s, by the time in the ID; a message that was delayed, or waited in a spool, is later: give --since", l.since, l.until)
	}
}

// read reads pages until there are enough messages, or nothing is left.
func (l *look) read(ctx context.Context, topic string) error {
	client, err := l.Admin(ctx)
	if err != nil {
		return err
	}
	if err := l.prepare(); err != nil {
		return l.Usage(err)
	}
	q := l.query
	q.Text = true
	progress := call.NewProgress(l.Call)
	defer progress.End()
	l.found.Messages = []status.StoredMessage{}
	for at := (httpapi.Cursor{After: q.After}); ; {
		q.After = at.After
		if q.Limit = 1000; l.Limit > 0 {
			q.Limit = min(q.Limit, l.Limit-len(l.found.Messages))
		}
		page, err := contents(ctx, l, &q, func(ctx context.Context) (status.MessagePage, error) { return client.Messages(ctx, topic, q) })
		if err != nil {
			return unknownIn(ctx, l.Call, client, err)
		}
		if l.each != nil {
			if err := l.each(page.Messages); err != nil {
				return err
			}
			page.Messages = nil
		}
		page.Messages = append(l.found.Messages, page.Messages...)
		l.scanned += page.Scanned
		l.found = page
		if progress.N = l.scanned; l.each == nil {
			progress.Step(false)
		}
		if page.Complete || l.Limit > 0 && len(page.Messages) >= l.Limit || l.scan > 0 && l.scanned >= l.scan {
			l.found.Scanned = l.scanned
			return nil
		}
		if more, err := at.Advance(page.Next); !more {
			l.found.Scanned = l.scanned
			return err
		}
	}
}

// contents makes a request with contents, or without them if these are not permitted.
func contents[T any](ctx context.Context, l *look, q *status.MessageQuery, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := l.Bounded(ctx)
	defer cancel()
	page, err := request(ctx)
	if errors.Is(err, tidegate.ErrForbidden) && q.Text && q.Key == "" && q.Contains == "" && q.Properties == nil {
		l.hidden, q.Text = true, false
		return request(ctx)
	}
	return page, err
}

// unknownIn adds similar topics to an error; the topic is the first argument.
func unknownIn(ctx context.Context, c *call.Call, client *admin.Client, err error) error {
	c.Args = c.Args[:1] // the topic
	return c.UnknownTopic(ctx, client, err)
}

// prepare reads the flags that are texts.
func (l *look) prepare() (err error) {
	now := time.Now()
	for _, f := range []struct {
		name, text string
		at         *time.Time
	}{{"--from", l.from, &l.query.Since}, {"--to", l.until, &l.query.Before}} {
		if f.text == "" {
			continue
		}
		if *f.at, err = output.ParseTime(f.text, now); err != nil {
			if l.Command.Name() == "find" {
				f.name = map[string]string{"--from": "--since", "--to": "--before"}[f.name]
			}
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if l.queue >= 0 {
		l.query.Queue = new(l.queue)
	}
	if l.offset >= 0 {
		l.query.Offset = &l.offset
	}
	for _, p := range l.properties {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("--property is %q; give NAME=VALUE", p)
		}
		if l.query.Properties == nil {
			l.query.Properties = map[string]string{}
		}
		l.query.Properties[name] = value
	}
	return nil
}

// print prints the messages, and how far the command looked. If the output fails, a continuation
// would leave messages out.
func (l *look) print(empty string) error {
	err := l.page(empty)
	if err == nil {
		l.reached()
	}
	return err
}

func (l *look) page(empty string) error {
	if l.bodies && !l.JSON() {
		_, err := io.WriteString(l.Out, view.Messages(l.found.Messages, l.Columns))
		return err
	}
	if len(l.found.Messages) == 0 && empty == "" && !l.JSON() {
		return nil // the error has it
	}
	limit := l.Limit
	l.Limit = 0 // the messages are within it
	defer func() { l.Limit = limit }()
	return call.PrintList(l.Call, output.List[status.StoredMessage]{
		Rows: l.found.Messages, Columns: view.MessageColumns(l.query.Delayed),
		Name: func(m status.StoredMessage) string { return m.ID },
		Document: func(ms []status.StoredMessage) any {
			page := l.found
			page.Messages = ms
			return page
		},
		Empty: empty,
	})
}

// noteHidden notes that contents are not permitted.
func (l *look) noteHidden() {
	if l.hidden {
		l.Note("bodies, keys and properties are not shown: they need the permission to receive from the topic")
	}
}

// reached notes the messages that the command did not look at.
func (l *look) reached() {
	l.noteHidden()
	if l.found.Corrupt > 0 {
		l.Note("%s cannot be read", output.Count(l.found.Corrupt, "message"))
	}
	if l.found.Complete {
		return
	}
	at := ""
	if !l.found.Reached.IsZero() {
		at = ", up to " + l.found.Reached.UTC().Format(time.RFC3339)
	}
	l.Note("looked at %s%s; about %s left. Continue with: %s", output.Count(l.scanned, "message"), at, output.Number(l.found.Left), l.Again(map[string]string{"after": l.found.Next}))
}
