package main

// This file has the rows of a cluster and their cells. Two brokers and two proxies serve both
// clients at the same time, with topics and groups of each client's own, and both clients get the
// addresses of both proxies. The load is a schedule (sendBySchedule). A fault meets the load without
// and that with message groups at the same time, as two rows.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// offered is the load of the rows with a fault: 40 sends a second of each client.
var offered = spec{
	Senders: 32, Every: 800 * time.Millisecond, InTime: 10 * time.Second, Drain: 2 * time.Minute,
	Size: 1024, Handlers: 20,
}

// queued is the load of the row without a fault: message groups whose messages wait in the topic.
var queued = spec{
	Senders: 64, FIFO: true, Total: 6400, Size: 1024,
	Handlers: 20, Work: 5 * time.Millisecond, Limit: 90 * time.Second,
}

// The times of the faults. The proxies read the routes anew every 20 s, so a pause after the return
// of a broker has to be longer.
const (
	proxyDown  = 20 * time.Second
	brokerDown = 40 * time.Second // the proxies keep a dead broker in their routes for 10 s to 40 s
	pause      = 25 * time.Second // between two servers
)

// clusterLimit bounds a side's process in a row of a cluster: four ends and starts of the longest
// time, the pauses and the drain.
const clusterLimit = 40 * time.Minute

// clusterRows returns the rows of a cluster in their order.
func clusterRows() []row {
	var list []row
	for _, r := range []row{{
		name: "proxy-killed", about: "kill -9 of both proxies in turn, each away for 20 s",
		run: between(inTurn(killed(proxyDown), "proxy-1", "proxy-2")),
	}, {
		name: "broker-killed", about: "kill -9 of one of two brokers, away for 40 s",
		run: between(inTurn(killed(brokerDown), "broker-b")),
	}, {
		name: "rolling", about: "both proxies and both brokers restart in turn",
		run: between(inTurn(restarted, "proxy-1", "proxy-2", "broker-a", "broker-b")),
	}} {
		r.on, r.limit, r.load, r.servers = paired, clusterLimit, offered, r.name
		r.cells = []cell{notAccepted, accepted, boundedSend, acceptance, acceptedGap, undelivered, duplicates}
		list = append(list, r)
		r.name, r.about, r.load = r.name+"-fifo", r.about+"; messages with message groups", ordered(offered)
		r.cells = append(slices.Clip(r.cells), outOfOrder)
		list = append(list, r)
	}
	return append(list, row{
		name: "backlog-fifo", about: "20 handlers of 5 ms consume 6 400 messages of 64 message groups, one side after the other",
		on: paired, limit: clusterLimit, load: queued, turns: true,
		cells: []cell{backlogRate, duplicates, outOfOrder},
	})
}

// inTurn makes a fault of one process after the other.
func inTurn(fault func(ctx context.Context, s target, process string) error, processes ...string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		for i, process := range processes {
			if i > 0 {
				if err := backoff.Sleep(ctx, pause); err != nil {
					return err
				}
			}
			if err := fault(ctx, s.server, process); err != nil {
				return err
			}
		}
		return nil
	}
}

// killed kills a process and starts it again after a time.
func killed(down time.Duration) func(context.Context, target, string) error {
	return func(ctx context.Context, s target, process string) error {
		if err := s.kill(ctx, process); err != nil {
			return err
		}
		if err := backoff.Sleep(ctx, down); err != nil {
			return err
		}
		return s.restart(ctx, process)
	}
}

// restarted ends a process in order and starts it again at once.
func restarted(ctx context.Context, s target, process string) error {
	if err := s.stop(ctx, process); err != nil {
		return err
	}
	return s.restart(ctx, process)
}

// A fate counts the sends that were due by a schedule.
type fate struct {
	due, failed, late, lost int // the last three are disjoint
}

func (r run) fate() fate {
	f := fate{due: len(r.Sends)}
	for _, s := range r.Sends {
		switch {
		case s.Lost:
			f.lost++
		case s.Err != "":
			f.failed++
		case s.Late:
			f.late++
		}
	}
	return f
}

// notAccepted counts the sends that failed, were accepted after their time, or were not made before
// it was over.
var notAccepted = cell{
	name:   "sends not accepted in time",
	format: whole,
	value: func(r run) float64 {
		f := r.fate()
		return float64(f.failed + f.late + f.lost)
	},
	detail: func(r run) string {
		f := r.fate()
		return fmt.Sprintf("%d of %d (%d failed, %d late, %d not made)", f.failed+f.late+f.lost, f.due, f.failed, f.late, f.lost)
	},
}

// accepted counts the accepted sends, also the late ones. The sides begin and end some milliseconds
// after each other, which moves a send or two across the edges of the run.
var accepted = cell{
	name:   "accepted",
	more:   true,
	finest: 2,
	format: whole,
	value: func(r run) float64 {
		f := r.fate()
		return float64(f.due - f.failed - f.lost)
	},
}

// boundedSend is the longest send with the bound that ours has while another broker lives.
var boundedSend = bounded(longestSend, 5)

// acceptance is the longest time from the call to the acceptance, where a send that is not accepted
// counts as one of InTime. longestSend alone would favour the client that gives up soon.
var acceptance = cell{
	name:   fmt.Sprintf("longest wait for acceptance, %v if it failed", offered.InTime),
	finest: 0.1,
	format: seconds,
	value: func(r run) float64 {
		var longest time.Duration
		for _, s := range r.Sends {
			if s.Err != "" || s.Lost {
				s.Took = max(s.Took, offered.InTime)
			}
			longest = max(longest, s.Took)
		}
		return longest.Seconds()
	},
}

func bounded(c cell, most float64) cell {
	c.most = most
	return c
}

// acceptedGap is the longest time between two accepted sends of some 40 a second, which a pause of
// the machine lengthens. A difference that the table does not show is none.
var acceptedGap = coarse(longestGap, 0.1)

func coarse(c cell, finest float64) cell {
	c.finest = finest
	return c
}

// undelivered counts the accepted messages that the push consumer did not get until the end of the
// drain.
var undelivered = cell{
	name:   "undelivered after the drain",
	format: whole,
	value:  func(r run) float64 { return float64(r.Undelivered) },
}

// duplicates counts the deliveries of messages that had been delivered before, whether the producer
// or the consumer is the cause.
var duplicates = cell{
	name:   "duplicates",
	format: whole,
	value:  func(r run) float64 { return float64(len(r.Deliveries) - r.distinct()) },
}

// backlogRate is the rate at which the messages of a backlog are delivered for the first time.
var backlogRate = cell{
	name:   "messages a second",
	more:   true,
	format: whole,
	value:  func(r run) float64 { return float64(r.distinct()) / r.Ended.Sub(r.Began).Seconds() },
}

// distinct returns the number of messages that were delivered at least once.
func (r run) distinct() int {
	seen := map[message]bool{}
	for _, d := range r.Deliveries {
		seen[message{d.Sender, d.Seq}] = true
	}
	return len(seen)
}
