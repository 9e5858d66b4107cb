package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
)

// A sendCommand has the flags of send.
type sendCommand struct {
	*Call
	lines, jsonLines bool
	template         bool
	count            int64
	rate             float64
	id, tag, group   string
	lite             string
	priority         int
	keys, properties []string
	in               time.Duration
	at               string
	spoolDir         string
	deadline         time.Duration
	waiting          *note
}

func newSend(a *App) *cobra.Command {
	s := &sendCommand{}
	c := &cobra.Command{
		Use: "send", GroupID: messageGroup,
		Short: "Send messages: an argument, standard input, a file, or a message for each line",
		Long: `Sends messages and prints their receipts. The body is an argument, - for standard
input, or @FILE for the content of a file; without it the body is standard input.

With --lines each line of standard input is the body of a message; empty lines are
skipped. With --jsonl each line is a JSON object: body (in base64) or body_text, and
optionally id, tag, keys, properties, message_group, lite_topic, priority,
trace_context, and deliver_at or deliver_after. The first line that is not one JSON object in UTF-8 ends the command.
A throttled send waits and is tried again; --ack-timeout bounds each message.

With --spool a message that no server accepts goes to the directory, which survives
a crash and a full disk, and exit code 0 means that each message is at the server or
there. Each send with this directory delivers its messages, also those of earlier
commands, and waits for that while the server accepts them; with --lines and an empty
input it does nothing else. A message that does not fit on the disk fails.

--jsonl accepts the lines that peek, find, receive and dead-letters export print with
-o jsonl. The place, the past times and the lease of the message that was read are
ignored.
The new message has its id, which a topic stores once within its duplicate window;
leave out id for a new one.

With --template these verbs stand for values in BODY, --key, --tag, --message-group,
--lite-topic and the values of --property:

` + templateHelp + `

With --lines it then needs a BODY, in which %l is the line.`,
		Example: `  tidegate send orders 'order 42' --tag created --key 42
  tidegate send orders @invoice.pdf -p type=pdf
  tidegate send reminders 'remind me' --in 10m
  tidegate send orders '{"order": %n}' --template --key '%n' --count 100
  seq 1000000 | tidegate send orders --lines
  tidegate send copies --jsonl < orders.jsonl`,
	}
	s.Call = a.Remote(c, []string{"TOPIC", "[BODY]"}, func(ctx context.Context, _ *Call) error { return s.run(ctx) })
	f := c.Flags()
	f.BoolVar(&s.lines, "lines", false, "each line of standard input is a message")
	f.BoolVar(&s.jsonLines, "jsonl", false, "each line of standard input is a message as JSON")
	f.BoolVar(&s.template, "template", false, "BODY and other texts have verbs: %n is the number of the message")
	f.Int64Var(&s.count, "count", 1, "send the body `N` times")
	f.Float64Var(&s.rate, "rate", 0, "most messages a second; 0 means no limit")
	f.StringVar(&s.id, "id", "", "message `ID` (default: a new one)")
	f.StringVar(&s.tag, "tag", "", "`tag` for filters")
	f.StringVar(&s.group, "message-group", "", "`name` of the message group, for order; for topics of type FIFO")
	f.StringVar(&s.lite, "lite-topic", "", "`name` of the lite topic below TOPIC, which the first message creates; for topics of type LITE")
	f.IntVar(&s.priority, "priority", 0, "`number` from 0, the lowest; for topics of type PRIORITY")
	f.StringArrayVar(&s.keys, "key", nil, "`key` for looking the message up; may be repeated")
	f.StringArrayVarP(&s.properties, "property", "p", nil, "property as `NAME=VALUE`; may be repeated")
	f.DurationVar(&s.in, "in", 0, "deliver after this `duration`; for topics of type DELAY")
	f.StringVar(&s.at, "at", "", "deliver at this `time`; for topics of type DELAY")
	f.StringVar(&s.spoolDir, "spool", "", "keep messages in this `directory` while no server accepts them")
	f.DurationVar(&s.deadline, "ack-timeout", 30*time.Second, "bound of each message, with all its attempts")
	return c
}

func (s *sendCommand) run(ctx context.Context) error {
	messages, err := s.messages()
	if err != nil {
		return s.Usage(err)
	}
	p, kept, closeAll, err := s.producer(ctx)
	if err != nil {
		return err
	}
	sent := newSending(s, p)
	if sent.kept = kept; kept != nil {
		sent.rejected = kept.Stats().Rejected
	}
	err = sent.all(ctx, messages)
	return errors.Join(err, closeAll())
}

// producer connects, and opens the spool if there is one. The returned function ends everything.
func (s *sendCommand) producer(ctx context.Context) (*producer.Producer, *spool.Spool, func() error, error) {
	t, server, err := s.Transport(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	s.waiting = &note{Out: s.WaitingNotes(), Address: server.Address(), Bound: s.deadline}
	o := producer.Options{OnAttempt: s.waiting.Observe, Logger: slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: slog.LevelError}))}
	var kept *spool.Spool
	if s.spoolDir != "" {
		if kept, err = spool.Open(s.spoolDir, spool.Options{}); err != nil {
			return nil, nil, nil, errors.Join(err, t.Close())
		}
		o.Spool = kept
	}
	p, err := producer.New(t, o)
	if err != nil {
		return nil, nil, nil, errors.Join(err, t.Close())
	}
	return p, kept, func() error {
		err := errors.Join(p.Close(), t.Close())
		if kept != nil {
			err = errors.Join(err, kept.Close())
		}
		return err
	}, nil
}

// messages returns the source of the messages: a function that returns io.EOF at the end.
func (s *sendCommand) messages() (func() (*tidegate.Message, error), error) {
	if s.count < 1 {
		return nil, fmt.Errorf("--count is %d; it is at least 1", s.count)
	}
	if s.lines && s.jsonLines {
		return nil, errors.New("--lines and --jsonl exclude each other")
	}
	model, err := s.model()
	if err != nil {
		return nil, err
	}
	if s.lines || s.jsonLines {
		switch {
		case s.template && s.jsonLines:
			return nil, errors.New("--template and --jsonl exclude each other")
		case s.template && len(s.Args) < 2:
			return nil, errors.New("--template with --lines needs a BODY, in which %l is the line")
		case s.template:
			if s.count != 1 || s.id != "" {
				return nil, errors.New("--count and --id do not belong to --lines")
			}
			return s.templateLines(model)
		case len(s.Args) > 1:
			return nil, fmt.Errorf("with --lines and --jsonl the messages come from standard input; remove %q", s.Args[1])
		case s.count != 1:
			return nil, errors.New("--count belongs to a body, not to --lines and --jsonl")
		case s.id != "":
			return nil, errors.New("--id belongs to one message, not to --lines and --jsonl")
		}
		return declare.Lines(s.In, model, s.jsonLines), nil
	}
	if model.Body, err = s.body(); err != nil {
		return nil, err
	}
	if s.id != "" && s.count > 1 {
		return nil, errors.New("--id belongs to one message: messages with the same ID are duplicates")
	}
	next := func() *tidegate.Message { return model }
	if s.template {
		t, err := newTemplate(model, string(model.Body))
		if err != nil {
			return nil, err
		}
		next = func() *tidegate.Message { return t.next("") }
	}
	left := s.count
	return func() (*tidegate.Message, error) {
		if left == 0 {
			return nil, io.EOF
		}
		left--
		return next(), nil
	}, nil
}

// templateLines returns a message for each line of standard input.
func (s *sendCommand) templateLines(model *tidegate.Message) (func() (*tidegate.Message, error), error) {
	t, err := newTemplate(model, s.Args[1])
	if err != nil {
		return nil, err
	}
	lines := declare.Lines(s.In, &tidegate.Message{}, false)
	return func() (*tidegate.Message, error) {
		m, err := lines()
		if err != nil {
			return nil, err
		}
		return t.next(string(m.Body)), nil
	}, nil
}

// model is the message of the flags, without a body.
func (s *sendCommand) model() (*tidegate.Message, error) {
	m := &tidegate.Message{ID: s.id, Topic: s.Args[0], Tag: s.tag, Keys: s.keys, MessageGroup: s.group, LiteTopic: s.lite, Priority: s.priority}
	for _, p := range s.properties {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--property is %q; the form is NAME=VALUE", p)
		}
		if m.Properties == nil {
			m.Properties = map[string]string{}
		}
		if _, twice := m.Properties[name]; twice {
			return nil, fmt.Errorf("--property %s is given twice; a property has one value", name)
		}
		m.Properties[name] = value
	}
	switch {
	case s.in != 0 && s.at != "":
		return nil, errors.New("--in and --at exclude each other")
	case s.in < 0:
		return nil, fmt.Errorf("--in is %v; it must not be negative", s.in)
	case s.in > 0:
		m.DeliverAt = time.Now().Add(s.in)
	case s.at != "":
		at, err := output.ParseTime(s.at, time.Now())
		if err != nil {
			return nil, fmt.Errorf("--at: %w", err)
		}
		m.DeliverAt = at
	}
	return m, nil
}

func (s *sendCommand) body() ([]byte, error) {
	text := "-"
	if len(s.Args) > 1 {
		text = s.Args[1]
	}
	if file, ok := strings.CutPrefix(text, "@"); ok {
		return os.ReadFile(file)
	}
	if text != "-" {
		return []byte(text), nil
	}
	if s.Terminal && len(s.Args) == 1 {
		return nil, errors.New("BODY is missing; - reads standard input until its end")
	}
	return io.ReadAll(s.In)
}

// A sending is one run of send. Results come on goroutines of the producer; mu guards the fields
// below it.
type sending struct {
	*sendCommand
	p        *producer.Producer
	started  time.Time
	single   bool         // each receipt is printed, also on a terminal
	kept     *spool.Spool // nil without --spool
	rejected int          // messages of kept at the beginning that can never be sent
	read     atomic.Int64 // messages that were begun

	mu       sync.Mutex
	out      *bufio.Writer
	accepted int64
	spooled  int64
	failed   int64
	first    error // of the failed sends
	outErr   error
}

func newSending(s *sendCommand, p *producer.Producer) *sending {
	return &sending{
		sendCommand: s, p: p, started: time.Now(), out: bufio.NewWriter(s.Out),
		single: !s.lines && !s.jsonLines && s.count == 1 || s.JSON() || s.Format.Chosen == output.Name,
	}
}

// all sends the messages and waits for their results.
func (r *sending) all(ctx context.Context, next func() (*tidegate.Message, error)) error {
	var limit *rate.Limiter
	if r.rate > 0 {
		limit = rate.NewLimiter(rate.Limit(r.rate), 1)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var watcher sync.WaitGroup
	watcher.Go(func() { r.waiting.Watch(watching, r.progress) })
	// After Ctrl-C messages under way may still be stored. Without a server there are none.
	abort, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	defer context.AfterFunc(ctx, func() { r.waiting.Interrupted(func() { cut(context.Cause(ctx)) }) })()
	var inFlight sync.WaitGroup
	err := r.feed(ctx, abort, next, limit, &inFlight)
	inFlight.Wait()
	stop()
	watcher.Wait()
	if r.kept != nil && err == nil {
		err = r.deliver(ctx)
	}
	return r.result(err)
}

const (
	deliverStep = 50 * time.Millisecond
	deliverIdle = 2 * time.Second // without progress, after a failed attempt
)

// deliver waits until the server has the messages of the spool. It ends when the server is away, or
// has accepted none of them for the bound of a message.
func (r *sending) deliver(ctx context.Context) error {
	before := r.kept.Stats().Pending
	for left, since := before, time.Now(); left > 0; {
		if backoff.Sleep(ctx, deliverStep) != nil {
			return r.interrupted()
		}
		n := r.kept.Stats().Pending
		if n != left {
			left, since = n, time.Now()
		}
		r.mu.Lock()
		never := r.accepted == r.spooled && n >= before // the server has none of the messages
		r.mu.Unlock()
		if idle := time.Since(since); r.waiting.Down() && (never || idle >= deliverIdle) || idle >= r.deadline {
			return nil
		}
	}
	return nil
}

// progress returns the number of messages with a result, and of those under way.
func (r *sending) progress() (results, underWay int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	results = r.accepted + r.failed
	return results, r.read.Load() - results
}

func (r *sending) feed(ctx, abort context.Context, next func() (*tidegate.Message, error), limit *rate.Limiter, inFlight *sync.WaitGroup) error {
	for {
		m, err := next()
		if err == io.EOF { //nolint:errorlint // the end of the input is io.EOF itself; a wrapped one is a fault
			return nil
		}
		if err != nil && ctx.Err() != nil {
			return r.interrupted() // also a wait for input
		}
		if err != nil {
			return r.Usage(err)
		}
		if limit != nil && limit.Wait(ctx) != nil || ctx.Err() != nil {
			return r.interrupted()
		}
		if err := r.broken(); err != nil {
			return err
		}
		sendCtx, cancel := context.WithTimeoutCause(abort, r.deadline, fmt.Errorf("the message was not accepted within %v (--ack-timeout): %w", r.deadline, context.DeadlineExceeded))
		inFlight.Add(1)
		r.read.Add(1)
		err = r.p.SendAsync(sendCtx, m, func(receipt tidegate.Receipt, err error) {
			cancel()
			r.done(receipt, err)
			inFlight.Done()
		})
		if err != nil {
			cancel()
			inFlight.Done()
			r.done(tidegate.Receipt{}, err)
		}
	}
}

// interrupted is the error after Ctrl-C: messages under way end, and the rest is not read.
func (r *sending) interrupted() error {
	n := r.read.Load()
	rest := ""
	if r.lines || r.jsonLines {
		rest = fmt.Sprintf("; 'tail -n +%d' of the input is the rest, if it has no empty lines", n+1)
	}
	return fmt.Errorf("interrupted after %s%s: %w", output.Count(n, "message"), rest, context.Canceled)
}

// broken returns the error of the output, for example of a closed pipe.
func (r *sending) broken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outErr
}

// A receipt is a Receipt with the JSON names of the HTTP API.
type receipt struct {
	ID            string `json:"id"`
	Topic         string `json:"topic"`
	Queue         *int   `json:"queue,omitempty"`
	Offset        *int64 `json:"offset,omitempty"`
	RecallHandle  string `json:"recall_handle,omitempty"`
	TransactionID string `json:"transaction_id,omitempty"`
	Attempts      int    `json:"attempts"`
	Spooled       bool   `json:"spooled,omitempty"`
}

func (r *sending) done(from tidegate.Receipt, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed++
		if r.first == nil {
			r.first = err
		}
		return
	}
	r.accepted++
	if from.Spooled {
		r.spooled++
	}
	if r.single && r.outErr == nil {
		r.outErr = r.line(from)
	}
}

// line prints one receipt. The caller holds mu.
func (r *sending) line(from tidegate.Receipt) error {
	out := receipt{from.MessageID, from.Topic, nil, nil, from.RecallHandle, from.TransactionID, from.Attempts, from.Spooled}
	if from.Queue >= 0 {
		out.Queue = &from.Queue
	}
	if from.Offset >= 0 {
		out.Offset = &from.Offset
	}
	switch {
	case r.Format.Chosen == output.JSON && r.count == 1 && !r.lines && !r.jsonLines:
		return output.Encode(r.out, out)
	case r.JSON():
		return output.Line(r.out, out)
	case r.Format.Chosen == output.Name:
		_, err := fmt.Fprintln(r.out, output.Word(out.ID))
		return err
	}
	fields := []output.Field{{Name: "id", Value: out.ID}, {Name: "topic", Value: out.Topic}}
	if out.Queue != nil {
		fields = append(fields, output.Field{Name: "queue", Value: *out.Queue})
	}
	if out.Queue != nil && out.Offset != nil { // gRPC has the offset alone, which says nothing
		fields = append(fields, output.Field{Name: "offset", Value: *out.Offset})
	}
	if out.Spooled {
		fields = append(fields, output.Field{Name: "spooled", Value: "no server has it yet; it is in " + r.spoolDir})
	}
	if out.Attempts > 1 {
		fields = append(fields, output.Field{Name: "attempts", Value: out.Attempts})
	}
	fields = append(fields, output.Field{Name: "recall handle", Value: out.RecallHandle})
	return output.Fields(r.out, r.Options(), fields)
}

// result prints the summary and returns the error of the run.
func (r *sending) result(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outErr = errors.Join(r.outErr, r.out.Flush())
	if !r.single || r.accepted+r.failed != 1 {
		took := time.Since(r.started)
		r.Note("%s accepted, %s failed in %s (%s a second)", output.Number(r.accepted), output.Number(r.failed),
			output.Duration(took), output.Number(int64(float64(r.accepted)/max(took.Seconds(), 1e-3))))
	}
	if r.kept != nil {
		now := r.kept.Stats()
		if now.Pending > 0 {
			r.Note("%s in %s, also of earlier commands: send again with --spool to deliver them", output.Count(int64(now.Pending), "message"), r.spoolDir)
		}
		if n := now.Rejected - r.rejected; n > 0 {
			err = errors.Join(err, fmt.Errorf("the server rejects %s of %s, which stay there for Requeue or Discard of package producer/spool (%w)", output.Count(int64(n), "message"), r.spoolDir, errPartly))
		}
	}
	switch {
	case errors.Is(err, context.Canceled) && r.failed > 0:
		err = fmt.Errorf("%w; %s messages failed, the first with: %v", err, output.Number(r.failed), r.first) //nolint:errorlint // the interruption decides the exit code
	case r.failed > 0 && r.accepted > 0:
		err = errors.Join(err, fmt.Errorf("%s of %s messages failed, the first with: %w (%w)", output.Number(r.failed), output.Number(r.failed+r.accepted), r.first, errPartly))
	case r.failed > 0:
		err = errors.Join(err, r.first)
	}
	return errors.Join(err, r.outErr)
}

func newRecall(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use: "recall", GroupID: messageGroup,
		Short:   "Cancel a delayed message by the recall handle of its receipt",
		Example: "  tidegate recall reminders HANDLE",
	}, []string{"TOPIC", "HANDLE"}, func(ctx context.Context, c *Call) error {
		t, _, err := c.Transport(ctx)
		if err != nil {
			return err
		}
		recaller, ok := t.(transport.Recaller)
		if !ok {
			return errors.Join(c.Unsupported(), t.Close())
		}
		bounded, cancel := c.Bounded(ctx)
		defer cancel()
		id, err := recaller.Recall(bounded, c.Args[0], c.Args[1])
		if err := errors.Join(err, t.Close()); err != nil {
			return err
		}
		return c.Show(map[string]string{"id": id}, id, []output.Field{{Name: "recalled", Value: id}})
	})
}
