package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A look has the flags of peek and find.
type look struct {
	*Call
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
	hidden  bool                              // contents are not permitted
	each    func(*status.StoredMessage) error // of each message, instead of found
	follow  time.Duration

	source Transport // of a foreign server; nil before the first page
	seen   string    // Handle of its last message
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

func newPeek(a *App) *cobra.Command {
	l := &look{}
	c := &cobra.Command{
		Use: "peek", GroupID: messageGroup,
		Short: "Look at messages of a topic without receiving them",
		Long: `Prints messages of a topic, consumed or not, without receiving them: no group, no
lease and no attempt is involved. Bodies, keys and properties need the permission to
receive from the topic; without it only the other columns are printed.

With --delayed it prints the messages that wait for their delivery time instead: they
are in no queue yet.

On a Pulsar it prints the messages that the server keeps, delayed ones too, in the
order of their publish times. The server deletes those that all subscriptions have
acknowledged, unless the namespace has a retention. --from last needs --follow there,
and --queue is a partition.

With --follow it continues with new messages, until Ctrl-C or --limit; --from last
then means from now on.`,
		Example: `  tidegate peek orders
  tidegate peek orders --from last --limit 3 --bodies
  tidegate peek orders --from -15m --tag paid -o jsonl
  tidegate peek reminders --delayed
  tidegate peek orders --from -1h --follow --limit 1`,
		Annotations: map[string]string{mqAdmin: "printMsg -t TOPIC"},
	}
	l.Call = a.Remote(c, []string{"TOPIC"}, func(ctx context.Context, _ *Call) error { return l.peek(ctx) })
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
		return usagef(l.Command, "--delayed excludes --from last, --queue and --offset: the messages are in no queue yet, in the order of their sends")
	}
	defer l.close()
	if l.Command.Flags().Changed("follow") {
		return ordinary(ctx, l.followed(ctx))
	}
	if err := l.read(ctx, l.Args[0]); err != nil {
		return err
	}
	return l.print("no message of " + output.Safe(l.Args[0]) + " matches")
}

func newFind(a *App) *cobra.Command {
	l := &look{}
	c := &cobra.Command{
		Use: "find", GroupID: messageGroup,
		Short: "Find messages of a topic by ID, key, property, tag or text",
		Long: `Finds messages of a topic, consumed or not, and notes how far it looked. There is no
index: it reads the messages between --since and --before. With an ID of RocketMQ's
form these times are taken from the ID, if they are not given.

It exits with 3 if there is no such message, and with 7 if it did not look at all
messages; the note then has the flags that continue.`,
		Example: `  tidegate find orders ID
  tidegate find orders --key 4711
  tidegate find orders --contains 'no such account' --since -1h --limit 20`,
		Annotations: map[string]string{mqAdmin: "queryMsgByKey -t TOPIC -k KEY"},
	}
	l.Call = a.Remote(c, []string{"TOPIC", "[ID]"}, func(ctx context.Context, _ *Call) error { return l.find(ctx) })
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
		return usagef(l.Command, "no search condition: give an ID, or --key, --property, --tag, --message-group or --contains; 'tidegate peek' shows all messages")
	}
	defer l.close()
	if err := l.read(ctx, l.Args[0]); err != nil {
		return err
	}
	if err := l.print(""); err != nil || len(l.found.Messages) > 0 {
		return err
	}
	if !l.found.Complete {
		return fmt.Errorf("no such message so far: %w", errPartly)
	}
	return notFound(fmt.Sprintf("no such message is stored in topic %s; it looked at %s", output.Safe(l.Args[0]), output.Count(l.scanned, "message")))
}

// byID bounds the time of the search by the time in the ID, if no other bounds are given.
func (l *look) byID() {
	first, redrives := protocol.CutRedrive(l.query.ID)
	if born, ok := bornAt(first); ok && l.since == "" && l.until == "" {
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
	pages, err := l.pages(ctx, topic)
	if err != nil {
		return err
	}
	if err := l.prepare(); err != nil {
		return err
	}
	q := l.query
	q.Text = true
	progress := newProgress(l.Call)
	defer progress.End()
	l.found.Messages = []status.StoredMessage{}
	return httpapi.Pages(q.After, func(after string) (string, error) {
		q.After = after
		if q.Limit = 1000; l.Limit > 0 {
			q.Limit = min(q.Limit, l.Limit-len(l.found.Messages))
		}
		page, err := pages(ctx, &q)
		if err != nil {
			return "", err
		}
		for i := range page.Messages {
			if l.each == nil {
				break
			}
			if err := l.each(&page.Messages[i]); err != nil {
				return "", err
			}
		}
		l.scanned += page.Scanned
		if progress.N = l.scanned; l.each == nil {
			page.Messages = append(l.found.Messages, page.Messages...)
			progress.Step(false)
		} else {
			page.Messages = nil
		}
		l.found = page
		l.found.Scanned = l.scanned
		if page.Complete || l.Limit > 0 && len(page.Messages) >= l.Limit || l.scan > 0 && l.scanned >= l.scan {
			return "", nil
		}
		return page.Next, nil
	})
}

// pages returns the function that reads a page of a query: over HTTP, or of a foreign server.
func (l *look) pages(ctx context.Context, topic string) (func(context.Context, *status.MessageQuery) (status.MessagePage, error), error) {
	server, err := l.Server()
	if err != nil {
		return nil, err
	}
	if f := server.support(); f != nil && f.Browse != nil {
		switch {
		case l.query.Newest:
			return nil, usagef(l.Command, "%s is read from the oldest message on, so the newest cannot come first; give a time, for example -15m", server.foreign().name)
		case l.offset >= 0:
			return nil, usagef(l.Command, "--offset is for a tidegate broker: messages of %s have none", server.foreign().name)
		}
		if l.source == nil {
			if l.source, _, err = l.Transport(ctx); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, q *status.MessageQuery) (status.MessagePage, error) {
			return l.browsed(ctx, q, f.Browse(ctx, l.source, topic, q.Since, cmp.Or(q.After, l.seen)))
		}, nil
	}
	client, err := l.Admin(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, q *status.MessageQuery) (status.MessagePage, error) {
		page, err := contents(ctx, l, q, func(ctx context.Context) (status.MessagePage, error) { return client.Messages(ctx, topic, *q) })
		if err != nil {
			err = unknownIn(ctx, l.Call, client, err)
		}
		return page, err
	}, nil
}

// close closes the connection to a foreign server.
func (l *look) close() {
	if l.source != nil {
		_ = l.source.Close() // the messages are read
	}
}

// browsed returns a page of the messages of a foreign server. The number of those that are left is
// not known: -1.
func (l *look) browsed(ctx context.Context, q *status.MessageQuery, all iter.Seq2[*tidegate.Delivery, error]) (page status.MessagePage, err error) {
	now, seen := time.Now(), l.seen
	for d, err := range connected(ctx, l.Call, all) {
		if err != nil {
			return page, err
		}
		if !q.Before.IsZero() && !d.StoredAt.Before(q.Before) {
			break
		}
		page.Scanned, page.Reached, seen = page.Scanned+1, d.StoredAt, d.Handle
		if m := storedOf(d, now); selects(q, m) {
			page.Messages = append(page.Messages, m)
		}
		if len(page.Messages) == q.Limit || l.scan > 0 && l.scanned+page.Scanned == l.scan {
			page.Next, page.Left, l.seen = seen, -1, seen
			return page, nil
		}
	}
	page.Complete, l.seen = true, seen
	return page, nil
}

// storedOf returns a message of a foreign server as a tidegate broker returns it.
func storedOf(d *tidegate.Delivery, now time.Time) status.StoredMessage {
	body, text := httpapi.Text(d.Body)
	m := status.StoredMessage{
		ID: d.ID, Queue: d.Queue, Offset: d.Offset, StoredAt: d.StoredAt, BornAt: d.BornAt, Tag: d.Tag, MessageGroup: d.MessageGroup, Priority: d.Priority,
		BodySize: int64(len(d.Body)), Keys: d.Keys, Properties: d.Properties, TraceContext: d.TraceContext, Body: body, BodyText: text,
	}
	if d.DeliverAt.After(now) {
		m.DeliverAt = d.DeliverAt
	}
	return m
}

// selects reports whether a query selects a message of a foreign server. Its time is not compared.
func selects(q *status.MessageQuery, m status.StoredMessage) bool {
	for name, value := range q.Properties {
		if have, ok := m.Properties[name]; !ok || have != value {
			return false
		}
	}
	return (q.Queue == nil || *q.Queue == m.Queue) && (!q.Delayed || !m.DeliverAt.IsZero()) &&
		(q.ID == "" || q.ID == m.ID) && (q.Tag == "" || q.Tag == m.Tag) && (q.MessageGroup == "" || q.MessageGroup == m.MessageGroup) &&
		(q.Key == "" || slices.Contains(m.Keys, q.Key)) && strings.Contains(body(m.Body, m.BodyText), q.Contains)
}

// columns are those of a list.
func (l *look) columns() []output.Column[status.StoredMessage] {
	s, err := l.Server()
	return messageColumns(l.query.Delayed || err == nil && s.foreign() != nil)
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
func unknownIn(ctx context.Context, c *Call, client *admin.Client, err error) error {
	c.Args = c.Args[:1] // the topic
	return c.UnknownTopic(ctx, client, err)
}

// prepare reads the flags that are texts.
func (l *look) prepare() (err error) {
	from, to := "from", "to"
	if l.Command.Name() != "peek" {
		from, to = "since", "before"
	}
	if l.from != "" {
		l.query.Since, err = l.time(from, l.from)
	}
	if l.until != "" && err == nil {
		l.query.Before, err = l.time(to, l.until)
	}
	if err != nil {
		return err
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
			return l.Usage(fmt.Errorf("--property is %q; give NAME=VALUE", p))
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
		_, err := io.WriteString(l.Out, messages(l.found.Messages, l.Columns))
		return err
	}
	if len(l.found.Messages) == 0 && empty == "" && !l.JSON() {
		return nil // the error has it
	}
	limit := l.Limit
	l.Limit = 0 // the messages are within it
	defer func() { l.Limit = limit }()
	return printList(l.Call, output.List[status.StoredMessage]{
		Rows: l.found.Messages, Columns: l.columns(),
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
	if l.found.Left >= 0 {
		at += fmt.Sprintf("; about %s left", output.Number(l.found.Left))
	}
	l.Note("looked at %s%s. Continue with: %s", output.Count(l.scanned, "message"), at, l.Again(map[string]string{"after": l.found.Next}))
}

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
		return usagef(l.Command, "--follow is %v; the shortest interval is 100ms", l.follow)
	case l.until != "" || l.query.After != "":
		return usagef(l.Command, "--follow has no end; it excludes --to and --after")
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
		l.Format.Chosen = output.JSONL
	}
	number := int64(0)
	f := follower[seenKey, status.StoredMessage]{
		Call: l.Call, every: l.follow, most: most, columns: l.columns(), name: func(m status.StoredMessage) string { return m.ID },
		key: func(m status.StoredMessage) (seenKey, time.Time) {
			key := seenKey{m.Queue, m.Offset, ""}
			switch {
			case l.source != nil: // each message comes once
				number++
				key.offset = number
			case l.query.Delayed:
				key.id = m.ID
			}
			return key, m.StoredAt
		},
	}
	if l.bodies && !l.JSON() {
		f.print = func(m status.StoredMessage) error {
			_, err := io.WriteString(l.Out, messages([]status.StoredMessage{m}, l.Columns))
			return err
		}
	}
	l.each = func(m *status.StoredMessage) error { return f.item(*m) }
	first := true
	return f.run(ctx, func(ctx context.Context) error {
		if !first && l.source == nil {
			l.query.Since = f.Since
		}
		err := l.read(ctx, l.Args[0])
		if first {
			first, l.from, f.Since = false, "", l.query.Since // of --from
		}
		return err
	})
}

// A tracing has the flags of trace and its findings.
type tracing struct {
	look
	topic, group string
	every        time.Duration

	traced []tracedTopic
}

// A tracedTopic is the trace in one topic, as JSON.
type tracedTopic struct {
	Topic string `json:"topic"`
	status.Trace
	viewRedriven
}

func newTrace(a *App) *cobra.Command {
	tr := &tracing{}
	c := &cobra.Command{
		Use: "trace", GroupID: messageGroup,
		Short: "Show why a message is not consumed, for each group",
		Long: `Finds a message by its ID and prints one sentence for each group that receives from
its topic: who has it, when it is retried, what it waits for, or why it was given up.
Below it are the failed deliveries that the broker has in memory, with their reasons.
It also prints the beginning of the body, and with -o json the whole message, if you
may receive from the topic.
Without --topic it looks in all topics. The times to look between are taken from the
ID, if it has RocketMQ's form and they are not given.

A dead letter that was edited and sent back has a new ID. The trace of the first
message names it, and the trace of the new message names the first one.`,
		Example: `  tidegate trace ID
  tidegate trace ID --topic orders --group billing -o json`,
		Annotations: map[string]string{mqAdmin: "queryMsgById -i ID"},
	}
	tr.Call = a.Remote(c, []string{"ID"}, func(ctx context.Context, _ *Call) error { return tr.Watch(ctx, tr.every, tr.run) })
	f := c.Flags()
	f.StringVar(&tr.topic, "topic", "", "the message's `topic`")
	f.StringVar(&tr.group, "group", "", "only this consumer `group`")
	f.StringVar(&tr.since, "since", "", "only messages stored at this `time` or later")
	f.StringVar(&tr.until, "before", "", "only messages stored before this `time`")
	f.Int64Var(&tr.scan, "scan", 1_000_000, "most messages to look at in each topic; 0 means all")
	watchFlag(f, &tr.every)
	tr.queue, tr.offset = -1, -1
	return c
}

func (tr *tracing) run(ctx context.Context) error {
	tr.query.ID, tr.traced = tr.Args[0], nil
	tr.byID()
	tr.from = tr.since
	if err := tr.prepare(); err != nil {
		return err
	}
	client, err := tr.Admin(ctx)
	if err != nil {
		return err
	}
	topics := []string{tr.topic}
	if tr.topic == "" {
		if topics, err = tr.allTopics(ctx, client); err != nil {
			return err
		}
	}
	complete := true
	for _, topic := range topics {
		t, err := tr.in(ctx, client, topic)
		if err != nil {
			args := tr.Args
			defer func() { tr.Args = args }() // --watch goes on with the ID
			tr.Args = []string{topic}
			return tr.UnknownTopic(ctx, client, err)
		}
		complete = complete && t.Complete
		if len(t.Messages) > 0 || !t.DeliverAt.IsZero() || t.Half {
			tr.traced = append(tr.traced, tracedTopic{topic, t, redriven(tr.query.ID, &t)})
		}
	}
	if err := tr.printTrace(); err != nil || len(tr.traced) > 0 {
		tr.noteHidden()
		return err
	}
	if !complete {
		return fmt.Errorf("message %s was not found so far; --scan=0 looks at all messages between --since and --before: %w", output.Safe(tr.query.ID), errPartly)
	}
	return notFound(fmt.Sprintf("no message %s is stored: it was never stored, was recalled, or retention removed it", output.Safe(tr.query.ID)))
}

func (tr *tracing) allTopics(ctx context.Context, client *admin.Client) (names []string, err error) {
	ctx, cancel := tr.Bounded(ctx)
	defer cancel()
	topics, err := client.Topics(ctx)
	for _, t := range topics {
		if t.StoredMessages > 0 || t.DelayedMessages > 0 || t.HalfMessages > 0 {
			names = append(names, t.Name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(letters(a), letters(b)) })
	return names, err
}

// letters is 1 for a dead letter topic, which comes after the topics that have dead letters.
func letters(topic string) int {
	if strings.HasPrefix(topic, tidegate.DeadLetterTopic("")) {
		return 1
	}
	return 0
}

// in traces the message in one topic.
func (tr *tracing) in(ctx context.Context, client *admin.Client, topic string) (all status.Trace, err error) {
	q, scanned := tr.query, int64(0)
	q.Text = true
	err = httpapi.Pages(q.After, func(after string) (string, error) {
		q.After = after
		t, err := contents(ctx, &tr.look, &q, func(ctx context.Context) (status.Trace, error) { return client.Trace(ctx, topic, tr.group, q) })
		if err != nil {
			return "", err
		}
		scanned += t.Scanned
		t.Messages = append(all.Messages, t.Messages...)
		if t.DeliverAt.IsZero() {
			t.DeliverAt = all.DeliverAt
		}
		t.Half, t.Scanned = t.Half || all.Half, scanned
		if all = t; t.Complete || tr.scan > 0 && scanned >= tr.scan {
			return "", nil
		}
		return t.Next, nil
	})
	return all, err
}

// redriven returns the IDs of the messages before and after the message's redrives with a new ID.
func redriven(id string, t *status.Trace) (r viewRedriven) {
	if first, redrives := protocol.CutRedrive(id); redrives > 0 {
		r.First = first
	}
	for i := range t.Messages {
		for _, f := range t.Messages[i].Groups {
			r.As = cmp.Or(f.RedrivenAs, r.As)
		}
	}
	return r
}

func (tr *tracing) printTrace() error {
	if tr.JSON() {
		return tr.Show(map[string]any{"topics": notNil(tr.traced)}, "", nil)
	}
	style, now := tr.Times.Chosen, time.Now()
	for _, t := range tr.traced {
		text := trace(t.Topic, tr.query.ID, &t.Trace, style, now) + t.viewRedriven.Text(func(id string) string { return tr.Here(output.Command(tr.Command.Root().Name()+" trace", id)) })
		if tr.Format.Chosen == output.Name {
			text = output.Word(t.Topic) + "\n"
		}
		if _, err := fmt.Fprint(tr.Out, text); err != nil {
			return err
		}
	}
	return nil
}
