package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/internal/credit"
	"github.com/tidegate/tidegate/consumer/internal/failure"
	"github.com/tidegate/tidegate/consumer/internal/permit"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/transport"
)

const (
	// minPoll is the shortest time between two empty receives of a queue on a server that waits for
	// less than the requested time.
	minPoll = 100 * time.Millisecond

	// shortPoll is the wait of a receive on a server that cannot repeat receives. Its receives have
	// to end before the consumer stops, because a cancelled one may take a message. It is
	// RocketMQ's minimum.
	shortPoll = 5 * time.Second

	// overlap is the largest number of concurrent receives of a queue with a backlog.
	overlap = 8

	// maxRecalls is the largest number of repetitions of a cancelled receive.
	maxRecalls = 8
)

// A source is a queue of a topic.
type source struct {
	topic *topic
	queue int

	// Guarded by hand.mu.
	underWay int    // concurrent receives
	helpers  int    // loops besides the first one
	removed  bool   // the consumer no longer has the queue
	endpoint string // server of the last delivery; empty before
}

// receive is the receive loop of a queue. While there is a backlog, helpers run beside the first
// loop: their receives do not wait for messages, and they end when a receive returns fewer messages
// than requested. helper is true for them.
func (r *run) receive(s *source, helper bool) {
	failures := 0
	var outage recovery
	attemptID := ""
	permits := permit.Permits{Limiter: r.opts.Limiter, Report: r.reportPanic}
	full := helper // there is a backlog
	empty := 0     // receives in turn without a message
	unwatched := false
	for {
		settings, caps := r.ofSource(s)
		most := r.permitted(&permits, s.topic, r.batch(settings, caps), full, helper)
		if most == 0 {
			return
		}
		watcher := r.watcher(caps)
		if unwatched { // the last receive found nothing and could not leave a watch
			watcher = nil
		}
		g, ok := r.hand.reserve(s, most, !helper, watcher != nil)
		if !ok {
			return
		}
		if attemptID == "" && (settings.FIFO || caps.RepeatReceive) {
			attemptID = tidegate.NewMessageID()
		}
		q := r.request(settings, caps, s, g, attemptID)
		if helper {
			q.Wait, watcher = 0, nil
		}
		start := time.Now()
		n, watched, err := r.receiveOnce(s, q, g, caps.RepeatReceive, watcher)
		switch {
		case errors.Is(err, errInterrupted):
			attemptID = ""
			continue // reserve decides whether there is another receive
		case err != nil && helper:
			return
		case err != nil:
			wait, end := r.receiveFailed(s.topic, "receiving failed", err, failures)
			if end {
				return
			}
			failures++
			if errors.Is(err, transport.ErrUnreadable) {
				attemptID = "" // the same ID would return the same response until its messages' invisible time ends
			}
			if outage.await(r.running, r.transport, wait, err) != nil {
				return
			}
			continue // otherwise with the same attempt ID, because the response may be lost
		}
		failures, attemptID, outage = 0, "", recovery{}
		permits.Spend(n)
		full = n >= g.Messages
		unwatched = watcher != nil && !watched && n == 0
		if empty++; n > 0 {
			empty = 0
		}
		switch {
		case helper && !full:
			return
		case watched && empty < maxEmpty:
		case unwatched: // the next receive waits on the server
		case n == 0:
			if rest := minPoll - time.Since(start); rest > 0 && r.pause(rest) != nil {
				return
			}
		case full && !helper:
			r.help(s)
		}
	}
}

// help starts another concurrent receive of a queue, unless there are enough.
func (r *run) help(s *source) {
	r.hand.startHelper(s, func() {
		r.receivers.Go(func() {
			defer r.hand.endHelper(s)
			r.receive(s, true)
		})
	})
}

// errInterrupted is the cause of a receive that ends because the run ends or pauses.
var errInterrupted = errors.New("interrupted")

// receiveOnce makes one receive, and adds its deliveries. If a watcher could leave a watch,
// receiveOnce then waits until another receive may find a message, and watched is true.
func (r *run) receiveOnce(s *source, q transport.ReceiveRequest, g credit.Grant, repeatable bool, watcher transport.Watcher) (n int, watched bool, err error) {
	ctx, cancel := context.WithCancel(r.polling)
	defer cancel()
	p := &poll{source: s, cancel: cancel, repeatable: repeatable}
	if !r.hand.beginPoll(p) {
		r.hand.giveUp(s, g)
		return 0, false, errInterrupted
	}
	sent := time.Now()
	var ds []*tidegate.Delivery
	var ready <-chan struct{}
	if watcher != nil {
		ds, ready, err = watcher.ReceiveOrWatch(ctx, q)
	} else {
		ds, err = r.transport.Receive(ctx, q)
	}
	r.hand.endPoll(p)
	if err != nil && ctx.Err() != nil {
		if repeatable {
			ds = r.recall(q)
		}
		if err = errInterrupted; len(ds) == 0 {
			r.hand.giveUp(s, g)
			return 0, false, err
		}
	}
	if err != nil && !errors.Is(err, errInterrupted) {
		r.hand.giveUp(s, g)
		return 0, false, err
	}
	endpoint := ""
	if len(ds) > 0 {
		endpoint = ds[0].Endpoint
	}
	r.follow(r.hand.arrive(arrival{
		list: ds, caps: r.capsOf, source: s, grant: g, sent: sent,
		invisible: q.InvisibleDuration, fifo: r.settingsOf(s.topic, endpoint).FIFO,
	}, time.Now()))
	if err == nil {
		r.received(s.topic)
	}
	if ready != nil && err == nil {
		r.awaitReady(ctx, p, ready)
	}
	return len(ds), ready != nil, err
}

// recall repeats a cancelled receive, and returns the deliveries that were in transit. The server
// counts them as in flight, so without recall no consumer would receive them before their invisible
// time ends.
func (r *run) recall(q transport.ReceiveRequest) []*tidegate.Delivery {
	q.Repeat, q.Wait = true, 0
	for n := range maxRecalls {
		ctx, cancel := r.tryContext(time.Time{})
		ds, err := r.transport.Receive(ctx, q)
		cancel()
		if err == nil {
			return ds
		}
		if failure.EndingOf(err) == failure.AtOnce || failure.Code(err) == tidegate.CodeNotImplemented || r.late() || backoff.Sleep(r.settling, settleBackoff.Delay(n)) != nil {
			r.log.Warn("cancelled receive not repeated; its messages may stay invisible until their invisible time ends",
				"topic", q.Topic, "group", q.Group, "error", err)
			return nil
		}
	}
	return nil
}

// batch returns the largest number of messages for one receive.
func (r *run) batch(s *transport.ConsumerSettings, caps transport.Capabilities) int {
	switch {
	case s.FIFO && !caps.Suspend:
		// When a message fails, the later messages of the receive are released. On RocketMQ each
		// release costs them an attempt, and without this limit they could become dead letters
		// before any handler call.
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
		wait = defaultLongPolling
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

// A ReceiveFailure describes a failed receive, or a failed request for the group's settings.
type ReceiveFailure struct {
	Topic    string
	Group    string
	Err      error
	Failures int           // consecutive failures, including this one
	RetryIn  time.Duration // time to the next attempt; 0 if there is none because Run ends
}

// receiveFailed reports a failure. It returns the wait before the next attempt, or true if the
// failure ends the run.
func (r *run) receiveFailed(t *topic, what string, err error, failures int) (wait time.Duration, end bool) {
	if end = r.refused(t, err, time.Now()); !end {
		wait = receiveWait(guard.Policy("ReceiveBackoff", r.opts.ReceiveBackoff, r.reportPanic), failures, err)
	}
	r.log.Warn(what, "topic", t.name, "group", r.sub.Group, "error", err, "retry_in", wait)
	switch {
	case r.opts.OnReceiveFailure == nil && r.logsNothing && r.warnNow(t, time.Now()):
		slog.Default().Warn("tidegate: a consumer without Logger and OnReceiveFailure cannot receive: "+what,
			"topic", t.name, "group", r.sub.Group, "error", err, "failures", failures+1, "retry_in", wait)
	case r.opts.OnReceiveFailure != nil:
		r.guard("OnReceiveFailure panicked", "", func() {
			r.opts.OnReceiveFailure(ReceiveFailure{Topic: t.name, Group: r.sub.Group, Err: err, Failures: failures + 1, RetryIn: wait})
		})
	}
	if end {
		r.fatal(&refusal{err, t.name})
	}
	return wait, end
}
