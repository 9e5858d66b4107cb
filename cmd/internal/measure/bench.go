// Package measure has the benchmark commands.
package measure

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/load"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/shell"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A benchCommand has the flags of the benchmarks.
type benchCommand struct {
	*call.Call
	bench.Options
	callers      []int
	rates        []string
	arrivals     string
	topic, group string
	intoExisting bool
	size         string
	load         load.Options
	rounds       int
	warmup       time.Duration
	maxP99       time.Duration
	file         string // of --json
	hdr, chart   string

	configs []bench.Options // each pair of callers and rate
	results []bench.Result  // one for each of configs
}

// Command returns bench.
func Command(a *call.App) *cobra.Command {
	return call.Parent(call.ToolGroup, "bench", "Measure rates and latencies, honestly", "  tidegate bench send --rate 5000",
		newBenchSend(a), newBenchReceive(a), newBenchE2E(a), newBenchCompare(a))
}

const loops = `Without --rate the callers send as fast as they can (a closed loop): this answers
"how much", and its latency is the service time under that many callers. With
--rate each message is due at a time (an open loop): this answers "how fast at
this rate". The response time is counted from the due time, so a message that
waits because the server hangs counts with its wait. A run that could not
keep its rate is marked, and the exit code is 7.

With several values of --callers or --rate each pair of them is measured, in turns,
and the result is a table with a row for each.`

func newBenchSend(a *call.App) *cobra.Command {
	b := &benchCommand{}
	cmd := b.register(a, &cobra.Command{
		Use:   "send",
		Short: "Measure sends: the rate, or the latency at a rate",
		Long: "Measures sends of a topic of its own, which it deletes at the end.\n\n" + loops + `

--async sends with SendAsync on one goroutine, with up to --callers messages under
way. --batch sends several messages at once. --verify receives all messages after
the last round, and counts lost, repeated and disordered messages.`,
		Example: `  tidegate bench send --callers 64
  tidegate bench send --callers 1,16,64 --duration 2s
  tidegate bench send --rate 1000,5000 --duration 30s --json send.json
  tidegate bench send --max-p99 20ms --duration 5s --chart send.svg`,
	}, sends)
	b.sendFlags(64)
	f := cmd.Flags()
	f.BoolVar(&b.Async, "async", false, "send with SendAsync on one goroutine; --callers bounds the messages under way")
	f.IntVar(&b.load.Batch, "batch", 1, "messages of one send; excludes --async and --rate")
	f.BoolVar(&b.load.Verify, "verify", false, "receive all messages after the last round, and count lost ones")
	return cmd
}

func newBenchReceive(a *call.App) *cobra.Command {
	b := &benchCommand{}
	cmd := b.register(a, &cobra.Command{
		Use:   "receive",
		Short: "Measure receives with their acknowledgements",
		Long: `Measures receives with their acknowledgements, as fast as the callers can. Before
each round it sends --messages to a topic of its own, which it deletes at the end;
their sends are not measured. A round ends when all are received, or after
--duration. The service time is that of a receive of up to --batch messages and of
their acknowledgement. It counts lost, repeated and disordered messages.

With --into-existing it consumes the messages of --group in --topic, also those of
others.

With several values of --callers each is measured, in turns, and the result is a
table with a row for each.`,
		Example: `  tidegate bench receive --messages 10000
  tidegate bench receive --callers 1,4 --messages 10000 --batch 8`,
	}, receives)
	f := cmd.Flags()
	f.IntSliceVar(&b.callers, "callers", []int{16}, "receives at the same time; several values make a table")
	f.IntVar(&b.load.Messages, "messages", 50_000, "messages that are sent before each round")
	f.IntVar(&b.load.Batch, "batch", 32, "most messages of one receive, up to 32")
	return cmd
}

func newBenchE2E(a *call.App) *cobra.Command {
	b := &benchCommand{load: load.Options{Batch: 1}}
	cmd := b.register(a, &cobra.Command{
		Use:   "e2e",
		Short: "Measure messages from their send to their handler, and that none is lost",
		Long:  "Measures messages from their send to the begin of their handler, in a topic of its\nown, which it deletes at the end. It counts lost, repeated and disordered\nmessages.\n\n" + loops,
		Example: `  tidegate bench e2e --rate 1000
  tidegate bench e2e --rate 1000 --groups 100`,
	}, endToEnd)
	b.sendFlags(1000)
	return cmd
}

// A newLoad returns the load of a benchmark.
type newLoad func(ctx context.Context, t connection.Transport, o load.Options) (load.Load, error)

func sends(_ context.Context, t connection.Transport, o load.Options) (load.Load, error) {
	return load.Sends(t, o)
}

func receives(_ context.Context, t connection.Transport, o load.Options) (load.Load, error) {
	return load.Receives(t, o)
}

func endToEnd(ctx context.Context, t connection.Transport, o load.Options) (load.Load, error) {
	return load.EndToEnd(ctx, t, o)
}

// register adds the flags of all benchmarks.
func (b *benchCommand) register(a *call.App, cmd *cobra.Command, begin newLoad) *cobra.Command {
	b.Call = a.Remote(cmd, nil, func(ctx context.Context, _ *call.Call) error { return b.run(ctx, begin) })
	f := cmd.Flags()
	f.DurationVar(&b.Duration, "duration", 10*time.Second, "time of a round")
	f.DurationVar(&b.warmup, "warmup", 2*time.Second, "time before the first round that is not measured")
	f.IntVar(&b.rounds, "rounds", 3, "rounds; the median is printed with the range")
	f.StringVar(&b.size, "size", "1KiB", "`bytes` of a body, at least 16: a size, uniform:MIN-MAX, or file:PATH for the content of a file; its first 16 bytes are a number if the benchmark receives the messages")
	f.IntVar(&b.load.Groups, "groups", 0, "message groups; 0 means messages without order")
	f.StringVar(&b.topic, "topic", "", "use this `topic`; needs --into-existing (default: one of its own)")
	f.StringVar(&b.group, "group", "", "consumer `group` with --into-existing, without other consumers (default bench)")
	f.BoolVar(&b.intoExisting, "into-existing", false, "use a topic that others use")
	f.StringVar(&b.file, "json", "", "also write the result to this `file`, for bench compare")
	f.StringVar(&b.hdr, "hdr", "", "also write the percentiles of all rounds to this `file`, in HdrHistogram's text form")
	f.StringVar(&b.chart, "chart", "", "also draw percentiles and the worst seconds into this `file`, as SVG")
	f.StringVar(&b.Yes, "yes", "", "on a protected context: --yes=`NAME` with the name of the context")
	b.Outstanding, b.arrivals = 1, string(bench.Even)
	return cmd
}

// sendFlags adds the flags of benchmarks that send while they measure.
func (b *benchCommand) sendFlags(callers int) {
	f := b.Command.Flags()
	f.IntSliceVar(&b.callers, "callers", []int{callers}, "messages under way at the same time; several values make a table")
	f.StringSliceVar(&b.rates, "rate", nil, "messages a second; 0 or max, the default, means as fast as the callers can; several values make a table")
	f.StringVar(&b.arrivals, "arrivals", string(bench.Even), "due times with --rate: even or poisson")
	f.DurationVar(&b.maxP99, "max-p99", 0, "search the highest rate whose p99 is at most this `latency`, and measure it")
	f.IntVar(&b.Outstanding, "outstanding", 100_000, "messages that may be due and not begun")
	f.Uint64Var(&b.Seed, "seed", 1, "seed of poisson arrivals")
}

func (b *benchCommand) run(ctx context.Context, begin newLoad) (err error) {
	b.Arrivals, b.Precise = bench.Arrivals(b.arrivals), true
	if err := b.check(); err != nil {
		return b.Usage(err)
	}
	server, err := b.Server()
	if err != nil {
		return err
	}
	if server.Protect && b.Yes != server.Name {
		return command.Usagef(b.Command, "the context %q is protected, and a benchmark loads its server: repeat the command with --yes=%s", server.Name, shell.Quote(server.Name))
	}
	remove, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	t, _, err := b.Transport(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	bounded, cancel := b.Bounded(ctx)
	err = t.Ping(bounded, b.load.Topic) // sends wait for a server that is away
	cancel()
	if err != nil {
		return err
	}
	if err := b.subscribe(ctx, t); err != nil {
		return err
	}
	l, err := begin(ctx, t, b.load)
	if err != nil {
		return err
	}
	runErr := b.measured(ctx, t, l)
	truth, truthErr := l.Truth(ctx)
	for i := range b.results {
		b.results[i].Truth = truth
	}
	if err := errors.Join(runErr, truthErr, l.Close()); err != nil && ctx.Err() == nil {
		return err
	}
	return errors.Join(b.report(), ctx.Err())
}

// prepare sets the topic and the group. It returns the function that removes them at the end, also
// after Ctrl-C.
func (b *benchCommand) prepare(ctx context.Context) (remove func() error, err error) {
	if b.topic != "" {
		b.load.Topic, b.load.Group = b.topic, cmp.Or(b.group, "bench")
		return func() error { return nil }, nil
	}
	client, err := b.Admin(ctx)
	if errors.Is(err, command.ErrUnsupported) {
		return nil, command.Usagef(b.Command, "this server has no HTTP API to create a topic: create one (on RocketMQ with mqadmin updateTopic, on Artemis with artemis address create), and give it with --topic NAME --into-existing")
	}
	if err != nil {
		return nil, err
	}
	bounded, cancel := b.Bounded(ctx)
	defer cancel()
	name := "bench-" + tidegate.NewMessageID()
	s := settings.Topic{Type: settings.TopicNormal}
	if b.load.Groups > 0 {
		s.Type = settings.TopicFIFO
	}
	if _, err := client.PutTopic(bounded, name, s); err != nil {
		return nil, err
	}
	if b.load.Groups > 0 { // else the first receive creates the group
		if _, err := client.PutGroup(bounded, name, settings.Group{FIFO: true}); err != nil {
			return nil, errors.Join(err, client.DeleteTopic(bounded, name))
		}
	}
	b.load.Topic, b.load.Group = name, name
	return func() error {
		ctx, cancel := b.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		err := client.DeleteGroup(ctx, name)
		if errors.Is(err, tidegate.ErrNotFound) {
			err = nil // nothing was received
		}
		return errors.Join(err, client.DeleteTopic(ctx, name))
	}, nil
}

// subscribe makes sure that the group has a position in an existing topic before the first message
// of the benchmark is sent. It settles nothing.
func (b *benchCommand) subscribe(ctx context.Context, t connection.Transport) error {
	server, err := b.Server()
	if err != nil {
		return err
	}
	receives := b.load.Verify || b.Command.Name() == "receive"
	switch {
	case server.Kind == connection.AMQP && (receives || b.Command.Name() == "e2e"):
		return b.createQueue(ctx, t)
	case !b.intoExisting || !receives:
		return nil
	}
	s, err := consumer.NewSimple(t, consumer.Subscription{Group: b.load.Group, Topic: b.load.Topic}, consumer.SimpleOptions{InvisibleDuration: 10 * time.Second, LongPolling: 5 * time.Second})
	if err == nil {
		_, err = s.Receive(ctx, 1)
	}
	return err
}

// createQueue creates the queue of the group on an Artemis, which discards the messages that were
// sent before. It releases a message of an earlier benchmark.
func (b *benchCommand) createQueue(ctx context.Context, t connection.Transport) error {
	ctx, cancel := b.Bounded(ctx)
	defer cancel()
	ds, err := t.Receive(ctx, transport.ReceiveRequest{
		Group: b.load.Group, Topic: b.load.Topic, Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute, Wait: time.Millisecond,
	})
	for _, d := range ds {
		err = errors.Join(err, t.Release(ctx, d))
	}
	queue := b.load.Topic + "." + b.load.Group
	b.Note("the queue %s stays; %s removes it", output.Safe(queue), shell.Mention("artemis queue delete --name "+shell.Quote(queue)))
	return err
}
