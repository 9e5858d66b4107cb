package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

const (
	// maxAcks is the number of messages of one acknowledgement.
	maxAcks = 512

	// maxPrinted is the number of printed messages that wait for an acknowledgement to begin. The
	// command receives no more until one begins, so that a slow server bounds the leases.
	maxPrinted = 2 * maxAcks

	// maxUnderWay is the number of acknowledgements under way. With one alone, receive has 5 800
	// messages a second from a broker whose disk takes 40 ms to sync.
	maxUnderWay = 4
)

// An acknowledger acknowledges printed messages while the next ones are received. It begins no
// acknowledgement after a failure.
//
// The messages of one receive are in the same acknowledgement. In a FIFO consumer group, servers
// deliver no further message of a message group until these are settled. Therefore messages of one
// message group are never in two acknowledgements under way.
type acknowledger struct {
	ack     func([]*tidegate.Delivery) []error
	printed chan []*tidegate.Delivery // of one receive
	ended   chan struct{}

	rest []*tidegate.Delivery // not acknowledged because of err; valid after ended
	err  error                // valid after ended
}

// acknowledge starts an acknowledger. It calls failed after the first failure, and then only
// collects messages.
func acknowledge(ack func([]*tidegate.Delivery) []error, failed func()) *acknowledger {
	a := &acknowledger{ack: ack, printed: make(chan []*tidegate.Delivery), ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		a.run(failed)
	}()
	return a
}

// persistent returns ack with repetitions: acknowledgements that no server has answered are
// repeated each second until a lease of the given duration has ended, and once more at the end of
// ctx, because the server may have come back. A handle that the server does not know at a
// repetition is no failure: the first request had success, or the message is delivered again.
func persistent(ctx context.Context, lease time.Duration, ack func([]*tidegate.Delivery) []error) func([]*tidegate.Delivery) []error {
	return func(ds []*tidegate.Delivery) []error {
		until := time.Now().Add(lease)
		errs := ack(ds)
		for ended := false; time.Now().Before(until) && !ended; {
			var again []*tidegate.Delivery
			var places []int
			for i, err := range errs {
				if err != nil && exitCode(err) == exitNoAnswer {
					again, places = append(again, ds[i]), append(places, i)
				}
			}
			if len(again) == 0 {
				break
			}
			ended = backoff.Sleep(ctx, time.Second) != nil
			for i, err := range ack(again) {
				if errors.Is(err, tidegate.ErrInvalidHandle) {
					err = nil
				}
				errs[places[i]] = err
			}
		}
		return errs
	}
}

// run acknowledges until printed is closed and no acknowledgement is under way.
func (a *acknowledger) run(failed func()) {
	var waiting queue
	var all refusals
	results := make(chan refusals)
	underWay, begun, printed := 0, 0, a.printed
	for {
		for all.count == 0 && waiting.begins(underWay) {
			ds, nth := waiting.take(), begun
			begun, underWay = begun+1, underWay+1
			go func() { results <- refused(nth, ds, a.ack(ds)) }()
		}
		if all.count > 0 {
			a.rest = append(a.rest, waiting.takeAll()...)
		}
		if printed == nil && underWay == 0 {
			a.err = all.err()
			return
		}
		next := printed
		if waiting.messages >= maxPrinted {
			next = nil
		}
		select {
		case ds, ok := <-next:
			if !ok {
				printed = nil
			}
			waiting.put(ds)
		case r := <-results:
			underWay--
			if all.count == 0 && r.count > 0 {
				failed()
			}
			all = all.and(r)
		}
	}
}

// end waits for all acknowledgements. It returns the printed messages that were not acknowledged
// after a failure, and the failure.
func (a *acknowledger) end() ([]*tidegate.Delivery, error) {
	close(a.printed)
	<-a.ended
	return a.rest, a.err
}

// A queue has the printed messages that wait for an acknowledgement, by receives.
type queue struct {
	receives [][]*tidegate.Delivery
	messages int
}

func (q *queue) put(ds []*tidegate.Delivery) {
	if len(ds) > 0 {
		q.receives = append(q.receives, ds)
		q.messages += len(ds)
	}
}

// begins reports whether an acknowledgement begins beside those under way. The first one takes all
// messages that wait. The others must be large, because small ones would cost more than they gain.
func (q *queue) begins(underWay int) bool {
	return underWay == 0 && q.messages > 0 || underWay < maxUnderWay && q.messages >= maxAcks
}

// take removes the messages of the next acknowledgement.
func (q *queue) take() (ds []*tidegate.Delivery) {
	n := 0
	for n < len(q.receives) && (n == 0 || len(ds)+len(q.receives[n]) <= maxAcks) {
		ds = append(ds, q.receives[n]...)
		n++
	}
	q.receives, q.messages = q.receives[n:], q.messages-len(ds)
	return ds
}

// takeAll removes all messages.
func (q *queue) takeAll() []*tidegate.Delivery {
	ds := slices.Concat(q.receives...)
	*q = queue{}
	return ds
}

// refusals are the failures of acknowledgements. first is the error of the message that was printed
// first, in acknowledgement nth.
type refusals struct {
	nth, count int
	first      error
}

// refused returns the failures of acknowledgement nth.
func refused(nth int, ds []*tidegate.Delivery, errs []error) refusals {
	r := refusals{nth: nth}
	for i, err := range errs {
		if err == nil {
			continue
		}
		if r.count++; r.first == nil {
			r.first = unsettled(ds[i], err)
		}
	}
	return r
}

func (r refusals) and(other refusals) refusals {
	if r.count == 0 || other.count > 0 && other.nth < r.nth {
		r.nth, r.first = other.nth, other.first
	}
	r.count += other.count
	return r
}

func (r refusals) err() error {
	if r.count > 1 {
		return fmt.Errorf("%w; %s more like it", r.first, output.Number(int64(r.count-1)))
	}
	return r.first
}

// unsettled is the error of a printed message.
func unsettled(d *tidegate.Delivery, err error) error {
	return fmt.Errorf("message %s was printed and not settled: %w", output.Safe(d.ID), err)
}
