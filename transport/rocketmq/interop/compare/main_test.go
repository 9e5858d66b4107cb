package main

import (
	"context"
	"errors"
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

func (f *fake) kill(context.Context) error    { return nil }
func (f *fake) restart(context.Context) error { return nil }

// In each kind of row both sides send messages and receive them.
func TestPlay(t *testing.T) {
	small := spec{Senders: 4, Pause: 10 * time.Millisecond, Size: 64, Handlers: 4}
	f := serve(t)
	feeder, err := newFeeder(f.endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer feeder.client.Close()
	for name, r := range map[string]row{
		"together, fed":  {load: small, fed: true, run: undisturbed(time.Second)},
		"message groups": {load: ordered(small), run: undisturbed(time.Second)},
		"sends in turns": {load: small, turns: true, run: undisturbed(time.Second)},
		"beside others": {load: small, small: true, run: func(ctx context.Context, s *stage) error {
			flood, end := context.WithTimeout(ctx, time.Second)
			defer end()
			s.flood(flood)
			return nil
		}},
		"backlog, in turns": {load: spec{Size: 64, Handlers: 4, Total: 500}, turns: true},
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
				case r.load.Senders > 0 && (n > 0 || all < r.load.Senders):
					t.Errorf("%s: %d of %d sends failed", side, n, all)
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
