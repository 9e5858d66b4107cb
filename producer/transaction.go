package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/transport"
)

// A Transaction is a half message: the server has stored it, but no consumer receives it before
// Commit. Several goroutines may share it.
//
// A transaction without a resolution, for example because the process ended, is not lost: the
// server requests the resolution from a producer ([Producer.ServeChecks]).
type Transaction struct {
	p       *Producer
	via     transport.Transactor
	half    transport.Transaction
	message *tidegate.Message
	receipt tidegate.Receipt

	mu         sync.Mutex           // guards the following fields
	resolution transport.Resolution // the first requested one
	reached    int                  // requests with it that the server may have carried out
}

// Begin sends msg as a half message. A half message whose response was lost is not sent again,
// because the rules for transactional messages forbid it. Begin retries only an attempt that
// certainly did not reach a server, for example because there was no connection. After an error, do
// not commit the local transaction. The error is a [*SendError].
//
// Begin blocks until the server responds, ctx ends, Options.AttemptTimeout is over or Close is
// called. It requires Options.Checker and a transport that is a [transport.Transactor]. A half
// message counts in Accounts, and in MaxPending until the response, but it does not wait for a
// place.
func (p *Producer) Begin(ctx context.Context, msg *tidegate.Message) (*Transaction, error) {
	if err := p.beginCall(ctx, msg); err != nil {
		return nil, err
	}
	defer p.ledger.EndCall()
	return p.begin(ctx, msg)
}

// beginCall notes a call with a message. If it returns nil, EndCall must follow.
func (p *Producer) beginCall(ctx context.Context, msg *tidegate.Message) error {
	switch {
	case msg == nil:
		return errNilMessage
	case !p.ledger.BeginCall():
		return newItem(ctx, msg).fail(StopClosed, errProducerClosed)
	}
	return nil
}

func (p *Producer) begin(ctx context.Context, msg *tidegate.Message) (*Transaction, error) {
	it, failed := p.prepare(ctx, msg, nil)
	if failed != nil {
		return nil, failed
	}
	t := it.topic
	defer t.release()
	transactor, ok := p.transport.(transport.Transactor)
	switch {
	case !ok:
		return nil, it.fail(StopPermanent, unsupported("transactions", "Transactor"))
	case p.opts.Checker == nil:
		return nil, it.fail(StopPermanent, &tidegate.Error{
			Subject: "Options.Checker", Code: tidegate.CodeBadRequest, Message: "it is nil; give a function that resolves transactions, for the server's checks",
		})
	}
	counted := p.count(it)
	if counted == nil {
		return nil, it.fail(StopClosed, errProducerClosed)
	}
	var receipt tidegate.Receipt
	err := p.repeat(it, beginOperation, func(ctx context.Context) (endpoint string, err error) {
		r := transactor.SendHalf(ctx, it.Message)
		receipt = r.Receipt
		if r.Err == nil && receipt.TransactionID == "" {
			return receipt.Endpoint, &tidegate.Error{
				Op: "SendMessage", Subject: msg.Topic, Endpoint: receipt.Endpoint, Code: protocol.CodeUnsupported, MaybeStored: true,
				Message: "the response has no transaction ID",
			}
		}
		return receipt.Endpoint, r.Err
	})
	if err = p.counted(counted, err); err != nil {
		return nil, err
	}
	receipt.Attempts = it.history.Attempts
	return &Transaction{
		p: p, via: transactor, message: it.Message, receipt: receipt,
		half: transport.Transaction{ID: receipt.TransactionID, MessageID: it.Message.ID, Topic: msg.Topic, Endpoint: receipt.Endpoint},
	}, nil
}

// unsent reports whether a failed attempt certainly did not reach a server.
func unsent(err error) bool {
	e, ok := errors.AsType[*tidegate.Error](err)
	return ok && (e.Code == 0 && !e.MaybeStored || retry.Unreached(e))
}

// count enters a half message into the accounts and returns its item there, which has no attempts
// of its own, because Close can end it at any time. It returns nil after Close.
func (p *Producer) count(it *item) *item {
	c := newItem(it.ctx, it.Message)
	c.topic, c.origin, c.history.Maybe = it.topic, halfMessage, true
	if !p.ledger.Admit(c, &c.entry, it.Size) {
		return nil
	}
	c.topic.users.Add(1) // complete releases it
	return c
}

// counted notes the result of a half message in the accounts. If Close has aborted the message, it
// returns that error also for a success, because the accounts have the message as undelivered.
func (p *Producer) counted(c *item, err *SendError) *SendError {
	c.topic.mu.Lock()
	gone := c.state != pending
	if !gone {
		if c.state, c.err = delivered, err; err != nil {
			c.state = failedState(err)
		}
	}
	c.topic.mu.Unlock()
	switch {
	case !gone:
		p.complete([]*item{c})
	case err == nil:
		return c.err
	}
	return err
}

// Receipt returns the receipt of the half message.
func (t *Transaction) Receipt() tidegate.Receipt { return t.receipt }

// Commit makes the message available to consumers. It is retried like a send; a repeated commit
// changes nothing. If it fails and the half message is unresolved, the server requests the
// resolution later (see [Producer.ServeChecks]). Commit may be repeated; Commit after Rollback
// returns an error.
//
// After a lost response, the server does not find the transaction if the lost request has ended it.
// Commit then returns nil. If the lost request did not reach the server, and the server has
// discarded the transaction meanwhile, as RocketMQ's proxy does after 30 s, a check ends it.
func (t *Transaction) Commit(ctx context.Context) error { return t.end(ctx, transport.Commit) }

// Rollback removes the half message. It is retried, may fail and may be repeated like Commit.
func (t *Transaction) Rollback(ctx context.Context) error { return t.end(ctx, transport.Rollback) }

func (t *Transaction) end(ctx context.Context, r transport.Resolution) error {
	if !t.p.ledger.BeginCall() {
		e := newItem(ctx, t.message).fail(StopClosed, errProducerClosed)
		e.op = t.op(r)
		return e
	}
	defer t.p.ledger.EndCall()
	return t.resolve(ctx, r)
}

// op returns the beginning of an error's text.
func (t *Transaction) op(r transport.Resolution) string {
	return fmt.Sprintf("%v of the transaction of message %q in", r, t.message.ID)
}

func (t *Transaction) resolve(ctx context.Context, r transport.Resolution) error {
	it := newItem(ctx, t.message)
	it.topic = t.p.use(t.half.Topic)
	defer it.topic.release()
	it.limits = t.p.limits(t.p.settings(it.topic))
	t.mu.Lock()
	before := t.resolution
	if before == transport.ResolutionUnknown {
		t.resolution = r
	}
	t.mu.Unlock()
	if before != transport.ResolutionUnknown && before != r {
		e := it.fail(StopInvalid, &tidegate.Error{
			Subject: "resolution", Code: tidegate.CodeBadRequest, Message: fmt.Sprintf("the transaction already ended with %v", before),
		})
		e.op = t.op(r)
		return e
	}
	kind := commitOperation
	if r == transport.Rollback {
		kind = rollbackOperation
	}
	err := t.p.repeat(it, kind, func(ctx context.Context) (endpoint string, err error) {
		return t.half.Endpoint, t.request(ctx, r)
	})
	if err != nil {
		err.op = t.op(r)
		return err
	}
	return nil
}

// request sends the resolution in one attempt. If the server does not find the transaction, an
// earlier or concurrent request may have ended it; that is a success.
func (t *Transaction) request(ctx context.Context, r transport.Resolution) error {
	t.mu.Lock()
	t.reached++
	t.mu.Unlock()
	err := t.via.EndTransaction(ctx, t.half, r)
	if err == nil || retry.MaybeStored(err) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reached--
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code == tidegate.CodeNotFound && t.reached > 0 {
		return nil
	}
	return err
}

// Transact ties a local transaction to a message: it sends msg as a half message, calls local, and
// resolves the half message. local receives the message with its ID, and can store that ID with its
// own changes for the checker.
//
// If local returns nil, Transact commits. If local returns an error, Options.Checker decides,
// because an error of a database's commit does not show whether the commit happened. If local
// panics, Transact sends no resolution, and ServeChecks handles the transaction.
//
// The error is that of Begin, in which case local was not called, or that of local. If the
// resolution fails, Transact logs the error and returns the result of local; ServeChecks resolves
// the transaction later. The checker and the resolution have Options.AttemptTimeout each, also if
// ctx has ended.
func (p *Producer) Transact(ctx context.Context, msg *tidegate.Message, local func(ctx context.Context, msg *tidegate.Message) error) (tidegate.Receipt, error) {
	if local == nil && msg != nil {
		return tidegate.Receipt{}, newItem(ctx, msg).fail(StopInvalid, &tidegate.Error{
			Subject: "local", Code: tidegate.CodeBadRequest, Message: "it is nil; give the function with the local transaction, or use Send",
		})
	}
	if err := p.beginCall(ctx, msg); err != nil {
		return tidegate.Receipt{}, err
	}
	defer p.ledger.EndCall()
	t, err := p.begin(ctx, msg)
	if err != nil {
		return tidegate.Receipt{}, err
	}
	// The local transaction has ended then, even if ctx ended with it.
	after := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.WithoutCancel(ctx), p.opts.AttemptTimeout)
	}
	resolution := transport.Commit
	if err = local(ctx, t.message); err != nil {
		ctx, cancel := after()
		resolution = p.check(ctx, transport.TransactionCheck{Transaction: t.half, Message: t.message})
		cancel()
	}
	if resolution == transport.ResolutionUnknown {
		return t.receipt, err
	}
	ctx, cancel := after()
	defer cancel()
	if failed := t.resolve(ctx, resolution); failed != nil {
		p.events.Note(slog.LevelWarn, "transaction not resolved; the server will check it later",
			[]slog.Attr{slog.String("topic", msg.Topic)}, []slog.Attr{slog.String("message_id", t.message.ID), slog.Any("error", failed)})
	}
	return t.receipt, err
}

// ServeChecks resolves the half messages of the topics that the server checks, with
// Options.Checker, several at a time. It blocks until ctx ends or the producer is closed. It then
// returns nil, after all calls of the checker have returned. It retries after transient failures
// and returns permanent errors.
//
// Run it from the start of the program, for all topics with transactions of this program: the
// checks can concern transactions of an earlier process.
func (p *Producer) ServeChecks(ctx context.Context, topics ...string) error {
	transactor, ok := p.transport.(transport.Transactor)
	switch {
	case !ok:
		return fmt.Errorf("producer: %w", unsupported("transactions", "Transactor"))
	case p.opts.Checker == nil || len(topics) == 0:
		return fmt.Errorf("producer: %w", &tidegate.Error{
			Subject: "ServeChecks", Code: tidegate.CodeBadRequest, Message: "it needs Options.Checker and at least one topic",
		})
	case !p.ledger.Hold():
		return errProducerClosed
	}
	defer p.ledger.Running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	for failures := 0; ; failures++ {
		began := time.Now()
		err := transactor.ServeChecks(ctx, topics, p.check)
		switch {
		case ctx.Err() != nil:
			return nil
		case tidegate.Classify(err) == tidegate.ClassPermanent, errors.Is(err, tidegate.ErrClosed):
			return fmt.Errorf("producer: %w", err)
		case time.Since(began) > time.Minute:
			failures = 0
		}
		p.events.Note(slog.LevelWarn, "serving transaction checks failed; retrying", nil, []slog.Attr{slog.Any("error", err)})
		if backoff.Sleep(ctx, max(retry.DefaultPacing.Delay(failures), tidegate.RetryAfter(err))) != nil {
			return nil
		}
	}
}

// check calls the checker.
func (p *Producer) check(ctx context.Context, c transport.TransactionCheck) (r transport.Resolution) {
	defer p.recovered("Options.Checker panicked", c.Transaction.MessageID)
	return p.opts.Checker(ctx, c)
}

func unsupported(what, optional string) *tidegate.Error {
	return &tidegate.Error{Code: protocol.CodeUnsupported, Message: fmt.Sprintf("this transport does not support %s; use one that implements transport.%s", what, optional)}
}
