package cli

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

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
)

// A receiveCommand has the flags of receive.
type receiveCommand struct {
	*Call
	max, expect, workers int
	mostInRow            int
	killSwitch           float64
	wait, lease          time.Duration
	stopTimeout          time.Duration
	follow, raw          bool
	tags, sql            string
	lite                 []string
	then, exec, dump     string
	execLines            string
	form                 string // of -f
	format               verbsText[shown]
	asker                *asker        // with --then ask
	acks                 *acknowledger // with --then ack
	progress             bool          // the server reports the progress of groups
}

func newReceive(a *App) *cobra.Command {
	r := &receiveCommand{}
	c := &cobra.Command{
		Use: "receive", GroupID: messageGroup,
		Short: "Receive messages: look at them, settle them, or run a program for each",
		Long: `Receives messages of a consumer group and prints them. It ends after --max
messages, or when no message arrives for --wait.

--then is the fate of a printed message:
  release      it is ready again at once, and no attempt is counted (default on a terminal)
  ack          it is consumed
  retry[=5s]   it is retried, by the group's schedule or after a time
  dead[=WHY]   it becomes a dead letter
  ask          a question after each message, on a terminal; released messages are
               redelivered when the command ends
A RocketMQ counts each delivery as an attempt, so --then is required there, and
release means that the message is redelivered after --lease.

-f prints a text for each message, in which these verbs are replaced by parts of it.
On a terminal their control characters are escaped; --raw prints bodies as they are,
also control characters that a terminal obeys.

` + verbHelp + `

With --lite the command receives from these lite topics of a topic of type LITE, as a
consumer of its own. In a group whose lite topics have one consumer at a time, it takes
them from their consumers.

With --exec a program is run by the shell for each message, with the body as its
standard input and TIDEGATE_MESSAGE_ID, TIDEGATE_TOPIC, TIDEGATE_TAG, TIDEGATE_KEYS,
TIDEGATE_MESSAGE_GROUP, TIDEGATE_LITE_TOPIC, TIDEGATE_PRIORITY and TIDEGATE_ATTEMPT in
its environment. Its exit code is the fate of the message; the last line of its
standard error is the reason of a failure. The lease is extended while it runs.
  0            the message is consumed
  75           it is retried
  126, 127     it is retried: the program cannot be executed, or was not found
  129 to 192   it is retried: a signal has ended the program, also if a shell reports it
  other        it becomes a dead letter
If the programs of the first messages, as many as --workers, all end with 126 or
127, the command ends with an error before it takes more. If a share of --kill-switch
of the last 20 to 40 messages failed, it stops and tries a single message every 5 s
until one succeeds. If it ends meanwhile, or if all of 20 or more messages failed, its
exit code is 1.

After Ctrl-C and SIGTERM the command takes no more messages and waits for the
programs that run. After nine tenths of --stop-timeout, or when a lease is lost, a
program ends with all of its children, also those in the background; its message is
redelivered. Programs have no terminal, and Ctrl-C does not reach them. Their output
is passed on as it is.

With --exec-lines each worker has one program, which stays. It reads a message a line,
the JSON of -o jsonl, and prints a line for each: the id, and then with ack, retry,
retry=TIME or dead, and perhaps a reason. It is much faster than --exec. In Python:

  import json, sys
  for line in sys.stdin:
      message = json.loads(line)
      answer = {"id": message["id"], "then": "ack"}
      try:
          print("body:", message["body_text"], file=sys.stderr)
      except Exception as fault:
          answer.update(then="retry=10s", reason=repr(fault))
      print(json.dumps(answer), flush=True)

If the program ends, the message is retried and the next one starts a new program. A
line that is no verdict, or has another id, ends the program in the same way, and so
does the end of its output. If none of the first programs, as many as --workers, gives
a verdict, the command ends with an error. A lost lease ends a program at once. A
program that ends with 0 between two messages costs no attempt. At the end of the
command the input of the program ends.`,
		Example: `  tidegate receive billing orders --then release
  tidegate receive billing orders --then ack --max 100 -o jsonl
  tidegate receive billing orders --then release -f '%i %k %b\n'
  tidegate receive billing orders --exec ./charge.sh --workers 8
  tidegate receive agents sessions --lite session-17 --then ack`,
	}
	r.Call = a.Remote(c, []string{"GROUP", "TOPIC"}, func(ctx context.Context, _ *Call) error { return r.run(ctx) })
	f := c.Flags()
	f.IntVar(&r.max, "max", 0, "most messages; 0 means 10, and no end with --follow and --exec")
	f.DurationVar(&r.wait, "wait", 5*time.Second, "end when no message arrives for this `time`; with --exec only if it is given")
	f.BoolVar(&r.follow, "follow", false, "continue when there are no messages")
	f.StringVar(&r.tags, "filter", "", "only messages with one of these `tags`, separated by commas")
	f.StringVar(&r.sql, "sql", "", "only messages that match this SQL92 `expression`")
	f.StringArrayVar(&r.lite, "lite", nil, "receive from the lite topic with this `name`; may be repeated")
	f.StringVar(&r.then, "then", "", "`fate` of a printed message: release, ack, retry[=TIME], dead[=REASON] or ask")
	f.StringVar(&r.exec, "exec", "", "run this `program` for each message")
	f.StringVar(&r.execLines, "exec-lines", "", "run this `program` once for each worker, with messages and verdicts as lines")
	f.IntVar(&r.workers, "workers", 1, "programs that run at the same time")
	f.Float64Var(&r.killSwitch, "kill-switch", defaultKillSwitch, "with --exec and --exec-lines, pause if this `share` of the last messages failed; 0 means never")
	f.IntVar(&r.mostInRow, "max-failures-in-row", 0, "with --exec and --exec-lines, end with an error after `N` failures in a row; 0 means never")
	f.DurationVar(&r.stopTimeout, "stop-timeout", defaultStopTimeout, "with --exec and --exec-lines, most `time` from Ctrl-C to the end of the command")
	f.DurationVar(&r.lease, "lease", 30*time.Second, "invisible `time` of a received message")
	f.IntVar(&r.expect, "expect", 0, "exit with 7 after fewer than `N` messages")
	f.StringVarP(&r.form, "format", "f", "", "print this `text` for each message; %b is the body, and the help has all verbs")
	f.BoolVar(&r.raw, "raw", false, "print only the bodies, as they are, also on a terminal")
	f.StringVar(&r.dump, "dump", "", "write each body to a file in this `directory`")
	r.NoLimit("--max bounds the messages")
	return c
}

func (r *receiveCommand) run(ctx context.Context) error {
	sub, settle, err := r.plan()
	if err != nil {
		return r.Usage(err)
	}
	t, server, err := r.Transport(ctx)
	if err != nil {
		return err
	}
	if f := server.foreign(); f != nil && settle.delay == transport.BySchedule && !t.Capabilities(server.Host()).Verdicts.Has(transport.RetryTopic) {
		return errors.Join(usagef(r.Command, "%s has no retry schedule: give a time, for example --then retry=10s", f.name), t.Close())
	}
	if len(r.lite) > 0 {
		l, err := newLiteTransport(t, sub.Group, sub.Topic, named(r.lite))
		if err != nil {
			return errors.Join(r.Usage(fmt.Errorf("--lite: %w", err)), t.Close())
		}
		l.watch(r.Note)
		t = l
	}
	r.progress = !server.WithoutHTTP()
	if r.exec+r.execLines != "" {
		return errors.Join(r.explainLite(ctx, r.work(ctx, t, sub)), t.Close())
	}
	if r.progress && !server.Elsewhere() {
		r.announce(ctx, sub.Group)
	}
	return errors.Join(r.explainLite(ctx, r.look(ctx, t, sub, settle)), t.Close())
}

// announce prints a line if the group does not exist: the first receive creates it, also by a
// mistyped name. Without a response of the HTTP API it prints nothing.
func (r *receiveCommand) announce(ctx context.Context, group string) {
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	client, err := r.Admin(bounded)
	if err != nil {
		return
	}
	if _, err = client.Group(bounded, group); errors.Is(err, tidegate.ErrNotFound) {
		r.Note("group %s is new, and this receive creates it; if the name is wrong: %s", output.Safe(group),
			output.Mention(r.Here(output.Command(r.Command.Root().Name()+" group delete", group))))
	}
}

// plan checks the flags.
func (r *receiveCommand) plan() (sub consumer.Subscription, f fate, err error) {
	sub = consumer.Subscription{Group: r.Args[0], Topic: r.Args[1]}
	switch {
	case len(r.lite) > 0 && r.tags+r.sql != "":
		return sub, f, errors.New("--lite excludes --filter and --sql: lite topics have no filters")
	case r.tags != "" && r.sql != "":
		return sub, f, errors.New("--filter and --sql exclude each other")
	case r.tags != "":
		sub.Filter = consumer.Tags(strings.Split(r.tags, ",")...)
	case r.sql != "":
		sub.Filter = consumer.SQL(r.sql)
	}
	if err := checkLite(r.lite); err != nil {
		return sub, f, err
	}
	switch {
	case r.max < 0, r.expect < 0:
		return sub, f, errors.New("--max and --expect must not be negative")
	case r.workers < 1:
		return sub, f, fmt.Errorf("--workers is %d; it is at least 1", r.workers)
	case r.execLines != "" && r.exec+r.then != "":
		return sub, f, errors.New("--exec-lines, --exec and --then exclude each other")
	case r.exec != "" && r.then != "":
		return sub, f, errors.New("--exec and --then exclude each other: the exit code of the program decides the fate of a message")
	case r.mostInRow < 0:
		return sub, f, fmt.Errorf("--max-failures-in-row is %d; it is at least 0", r.mostInRow)
	case r.stopTimeout <= 0:
		return sub, f, fmt.Errorf("--stop-timeout is %v; it is above 0", r.stopTimeout)
	case !(r.killSwitch >= 0 && r.killSwitch <= 1):
		return sub, f, fmt.Errorf("--kill-switch is %v; it is from 0 to 1", r.killSwitch)
	case r.exec+r.execLines != "":
		return sub, f, nil
	}
	if r.max == 0 && !r.follow {
		r.max = 10
	}
	if r.form != "" {
		if r.raw || r.Format.Chosen != output.Table {
			return sub, f, errors.New("--format, --raw and --output exclude each other")
		}
		if r.format, err = parse(r.form, shownVerbs); err != nil {
			return sub, f, fmt.Errorf("--format: %w", err)
		}
	}
	f, err = r.fate()
	if err == nil && f.name == "release" && (r.follow || r.max > 1000) {
		err = errors.New("released messages would be redelivered without end: give --then, or --max up to 1000 without --follow")
	}
	return sub, f, err
}

// look receives, prints and settles messages.
func (r *receiveCommand) look(ctx context.Context, t Transport, sub consumer.Subscription, f fate) (err error) {
	if err := r.within(ctx, func(ctx context.Context) error { return t.Ping(ctx, sub.Topic) }); err != nil {
		return err
	}
	if r.then == "" && !t.Capabilities("").Verdicts.Has(transport.Snooze) {
		return usagef(r.Command, "this server counts each delivery as an attempt, also if the message is only looked at: choose the fate of messages with --then")
	}
	if f.name == "ask" {
		if !r.Command.Flags().Changed("lease") {
			r.lease = askingLease
		}
		r.asker = &asker{r, bufio.NewScanner(r.In)}
	}
	// The command waits for the server's response for a part of --wait, so that it ends in time.
	s, err := consumer.NewSimple(t, sub, consumer.SimpleOptions{InvisibleDuration: r.lease, LongPolling: min(max(r.wait, time.Second), 20*time.Second)})
	if err != nil {
		return r.Usage(err)
	}
	out := bufio.NewWriter(r.Out)
	if r.raw || r.form != "" {
		out.Reset(unfiltered(r.Out)) // the bodies as they are; a format has escapes for a terminal
	}
	var held []*tidegate.Delivery // released at the end, or they would come again
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	if f.name == "ack" {
		ack := func(ds []*tidegate.Delivery) []error {
			ctx, cancel := r.Bounded(context.WithoutCancel(ctx)) // also after Ctrl-C: they are printed
			defer cancel()
			return t.Ack(ctx, ds)
		}
		if r.follow {
			ack = persistent(ctx, r.lease, ack)
		}
		r.acks = newAcknowledger(ack, stop)
	}
	defer func() {
		if r.acks != nil {
			rest, aerr := r.acks.end()
			held, err = append(held, rest...), errors.Join(err, aerr)
		}
		err = errors.Join(err, out.Flush(), r.release(ctx, t, held))
	}()
	received, last := 0, time.Now()
	var outage outage
	for r.max == 0 || received < r.max {
		n := 32
		if r.max > 0 {
			n = min(n, r.max-received)
		}
		if f.name == "ask" {
			n = 1
		}
		ds, err := s.Receive(receiving, n)
		if ctx.Err() == nil && receiving.Err() != nil {
			held = append(held, ds...)
			return nil // an acknowledgement failed
		}
		if ctx.Err() != nil && len(ds) == 0 {
			if r.follow {
				break // the ordinary end
			}
			return fmt.Errorf("interrupted after %s: %w", output.Count(int64(received), "message"), context.Canceled)
		}
		if r.follow && outage.Outlived(r.Call, err) {
			if err != nil {
				_ = backoff.Sleep(ctx, time.Second) // the next round sees the end of ctx
				continue
			}
		} else if err != nil {
			return err
		}
		if len(ds) == 0 && !r.follow && time.Since(last) >= r.wait {
			break
		}
		if len(ds) > 0 {
			last = time.Now()
		}
		rest, end, err := r.printAll(ctx, t, out, received, ds, f)
		received += len(ds)
		held = append(held, rest...)
		if err != nil {
			return err
		}
		if end {
			break
		}
	}
	if received == 0 && !r.follow {
		more := ""
		if r.progress {
			more = fmt.Sprintf("; %s shows the group's progress", output.Mention(r.Here(output.Command(r.Command.Root().Name()+" group show", sub.Group))))
		}
		r.Note("no message of %s for group %s within %v%s", output.Safe(sub.Topic), output.Safe(sub.Group), r.wait, more)
	}
	if received < r.expect {
		return fmt.Errorf("%d of %d expected messages arrived: %w", received, r.expect, errPartly)
	}
	return nil
}

// printAll prints messages and settles them when the output has all of them. It returns those that
// are to be released, and whether a person has ended the command.
func (r *receiveCommand) printAll(ctx context.Context, t Transport, out *bufio.Writer, before int, ds []*tidegate.Delivery, f fate) (held []*tidegate.Delivery, end bool, err error) {
	n := len(ds)
	for i, d := range ds {
		if err = r.print(out, before+i+1, d); err != nil {
			n = i
			break
		}
	}
	if ferr := out.Flush(); ferr != nil {
		return ds, false, errors.Join(err, ferr) // the output may have lost them
	}
	if f.name == "ask" && n > 0 {
		f, end = r.asker.ask()
	}
	switch {
	case f.name == "release":
		return ds, end, err
	case r.acks != nil:
		r.acks.acknowledge(ds[:n])
		return ds[n:], end, err
	}
	for i, d := range ds[:n] {
		if serr := r.settle(ctx, t, d, f); serr != nil {
			return ds[i+1:], end, errors.Join(err, serr)
		}
	}
	return ds[n:], end, err
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
	case r.form != "":
		_, err := out.WriteString(r.format.Of(shown{d, r.Shown() || is(r.Out)}))
		return err
	case r.raw:
		_, err := fmt.Fprintf(out, "%s\n", d.Body)
		return err
	case r.JSON():
		return output.Line(out, httpapi.DeliveryOf(d, true, time.Now()))
	case r.Format.Chosen == output.Name:
		_, err := fmt.Fprintln(out, output.Word(d.ID))
		return err
	}
	fmt.Fprintf(out, "%s\n", output.Flow(head(d, r.Times.Chosen), r.Columns, 4))
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
	parts := append([]string{output.Safe(d.ID)}, place(d.Queue, d.Offset)...)
	if d.Attempt > 1 {
		parts = append(parts, fmt.Sprintf("attempt %d", d.Attempt))
	}
	parts = append(parts, labels(d.Tag, d.Keys, d.MessageGroup, d.LiteTopic, d.Priority)...)
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		parts = append(parts, output.Safe(name+"="+d.Properties[name]))
	}
	return append(parts, style.Time(d.BornAt, time.Now()))
}

// place returns the queue and the offset of a message, as far as the server reports them.
func place(queue int, offset int64) (parts []string) {
	if queue >= 0 {
		parts = append(parts, fmt.Sprintf("queue %d", queue))
	}
	if offset >= 0 {
		parts = append(parts, fmt.Sprintf("offset %d", offset))
	}
	return parts
}

// askingLease is the invisible time of a message with --then ask: a person reads it.
const askingLease = 5 * time.Minute

// An asker asks the user for the fate of each message.
type asker struct {
	r     *receiveCommand
	lines *bufio.Scanner // its reads end with the command
}

// ask returns the fate of the message that was printed last. Quit means that it is released, and
// that the command ends. The end of the input, and of the command, have the same effect.
func (a *asker) ask() (f fate, quit bool) {
	for {
		fmt.Fprint(a.r.Err, "[a]ck, [r]etry[=TIME], [d]ead[=REASON], [q]uit, or Enter to release: ")
		if !a.lines.Scan() {
			return fate{name: "release"}, true
		}
		f, quit, err := answer(a.lines.Text())
		if err == nil {
			return f, quit
		}
		a.r.Note("%v", err)
	}
}

// answer reads an answer: a word or its first letter, with a value after "="; an empty one
// releases.
func answer(line string) (f fate, quit bool, err error) {
	word, value, hasValue := strings.Cut(strings.TrimSpace(line), "=")
	if full := map[string]string{"": "release", "a": "ack", "r": "retry", "d": "dead", "q": "quit"}[word]; full != "" {
		word = full
	}
	if word == "quit" {
		return fate{name: "release"}, true, nil
	}
	if hasValue {
		word += "=" + value
	}
	f, err = parseFate(word)
	return f, false, err
}

// A fate is the end of a printed message.
type fate struct {
	name   string // release, ack, retry or dead
	delay  time.Duration
	reason string
}

// fate reads --then.
func (r *receiveCommand) fate() (fate, error) {
	switch {
	case r.then == "" && r.Terminal:
		return fate{name: "release"}, nil
	case r.then == "":
		return fate{}, errors.New("without a terminal --then is required: release, ack, retry or dead")
	case r.then == "ask" && !r.Terminal:
		return fate{}, errors.New("--then ask needs a terminal; otherwise it is release, ack, retry[=TIME] or dead[=REASON]")
	case r.then == "ask":
		return fate{name: "ask"}, nil
	}
	f, err := parseFate(r.then)
	if err != nil {
		return fate{}, fmt.Errorf("--then is %q; %w", r.then, err)
	}
	return f, nil
}

// parseFate reads the fate of a message.
func parseFate(text string) (fate, error) {
	const by = "by tidegate receive"
	name, value, hasValue := strings.Cut(text, "=")
	switch {
	case (name == "ack" || name == "release") && !hasValue:
		return fate{name: name}, nil
	case name == "dead":
		return fate{name: name, reason: cmp.Or(value, by)}, nil
	case name == "retry" && !hasValue:
		return fate{name: name, delay: transport.BySchedule, reason: by}, nil
	case name == "retry":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return fate{}, errors.New("the time of a retry is as in retry=5s")
		}
		return fate{name: name, delay: d, reason: by}, nil
	}
	return fate{}, errors.New("it is release, ack, retry[=TIME], dead[=REASON], or ask on a terminal")
}

// settle settles a printed message, also after Ctrl-C. With --follow it outlives a server that is
// away.
func (r *receiveCommand) settle(ctx context.Context, t Transport, d *tidegate.Delivery, f fate) error {
	once := func(ds []*tidegate.Delivery) []error {
		ctx, cancel := r.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		return []error{settle(ctx, t, ds[0], f)}
	}
	if r.follow {
		once = persistent(ctx, r.lease, once)
	}
	return once([]*tidegate.Delivery{d})[0]
}

func settle(ctx context.Context, t Transport, d *tidegate.Delivery, f fate) error {
	var err error
	switch f.name {
	case "ack":
		err = t.Ack(ctx, []*tidegate.Delivery{d})[0]
	case "retry":
		v := transport.Verdict{Kind: transport.Retry, Delay: f.delay, Reason: f.reason}
		if can := t.Capabilities(d.Endpoint); f.delay == transport.BySchedule && !can.RetryResult && can.Verdicts.Has(transport.RetryTopic) {
			v.Kind, v.Delay = transport.RetryTopic, 0 // the delay is that of the level
		}
		_, err = t.Settle(ctx, d, v)
	case "dead":
		_, err = t.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: f.reason})
	}
	if err != nil {
		return unsettled(d, err)
	}
	return nil
}

// release makes deliveries ready again without counting an attempt, where the server can. The
// oldest is the first, so that a receive that waits gets them in their order.
func (r *receiveCommand) release(ctx context.Context, t Transport, ds []*tidegate.Delivery) error {
	ctx, cancel := r.Bounded(context.WithoutCancel(ctx)) // also after Ctrl-C
	defer cancel()
	var first error
	failed := 0
	for _, d := range ds {
		if !t.Capabilities(d.Endpoint).Verdicts.Has(transport.Snooze) {
			continue // it comes again after the lease
		}
		if _, err := t.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze}); err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
			failed++
			first = errors.Join(first, err)
		}
	}
	if first != nil {
		return fmt.Errorf("%d of %d messages are redelivered after %v (--lease) and not at once: %w", failed, len(ds), r.lease, first)
	}
	return nil
}
