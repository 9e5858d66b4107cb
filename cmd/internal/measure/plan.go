package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/cmd/internal/connection"
)

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
	if len(b.configs) > 1 && (b.maxP99 > 0 || b.hdr != "" || b.chart != "") {
		return errors.New("several values of --callers or --rate exclude --max-p99, --hdr and --chart")
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
		system["same_machine"], system["tls"] = fmt.Sprint(connection.Local(s.Host())), fmt.Sprint(s.TLS)
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
