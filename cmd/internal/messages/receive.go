package messages

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A receiveCommand has the flags of receive.
type receiveCommand struct {
	*call.Call
	max, expect, workers int
	wait, lease          time.Duration
	follow, raw          bool
	tags, sql            string
	then, exec, dump     string
}

func newReceive(a *call.App) *cobra.Command {
	r := &receiveCommand{}
	c := &cobra.Command{
		Use: "receive", GroupID: call.MessageGroup,
		Short: "Receive messages: look at them, settle them, or run a program for each",
		Long: `Receives messages of a consumer group and prints them. It ends after --max
messages, or when no message came for --wait.

--then says what happens to a printed message:
  release      it is ready again at once, and no attempt is counted (default on a terminal)
  ack          it is consumed
  retry[=5s]   it is retried, by the group's schedule or after a time
  dead[=WHY]   it becomes a dead letter
A RocketMQ counts each delivery as an attempt, so --then is required there, and
release means that the message comes again after --lease.

With --exec a program is run by the shell for each message, with the body as its
standard input and TIDEGATE_MESSAGE_ID, TIDEGATE_TOPIC, TIDEGATE_TAG,
TIDEGATE_KEYS, TIDEGATE_MESSAGE_GROUP and TIDEGATE_ATTEMPT in its environment.
It acknowledges the message with exit code 0, asks for a retry with 75, and makes
it a dead letter with any other code. The last line of its standard error is the
reason. The lease is extended while it runs.`,
		Example: `  tidegate receive billing orders --then release
  tidegate receive billing orders --then ack --max 100 -o jsonl
  tidegate receive billing orders --exec ./charge.sh --workers 8`,
	}
	r.Call = a.Remote(c, []string{"GROUP", "TOPIC"}, func(ctx context.Context, _ *call.Call) error { return r.run(ctx) })
	f := c.Flags()
	f.IntVar(&r.max, "max", 0, "most messages; 0 means 10, and no end with --follow and --exec")
	f.DurationVar(&r.wait, "wait", 5*time.Second, "end when no message came for this `time`; with --exec only if it is given")
	f.BoolVar(&r.follow, "follow", false, "go on when there are no messages")
	f.StringVar(&r.tags, "filter", "", "only messages with one of these `tags`, separated by commas")
	f.StringVar(&r.sql, "sql", "", "only messages that match this SQL92 `expression`")
	f.StringVar(&r.then, "then", "", "`fate` of a printed message: release, ack, retry[=TIME] or dead[=REASON]")
	f.StringVar(&r.exec, "exec", "", "run this `program` for each message")
	f.IntVar(&r.workers, "workers", 1, "programs that run at the same time")
	f.DurationVar(&r.lease, "lease", 30*time.Second, "invisible `time` of a received message")
	f.IntVar(&r.expect, "expect", 0, "exit with 7 after fewer than `N` messages")
	f.BoolVar(&r.raw, "raw", false, "print only the bodies, as they are")
	f.StringVar(&r.dump, "dump", "", "write each body to a file in this `directory`")
	return c
}

func (r *receiveCommand) run(ctx context.Context) error {
	sub, settle, err := r.plan()
	if err != nil {
		return r.Usage(err)
	}
	t, _, err := r.Transport(ctx)
	if err != nil {
		return err
	}
	if r.exec != "" {
		return errors.Join(r.work(ctx, t, sub), t.Close())
	}
	return errors.Join(r.look(ctx, t, sub, settle), t.Close())
}

// A fate is the end of a printed message.
type fate struct {
	name   string // release, ack, retry or dead
	delay  time.Duration
	reason string
}

// plan checks the flags.
func (r *receiveCommand) plan() (sub consumer.Subscription, f fate, err error) {
	sub = consumer.Subscription{Group: r.Args[0], Topic: r.Args[1]}
	switch {
	case r.tags != "" && r.sql != "":
		return sub, f, errors.New("--filter and --sql exclude each other")
	case r.tags != "":
		sub.Filter = consumer.Tags(strings.Split(r.tags, ",")...)
	case r.sql != "":
		sub.Filter = consumer.SQL(r.sql)
	}
	switch {
	case r.max < 0, r.expect < 0:
		return sub, f, errors.New("--max and --expect must not be negative")
	case r.workers < 1:
		return sub, f, fmt.Errorf("--workers is %d; it is at least 1", r.workers)
	case r.exec != "" && r.then != "":
		return sub, f, errors.New("--exec and --then exclude each other: the exit code of the program says what happens")
	case r.exec != "":
		return sub, f, nil
	}
	if r.max == 0 && !r.follow {
		r.max = 10
	}
	f, err = r.fate()
	if err == nil && f.name == "release" && (r.follow || r.max > 1000) {
		err = errors.New("released messages would come again without end: give --then, or --max up to 1000 without --follow")
	}
	return sub, f, err
}

// fate reads --then.
func (r *receiveCommand) fate() (fate, error) {
	name, value, hasValue := strings.Cut(r.then, "=")
	switch {
	case r.then == "" && r.Terminal:
		return fate{name: "release"}, nil
	case r.then == "":
		return fate{}, errors.New("without a terminal --then is required: release, ack, retry or dead")
	case (name == "ack" || name == "release") && !hasValue, name == "dead":
		return fate{name: name, reason: cmp.Or(value, "by tidegate receive")}, nil
	case name == "retry" && !hasValue:
		return fate{name: name, delay: transport.BySchedule, reason: "by tidegate receive"}, nil
	case name == "retry":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fate{}, fmt.Errorf("--then is %q; the time of a retry is as in retry=5s", r.then)
		}
		return fate{name: name, delay: d, reason: "by tidegate receive"}, nil
	}
	return fate{}, fmt.Errorf("--then is %q; it is release, ack, retry[=TIME] or dead[=REASON]", r.then)
}

// look receives, prints and settles messages.
func (r *receiveCommand) look(ctx context.Context, t connection.Transport, sub consumer.Subscription, f fate) (err error) {
	bounded, cancel := r.Bounded(ctx)
	err = t.Ping(bounded, sub.Topic)
	cancel()
	if err != nil {
		return err
	}
	if r.then == "" && !t.Capabilities("").Snooze {
		return command.Usagef(r.Command, "this server counts each delivery as an attempt, also if the message is only looked at: say with --then what happens to it")
	}
	// The server's answer is awaited for a part of --wait, so that the end is in time.
	s, err := consumer.NewSimple(t, sub, consumer.SimpleOptions{InvisibleDuration: r.lease, LongPolling: min(max(r.wait, time.Second), 20*time.Second)})
	if err != nil {
		return r.Usage(err)
	}
	out := bufio.NewWriter(r.Out)
	var held []*tidegate.Delivery // released at the end, or they would come again
	defer func() { err = errors.Join(err, out.Flush(), r.release(ctx, t, held)) }()
	received, last := 0, time.Now()
	for r.max == 0 || received < r.max {
		n := 32
		if r.max > 0 {
			n = min(n, r.max-received)
		}
		ds, err := s.Receive(ctx, n)
		if ctx.Err() != nil && len(ds) == 0 {
			return fmt.Errorf("interrupted after %s: %w", output.Count(int64(received), "message"), context.Canceled)
		}
		if err != nil {
			return err
		}
		if len(ds) == 0 && !r.follow && time.Since(last) >= r.wait {
			break
		}
		if len(ds) > 0 {
			last = time.Now()
		}
		rest, err := r.printAll(ctx, t, out, received, ds, f)
		received += len(ds)
		held = append(held, rest...)
		if err != nil {
			return err
		}
	}
	if received == 0 {
		r.Note("no message of %s for group %s within %v; 'tidegate group show %s' shows the group's progress", output.Safe(sub.Topic), output.Safe(sub.Group), r.wait, output.Safe(sub.Group))
	}
	if received < r.expect {
		return fmt.Errorf("%d of %d expected messages came: %w", received, r.expect, command.ErrPartly)
	}
	return nil
}

// printAll prints messages and settles them when the output has all of them. It returns those that
// are to be released.
func (r *receiveCommand) printAll(ctx context.Context, t connection.Transport, out *bufio.Writer, before int, ds []*tidegate.Delivery, f fate) (held []*tidegate.Delivery, err error) {
	n := len(ds)
	for i, d := range ds {
		if err = r.print(out, before+i+1, d); err != nil {
			n = i
			break
		}
	}
	if ferr := out.Flush(); ferr != nil {
		return ds, errors.Join(err, ferr) // perhaps nobody has seen them
	}
	if f.name == "release" {
		return ds, err
	}
	for i, d := range ds[:n] {
		if serr := settle(ctx, t, d, f); serr != nil {
			return ds[i+1:], errors.Join(err, serr)
		}
	}
	return ds[n:], err
}

func settle(ctx context.Context, t connection.Transport, d *tidegate.Delivery, f fate) error {
	var err error
	switch f.name {
	case "ack":
		err = t.Ack(ctx, []*tidegate.Delivery{d})[0]
	case "retry":
		_, err = t.Retry(ctx, d, f.delay, f.reason)
	case "dead":
		_, err = t.DeadLetter(ctx, d, f.reason)
	}
	if err != nil {
		return fmt.Errorf("message %s was printed and not settled: %w", output.Safe(d.ID), err)
	}
	return nil
}

// release makes deliveries ready again without counting an attempt, where the server can.
func (r *receiveCommand) release(ctx context.Context, t connection.Transport, ds []*tidegate.Delivery) error {
	ctx, cancel := r.Bounded(context.WithoutCancel(ctx)) // also after Ctrl-C
	defer cancel()
	var first error
	failed := 0
	for _, d := range slices.Backward(ds) { // the oldest is ready last, and first in the queue again
		if !t.Capabilities(d.Endpoint).Snooze {
			continue // it comes again after the lease
		}
		if err := t.Snooze(ctx, d, 0); err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
			failed++
			first = errors.Join(first, err)
		}
	}
	if first != nil {
		return fmt.Errorf("%d of %d messages come again after %v (--lease) and not at once: %w", failed, len(ds), r.lease, first)
	}
	return nil
}

// A delivery is a Delivery with the JSON names of the HTTP API.
type delivery struct {
	ID           string            `json:"id"`
	Topic        string            `json:"topic"`
	Body         []byte            `json:"body,omitempty"` // unless it is text
	BodyText     string            `json:"body_text,omitempty"`
	Tag          string            `json:"tag,omitempty"`
	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	MessageGroup string            `json:"message_group,omitempty"`
	DeliverAt    time.Time         `json:"deliver_at,omitzero"`
	TraceContext string            `json:"trace_context,omitempty"`
	Handle       string            `json:"handle"`
	Group        string            `json:"group"`
	Attempt      int               `json:"attempt"`
	Queue        int               `json:"queue"`
	Offset       int64             `json:"offset"`
	BornAt       time.Time         `json:"born_at,omitzero"`
	BornHost     string            `json:"born_host,omitempty"`
	StoredAt     time.Time         `json:"stored_at,omitzero"`
	StoreHost    string            `json:"store_host,omitempty"`
}

func deliveryOf(d *tidegate.Delivery) delivery {
	out := delivery{
		ID: d.ID, Topic: d.Topic, Tag: d.Tag, Keys: d.Keys, Properties: d.Properties, MessageGroup: d.MessageGroup,
		DeliverAt: d.DeliverAt, TraceContext: d.TraceContext, Handle: d.Handle, Group: d.ConsumerGroup, Attempt: d.Attempt,
		Queue: d.Queue, Offset: d.Offset, BornAt: d.BornAt, BornHost: d.BornHost, StoredAt: d.StoredAt, StoreHost: d.StoreHost,
	}
	if utf8.Valid(d.Body) {
		out.BodyText = string(d.Body)
	} else {
		out.Body = d.Body
	}
	return out
}

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
	case r.raw:
		_, err := fmt.Fprintf(out, "%s\n", d.Body)
		return err
	case r.JSON():
		return output.Line(out, deliveryOf(d))
	case r.Format.Format == output.Name:
		_, err := fmt.Fprintln(out, output.Safe(d.ID))
		return err
	}
	fmt.Fprintf(out, "%s\n", head(d, r.Times.TimeStyle))
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
		if n++; r.Terminal && n > mostLines {
			cut++
			continue
		}
		safe := output.Safe(line)
		if r.Terminal && r.Columns > 8 {
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

// head is the line above a body: what is set, and the attempt if it is not the first.
func head(d *tidegate.Delivery, style output.TimeStyle) string {
	parts := []string{d.ID, fmt.Sprintf("queue %d", d.Queue), fmt.Sprintf("offset %d", d.Offset)}
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
	return strings.Join(append(parts, style.Time(d.BornAt, time.Now())), "  ")
}
