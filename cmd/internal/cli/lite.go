package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

const (
	// liteInterval is the time after which a consumer repeats its lite topics: servers forget them
	// after some minutes.
	liteInterval = 30 * time.Second

	// liteAgain is the shortest time between two looks for lite topics with messages.
	liteAgain = time.Second

	// liteEnd bounds the last request of a consumer.
	liteEnd = 3 * time.Second
)

// A liteSet returns the lite topics that a consumer receives from now on.
type liteSet func(ctx context.Context) ([]string, error)

// A liteTransport receives from lite topics of a topic, as one consumer. Its other methods are those
// of the Transport. Goroutines may share it.
type liteTransport struct {
	Transport
	server transport.LiteSubscriber
	of     transport.LiteConsumer
	set    liteSet
	search bool // set returns others after a while: an empty receive is followed by a call of it

	mu      sync.Mutex
	taken   map[string]bool // guarded by mu: by the server
	looking bool            // guarded by mu: the last receive was empty
	synced  time.Time       // guarded by mu

	turn chan struct{} // of capacity 1: full while a request is under way

	stop  context.CancelFunc
	serve sync.WaitGroup
}

// newLiteTransport returns a Transport whose receives from a topic are those of a new consumer of a
// group. Close ends the consumer and t.
func newLiteTransport(t Transport, group, topic string, set liteSet) (*liteTransport, error) {
	server, ok := t.(transport.LiteSubscriber)
	if !ok {
		return nil, errors.New("this server has no lite topics")
	}
	return &liteTransport{
		Transport: t, server: server, of: transport.LiteConsumer{Group: group, Topic: topic, ID: "cli-" + rand.Text()[:12]}, set: set,
		taken: map[string]bool{}, turn: make(chan struct{}, 1), stop: func() {},
	}, nil
}

// watch keeps lite topics that the server takes from the consumer out of its set until Close, and
// calls note with each. It is called once.
func (l *liteTransport) watch(note func(format string, args ...any)) {
	ctx, stop := context.WithCancel(context.Background()) // ended by Close
	l.stop = stop
	l.serve.Go(func() {
		for ctx.Err() == nil {
			// After an error the next sync asks for the lite topic again.
			_ = l.server.ServeLite(ctx, l.of, func(name string) {
				l.mu.Lock()
				l.taken[name] = true
				l.mu.Unlock()
				note("the server has taken the lite topic %s from this consumer: another one has subscribed to it, or it was deleted", output.Safe(name))
			})
			select {
			case <-time.After(liteInterval):
			case <-ctx.Done():
			}
		}
	})
}

// Receive implements transport.Receiver.
func (l *liteTransport) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	if err := l.sync(ctx); err != nil {
		return nil, err
	}
	r.LiteConsumer, r.Queue, r.Filter = l.of.ID, transport.AnyQueue, tidegate.Filter{}
	ds, err := l.Transport.Receive(ctx, r)
	l.mu.Lock()
	l.looking = err == nil && len(ds) == 0
	l.mu.Unlock()
	return ds, err
}

// Queues implements transport.Receiver: a receive is from all lite topics of the consumer.
func (l *liteTransport) Queues(context.Context, string, string) ([]int, error) {
	return []int{transport.AnyQueue}, nil
}

// sync sends the lite topics of the consumer to the server, if it is time to.
func (l *liteTransport) sync(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	l.mu.Lock()
	since := time.Since(l.synced)
	due := l.synced.IsZero() || since >= liteInterval || l.search && l.looking && since >= liteAgain
	l.mu.Unlock()
	if !due {
		return nil
	}
	names, err := l.set(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	names = slices.DeleteFunc(names, func(name string) bool { return l.taken[name] })
	l.mu.Unlock()
	if err := l.server.SyncLite(ctx, transport.LiteSync{LiteConsumer: l.of, Topics: names}); err != nil {
		return err
	}
	l.mu.Lock()
	l.synced = time.Now()
	l.mu.Unlock()
	return nil
}

// Close ends the consumer, so that others get its lite topics at once, and the Transport.
func (l *liteTransport) Close() error {
	l.stop()
	l.serve.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), liteEnd) // Close has none
	defer cancel()
	l.mu.Lock()
	synced := !l.synced.IsZero()
	l.mu.Unlock()
	if synced {
		_ = l.server.SyncLite(ctx, transport.LiteSync{LiteConsumer: l.of}) // after an error the server forgets it later
	}
	return l.Transport.Close()
}

// A liteError is the error of a receive from a topic with lite topics that names none.
type liteError struct {
	error
	hint string
}

func (e *liteError) Unwrap() error { return e.error }

// Hint names the flag.
func (e *liteError) Hint() string { return e.hint }

// explainLite adds to a rejected receive that the topic has lite topics, if that is so. Only a tidegate
// broker reports the type of a topic.
func (r *receiveCommand) explainLite(ctx context.Context, err error) error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok || e.Code != tidegate.CodeBadRequest || len(r.lite) > 0 || !r.progress {
		return err
	}
	client, cerr := r.Admin(ctx)
	if cerr != nil {
		return err
	}
	bounded, cancel := r.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	t, terr := client.Topic(bounded, r.Args[1])
	if terr != nil || t.Type != settings.TopicLite {
		return err
	}
	return &liteError{err, "Name lite topics with --lite; " + output.Mention(r.Here(output.Command(r.Command.Root().Name()+" topic lite", t.Name))) + " lists them."}
}

// named returns the set of these lite topics.
func named(names []string) liteSet {
	return func(context.Context) ([]string, error) { return slices.Clone(names), nil }
}

// checkLite returns an error for names that no lite topic has.
func checkLite(names []string) error {
	for _, name := range names {
		if err := tidegate.ValidateLiteTopic(name); err != nil {
			return fmt.Errorf("--lite: %w", err)
		}
	}
	return nil
}

// withBacklog returns the set of the lite topics of a tidegate broker that have messages for a group:
// the first ones by name, at most as many as the group permits a consumer.
func withBacklog(client *admin.Client, group, topic string, most int) liteSet {
	return func(ctx context.Context) ([]string, error) {
		var names []string
		_, err := eachLiteTopic(ctx, client, topic, "", func(lt *status.LiteTopic) bool {
			if liteBacklog(lt, group) > 0 {
				names = append(names, lt.Name)
			}
			return len(names) < most
		})
		return names, err
	}
}

// liteBacklog returns the messages of a lite topic that a group has not consumed.
func liteBacklog(lt *status.LiteTopic, group string) int64 {
	i := slices.IndexFunc(lt.Groups, func(g status.LiteTopicGroup) bool { return g.Group == group })
	if i < 0 {
		return lt.Messages
	}
	return lt.Groups[i].Backlog
}

// eachLiteTopic calls f with the lite topics of a topic after a name, by name, until it returns false.
// It returns the number of all.
func eachLiteTopic(ctx context.Context, client *admin.Client, topic, after string, f func(*status.LiteTopic) bool) (total int, err error) {
	err = httpapi.Pages(after, func(after string) (next string, err error) {
		page, err := client.LiteTopics(ctx, topic, status.LiteTopicQuery{After: after, Limit: 1000})
		total = page.Total
		for i := range page.LiteTopics {
			if !f(&page.LiteTopics[i]) {
				return "", nil
			}
			next = page.LiteTopics[i].Name
		}
		if !page.More {
			next = ""
		}
		return next, err
	})
	return total, err
}

// mostLite returns the number of lite topics that a group permits a consumer.
func mostLite(g settings.Group) int {
	g.Lite.Topic = cmp.Or(g.Lite.Topic, "any") // the group that does not exist yet
	return g.WithDefaults().Lite.MaxTopics
}

// liteBacklogs are the groups of a lite topic with their backlogs and the number of their consumers.
func liteBacklogs(lt status.LiteTopic) string {
	var parts []string
	for _, g := range lt.Groups {
		text := fmt.Sprintf("%s %s", g.Group, output.Number(g.Backlog))
		if n := len(g.Consumers); n > 0 {
			text += fmt.Sprintf(" (%s)", output.Count(int64(n), "consumer"))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

var liteColumns = []output.Column[status.LiteTopic]{
	{Name: "NAME", Cell: func(lt status.LiteTopic) any { return lt.Name }},
	{Name: "QUEUE", Wide: true, Cell: func(lt status.LiteTopic) any { return lt.Queue }},
	{Name: "MESSAGES", Cell: func(lt status.LiteTopic) any { return lt.Messages }},
	{Name: "USED", Cell: func(lt status.LiteTopic) any { return lt.UsedAt }},
	{Name: "BACKLOG", Least: 24, Cell: func(lt status.LiteTopic) any { return liteBacklogs(lt) }},
}

// newTopicLite returns topic lite.
func newTopicLite(a *App) *cobra.Command {
	var group string
	c := &cobra.Command{
		Use:   "lite",
		Short: "List the lite topics below a topic of type LITE",
		Long: `Lists the lite topics below a topic of type LITE, by name. USED is when the last
message was sent or the last subscription ended: the broker removes a lite topic
lite.expiry after that time, if it has no consumers. BACKLOG has each group with the
messages that it has not consumed, and the number of its consumers.`,
		Example: `  tidegate topic lite sessions --limit 20
  tidegate topic lite sessions --group agents`,
	}
	a.Leaf(c, []string{"TOPIC"}, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		rows := []status.LiteTopic{}
		total, err := eachLiteTopic(ctx, client, c.Args[0], "", func(lt *status.LiteTopic) bool {
			if group == "" || liteBacklog(lt, group) > 0 {
				rows = append(rows, *lt)
			}
			return c.Limit == 0 || c.Sort != "" || len(rows) <= c.Limit
		})
		if err != nil {
			return c.UnknownTopic(ctx, client, err)
		}
		return printList(c, output.List[status.LiteTopic]{
			Rows: rows, Columns: liteColumns,
			Document: func(ls []status.LiteTopic) any { return map[string]any{"total": total, "lite_topics": notNil(ls)} },
			Empty:    "no lite topics: the first message or subscription creates one",
		})
	}))
	c.Flags().StringVar(&group, "group", "", "only those with messages that this `group` has not consumed")
	return c
}

// newTopicDeleteLite returns topic delete-lite.
func newTopicDeleteLite(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "delete-lite",
		Short:   "Delete a lite topic and its messages",
		Example: "  tidegate topic delete-lite sessions session-17 --yes",
	}
	return a.Remote(cmd, []string{"TOPIC", "NAME"}, func(ctx context.Context, c *Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		topic, name := c.Args[0], c.Args[1]
		bounded, cancel := c.Bounded(ctx)
		defer cancel()
		_, last := utf8.DecodeLastRuneInString(name)
		var found *status.LiteTopic
		_, err = eachLiteTopic(bounded, client, topic, name[:len(name)-last], func(lt *status.LiteTopic) bool {
			if lt.Name == name {
				found = lt
			}
			return lt.Name < name
		})
		switch {
		case err != nil:
			return err
		case found == nil:
			return &tidegate.Error{Op: "topic delete-lite", Subject: topic, Code: tidegate.CodeNotFound,
				Message: fmt.Sprintf("there is no lite topic %q; 'tidegate topic lite' lists them", name)}
		}
		what := fmt.Sprintf("lite topic %s of %s with %s", output.Safe(name), output.Safe(topic), output.Count(found.Messages, "stored message"))
		if c.DryRun {
			c.Note("would remove %s", what)
			return nil
		}
		if err := c.Confirm("delete "+what+"?", name); err != nil {
			return err
		}
		if err := client.DeleteLiteTopic(bounded, topic, name); err != nil {
			return err
		}
		c.Note("deleted %s", what)
		return nil
	}).Destructive()
}
