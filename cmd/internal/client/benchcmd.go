package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A benchCommand has the flags of bench send and bench e2e.
type benchCommand struct {
	*call
	bench.Options
	arrivals     string
	topic        string
	intoExisting bool
	size         int
	groups       int
	rounds       int
	warmup       time.Duration
	file         string
}

// A benchResult is the document of a benchmark. Files of it can be compared.
type benchResult struct {
	Schema    int               `json:"schema"`
	Benchmark string            `json:"benchmark"` // send or e2e
	Arguments map[string]string `json:"arguments"`
	System    map[string]string `json:"system"`
	Rounds    []bench.Round     `json:"rounds"`
	Truth     *bench.Truth      `json:"truth,omitempty"`
}

func (a *App) bench() *cobra.Command {
	return parent(toolGroup, "bench", "Measure rates and latencies, honestly", "  tidegate bench send --rate 5000",
		a.benchSend(), a.benchE2E(), a.benchCompare())
}

const loops = `Without --rate the callers send as fast as they can (a closed loop): this answers
"how much", and its latency is the service time under that many callers. With
--rate each message is due at a time (an open loop): this answers "how fast at
this rate". The response time is counted from the due time, so a message that
waits because the server stands still counts with its wait. A run that could not
keep its rate is marked, and the exit code is 7.`

func (a *App) benchSend() *cobra.Command {
	return a.benchLoad(&cobra.Command{
		Use:   "send",
		Short: "Measure sends: the rate, or the latency at a rate",
		Long:  "Measures sends of a topic of its own, which it deletes at the end.\n\n" + loops,
		Example: `  tidegate bench send --callers 64
  tidegate bench send --rate 5000 --duration 30s --json send.json`,
	}, 64, func(b *benchCommand) load { return &sendLoad{benchCommand: b} })
}

func (a *App) benchE2E() *cobra.Command {
	return a.benchLoad(&cobra.Command{
		Use:   "e2e",
		Short: "Measure messages from their send to their handler, and that none is lost",
		Long:  "Measures messages from their send to the begin of their handler, in a topic of its\nown, which it deletes at the end. It counts messages that were lost, came twice or\nout of order.\n\n" + loops,
		Example: `  tidegate bench e2e --rate 1000
  tidegate bench e2e --rate 1000 --groups 100`,
	}, 1000, func(b *benchCommand) load { return newEndToEnd(b) })
}

// A load is what a benchmark measures.
type load interface {
	// open prepares the load. The returned function ends it.
	open(ctx context.Context, t *rocketmq.Client, topic string) (closing func() error, err error)
	operation(ctx context.Context) (failure string)
	truth(ctx context.Context) *bench.Truth // nil if the load does not verify
}

func (a *App) benchLoad(cmd *cobra.Command, callers int, newLoad func(*benchCommand) load) *cobra.Command {
	b := &benchCommand{}
	b.call = a.remote(cmd, nil, func(ctx context.Context, _ *call) error { return b.run(ctx, newLoad(b)) })
	f := cmd.Flags()
	f.IntVar(&b.Callers, "callers", callers, "messages under way at the same time")
	f.Float64Var(&b.Rate, "rate", 0, "messages a second; 0 means as fast as the callers can")
	f.StringVar(&b.arrivals, "arrivals", "even", "due times with --rate: even or poisson")
	f.DurationVar(&b.Duration, "duration", 10*time.Second, "time of a round")
	f.DurationVar(&b.warmup, "warmup", 2*time.Second, "time before the first round that is not measured")
	f.IntVar(&b.rounds, "rounds", 3, "rounds; the median is printed with the range")
	f.IntVar(&b.size, "size", 1024, "bytes of a body, at least 16")
	f.IntVar(&b.groups, "groups", 0, "message groups; 0 means messages without order")
	f.IntVar(&b.Outstanding, "outstanding", 100_000, "messages that may be due and not begun")
	f.Uint64Var(&b.Seed, "seed", 1, "seed of poisson arrivals")
	f.StringVar(&b.topic, "topic", "", "send to this `topic`; needs --into-existing (default: one of its own)")
	f.BoolVar(&b.intoExisting, "into-existing", false, "send to a topic that others use")
	f.StringVar(&b.file, "json", "", "also write the result to this `file`, for bench compare")
	return cmd
}

func (b *benchCommand) run(ctx context.Context, l load) (err error) {
	b.Arrivals, b.Precise = bench.Arrivals(b.arrivals), true
	if err := b.check(); err != nil {
		return command.UsageError{Err: err, Command: b.command.CommandPath()}
	}
	topic, remove, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	t, _, err := b.transport(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	closing, err := l.open(ctx, t, topic)
	if err != nil {
		return err
	}
	result, runErr := b.measure(ctx, t, l)
	result.Truth = l.truth(ctx)
	if err := errors.Join(runErr, closing()); err != nil && ctx.Err() == nil {
		return err
	}
	return errors.Join(b.report(result), ctx.Err())
}

func (b *benchCommand) check() error {
	switch {
	case b.rounds < 1:
		return fmt.Errorf("--rounds is %d; it is at least 1", b.rounds)
	case b.size < 16:
		return fmt.Errorf("--size is %d; a body has at least 16 bytes", b.size)
	case b.groups < 0:
		return fmt.Errorf("--groups is %d; 0 means none", b.groups)
	case b.topic != "" && !b.intoExisting:
		return errors.New("--topic needs --into-existing: the messages of a benchmark reach the consumers of the topic")
	}
	return b.Validate()
}

// prepare returns the topic, and what removes it at the end, also after Ctrl-C.
func (b *benchCommand) prepare(ctx context.Context) (topic string, remove func() error, err error) {
	if b.topic != "" {
		return b.topic, func() error { return nil }, nil
	}
	client, err := b.admin(ctx)
	if errors.Is(err, command.ErrUnsupported) {
		return "", nil, command.Usagef(b.command, "on RocketMQ create a topic with mqadmin updateTopic, and give it with --topic NAME --into-existing")
	}
	if err != nil {
		return "", nil, err
	}
	bounded, cancel := b.bounded(ctx)
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
		ctx, cancel := b.bounded(context.WithoutCancel(ctx))
		defer cancel()
		return client.DeleteTopic(ctx, topic)
	}, nil
}

func (b *benchCommand) measure(ctx context.Context, t *rocketmq.Client, l load) (benchResult, error) {
	out := benchResult{Schema: 1, Benchmark: b.command.Name(), Arguments: map[string]string{}, System: map[string]string{
		"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "cpus": fmt.Sprint(runtime.NumCPU()),
	}}
	for _, name := range []string{"callers", "rate", "arrivals", "duration", "size", "groups"} {
		out.Arguments[name] = b.command.Flags().Lookup(name).Value.String()
	}
	if b.warmup > 0 {
		o := b.Options
		o.Duration = b.warmup
		if _, err := bench.Run(ctx, o, l.operation); err != nil {
			return out, err
		}
	}
	for n := range b.rounds {
		floor, err := b.floor(ctx, t)
		if err != nil {
			return out, err
		}
		r, err := bench.Run(ctx, b.Options, l.operation)
		if err != nil {
			return out, err
		}
		r.Floor = floor
		out.Rounds = append(out.Rounds, r)
		if b.Terminal {
			b.note("round %d of %d: %s", n+1, b.rounds, roundText(r))
		}
	}
	return out, nil
}

// floorPings is the number of empty requests before a round.
const floorPings = 200

// floor measures an empty request to the server: the latency that no send can have less of.
func (b *benchCommand) floor(ctx context.Context, t *rocketmq.Client) (p50 float64, err error) {
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

func roundText(r bench.Round) string {
	text := fmt.Sprintf("%s a second", output.Number(int64(r.Achieved)))
	if r.Response != nil {
		text += ", p99 " + microsText(r.Response.P99)
	}
	if r.Invalid != "" {
		text += ", " + r.Invalid
	}
	return text
}

// microsText is a number of microseconds: .31 ms, 4.87 ms, 1.2 s; "-" for none.
func microsText(us float64) string {
	d := time.Duration(us * 1e3)
	switch {
	case us < 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", us/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}

func (b *benchCommand) report(r benchResult) error {
	if b.file != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(b.file, append(text, '\n'), 0o644) //nolint:gosec // a result is no secret
		}
		if err != nil {
			return err
		}
	}
	if b.json() {
		if err := output.Encode(b.Out, r); err != nil {
			return err
		}
	} else if err := b.table(r); err != nil {
		return err
	}
	failed := 0
	for _, round := range r.Rounds {
		if round.Invalid != "" {
			failed++
			b.note("%s", round.Invalid)
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

// A line of the table of latencies.
type latencyRow struct {
	name string
	of   func(bench.Round) bench.Latency
}

func (b *benchCommand) table(r benchResult) error {
	if len(r.Rounds) == 0 {
		return nil
	}
	achieved := func(r bench.Round) float64 { return r.Achieved }
	low, high := span(r.Rounds, achieved)
	loop := fmt.Sprintf("%d callers, closed loop", b.Callers)
	rows := []latencyRow{{"service", func(r bench.Round) bench.Latency { return r.Service }}}
	if b.Rate > 0 {
		loop = fmt.Sprintf("open loop %s a second %s", output.Number(int64(b.Rate)), b.arrivals)
		rows = append([]latencyRow{{"response", func(r bench.Round) bench.Latency { return *r.Response }}}, rows...)
	}
	fmt.Fprintf(b.Out, "%s  %v, %s, %v × %d rounds\n", b.command.Name(), output.Bytes(b.size), loop, b.Duration, len(r.Rounds))
	fmt.Fprintf(b.Out, "rate      %s a second (%s to %s)\n", output.Number(int64(bench.Median(r.Rounds, achieved))), output.Number(int64(low)), output.Number(int64(high)))
	fmt.Fprintf(b.Out, "%-9s %9s %9s %9s %9s %9s %9s\n", "", "p50", "p90", "p99", "p99.9", "p99.99", "max")
	for _, row := range rows {
		cells := []string{fmt.Sprintf("%-9s", row.name)}
		for _, at := range []func(bench.Latency) float64{
			func(l bench.Latency) float64 { return l.P50 }, func(l bench.Latency) float64 { return l.P90 },
			func(l bench.Latency) float64 { return l.P99 }, func(l bench.Latency) float64 { return l.P999 },
			func(l bench.Latency) float64 { return l.P9999 }, func(l bench.Latency) float64 { return l.Max },
		} {
			cells = append(cells, fmt.Sprintf("%9s", microsText(bench.Median(r.Rounds, func(r bench.Round) float64 { return at(row.of(r)) }))))
		}
		fmt.Fprintln(b.Out, strings.Join(cells, " "))
	}
	floor := bench.Median(r.Rounds, func(r bench.Round) float64 { return r.Floor })
	p50 := bench.Median(r.Rounds, func(r bench.Round) float64 { return rows[0].of(r).P50 })
	fmt.Fprintf(b.Out, "floor     %s for an empty request: the p50 is %.1f × floor\n", microsText(floor), p50/max(floor, 1e-3))
	worst := slices.MaxFunc(r.Rounds, func(a, b bench.Round) int { return int(a.WorstP99 - b.WorstP99) })
	fmt.Fprintf(b.Out, "worst second: p99 %s at second %d of a round\n", microsText(worst.WorstP99), worst.WorstAt)
	return b.outcomes(r)
}

func (b *benchCommand) outcomes(r benchResult) error {
	var done int64
	failed := map[string]int64{}
	for _, round := range r.Rounds {
		done += round.Done
		for cause, n := range round.Failed {
			failed[cause] += n
		}
	}
	parts := []string{output.Number(done) + " done"}
	for _, cause := range slices.Sorted(maps.Keys(failed)) {
		parts = append(parts, fmt.Sprintf("%s failed: %s", output.Number(failed[cause]), output.Safe(cause)))
	}
	text := strings.Join(parts, ", ")
	if v := r.Truth; v != nil {
		text += fmt.Sprintf("; accepted %s, delivered %s, lost %s, twice %s, out of order %s (with the warm-up)",
			output.Number(v.Accepted), output.Number(v.Delivered), output.Number(v.Lost), output.Number(v.Twice), output.Number(v.OutOfOrder))
	}
	_, err := fmt.Fprintln(b.Out, text)
	return err
}

func span(rounds []bench.Round, figure func(bench.Round) float64) (low, high float64) {
	low, high = figure(rounds[0]), figure(rounds[0])
	for _, r := range rounds {
		low, high = min(low, figure(r)), max(high, figure(r))
	}
	return low, high
}

// cause groups failed sends: the name of the code, or the reason of the end.
func cause(err error) string {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return e.Code.String()
	}
	if e, ok := errors.AsType[*producer.SendError](err); ok {
		return e.Reason.String()
	}
	return err.Error()
}

// numbered is a body that begins with the number of the message.
func numbered(size int, number int64) []byte {
	body := make([]byte, size)
	binary.BigEndian.PutUint64(body, uint64(number)) //nolint:gosec // numbers are not negative
	for i := 8; i < size; i++ {
		body[i] = 'a' + byte(i%26)
	}
	return body
}

func (b *benchCommand) message(topic string, number int64) *tidegate.Message {
	m := &tidegate.Message{Topic: topic, Body: numbered(b.size, number)}
	if b.groups > 0 {
		m.MessageGroup = fmt.Sprintf("g%d", number%int64(b.groups))
	}
	return m
}

func (a *App) benchCompare() *cobra.Command {
	var most string
	c := &cobra.Command{
		Use:     "compare",
		Short:   "Compare two results of bench --json, with an interval",
		Example: "  tidegate bench compare before.json after.json --max-regression 5%",
	}
	r := a.local(c, []string{"BEFORE", "AFTER"}, func(_ context.Context, c *call) error { return c.compare(most) })
	r.command.Flags().StringVar(&most, "max-regression", "", "exit with 7 if a figure is shown to be worse by more than this `share`, for example 5%")
	return c
}

// minRounds is the number of rounds from which a bootstrap has more than a few different samples.
const minRounds = 3

// A comparisonRow is one compared figure.
type comparisonRow struct {
	Figure string `json:"figure"`
	bench.Comparison
	Verdict string  `json:"verdict"`
	worse   float64 // the share by which it is worse at least; 0 if no difference is shown
}

func (c *call) compare(most string) error {
	bound := -1.0
	if most != "" {
		var percent float64
		if _, err := fmt.Sscanf(strings.TrimSuffix(most, "%")+"%", "%f%%", &percent); err != nil || percent < 0 {
			return command.Usagef(c.command, "--max-regression is %q; it is a share such as 5%%", most)
		}
		bound = percent / 100
	}
	var results [2]benchResult
	for i, path := range c.args {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &results[i])
		}
		if err == nil && len(results[i].Rounds) == 0 {
			err = errors.New("it has no rounds: it is no result of bench --json")
		}
		if err != nil {
			return command.Usagef(c.command, "%s: %v", path, err)
		}
	}
	if a, b := results[0].Benchmark, results[1].Benchmark; a != b {
		return command.Usagef(c.command, "%s is a result of bench %s, and %s one of bench %s", c.args[0], a, c.args[1], b)
	}
	for i, r := range results {
		for _, round := range r.Rounds {
			if round.Invalid != "" {
				return command.Usagef(c.command, "%s has a round without valid figures: %s", c.args[i], round.Invalid)
			}
		}
		if len(r.Rounds) < minRounds {
			return command.Usagef(c.command, "%s has %s; an interval needs at least %d (--rounds)", c.args[i], output.Count(int64(len(r.Rounds)), "round"), minRounds)
		}
	}
	for name, value := range results[0].Arguments {
		if other := results[1].Arguments[name]; other != value {
			c.note("the results differ in --%s: %s and %s", name, value, other)
		}
	}
	rows := compared(results[0].Rounds, results[1].Rounds)
	err := printList(c, output.List[comparisonRow]{
		Rows: rows,
		Columns: []output.Column[comparisonRow]{
			{Name: "FIGURE", Cell: func(r comparisonRow) any { return r.Figure }},
			{Name: "RATIO", Cell: func(r comparisonRow) any { return fmt.Sprintf("%.3f", r.Ratio) }},
			{Name: "INTERVAL", Cell: func(r comparisonRow) any { return fmt.Sprintf("%.3f to %.3f", r.Low, r.High) }},
			{Name: "VERDICT", Cell: func(r comparisonRow) any { return r.Verdict }},
		},
		Name:     func(r comparisonRow) string { return r.Figure },
		Document: func(rs []comparisonRow) any { return map[string]any{"figures": rs} },
	})
	for _, r := range rows {
		if err == nil && bound >= 0 && r.worse > bound {
			err = fmt.Errorf("the %s is worse by at least %.1f %%; the bound is %s: %w", r.Figure, r.worse*100, most, command.ErrPartly)
		}
	}
	return err
}

func compared(before, after []bench.Round) []comparisonRow {
	row := func(name string, moreIsBetter bool, figure func(bench.Round) float64) comparisonRow {
		r := comparisonRow{Figure: name, Comparison: bench.Compare(before, after, figure), Verdict: "no difference shown"}
		better := r.Low > 1 == moreIsBetter
		switch {
		case !r.Different():
		case better:
			r.Verdict = "better"
		case moreIsBetter:
			r.Verdict, r.worse = "worse", 1-r.High
		default:
			r.Verdict, r.worse = "worse", r.Low-1
		}
		return r
	}
	var rows []comparisonRow
	if before[0].Offered == 0 { // the rate of an open loop is given
		rows = append(rows, row("rate", true, func(r bench.Round) float64 { return r.Achieved }))
	}
	rows = append(rows,
		row("service p50", false, func(r bench.Round) float64 { return r.Service.P50 }),
		row("service p99", false, func(r bench.Round) float64 { return r.Service.P99 }),
	)
	if before[0].Response != nil && after[0].Response != nil {
		rows = append(rows,
			row("response p50", false, func(r bench.Round) float64 { return r.Response.P50 }),
			row("response p99", false, func(r bench.Round) float64 { return r.Response.P99 }))
	}
	return rows
}
