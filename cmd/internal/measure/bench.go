// Package measure has the benchmark commands.
package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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
)

// A benchCommand has the flags of bench send and bench e2e.
type benchCommand struct {
	*call.Call
	bench.Options
	arrivals     string
	topic        string
	intoExisting bool
	size         string
	bodies       bench.Bodies
	groups       int
	rounds       int
	warmup       time.Duration
	maxP99       time.Duration
	file         string // of --json
	hdr, chart   string
}

// Command returns bench.
func Command(a *call.App) *cobra.Command {
	return call.Parent(call.ToolGroup, "bench", "Measure rates and latencies, honestly", "  tidegate bench send --rate 5000",
		newBenchSend(a), newBenchE2E(a), newBenchCompare(a))
}

const loops = `Without --rate the callers send as fast as they can (a closed loop): this answers
"how much", and its latency is the service time under that many callers. With
--rate each message is due at a time (an open loop): this answers "how fast at
this rate". The response time is counted from the due time, so a message that
waits because the server stands still counts with its wait. A run that could not
keep its rate is marked, and the exit code is 7.`

func newBenchSend(a *call.App) *cobra.Command {
	return newBenchLoad(a, &cobra.Command{
		Use:   "send",
		Short: "Measure sends: the rate, or the latency at a rate",
		Long:  "Measures sends of a topic of its own, which it deletes at the end.\n\n" + loops,
		Example: `  tidegate bench send --callers 64
  tidegate bench send --rate 5000 --duration 30s --json send.json --chart send.svg
  tidegate bench send --max-p99 20ms --duration 5s`,
	}, 64, sends)
}

func newBenchE2E(a *call.App) *cobra.Command {
	return newBenchLoad(a, &cobra.Command{
		Use:   "e2e",
		Short: "Measure messages from their send to their handler, and that none is lost",
		Long:  "Measures messages from their send to the begin of their handler, in a topic of its\nown, which it deletes at the end. It counts messages that were lost, came twice or\nout of order.\n\n" + loops,
		Example: `  tidegate bench e2e --rate 1000
  tidegate bench e2e --rate 1000 --groups 100`,
	}, 1000, endToEnd)
}

// A newLoad returns what a benchmark measures, and what removes more than its topic.
type newLoad func(ctx context.Context, b *benchCommand, t connection.Transport, o load.Options) (load.Load, func() error, error)

func sends(_ context.Context, _ *benchCommand, t connection.Transport, o load.Options) (load.Load, func() error, error) {
	l, err := load.Sends(t, o)
	return l, func() error { return nil }, err
}

func endToEnd(ctx context.Context, b *benchCommand, t connection.Transport, o load.Options) (load.Load, func() error, error) {
	if b.intoExisting {
		l, err := load.EndToEnd(ctx, t, o, "bench")
		return l, func() error { return nil }, err
	}
	group := "bench-" + tidegate.NewMessageID()
	l, err := load.EndToEnd(ctx, t, o, group)
	return l, func() error { return b.removeGroup(ctx, group) }, err
}

// removeGroup deletes the consumer group of a topic of its own.
func (b *benchCommand) removeGroup(ctx context.Context, group string) error {
	client, err := b.Admin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := b.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	if err := client.DeleteGroup(ctx, group); !errors.Is(err, tidegate.ErrNotFound) {
		return err
	}
	return nil
}

func newBenchLoad(a *call.App, cmd *cobra.Command, callers int, begin newLoad) *cobra.Command {
	b := &benchCommand{}
	b.Call = a.Remote(cmd, nil, func(ctx context.Context, _ *call.Call) error { return b.run(ctx, begin) })
	f := cmd.Flags()
	f.IntVar(&b.Callers, "callers", callers, "messages under way at the same time")
	f.Float64Var(&b.Rate, "rate", 0, "messages a second; 0 means as fast as the callers can")
	f.StringVar(&b.arrivals, "arrivals", "even", "due times with --rate: even or poisson")
	f.DurationVar(&b.Duration, "duration", 10*time.Second, "time of a round")
	f.DurationVar(&b.warmup, "warmup", 2*time.Second, "time before the first round that is not measured")
	f.IntVar(&b.rounds, "rounds", 3, "rounds; the median is printed with the range")
	f.DurationVar(&b.maxP99, "max-p99", 0, "search the highest rate whose p99 is at most this `latency`, and measure it")
	f.StringVar(&b.size, "size", "1KiB", "`bytes` of a body, at least 16: a size, uniform:MIN-MAX, or file:PATH for the content of a file")
	f.IntVar(&b.groups, "groups", 0, "message groups; 0 means messages without order")
	f.IntVar(&b.Outstanding, "outstanding", 100_000, "messages that may be due and not begun")
	f.Uint64Var(&b.Seed, "seed", 1, "seed of poisson arrivals")
	f.StringVar(&b.topic, "topic", "", "send to this `topic`; needs --into-existing (default: one of its own)")
	f.BoolVar(&b.intoExisting, "into-existing", false, "send to a topic that others use")
	f.StringVar(&b.file, "json", "", "also write the result to this `file`, for bench compare")
	f.StringVar(&b.hdr, "hdr", "", "also write the percentiles of all rounds to this `file`, in HdrHistogram's text form")
	f.StringVar(&b.chart, "chart", "", "also draw percentiles and the worst seconds into this `file`, as SVG")
	f.StringVar(&b.Yes, "yes", "", "on a protected context: --yes=`NAME` with the name of the context")
	return cmd
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
		return command.Usagef(b.Command, "the context %q is protected, and a benchmark loads its server: repeat the command with --yes=%s", server.Name, server.Name)
	}
	topic, remove, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	t, _, err := b.Transport(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	l, removeMore, err := begin(ctx, b, t, load.Options{Topic: topic, Callers: b.Callers, Groups: b.groups, Bodies: b.bodies, Log: b.Err})
	if err != nil {
		return err
	}
	result, runErr := b.measured(ctx, t, l)
	result.Truth = l.Truth(ctx)
	if err := errors.Join(runErr, l.Close(), removeMore()); err != nil && ctx.Err() == nil {
		return err
	}
	return errors.Join(b.report(result), ctx.Err())
}

func (b *benchCommand) check() error {
	switch {
	case b.rounds < 1:
		return fmt.Errorf("--rounds is %d; it is at least 1", b.rounds)
	case b.maxP99 < 0:
		return fmt.Errorf("--max-p99 is %v; it must be positive", b.maxP99)
	case b.groups < 0:
		return fmt.Errorf("--groups is %d; 0 means none", b.groups)
	case b.topic != "" && !b.intoExisting:
		return errors.New("--topic needs --into-existing: the messages of a benchmark reach the consumers of the topic")
	}
	var err error
	if b.bodies, err = bench.ParseBodies(b.size); err != nil {
		return err
	}
	return b.Validate()
}

// prepare returns the topic, and what removes it at the end, also after Ctrl-C.
func (b *benchCommand) prepare(ctx context.Context) (topic string, remove func() error, err error) {
	if b.topic != "" {
		return b.topic, func() error { return nil }, nil
	}
	client, err := b.Admin(ctx)
	if errors.Is(err, command.ErrUnsupported) {
		return "", nil, command.Usagef(b.Command, "on RocketMQ create a topic with mqadmin updateTopic, and give it with --topic NAME --into-existing")
	}
	if err != nil {
		return "", nil, err
	}
	bounded, cancel := b.Bounded(ctx)
	defer cancel()
	topic = "bench-" + tidegate.NewMessageID()
	s := settings.Topic{Type: settings.TopicNormal}
	if b.groups > 0 {
		s.Type = settings.TopicFIFO
	}
	if _, err := client.PutTopic(bounded, topic, s); err != nil {
		return "", nil, err
	}
	return topic, func() error {
		ctx, cancel := b.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		return client.DeleteTopic(ctx, topic)
	}, nil
}

// measured searches for the rate if --max-p99 asks for it, and measures.
func (b *benchCommand) measured(ctx context.Context, t connection.Transport, l load.Load) (bench.Result, error) {
	r := bench.Result{Schema: 1, Benchmark: b.Command.Name(), Arguments: map[string]string{}, System: bench.System()}
	if s, err := b.Server(); err == nil {
		r.System["same_machine"] = fmt.Sprint(connection.Local(s.GRPC))
	}
	for _, name := range []string{"callers", "rate", "arrivals", "duration", "size", "groups", "max-p99"} {
		r.Arguments[name] = b.Command.Flags().Lookup(name).Value.String()
	}
	if b.warmup > 0 {
		o := b.Options
		o.Duration = b.warmup
		if _, err := bench.Run(ctx, o, l.Operation); err != nil {
			return r, err
		}
	}
	if b.maxP99 > 0 {
		if err := b.search(ctx, l, &r); err != nil {
			return r, err
		}
	}
	err := b.measure(ctx, t, l, &r)
	return r, err
}

// search sets the rate to the highest one that holds --max-p99. Its first upper bound is --rate, or
// the rate of a closed loop.
func (b *benchCommand) search(ctx context.Context, l load.Load, r *bench.Result) error {
	o := b.Options
	if o.Rate == 0 {
		most, err := bench.Run(ctx, o, l.Operation)
		if err != nil {
			return err
		}
		o.Rate = most.Achieved
	}
	bound := float64(b.maxP99) / 1e3
	s := bench.Search{High: o.Rate}
	for {
		rate, ok := s.Next()
		if !ok {
			break
		}
		o.Rate = rate
		round, err := bench.Run(ctx, o, l.Operation)
		if err != nil {
			return err
		}
		holds := bench.Holds(round, bound)
		r.Searched = append(r.Searched, bench.Searched{Rate: rate, P99: round.Response.P99, Holds: holds})
		b.Note("%s a second: %s", output.Number(int64(rate)), map[bool]string{true: "holds, ", false: "does not hold, "}[holds]+round.Text())
		s.Tried(rate, holds)
	}
	if s.Low == 0 {
		return fmt.Errorf("no rate from %s a second on has a p99 of at most %v (--max-p99): %w", output.Number(int64(s.High)), b.maxP99, command.ErrPartly)
	}
	b.Rate = s.Low
	return nil
}

// measure runs the rounds.
func (b *benchCommand) measure(ctx context.Context, t connection.Transport, l load.Load, out *bench.Result) error {
	for n := range b.rounds {
		floor, err := b.floor(ctx, t)
		if err != nil {
			return err
		}
		r, err := bench.Run(ctx, b.Options, l.Operation)
		if err != nil {
			return err
		}
		r.Floor = floor
		out.Rounds = append(out.Rounds, r)
		if b.Terminal {
			b.Note("round %d of %d: %s", n+1, b.rounds, r.Text())
		}
	}
	return nil
}

// floorPings is the number of empty requests before a round.
const floorPings = 200

// floor measures an empty request to the server: the latency that no send can have less of.
func (b *benchCommand) floor(ctx context.Context, t connection.Transport) (p50 float64, err error) {
	var all []time.Duration
	for range floorPings {
		begun := time.Now()
		if err := t.Ping(ctx); err != nil {
			return 0, err
		}
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	return float64(all[len(all)/2]) / 1e3, nil
}

func (b *benchCommand) report(r bench.Result) error {
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{b.file, func(w io.Writer) error { return output.Encode(w, r) }},
		{b.hdr, r.WriteHDR}, {b.chart, r.WriteChart},
	} {
		if err := writeFile(f.path, f.write); err != nil {
			return err
		}
	}
	if warning := bench.Busy(r.System); warning != "" {
		b.Note("%s", warning)
	}
	if b.JSON() {
		if err := output.Encode(b.Out, r); err != nil {
			return err
		}
	} else if err := r.Screen(b.Out); err != nil {
		return err
	}
	failed := 0
	for _, round := range r.Rounds {
		if round.Invalid != "" {
			failed++
			b.Note("%s", round.Invalid)
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d rounds have no valid figures: %w", failed, len(r.Rounds), command.ErrPartly)
	case r.Truth != nil && r.Truth.Lost+r.Truth.OutOfOrder > 0:
		return fmt.Errorf("%d messages were lost and %d came out of order", r.Truth.Lost, r.Truth.OutOfOrder)
	}
	return nil
}

// writeFile writes a file anew; an empty path means none.
func writeFile(path string, write func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
