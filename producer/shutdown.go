package producer

import (
	"context"

	"github.com/tidegate/tidegate"
)

// Accounts count the messages that a producer has accepted since New. When all messages have a
// result, as after Shutdown and Close, Accepted is the sum of Delivered, Failed, Spooled and the
// length of Undelivered.
type Accounts struct {
	Accepted  int // by Send, SendAsync, SendBatch, Begin and Transact
	Delivered int // accepted by the server; for a half message, stored as such
	Failed    int // ended with an error, without those in Undelivered
	Spooled   int // on disk in Options.Spool when their callers received the result
	Drained   int // spooled messages that the server accepted, including those of an earlier process

	// Undelivered are the messages that Shutdown or Close aborted and that are not in a spool, in
	// no particular order. Their callers received an error that matches tidegate.ErrClosed.
	Undelivered []Undelivered
}

// An Undelivered is a message that Shutdown or Close aborted.
type Undelivered struct {
	Message     *tidegate.Message // with the ID in its attempts
	MaybeStored bool              // an attempt may have been stored
}

// Flush waits until every message that was accepted before the call has its result and the
// functions given to SendAsync have returned. It returns context.Cause(ctx) if ctx ends first.
// Other goroutines may send during Flush. A function given to SendAsync that calls Flush waits for
// itself, until ctx ends.
func (p *Producer) Flush(ctx context.Context) error { return p.ledger.Flush(ctx) }

// Shutdown stops the producer: it rejects further messages, waits until the accepted ones have
// their results, and returns the accounts. If ctx ends first, Shutdown aborts the remaining
// messages, lists them in Accounts.Undelivered, and returns context.Cause(ctx) too. With
// Options.Spool it moves them to the spool instead. Shutdown does not wait for a transport that
// ignores the cancellation of its request; Close does.
//
// Shutdown also waits for the calls of Transact, Begin, Commit, Rollback and Recall that are under
// way, until ctx ends. It does not wait for a [Transaction] of Begin without a resolution, and
// later resolutions fail with tidegate.ErrClosed: use Transact, or resolve it before.
//
// With Options.Spool Shutdown also stops the sending of spooled messages. It waits for requests
// under way until ctx ends, for at most a second, and then cancels them; their messages stay in the
// spool. The producer does not use the spool after Shutdown has returned.
//
// Shutdown can be called in any state, more than once, and by several goroutines. It must not be
// called from Options.OnAttempt or a function given to SendAsync or Transact, because it waits for
// these: such a call blocks until ctx ends.
func (p *Producer) Shutdown(ctx context.Context) (Accounts, error) {
	p.ledger.Close()
	err := p.ledger.Flush(ctx)
	if err == nil {
		err = p.ledger.AwaitCalls(ctx)
	}
	drained := true
	if p.spooler != nil {
		p.spooler.stop()
		drained = err == nil && p.spooler.wait(ctx)
	}
	if err != nil || !drained {
		p.abort("Shutdown")
		<-p.ledger.Settled() // other goroutines may still be storing results
	}
	if p.spooler != nil {
		<-p.spooler.drained
	}
	p.closed.Store(true)
	p.end(errProducerClosed)
	p.events.Close()
	return p.accounts(), err
}

// accounts returns the current accounts.
func (p *Producer) accounts() Accounts {
	c, aborted := p.ledger.Report()
	a := Accounts{Accepted: c.Accepted, Delivered: c.Delivered, Failed: c.Failed, Spooled: c.Spooled, Drained: c.Drained}
	for _, it := range aborted {
		a.Undelivered = append(a.Undelivered, Undelivered{Message: it.Message, MaybeStored: it.err.MaybeStored})
	}
	return a
}

// Close stops the producer at once: it aborts the messages without a result with an error that
// matches tidegate.ErrClosed, or moves them to Options.Spool. It calls the functions given to
// SendAsync and waits until all goroutines of the producer have ended. It logs the number of
// aborted messages. Use Shutdown to have them sent, or to receive them.
//
// Close can be called in any state, more than once, and by several goroutines. It must not be
// called from Options.OnAttempt or a function given to SendAsync, because Close waits for these. It
// always returns nil, and leaves the transport open.
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
	p.events.Close()
	return nil
}

// abort ends all messages without a result.
func (p *Producer) abort(op string) {
	p.ledger.Stop()
	p.closed.Store(true)
	p.end(errProducerClosed)
	if n := leaveAll(p.ledger.Pending(), true); n > 0 {
		p.log.Warn("messages aborted", "operation", op, "messages", n, "spool", p.spooler != nil)
	}
}
