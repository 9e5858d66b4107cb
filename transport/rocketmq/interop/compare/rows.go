package main

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/backoff"
)

// A row is one fault with the load under which both sides meet it.
type row struct {
	name   string
	about  string // the fault or load, in a line
	load   spec   // without the names
	fed    bool   // a sender of the program, beside the relay, feeds the push consumer
	beside bool   // the row can run at the same time as other such rows: its fault is in the relays
	turns  bool   // the sides run one after the other, and the process's CPU time counts
	// servers names a fault of servers. Rows with the same one meet it at the same time.
	servers string
	on      setting
	limit   time.Duration // of a side's process; 0 for patience
	// run makes the faults. It returns when the load shall end.
	run   func(ctx context.Context, s *stage) error
	cells []cell
}

// A setting is the set-up of servers that a row needs.
type setting int

const (
	single setting = iota // one broker and one proxy
	small                 // as single, but the broker can take no more than 8 concurrent sends
	paired                // two brokers and two proxies
)

// A stage has the parts that a row's run acts on.
type stage struct {
	relays []*relay
	server target
	flood  func(context.Context) // sends as much as the server takes; nil unless the server is small
	began  time.Time             // of the fault
	ended  time.Time             // of the fault
}

// The times of a run with a fault. Both clients know the server before, and have time to return.
const (
	before = 5 * time.Second
	after  = 25 * time.Second
)

// between makes a fault between two quiet times.
func between(fault func(context.Context, *stage) error) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		if err := backoff.Sleep(ctx, before); err != nil {
			return err
		}
		s.began = time.Now()
		if err := fault(ctx, s); err != nil {
			return err
		}
		s.ended = time.Now()
		return backoff.Sleep(ctx, after)
	}
}

// jointly returns the run that n rows share. It makes the faults when all rows have begun, and
// returns for all of them when they are over.
func jointly(n int, faults func(context.Context, *stage) error) func(context.Context, *stage) error {
	var begun atomic.Int64
	over := make(chan struct{})
	var began, ended time.Time
	var err error
	return func(ctx context.Context, s *stage) error {
		if begun.Add(1) == int64(n) {
			err = faults(ctx, s)
			began, ended = s.began, s.ended
			close(over)
			return err
		}
		select {
		case <-over:
			s.began, s.ended = began, ended
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// during sets a fault of the relays for a time.
func during(d time.Duration, faults func() fault) func(context.Context, *stage) error {
	return between(func(ctx context.Context, s *stage) error {
		for _, r := range s.relays {
			r.Set(faults())
			defer r.Set(fault{})
		}
		return backoff.Sleep(ctx, d)
	})
}

func always(f fault) func() fault { return func() fault { return f } }

// proxyAway kills the first proxy and starts it again. The whole takes d, or longer if the start
// does.
func proxyAway(d time.Duration) func(context.Context, *stage) error {
	const start = 10 * time.Second // of a proxy on a busy machine
	return between(func(ctx context.Context, s *stage) error {
		if err := s.server.kill(ctx, firstProxy); err != nil {
			return err
		}
		if err := backoff.Sleep(ctx, d-start-time.Since(s.began)); err != nil {
			return err
		}
		return s.server.restart(ctx, firstProxy)
	})
}

// flooded overloads a small server with sends of others.
func flooded(d time.Duration) func(context.Context, *stage) error {
	return between(func(ctx context.Context, s *stage) error {
		flood, end := context.WithTimeout(ctx, d)
		defer end()
		s.flood(flood)
		return nil
	})
}

// undisturbed runs without a fault for a time.
func undisturbed(d time.Duration) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		s.began = time.Now()
		err := backoff.Sleep(ctx, d)
		s.ended = time.Now()
		return err
	}
}

// bucket returns a Throttle that accepts so many sends a second, and as many at once.
func bucket(perSecond int) func() bool {
	limit := rate.NewLimiter(rate.Limit(perSecond), perSecond)
	return func() bool { return !limit.Allow() }
}

// paced is the load of the rows with a fault: 16 senders that send at most twice a second each.
var paced = spec{Senders: 16, Pause: 500 * time.Millisecond, Size: 1024, Handlers: 20}

// crowd is the load of the row whose result is random: so many senders that the share of the failed
// sends differs little between rounds, and more than our producer first has under way for a topic.
var crowd = spec{Senders: 96, Pause: 500 * time.Millisecond, Size: 1024, Handlers: 20}

const (
	throttledRate = 15     // accepted sends a second and side while the relay throttles
	backlog       = 20_000 // messages of the row push
)

// rows returns all rows in their order.
func rows() []row { return append(serverRows(), clusterRows()...) }

// serverRows returns the rows of one broker and one proxy.
func serverRows() []row {
	return []row{{
		name: "rst", about: "the relay resets all connections for 23 s", load: paced, beside: true, fed: true,
		run:   during(23*time.Second, always(fault{Reset: true})),
		cells: []cell{failed, longestGap, firstDelivery},
	}, {
		name: "lost", about: "half of the responses are lost for 30 s", load: crowd, beside: true,
		run:   during(30*time.Second, always(fault{LoseResponses: 0.5})),
		cells: []cell{failed, longestSend, longestGap},
	}, {
		name: "throttled", about: "the server accepts 15 sends a second of each side for 40 s and throttles the others", load: paced, beside: true,
		run:   during(40*time.Second, func() fault { return fault{Throttle: bucket(throttledRate)} }),
		cells: []cell{failed, acceptedRate},
	}, {
		name: "blackhole", about: "no byte passes for 20 s", load: paced, beside: true, fed: true,
		run:   during(20*time.Second, always(fault{Silent: true})),
		cells: []cell{failed, longestGap, firstDelivery},
	}, {
		name: "late", about: "responses are 2 s late for 20 s", load: paced, beside: true,
		run:   during(20*time.Second, always(fault{Delay: 2 * time.Second})),
		cells: []cell{failed, longestSend, longestGap},
	}, {
		name: "fifo", about: "the proxy is away for 50 s; messages with message groups", load: ordered(paced),
		run:   proxyAway(50 * time.Second),
		cells: []cell{failed, outOfOrder, longestGap, firstDelivery},
	}, {
		name: "send", about: "64 senders for 10 s, one side after the other", load: spec{Senders: 64, Size: 1024}, turns: true,
		run:   undisturbed(10 * time.Second),
		cells: []cell{sendRate, cpuOfSends},
	}, {
		name: "push", about: "20 handlers consume 20 000 messages, one side after the other",
		load: spec{Size: 1024, Handlers: 20, Total: backlog}, turns: true, cells: []cell{pushRate, cpuOfPush},
	}, {
		name: "overloaded", about: "other clients keep the queue of the broker full for 30 s, and it throttles; both wait 10 ms, doubled up to 1 s",
		load: retrying(paced), on: small,
		run:   flooded(30 * time.Second),
		cells: []cell{failed, acceptedRate},
	}}
}

// retrying has ours wait like the official client, which follows the server's schedule. With its
// default, gRPC's backoff of 1 s, a sender makes at most one attempt a second, so where each
// attempt can meet a free place, a client that waits for 10 ms is accepted more often.
func retrying(s spec) spec {
	s.Retries = true
	return s
}

func ordered(s spec) spec {
	s.FIFO = true
	return s
}
