package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/connection"
	"github.com/tidegate/tidegate/cmd/internal/load"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// measured searches for the rate if --max-p99 asks for it, and measures.
func (b *benchCommand) measured(ctx context.Context, t connection.Transport, l load.Load) error {
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
func (b *benchCommand) search(ctx context.Context, l load.Load, r *bench.Result) error {
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
		return fmt.Errorf("no rate from %s a second on has a p99 of at most %v (--max-p99): %w", output.Number(int64(s.High)), b.maxP99, command.ErrPartly)
	}
	b.configs[0].Rate = s.Low
	return nil
}

// measure runs the rounds: one of each pair of callers and rate in turn.
func (b *benchCommand) measure(ctx context.Context, t connection.Transport, l load.Load) error {
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

func (b *benchCommand) round(ctx context.Context, l load.Load, o bench.Options) (bench.Round, error) {
	if err := l.Prepare(ctx); err != nil {
		return bench.Round{}, err
	}
	return bench.Run(ctx, o, l.Operation)
}

// floorPings is the number of empty requests before a round.
const floorPings = 200

// floor measures an empty request to the server: the latency that no send can have less of.
// It is 0 if the protocol has none.
func (b *benchCommand) floor(ctx context.Context, t connection.Transport) (p50 float64, err error) {
	if s, err := b.Server(); err != nil || s.Kind == connection.AMQP { // AMQP has no empty request
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
