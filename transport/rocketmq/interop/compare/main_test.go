package main

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// The processes of the sides are this test binary.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-side") {
		main()
	}
	os.Exit(m.Run())
}

// A fake is a tidegate broker in place of the RocketMQ.
type fake struct {
	engine  *broker.Broker
	address string
}

func serve(t *testing.T) *fake {
	engine, err := broker.Open(broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(engine, server.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	t.Cleanup(func() {
		s.Close()
		engine.Close()
	})
	return &fake{engine: engine, address: l.Addr().String()}
}

func (f *fake) endpoint() string { return f.address }

func (f *fake) topic(ctx context.Context, name string, fifo bool) error {
	c := settings.Topic{Type: "NORMAL"}
	if fifo {
		c.Type = "FIFO"
	}
	_, err := f.engine.PutTopic(ctx, name, c)
	return err
}

func (f *fake) group(ctx context.Context, name string, fifo bool) error {
	_, err := f.engine.PutGroup(ctx, name, settings.Group{FIFO: fifo})
	return err
}

func (f *fake) kill(context.Context, string) error    { return nil }
func (f *fake) stop(context.Context, string) error    { return nil }
func (f *fake) restart(context.Context, string) error { return nil }

// In each kind of row both sides send messages and receive them.
func TestPlay(t *testing.T) {
	few := spec{Senders: 4, Pause: 10 * time.Millisecond, Size: 64, Handlers: 4}
	scheduled := spec{Senders: 4, Every: 100 * time.Millisecond, InTime: 20 * time.Second, Drain: 20 * time.Second, Size: 64, Handlers: 4}
	f := serve(t)
	feeder, err := newFeeder(f.endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer feeder.client.Close()
	for name, r := range map[string]row{
		"together, fed":  {load: few, fed: true, run: undisturbed(time.Second)},
		"message groups": {load: ordered(few), run: undisturbed(time.Second)},
		"sends in turns": {load: few, turns: true, run: undisturbed(time.Second)},
		"by a schedule":  {load: scheduled, on: paired, run: undisturbed(time.Second)},
		"beside others": {load: few, on: small, run: func(ctx context.Context, s *stage) error {
			flood, end := context.WithTimeout(ctx, time.Second)
			defer end()
			s.flood(flood)
			return nil
		}},
		"backlog, in turns": {load: spec{Size: 64, Handlers: 4, Total: 500}, turns: true},
		"backlog of message groups": {
			load: spec{Senders: 10, FIFO: true, Size: 64, Handlers: 4, Total: 500, Work: time.Microsecond, Limit: time.Minute}, on: paired, turns: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.name = strings.Map(func(c rune) rune {
				if c == ' ' || c == ',' {
					return '-'
				}
				return c
			}, name)
			runs, err := (&play{row: r, server: f, feeder: feeder, logs: t.TempDir()}).run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, side := range sides {
				n, all := runs[i].failures()
				switch {
				case r.load.Senders > 0 && r.load.Total == 0 && (n > 0 || all < r.load.Senders):
					t.Errorf("%s: %d of %d sends failed", side, n, all)
				case r.load.Every > 0 && (runs[i].Undelivered > 0 || runs[i].distinct() != all):
					t.Errorf("%s: %d of %d messages delivered, %d undelivered", side, runs[i].distinct(), all, runs[i].Undelivered)
				case (r.fed || r.load.FIFO) && len(runs[i].Deliveries) == 0:
					t.Errorf("%s: no deliveries", side)
				case len(runs[i].Deliveries) < r.load.Total:
					t.Errorf("%s: %d deliveries, want %d", side, len(runs[i].Deliveries), r.load.Total)
				case runs[i].CPU <= 0 || runs[i].CPU > time.Minute:
					t.Errorf("%s: CPU %v", side, runs[i].CPU)
				case outOfOrder.value(runs[i]) > 0 && r.load.FIFO:
					t.Errorf("%s: %v messages out of order", side, outOfOrder.value(runs[i]))
				}
			}
		})
	}
}

// The clients do not go around the relay.
func TestPlayThroughRelay(t *testing.T) {
	f := serve(t)
	var throttled atomic.Int64
	r := row{name: "throttled", load: spec{Senders: 1, Pause: time.Millisecond, Size: 64}, run: func(ctx context.Context, s *stage) error {
		s.began = time.Now()
		for _, r := range s.relays {
			r.Set(fault{Throttle: func() bool { return throttled.Add(1) > 0 }})
		}
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return err
		}
		s.ended = time.Now()
		for _, r := range s.relays {
			r.Set(fault{})
		}
		return nil
	}}
	runs, err := (&play{row: r, server: f}).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, side := range sides {
		// A send that began before the fault may end in it.
		if n := runs[i].accepted(runs[i].faultBegan.Add(200*time.Millisecond), runs[i].faultEnded); n > 0 {
			t.Errorf("%s: %d sends accepted by a server that throttles all", side, n)
		}
	}
}

// A failed row ends the others of its batch, and the error names it.
func TestFailedRow(t *testing.T) {
	f := serve(t)
	feeder, err := newFeeder(f.endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer feeder.client.Close()
	load := spec{Senders: 1, Pause: 10 * time.Millisecond, Size: 64}
	broken := errors.New("broken")
	_, err = playTogether(t.Context(), []row{
		{name: "long", load: load, beside: true, run: undisturbed(time.Hour)},
		{name: "failing", load: load, beside: true, run: func(context.Context, *stage) error { return broken }},
	}, play{server: f, feeder: feeder, round: 2})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "row failing, round 3") {
		t.Errorf("error %v", err)
	}
}

// at returns the time a number of milliseconds after the start of a run.
func at(ms int) time.Time { return time.Unix(1_000_000, 0).Add(time.Duration(ms) * time.Millisecond) }

func TestCells(t *testing.T) {
	ms := time.Millisecond
	r := run{
		result: result{
			Began: at(0), Ended: at(10_000), CPU: 30 * ms,
			Sends: []send{
				{At: at(0), Took: 1000 * ms},
				{At: at(1000), Took: 500 * ms, Err: "lost"},
				{At: at(1500), Took: 3500 * ms},             // accepted at 5 s
				{At: at(1600), Took: 100 * ms, Err: "lost"}, // at 1.7 s
				{At: at(6000), Took: 7 * time.Second},       // after the end
				{At: at(5000), Took: 1000 * ms},             // accepted at 6 s
			},
			Deliveries: []delivery{
				{at(1000), 1, 0}, {at(5900), 1, 2}, {at(7500), 1, 1}, // 1 is out of order
				{at(7600), 2, 7}, {at(7700), 1, 0}, {at(7800), 1, 2}, // repeated ones are not
				{at(7900), 1, 3}, {at(8000), 2, 9}, {at(8100), 2, 8}, // 8 is
			},
		},
		faultBegan: at(2000), faultEnded: at(6000),
	}
	for _, c := range []struct {
		cell cell
		want float64
		text string
	}{
		{failed, 2.0 / 6, "2 of 6"},
		{longestSend, 7, "7.0 s"},
		{longestGap, 4, "4.0 s"}, // from 1 s to 5 s, and from 6 s to 10 s
		{acceptedRate, 1.0 / 4, "0.2"},
		{firstDelivery, 1.5, "1.5 s"},
		{outOfOrder, 2, "2.0"},
		{sendRate, 3.0 / 10, "0"},
		{pushRate, 9.0 / 10, "1"},
		{cpuOfSends, 10_000, "10000 µs"},
		{cpuOfPush, 30_000.0 / 9, "3333 µs"},
	} {
		m := &measured{cell: c.cell}
		if got := m.add(c.cell, []run{r, r}); got != c.text+" / "+c.text || m.ours[0] != c.want || m.official[0] != c.want {
			t.Errorf("%s: %v, %v in words %q; want %v and %q", c.cell.name, m.ours, m.official, got, c.want, c.text)
		}
	}
}

// A run in which nothing succeeds has the worst values, not the best.
func TestCellsOfNothing(t *testing.T) {
	r := run{result: result{Began: at(0), Ended: at(10_000)}, faultBegan: at(1000), faultEnded: at(4000)}
	for _, c := range []struct {
		cell cell
		want float64
	}{{failed, 0}, {longestSend, 0}, {longestGap, 10}, {acceptedRate, 0}, {firstDelivery, 6}, {sendRate, 0}, {pushRate, 0}} {
		if got := c.cell.value(r); got != c.want {
			t.Errorf("%s is %v, want %v", c.cell.name, got, c.want)
		}
	}
}

// The squares of the differences from the mean add up to 0.34, so the standard error of the mean is
// the root of 0.34/4/5, 0.130384; the quantile for 4 degrees of freedom is 2.776.
func TestInterval(t *testing.T) {
	mean, half := interval([]float64{2.1, 1.9, 2.4, 2.0, 2.6})
	if math.Abs(mean-2.2) > 1e-9 || math.Abs(half-2.776*0.130384) > 1e-5 {
		t.Errorf("%v ± %v, want 2.2 ± 0.36195", mean, half)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name           string
		more           bool
		ours, official []float64
		want           verdict
	}{
		{"less is better", false, []float64{1, 2, 1, 2}, []float64{5, 6, 5, 7}, better},
		{"more is worse", false, []float64{5, 6, 5, 7}, []float64{1, 2, 1, 2}, worse},
		{"more is better", true, []float64{5, 6, 5, 7}, []float64{1, 2, 1, 2}, better},
		{"less is worse", true, []float64{1, 2, 1, 2}, []float64{5, 6, 5, 7}, worse},
		{"the same", false, []float64{0, 0, 0}, []float64{0, 0, 0}, equal},
		{"noise", false, []float64{9, 1, 9, 1}, []float64{1, 2, 1, 2}, equal},
		{"the rounds differ more than the sides", false, []float64{11, 102, 51.5}, []float64{10, 101, 50}, worse},
		{"always worse by the same", false, []float64{2, 3}, []float64{1, 2}, worse},
		{"one round", false, []float64{9}, []float64{1}, unknown},
	} {
		if got := (measured{cell: cell{more: c.more}, ours: c.ours, official: c.official}).judge(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	late := measured{cell: cell{finest: 0.5}, ours: []float64{2.4, 3.4}, official: []float64{2, 3}}
	if got := late.judge(); got != equal {
		t.Errorf("below the finest difference: %s", got)
	}
	if late.finest = 0.25; late.judge() != worse {
		t.Errorf("above the finest difference: %s", late.judge())
	}
}

func TestTable(t *testing.T) {
	cells := []measured{
		{cell: failed, row: "rst", ours: []float64{0, 0}, official: []float64{0.5, 0.25}, runs: []string{"0 of 8 / 4 of 8", "0 of 8 / 2 of 8"}},
		{cell: pushRate, row: "push", ours: []float64{10, 10}, official: []float64{20, 20}, runs: []string{"10 / 20", "10 / 20"}},
		{cell: sendRate, row: "interrupted before its first round"},
	}
	table, good := format(cells)
	if good {
		t.Error("a table with a worse cell is good")
	}
	for _, want := range []string{
		"| rst | failed sends | 0.0 % (0.0 % to 0.0 %) | 37.5 % (25.0 % to 50.0 %) | equal |",
		"| push | deliveries a second | 10 (10 to 10) | 20 (20 to 20) | WORSE |",
		"rst, failed sends: 0 of 8 / 4 of 8; 0 of 8 / 2 of 8",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if _, good := format(cells[:1]); !good {
		t.Error("a table without a worse cell is not good")
	}
}
