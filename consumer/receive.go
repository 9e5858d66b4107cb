package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/credit"
	"github.com/tidegate/tidegate/consumer/internal/failure"
	"github.com/tidegate/tidegate/consumer/internal/permit"
	"github.com/tidegate/tidegate/transport"
)

const (
	// minPoll is the least time between two receives of a queue that bring nothing, where a
	// server does not wait as it was asked to.
	minPoll = 100 * time.Millisecond

	// shortPoll is how long a receive waits on a server that cannot repeat receives: its polls have
	// to end before the consumer leaves, since a cancelled one may take a message along. It is
	// RocketMQ's minimum.
	shortPoll = 5 * time.Second

	// overlap is how many receives of one queue are under way at most while it has a backlog.
	overlap = 8

	// maxRecalls is how often a cancelled receive is repeated at most.
	maxRecalls = 8
)

// A source is a queue of a topic that is received from.
type source struct {
	topic *topic
	queue int

	// Guarded by hand.mu.
	underWay int    // receives
	helpers  int    // loops that help the first one
	removed  bool   // the queue is no longer ours
	endpoint string // that delivered last; empty before
}

// receive is the loop of one queue. While there is a backlog, others help it: their receives do not
// wait for messages, and they end when there are fewer than asked for. helper is true for these.
func (r *run) receive(s *source, helper bool) {
	failures := 0
	attemptID := ""
	permits := permit.Permits{Limiter: r.opts.Limiter}
	full := helper // there is a backlog
	for {
		settings := s.topic.settings.Load()
		caps := r.capsOfSource(s)
		most := r.permitted(&permits, s.topic, r.batch(settings, caps), full, helper)
		if most == 0 {
			return
		}
		g, ok := r.hand.reserve(s, most, !helper)
		if !ok {
			return
		}
		if attemptID == "" && (settings.FIFO || caps.RepeatReceive) {
			attemptID = tidegate.NewMessageID()
		}
		q := r.request(settings, caps, s, g, attemptID)
		if helper {
			q.Wait = 0
		}
		start := time.Now()
		n, err := r.receiveOnce(s, q, g, caps.RepeatReceive)
		switch {
		case errors.Is(err, errInterrupted):
			attemptID = ""
			continue // reserve knows whether there is another one
		case err != nil && helper:
			return
		case err != nil:
			wait, end := r.receiveFailed(s.topic, "receiving failed", err, failures)
			if end {
				return
			}
			failures++
			if errors.Is(err, transport.ErrUnreadable) {
				attemptID = "" // or nothing else would come of this queue until that response's invisible time ends
			}
			if r.pause(wait) != nil {
				return
			}
			continue // else with the same attempt ID: perhaps only the response was lost
		}
		r.received(s.topic)
		failures, attemptID = 0, ""
		permits.Spend(n)
		full = n >= g.Messages
		switch {
		case helper && !full:
			return
		case n == 0:
			if rest := minPoll - time.Since(start); rest > 0 && r.pause(rest) != nil {
				return
			}
		case full && !helper:
			r.help(s)
		}
	}
}

// help starts a receive beside the others of a queue, if there is room for it.
func (r *run) help(s *source) {
	r.hand.startHelper(s, func() {
		r.receivers.Go(func() {
			defer r.hand.endHelper(s)
			r.receive(s, true)
		})
	})
}

// errInterrupted ends a receive that the run interrupted, as it ends or is paused.
var errInterrupted = errors.New("interrupted")

// receiveOnce makes one receive, and takes its deliveries.
func (r *run) receiveOnce(s *source, q transport.ReceiveRequest, g credit.Grant, repeatable bool) (int, error) {
	ctx, cancel := context.WithCancel(r.polling)
	defer cancel()
	p := &poll{source: s, cancel: cancel, repeatable: repeatable}
	if !r.hand.beginPoll(p) {
		r.hand.giveUp(s, g)
		return 0, errInterrupted
	}
	sent := time.Now()
	ds, err := r.transport.Receive(ctx, q)
	r.hand.endPoll(p)
	if err != nil && ctx.Err() != nil {
		if repeatable {
			ds = r.recall(q)
		}
		if err = errInterrupted; len(ds) == 0 {
			r.hand.giveUp(s, g)
			return 0, err
		}
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		r.hand.giveUp(s, g)
		return 0, err
	}
	r.follow(r.hand.arrive(arrival{
		list: ds, caps: r.capsOf, source: s, grant: g, sent: sent,
		invisible: q.InvisibleDuration, fifo: s.topic.settings.Load().FIFO,
	}, time.Now()))
	return len(ds), err
}

// recall repeats a cancelled receive, and returns the deliveries that were on their way: the server
// counts them as in flight, so no consumer would get them before their invisible time ends.
func (r *run) recall(q transport.ReceiveRequest) []*tidegate.Delivery {
	q.Repeat, q.Wait = true, 0
	for n := range maxRecalls {
		ctx, cancel := r.tryContext()
		ds, err := r.transport.Receive(ctx, q)
		cancel()
		if err == nil {
			return ds
		}
		if failure.EndingOf(err) == failure.AtOnce || failure.Code(err) == tidegate.CodeNotImplemented || r.late() || backoff.Sleep(r.settling, settleBackoff.Delay(n)) != nil {
			r.log.Warn("a cancelled receive could not be repeated, messages may wait for the end of their invisible time",
				"topic", q.Topic, "group", q.Group, "error", err)
			return nil
		}
	}
	return nil
}

// batch returns how many messages one receive may bring.
func (r *run) batch(s *transport.ConsumerSettings, caps transport.Capabilities) int {
	switch {
	case s.FIFO && !caps.Suspend:
		// When a message fails, those received behind it are released, and on a real RocketMQ
		// each time costs them an attempt: they would become dead letters without ever
		// having been handled.
		return 1
	case s.ReceiveBatchSize > 0:
		return s.ReceiveBatchSize
	}
	return maxBatch
}

func (r *run) request(set *transport.ConsumerSettings, caps transport.Capabilities, s *source, g credit.Grant, attemptID string) transport.ReceiveRequest {
	wait := r.opts.LongPolling
	if wait == 0 {
		wait = set.LongPolling
	}
	if wait <= 0 {
		wait = DefaultLongPolling
	}
	if !caps.RepeatReceive {
		wait = min(wait, shortPoll)
	}
	inv, _ := r.hand.invisible(time.Time{}, time.Time{})
	return transport.ReceiveRequest{
		Group: r.sub.Group, Topic: s.topic.name, Queue: s.queue, Push: true, Filter: s.topic.filter,
		Max: g.Messages, MaxBytes: g.Bytes, InvisibleDuration: inv, Wait: wait, AttemptID: attemptID,
	}
}

// pause waits for d, or returns an error if the run ends first.
func (r *run) pause(d time.Duration) error { return backoff.Sleep(r.running, d) }

// A ReceiveFailure describes a receive, or a request for the group's settings, that failed.
type ReceiveFailure struct {
	Topic    string
	Group    string
	Err      error
	Failures int           // in a row, this one included
	RetryIn  time.Duration // until the next attempt; 0 if there is none: Run ends
}

// receiveFailed reports a failure, and returns how long to wait, or true if it ended the run.
func (r *run) receiveFailed(t *topic, what string, err error, failures int) (wait time.Duration, end bool) {
	if end = r.refused(t, err, time.Now()); !end {
		wait = max(r.opts.ReceiveBackoff.Delay(failures), failure.PushBack(err))
	}
	r.log.Warn(what, "topic", t.name, "group", r.sub.Group, "error", err, "again_in", wait)
	if r.opts.OnReceiveFailure != nil {
		r.guard("OnReceiveFailure panicked", "", func() {
			r.opts.OnReceiveFailure(ReceiveFailure{Topic: t.name, Group: r.sub.Group, Err: err, Failures: failures + 1, RetryIn: wait})
		})
	}
	if end {
		r.fatal(&refusal{err, t.name})
	}
	return wait, end
}
