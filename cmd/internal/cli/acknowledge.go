package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// maxUnderWay is the number of acknowledgements under way, each of the messages of one receive. The
// command receives no more until one of them ends, so that a slow server bounds the leases. With
// one alone, a broker whose disk takes 40 ms to sync would deliver at most 32 messages in that
// time.
const maxUnderWay = 64

// An acknowledger acknowledges printed messages while the next ones are received. It begins no
// acknowledgement after a failure.
//
// The messages of one receive are in the same acknowledgement. In a FIFO consumer group, servers
// deliver no further message of a message group until these are settled. Therefore messages of one
// message group are never in two acknowledgements under way.
type acknowledger struct {
	ack      func([]*tidegate.Delivery) []error
	failed   func() // called once, after the first failure
	underWay sync.WaitGroup
	places   chan struct{} // has a value for each acknowledgement under way

	mu       sync.Mutex
	begun    int
	refusals refusals
	rest     []*tidegate.Delivery // printed after a failure
}

func newAcknowledger(ack func([]*tidegate.Delivery) []error, failed func()) *acknowledger {
	return &acknowledger{ack: ack, failed: failed, places: make(chan struct{}, maxUnderWay)}
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

// acknowledge begins the acknowledgement of the messages of a receive. It waits while maxUnderWay
// are under way.
func (a *acknowledger) acknowledge(ds []*tidegate.Delivery) {
	a.places <- struct{}{}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(ds) == 0 || a.refusals.count > 0 {
		a.rest = append(a.rest, ds...)
		<-a.places
		return
	}
	nth := a.begun
	a.begun++
	a.underWay.Go(func() {
		r := refused(nth, ds, a.ack(ds))
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.refusals.count == 0 && r.count > 0 {
			a.failed()
		}
		a.refusals = a.refusals.and(r)
		<-a.places
	})
}

// end waits for all acknowledgements. It returns the printed messages that were not acknowledged
// after a failure, and the failure.
func (a *acknowledger) end() ([]*tidegate.Delivery, error) {
	a.underWay.Wait()
	return a.rest, a.refusals.err()
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
