package amqp

// This file sends messages over one link with one goroutine. go-amqp holds a lock while it waits
// for credit, so that a second send would wait without regard to its own context.

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/amqp/internal/convert"
)

// creditWait is the time that a message waits for credit. Artemis grants none while an address is
// full. The message and all that wait behind it are then throttled.
const creditWait = time.Second

// reattach is the time between two attempts to attach a link that the server refuses, unless it
// refuses permanently. Each attempt ends one attempt of all messages that wait for it.
const reattach = time.Second

// severalFrames is a size of a message that may need several frames: Artemis accepts frames of
// 128 KiB.
const severalFrames = 64 << 10

// A receipt waits for the outcome of a transfer.
type receipt interface {
	Wait(ctx context.Context) (amqp.DeliveryState, error)
}

// A linkSender is a link. Only the goroutine of a sendLink calls it.
type linkSender interface {
	// Transfer writes a message. The end of ctx ends only the wait for credit.
	Transfer(ctx context.Context, m *amqp.Message) (receipt, error)
	Close()
}

// sendLinkOptions configure a [sendLink].
type sendLinkOptions struct {
	// Attach opens the link. It is called at the begin and after the link has ended.
	Attach func() (linkSender, error)

	// Traffic returns the bytes written so far, and whether a write is under way. A message that
	// makes progress does not wait for credit.
	Traffic func() (written int64, writing bool)

	// Done is closed at the end of the connection.
	Done <-chan struct{}

	// Lost returns the error that ended the connection.
	Lost func() error
}

// A sendLink sends messages to one address. Several goroutines may call Send.
type sendLink struct {
	options sendLinkOptions
	queue   chan *transfer

	mu      sync.Mutex
	current *transfer // waits for credit
	stop    context.CancelCauseFunc
	timer   *time.Timer // calls expire; it runs on after a transfer, for the next ones
	armed   bool        // the timer will fire
	since   time.Time   // when current began to wait, or last made progress
	written int64       // at that time
}

// A transfer is one message on its way.
type transfer struct {
	m     *amqp.Message
	size  int
	state atomic.Int32
	reply chan result // of one element
}

// The states of a transfer.
const (
	queued int32 = iota
	taken
	abandoned
)

type result struct {
	receipt receipt
	err     *tidegate.Error
}

// newSendLink returns a link and starts its goroutine, which ends with the connection.
func newSendLink(o sendLinkOptions) *sendLink {
	l := &sendLink{options: o, queue: make(chan *transfer, 64)}
	l.timer = time.AfterFunc(time.Hour, l.expire)
	l.timer.Stop()
	go l.run()
	return l
}

// A pending is a message that a link has or will have written.
type pending struct {
	link *sendLink
	t    *transfer
}

// Send queues a message of size bytes. It blocks while the queue is full.
func (l *sendLink) Send(ctx context.Context, m *amqp.Message, size int) (pending, *tidegate.Error) {
	t := &transfer{m: m, size: size, reply: make(chan result, 1)}
	select {
	case l.queue <- t:
		return pending{l, t}, nil
	case <-l.options.Done:
		return pending{}, l.lost()
	case <-ctx.Done():
		return pending{}, &tidegate.Error{Err: context.Cause(ctx), Message: "the message was not sent"}
	}
}

// Wait waits for the outcome of the message; nil means accepted. If ctx ends first, MaybeStored is
// set if the message was written, or may still be written.
func (p pending) Wait(ctx context.Context) *tidegate.Error {
	var r result
	select {
	case r = <-p.t.reply:
	case <-p.link.options.Done:
		select {
		case r = <-p.t.reply:
		default:
			if p.t.state.CompareAndSwap(queued, abandoned) {
				return p.link.lost()
			}
			r = p.settle()
		}
	case <-ctx.Done():
		if p.t.state.CompareAndSwap(queued, abandoned) {
			return &tidegate.Error{Err: context.Cause(ctx), Message: "the message was not sent"}
		}
		p.link.interrupt(p.t, context.Cause(ctx))
		r = p.settle()
		if r.err != nil && !errors.Is(r.err, context.Cause(ctx)) && r.err.Code == 0 {
			r.err.Err = errors.Join(context.Cause(ctx), r.err.Err)
		}
	}
	if r.err != nil {
		return r.err
	}
	state, err := r.receipt.Wait(ctx)
	switch {
	case err == nil:
		return convert.OfOutcome(state)
	case ctx.Err() != nil:
		return &tidegate.Error{Err: context.Cause(ctx), MaybeStored: true, Message: "the server did not respond in time"}
	}
	e := convert.OfLink(err)
	e.MaybeStored = true
	return e
}

// interruptGrace is the time in which the goroutine of a link reacts to an interruption, if it does
// not write.
const interruptGrace = 100 * time.Millisecond

// settle returns the result of a transfer whose caller does not wait any longer.
func (p pending) settle() result {
	t := time.NewTimer(interruptGrace)
	defer t.Stop()
	select {
	case r := <-p.t.reply:
		return r
	case <-t.C:
		return result{err: &tidegate.Error{MaybeStored: true, Err: tidegate.ErrUnavailable, Message: "the message is being written"}}
	}
}

// lost is the error of a message that was not written before the link ended.
func (l *sendLink) lost() *tidegate.Error {
	e := convert.OfLink(l.options.Lost())
	e.MaybeStored = false
	e.NotConnected = e.Code == 0 || tidegate.Classify(e) == tidegate.ClassTransient
	return e
}

// errNoCredit ends a wait for credit.
var errNoCredit = errors.New("the server has granted no credit for 1 s; its address, its memory or its disk is full")

// expire ends the wait of the current transfer after CreditWait, unless its bytes make progress.
func (l *sendLink) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if l.current == nil {
		return
	}
	now := time.Now()
	if now.Sub(l.since) >= creditWait {
		written, writing := l.options.Traffic()
		if !writing && (l.current.size < severalFrames || written-l.written < severalFrames) {
			l.stop(errNoCredit)
			return
		}
		l.since, l.written = now, written
	}
	l.timer.Reset(creditWait - now.Sub(l.since))
	l.armed = true
}

// interrupt ends the wait of a transfer for credit.
func (l *sendLink) interrupt(t *transfer, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == t {
		l.stop(cause)
	}
}

func (l *sendLink) run() {
	var sender linkSender
	ctx := context.Background() // replaced before its first use
	var attached time.Time      // the last attempt that failed
	var failed *tidegate.Error
	for {
		var t *transfer
		select {
		case t = <-l.queue:
		case <-l.options.Done:
			l.drop(l.lost(), math.MaxInt)
			return
		}
		if sender == nil && failed != nil && tidegate.Classify(failed) != tidegate.ClassPermanent {
			l.pause(time.Until(attached.Add(reattach)))
		}
		if !t.state.CompareAndSwap(queued, taken) {
			continue
		}
		if l.ended() {
			t.reply <- result{err: l.lost()}
			continue
		}
		if sender == nil {
			var err error
			if sender, err = l.options.Attach(); err != nil {
				sender, failed, attached = nil, convert.OfLink(err), time.Now()
				if l.ended() { // the message was not written
					failed = l.lost()
				}
				l.drop(failed, len(l.queue))
				e := *failed
				t.reply <- result{err: &e}
				continue
			}
			failed = nil
		}
		var r result
		ctx, r = l.transfer(ctx, sender, t) //nolint:fatcontext // it returns ctx, or a new one without a parent
		if r.err == nil {
			t.reply <- r
			continue
		}
		switch {
		case errors.Is(r.err.Err, errNoCredit):
			e := *r.err
			l.drop(&e, len(l.queue))
			if t.size >= severalFrames { // a part of it may have been written
				sender.Close()
				sender = nil
			}
		case r.err.MaybeStored || r.err.NotConnected: // the link is gone
			sender.Close()
			sender = nil
		case t.size >= severalFrames:
			sender.Close()
			sender = nil
		}
		t.reply <- r
	}
}

// pause waits until the next attempt to attach. The callers of the messages that wait for it do not
// wait longer than their contexts.
func (l *sendLink) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.options.Done:
	}
}

func (l *sendLink) ended() bool {
	select {
	case <-l.options.Done:
		return true
	default:
		return false
	}
}

// transfer writes one message. It returns the context for the next one.
func (l *sendLink) transfer(ctx context.Context, s linkSender, t *transfer) (context.Context, result) {
	written, _ := l.options.Traffic()
	l.mu.Lock()
	if l.stop == nil || ctx.Err() != nil {
		// The caller's ctx ends the wait through interrupt, because go-amqp would also apply its
		// deadline to the write and close the connection.
		ctx, l.stop = context.WithCancelCause(context.Background()) // as above
	}
	l.current, l.since, l.written = t, time.Now(), written
	if !l.armed {
		l.timer.Reset(creditWait)
		l.armed = true
	}
	l.mu.Unlock()
	receipt, err := s.Transfer(ctx, t.m)
	l.mu.Lock()
	l.current = nil
	l.mu.Unlock()
	if err == nil {
		return ctx, result{receipt: receipt}
	}
	cause := context.Cause(ctx)
	switch {
	case convert.NoCredit(err) && errors.Is(cause, errNoCredit):
		return ctx, result{err: &tidegate.Error{Code: tidegate.CodeTooManyRequests, Err: cause}}
	case convert.NoCredit(err), cause != nil && errors.Is(err, context.Canceled): // the frame was not written
		return ctx, result{err: &tidegate.Error{Err: cause, Message: "the message was not sent"}}
	}
	e := convert.OfLink(err)
	if e.Code == 0 || tidegate.Classify(e) == tidegate.ClassTransient {
		e.MaybeStored = true // go-amqp does not report whether it has written the frame
	}
	return ctx, result{err: e}
}

// drop ends all queued transfers with an error.
func (l *sendLink) drop(e *tidegate.Error, most int) {
	for range most {
		select {
		case t := <-l.queue:
			if t.state.CompareAndSwap(queued, taken) {
				own := *e
				t.reply <- result{err: &own}
			}
		default:
			return
		}
	}
}
