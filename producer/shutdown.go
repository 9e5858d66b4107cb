package producer

import (
	"context"

	"github.com/tidegate/tidegate"
)

// Accounts count the messages that a producer accepted in its life. Once all have
// a result, as after Shutdown and Close, Accepted is the sum of Delivered, Failed,
// Spooled and the length of Undelivered.
type Accounts struct {
	Accepted  int // by Send, SendAsync and SendBatch
	Delivered int // accepted by the server
	Failed    int // ended with an error before the producer was stopped
	Spooled   int // on disk in Options.Spool when their callers got the result
	Drained   int // messages of the spool that the server accepted, those of an earlier process included

	// Undelivered are the messages that Shutdown or Close aborted and that are in no
	// spool, in no particular order. Each caller got an error that matches tidegate.ErrClosed.
	Undelivered []Undelivered
}

// An Undelivered is a message that Shutdown or Close aborted.
type Undelivered struct {
	Message     *tidegate.Message // with the ID that its attempts carried
	MaybeStored bool              // an attempt may have been stored
}

// Flush waits until every message that was accepted before the call has its
// result, and the functions given to SendAsync have returned. It returns
// context.Cause(ctx) if ctx ends first. Messages may be sent meanwhile.
func (p *Producer) Flush(ctx context.Context) error { return p.ledger.Flush(ctx) }

// Shutdown stops the producer in order: it refuses further messages, waits until
// those that were accepted have their results, and returns the accounts. If ctx
// ends first, Shutdown aborts the rest, lists it in Accounts.Undelivered, and also
// returns context.Cause(ctx). With Options.Spool it moves the rest there instead,
// waits a second at most for requests with messages of the spool, and does not use the
// spool after its return. Shutdown does not wait for a transport that goes on after
// its request was cancelled; Close does.
//
// Shutdown can be called in any state, more than once, and by several goroutines.
func (p *Producer) Shutdown(ctx context.Context) (Accounts, error) {
	p.ledger.Close()
	err := p.ledger.Flush(ctx)
	drained := true
	if p.spooler != nil {
		p.spooler.stop()
		drained = err == nil && p.spooler.wait(ctx)
	}
	if err != nil || !drained {
		p.abort("Shutdown")
		<-p.ledger.Settled() // other goroutines may be about to note results
	}
	if p.spooler != nil {
		<-p.spooler.drained
	}
	p.closed.Store(true)
	p.end(errProducerClosed)
	return p.accounts(), err
}

// accounts returns what became of the messages so far.
func (p *Producer) accounts() Accounts {
	c, aborted := p.ledger.Report()
	a := Accounts{Accepted: c.Accepted, Delivered: c.Delivered, Failed: c.Failed, Spooled: c.Spooled, Drained: c.Drained}
	for _, it := range aborted {
		a.Undelivered = append(a.Undelivered, Undelivered{Message: it.Message, MaybeStored: it.err.MaybeStored})
	}
	return a
}

// Close stops the producer at once: it aborts the messages without a result with an error that
// matches tidegate.ErrClosed, or moves them to Options.Spool, calls the functions given to
// SendAsync, and waits until nothing of the producer runs any more. It logs how many messages it
// aborted; use Shutdown to have them sent, or to get them back.
//
// Close can be called in any state, more than once, and by several goroutines, but
// not from a function given to SendAsync or from Options.OnAttempt, which it waits
// for. It always returns nil, and leaves the transport open.
func (p *Producer) Close() error {
	p.ledger.Close()
	if p.spooler != nil {
		p.spooler.stop()
	}
	p.abort("Close")
	p.ledger.Running.Wait()
	if p.spooler != nil {
		<-p.spooler.drained
	}
	return nil
}

// abort ends all messages without a result.
func (p *Producer) abort(op string) {
	p.closed.Store(true)
	p.end(errProducerClosed)
	n := 0
	for _, it := range p.ledger.Pending() {
		if !it.drained {
			n++
		}
		it.topic.leave(it, true)
	}
	if n > 0 {
		p.log.Warn("messages aborted", "operation", op, "messages", n, "spool", p.spooler != nil)
	}
}
