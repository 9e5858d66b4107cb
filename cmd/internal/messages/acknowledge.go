package messages

import (
	"fmt"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

const (
	// maxPrinted is the number of receives whose messages are printed and wait for an
	// acknowledgement. Further ones wait, so that a slow server bounds the leases.
	maxPrinted = 32

	// maxAcks is the number of messages of one acknowledgement.
	maxAcks = 512
)

// An acknowledger acknowledges printed messages, in their order, while the next ones are received.
// It ends at the first failure.
type acknowledger struct {
	ack     func([]*tidegate.Delivery) []error
	printed chan []*tidegate.Delivery
	ended   chan struct{}

	rest []*tidegate.Delivery // not acknowledged because of err; valid after ended
	err  error                // valid after ended
}

// acknowledge starts an acknowledger. It calls failed after a failure, and then only collects
// messages.
func acknowledge(ack func([]*tidegate.Delivery) []error, failed func()) *acknowledger {
	a := &acknowledger{ack: ack, printed: make(chan []*tidegate.Delivery, maxPrinted), ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		for ds := range a.printed {
			if a.err != nil {
				a.rest = append(a.rest, ds...)
			} else if a.err = a.all(a.waiting(ds)); a.err != nil {
				failed()
			}
		}
	}()
	return a
}

// waiting returns messages with those that were printed meanwhile.
func (a *acknowledger) waiting(ds []*tidegate.Delivery) []*tidegate.Delivery {
	for len(ds) < maxAcks {
		select {
		case more, ok := <-a.printed:
			if !ok {
				return ds
			}
			ds = append(slices.Clip(ds), more...)
		default:
			return ds
		}
	}
	return ds
}

// all acknowledges messages in one call. The error names the first message that failed.
func (a *acknowledger) all(ds []*tidegate.Delivery) error {
	var first error
	failed := 0
	for i, err := range a.ack(ds) {
		if err == nil {
			continue
		}
		if failed++; first == nil {
			first = unsettled(ds[i], err)
		}
	}
	if failed > 1 {
		return fmt.Errorf("%w; %s more like it", first, output.Number(int64(failed-1)))
	}
	return first
}

// end waits for all acknowledgements. It returns the printed messages that were not acknowledged
// after a failure, and the failure.
func (a *acknowledger) end() ([]*tidegate.Delivery, error) {
	close(a.printed)
	<-a.ended
	return a.rest, a.err
}

// unsettled is the error of a printed message.
func unsettled(d *tidegate.Delivery, err error) error {
	return fmt.Errorf("message %s was printed and not settled: %w", output.Safe(d.ID), err)
}
