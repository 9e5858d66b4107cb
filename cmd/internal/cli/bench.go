package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/consumer"
)

// A benchCommand has the flags of the benchmarks.
type benchCommand struct {
	*Call
	bench.Options
	callers      []int
	rates        []string
	arrivals     string
	topic, group string
	intoExisting bool
	size         string
	load         bench.LoadOptions
	rounds       int
	warmup       time.Duration
	maxP99       time.Duration
	file         string // of --json
	hdr          string

	configs []bench.Options // each pair of callers and rate
	results []bench.Result  // one for each of configs
}

func newBench(a *App) *cobra.Command {
	return parent(toolGroup, "bench", "Measure rates and latencies, honestly", "  tidegate bench send --rate 5000",
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

func newBenchSend(a *App) *cobra.Command {
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
  tidegate bench send --max-p99 20ms --duration 5s --hdr send.hgrm`,
	}, bench.Sends)
	b.sendFlags(64)
	f := cmd.Flags()
	f.BoolVar(&b.Async, "async", false, "send with SendAsync on one goroutine; --callers bounds the messages under way")
	f.IntVar(&b.load.Batch, "batch", 1, "messages of one send; excludes --async and --rate")
	f.BoolVar(&b.load.Verify, "verify", false, "receive all messages after the last round, and count lost ones")
	return cmd
}

func newBenchReceive(a *App) *cobra.Command {
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
	}, bench.Receives)
	f := cmd.Flags()
	f.IntSliceVar(&b.callers, "callers", []int{16}, "receives at the same time; several values make a table")
	f.IntVar(&b.load.Messages, "messages", 50_000, "messages that are sent before each round")
	f.IntVar(&b.load.Batch, "batch", 32, "most messages of one receive, up to 32")
	return cmd
}

func newBenchE2E(a *App) *cobra.Command {
	b := &benchCommand{load: bench.LoadOptions{Batch: 1}}
	cmd := b.register(a, &cobra.Command{
		Use:   "e2e",
		Short: "Measure messages from their send to their handler, and that none is lost",
		Long:  "Measures messages from their send to the begin of their handler, in a topic of its\nown, which it deletes at the end. It counts lost, repeated and disordered\nmessages.\n\n" + loops,
		Example: `  tidegate bench e2e --rate 1000
  tidegate bench e2e --rate 1000 --groups 100`,
	}, bench.EndToEnd)
	b.sendFlags(1000)
	return cmd
}

// A newLoad returns the load of a benchmark.
type newLoad func(ctx context.Context, t bench.Transport, o bench.LoadOptions) (bench.Load, error)

// register adds the flags of all benchmarks.
func (b *benchCommand) register(a *App, cmd *cobra.Command, begin newLoad) *cobra.Command {
	b.Call = a.Remote(cmd, nil, func(ctx context.Context, _ *Call) error { return b.run(ctx, begin) })
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
		return usagef(b.Command, "the context %q is protected, and a benchmark loads its server: repeat the command with --yes=%s", server.Name, output.Quote(server.Name))
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
	err = b.within(ctx, func(ctx context.Context) error { return t.Ping(ctx, b.load.Topic) }) // sends wait for a server that is away
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
	if errors.Is(err, errUnsupported) {
		return nil, usagef(b.Command, "this server has no HTTP API to create a topic: create one (on RocketMQ with mqadmin updateTopic, on Artemis with artemis address create, on Pulsar with pulsar-admin topics create), and give it with --topic NAME --into-existing")
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
	remove = func() error {
		ctx, cancel := b.Bounded(context.WithoutCancel(ctx))
		defer cancel()
		return errors.Join(gone(client.DeleteGroup(ctx, name)), gone(client.DeleteTopic(ctx, name)))
	}
	switch _, err := client.PutTopic(bounded, name, s); {
	case err != nil && ctx.Err() != nil: // the broker may have created it
		return nil, errors.Join(err, remove())
	case err != nil:
		return nil, err
	}
	if b.load.Groups > 0 { // else the first receive creates the group
		if _, err := client.PutGroup(bounded, name, settings.Group{FIFO: true}); err != nil {
			return nil, errors.Join(err, remove())
		}
	}
	b.load.Topic, b.load.Group = name, name
	return remove, nil
}

// gone is the error of a removal; nil if there was nothing to remove.
func gone(err error) error {
	if errors.Is(err, tidegate.ErrNotFound) {
		return nil
	}
	return err
}

// subscribe makes sure that the group has a position in an existing topic before the first message
// of the benchmark is sent. It settles nothing.
func (b *benchCommand) subscribe(ctx context.Context, t Transport) error {
	server, err := b.Server()
	if err != nil {
		return err
	}
	receives := b.load.Verify || b.Command.Name() == "receive"
	switch {
	case server.foreign() != nil && (receives || b.Command.Name() == "e2e"):
		return b.createGroup(ctx, t, server)
	case !b.intoExisting || !receives:
		return nil
	}
	s, err := consumer.NewSimple(t, consumer.Subscription{Group: b.load.Group, Topic: b.load.Topic}, consumer.SimpleOptions{InvisibleDuration: 10 * time.Second, LongPolling: 5 * time.Second})
	if err == nil {
		_, err = s.Receive(ctx, 1)
	}
	return err
}

// createGroup creates the group on a foreign server, and notes what stays.
func (b *benchCommand) createGroup(ctx context.Context, t Transport, server Server) error {
	ctx, cancel := b.Bounded(ctx)
	defer cancel()
	err := createGroup(ctx, t, b.load.Topic, b.load.Group)
	b.Note("%s", server.support().Stays(server, b.load.Topic, b.load.Group))
	return err
}

// check checks the flags, and fills configs and load.
func (b *benchCommand) check() error {
	switch {
	case b.rounds < 1:
		return fmt.Errorf("--rounds is %d; it is at least 1", b.rounds)
	case b.maxP99 < 0:
		return fmt.Errorf("--max-p99 is %v; it must be positive", b.maxP99)
	case b.load.Groups < 0:
		return fmt.Errorf("--groups is %d; 0 means none", b.load.Groups)
	case b.topic != "" && !b.intoExisting:
		return errors.New("--topic needs --into-existing: the messages of a benchmark reach the consumers of the topic")
	case b.topic == "" && (b.intoExisting || b.group != ""):
		return errors.New("--into-existing and --group need --topic")
	case b.load.Batch < 1 || b.load.Batch > 32:
		return fmt.Errorf("--batch is %d; it is 1 to 32", b.load.Batch)
	case b.load.Batch > 1 && (b.Async || len(b.rates) > 0 || b.maxP99 > 0):
		return errors.New("--batch measures how much: it excludes --async, --rate and --max-p99")
	case b.load.Batch > 1 && b.load.Groups > 0 && b.Command.Name() == "send":
		return errors.New("--batch excludes --groups: callers that send batches have no order")
	case b.load.Messages < 1 && b.Command.Name() == "receive":
		return fmt.Errorf("--messages is %d; it is at least 1", b.load.Messages)
	}
	if err := b.configure(); err != nil {
		return err
	}
	if len(b.configs) > 1 && (b.maxP99 > 0 || b.hdr != "") {
		return errors.New("several values of --callers or --rate exclude --max-p99 and --hdr")
	}
	bodies, err := bench.ParseBodies(b.size)
	if err != nil {
		return err
	}
	bodies.Run = rand.Uint32() //nolint:gosec // distinguishes runs
	b.load.Bodies, b.load.Async, b.load.Log = bodies, b.Async, b.Err
	return nil
}

// configure makes the pairs of callers and rates.
func (b *benchCommand) configure() error {
	if len(b.rates) == 0 {
		b.rates = []string{"max"}
	}
	b.configs = nil
	for _, callers := range b.callers {
		for _, text := range b.rates {
			o := b.Options
			o.Callers = callers
			if text != "max" {
				rate, err := strconv.ParseFloat(text, 64)
				if err != nil {
					return fmt.Errorf("--rate is %q; it is a number of messages a second, or max", text)
				}
				o.Rate = rate
			}
			if err := o.Validate(); err != nil {
				return err
			}
			b.configs = append(b.configs, o)
			b.load.Limit = max(b.load.Limit, callers)
		}
	}
	if len(b.configs) == 0 {
		return errors.New("--callers has no value")
	}
	return nil
}

// empty returns an empty result for each pair of callers and rate.
func (b *benchCommand) empty() []bench.Result {
	system := bench.System()
	if s, err := b.Server(); err == nil {
		system["same_machine"], system["tls"] = fmt.Sprint(local(s.Host())), fmt.Sprint(s.TLS)
	}
	var all []bench.Result
	for _, o := range b.configs {
		r := bench.Result{Schema: 1, Benchmark: b.Command.Name(), Arguments: map[string]string{}, System: system}
		for _, name := range []string{"arrivals", "duration", "size", "groups", "max-p99", "async", "batch", "messages"} {
			if f := b.Command.Flags().Lookup(name); f != nil {
				r.Arguments[name] = f.Value.String()
			}
		}
		r.Arguments["callers"], r.Arguments["rate"] = fmt.Sprint(o.Callers), fmt.Sprint(o.Rate)
		all = append(all, r)
	}
	return all
}

// measured searches for the rate if --max-p99 asks for it, and measures.
func (b *benchCommand) measured(ctx context.Context, t Transport, l bench.Load) error {
	b.results = b.empty()
	if b.warmup > 0 {
		o := b.configs[0]
		o.Duration = b.warmup
		if _, err := b.round(ctx, l, o); err != nil {
			return err
		}
	}
	if b.maxP99 > 0 {
		if err := b.search(ctx, l, &b.results[0]); err != nil {
			return err
		}
	}
	before := b.broker(ctx)
	err := b.measure(ctx, t, l)
	if after := b.broker(context.WithoutCancel(ctx)); before != nil && after != nil {
		after.Fsyncs -= before.Fsyncs
		for i := range b.results {
			b.results[i].Broker = after
		}
	}
	return err
}

// broker returns the facts about the broker; nil if they are not known.
func (b *benchCommand) broker(ctx context.Context) *bench.Broker {
	client, err := b.Admin(ctx)
	if err != nil {
		return nil // a RocketMQ
	}
	ctx, cancel := b.Bounded(ctx)
	defer cancel()
	o, err := client.Overview(ctx)
	if err != nil {
		return nil // perhaps not permitted
	}
	micros := func(d settings.Duration) float64 { return float64(d) / 1e3 }
	if o.Storage.InMemory {
		return &bench.Broker{Version: o.Version}
	}
	return &bench.Broker{
		Version: o.Version, Disk: o.Storage.DiskBytes, Fsyncs: o.Storage.Fsyncs,
		FsyncP50: micros(o.Storage.FsyncP50), FsyncP99: micros(o.Storage.FsyncP99),
	}
}

// search sets the rate to the highest one that holds --max-p99. Its first upper bound is --rate, or
// the rate of a closed loop.
func (b *benchCommand) search(ctx context.Context, l bench.Load, r *bench.Result) error {
	o := b.configs[0]
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
		b.Note("%s a second: %s", output.Number(int64(rate)), output.Textf("%s%s", map[bool]string{true: "holds, ", false: "does not hold, "}[holds], round.Text()))
		s.Tried(rate, holds)
	}
	if s.Low == 0 {
		return fmt.Errorf("no rate from %s a second on has a p99 of at most %v (--max-p99): %w", output.Number(int64(s.High)), b.maxP99, errPartly)
	}
	b.configs[0].Rate = s.Low
	return nil
}

// measure runs the rounds: one of each pair of callers and rate in turn.
func (b *benchCommand) measure(ctx context.Context, t Transport, l bench.Load) error {
	for n := range b.rounds {
		for i, o := range b.configs {
			floor, err := b.floor(ctx, t)
			if err != nil {
				return err
			}
			r, err := b.round(ctx, l, o)
			if err != nil {
				return err
			}
			r.Floor = floor
			b.results[i].Rounds = append(b.results[i].Rounds, r)
			if b.Watched {
				b.Note("round %d of %d, %d callers: %s", n+1, b.rounds, o.Callers, r.Text())
			}
		}
	}
	return nil
}

func (b *benchCommand) round(ctx context.Context, l bench.Load, o bench.Options) (bench.Round, error) {
	if err := l.Prepare(ctx); err != nil {
		return bench.Round{}, err
	}
	return bench.Run(ctx, o, l.Operation)
}

// floorPings is the number of empty requests before a round.
const floorPings = 200

// floor measures an empty request to the server: the latency that no send can have less of.
// It is 0 if the protocol has none.
func (b *benchCommand) floor(ctx context.Context, t Transport) (p50 float64, err error) {
	if s, err := b.Server(); err != nil || s.foreign() != nil { // their protocols have no empty request
		return 0, err
	}
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

func newBenchCompare(a *App) *cobra.Command {
	var most string
	c := &cobra.Command{
		Use:     "compare",
		Short:   "Compare two results of bench --json, with an interval",
		Example: "  tidegate bench compare before.json after.json --max-regression 5%",
	}
	r := a.Local(c, []string{"BEFORE", "AFTER"}, func(_ context.Context, c *Call) error { return compare(c, most) })
	r.Command.Flags().StringVar(&most, "max-regression", "", "exit with 7 if a figure is shown to be worse by more than this `share`, for example 5%")
	return c
}

// minRounds is the number of rounds from which a bootstrap has more than a few different samples.
const minRounds = 3

func compare(c *Call, most string) error {
	bound := -1.0
	if most != "" {
		var percent float64
		if _, err := fmt.Sscanf(strings.TrimSuffix(most, "%")+"%", "%f%%", &percent); err != nil || percent < 0 {
			return usagef(c.Command, "--max-regression is %q; it is a share such as 5%%", most)
		}
		bound = percent / 100
	}
	var results [2]bench.Result
	for i, path := range c.Args {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &results[i])
		}
		rounds := results[i].Rounds
		switch bad := slices.IndexFunc(rounds, func(r bench.Round) bool { return r.Invalid != "" }); {
		case err != nil:
			return usagef(c.Command, "%s: %v", path, err)
		case len(rounds) == 0:
			return usagef(c.Command, "%s: it has no rounds: it is no result of bench --json, or one of several values of --callers or --rate, which cannot be compared", path)
		case bad >= 0:
			return usagef(c.Command, "%s has a round without valid figures: %s", path, rounds[bad].Invalid)
		case len(rounds) < minRounds:
			return usagef(c.Command, "%s has %s; an interval needs at least %d (--rounds)", path, output.Count(int64(len(rounds)), "round"), minRounds)
		}
	}
	if a, b := results[0].Benchmark, results[1].Benchmark; a != b {
		return usagef(c.Command, "%s is a result of bench %s, and %s one of bench %s", c.Args[0], a, c.Args[1], b)
	}
	for name, value := range results[0].Arguments {
		if other := results[1].Arguments[name]; other != value {
			c.Note("the results differ in --%s: %s and %s", name, value, other)
		}
	}
	rows := bench.CompareAll(results[0].Rounds, results[1].Rounds)
	err := printList(c, output.List[bench.Compared]{
		Rows: rows,
		Columns: []output.Column[bench.Compared]{
			{Name: "FIGURE", Cell: func(r bench.Compared) any { return r.Figure }},
			{Name: "RATIO", Cell: func(r bench.Compared) any { return fmt.Sprintf("%.3f", r.Ratio) }},
			{Name: "INTERVAL", Cell: func(r bench.Compared) any { return fmt.Sprintf("%.3f to %.3f", r.Low, r.High) }},
			{Name: "VERDICT", Cell: func(r bench.Compared) any { return r.Verdict }},
		},
		Document: func(rs []bench.Compared) any { return map[string]any{"figures": rs} },
	})
	for _, r := range rows {
		if err == nil && bound >= 0 && r.Worse > bound {
			err = fmt.Errorf("the %s is worse by at least %.1f %%; the bound is %s: %w", r.Figure, r.Worse*100, most, errPartly)
		}
	}
	return err
}

// report writes the files and prints the results of the rounds that have ended.
func (b *benchCommand) report() error {
	results := slices.DeleteFunc(b.results, func(r bench.Result) bool { return len(r.Rounds) == 0 })
	if len(results) == 0 {
		return nil // interrupted
	}
	var document any = results[0]
	if len(b.configs) > 1 {
		document = map[string]any{"schema": 1, "results": results}
	}
	// The figures are printed in any case.
	fileErr := errors.Join(writeFile(b.file, func(w io.Writer) error { return output.Encode(w, document) }), writeFile(b.hdr, results[0].WriteHDR))
	if warning := bench.Busy(results[0].System); warning != "" {
		b.Note("%s", warning)
	}
	if err := errors.Join(fileErr, b.print(results, document)); err != nil {
		return err
	}
	return b.verdict(results)
}

func (b *benchCommand) print(results []bench.Result, document any) error {
	if b.Format.Chosen == output.JSON || len(b.configs) == 1 && b.JSON() {
		return output.Encode(b.Out, document)
	}
	if len(b.configs) == 1 {
		return results[0].Screen(b.Out, b.Call.Options())
	}
	if err := printList(b.Call, output.List[bench.Result]{
		Rows: results, Columns: bench.Columns,
		Name: func(r bench.Result) string { return r.Arguments["callers"] + " " + r.Arguments["rate"] },
	}); err != nil || !b.Tables() {
		return err
	}
	return results[0].Facts(b.Out, b.Call.Options())
}

// verdict returns the error of invalid results.
func (b *benchCommand) verdict(results []bench.Result) error {
	failed, rounds := 0, 0
	for _, r := range results {
		for _, round := range r.Rounds {
			rounds++
			if round.Invalid != "" {
				failed++
				b.Note("%s callers: %s", r.Arguments["callers"], round.Invalid)
			}
		}
	}
	truth := results[0].Truth
	switch {
	case truth != nil && truth.Lost+truth.OutOfOrder > 0:
		return fmt.Errorf("%d messages were lost and %d were out of order", truth.Lost, truth.OutOfOrder)
	case failed > 0:
		return fmt.Errorf("%d of %d rounds have no valid figures: %w", failed, rounds, errPartly)
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
