package producer

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/tidegate/tidegate"
)

// SendAsync is Send without the wait (seed 004): it returns at once, and done
// is called later, exactly once, with what Send would have returned. The
// retries are those of Send; ctx bounds the whole send, and may end after
// SendAsync has returned.
//
// An error, a [*SendError], means that the message was not taken, and that done is not called:
// the producer is closed, msg or done is nil, or Options.MaxPending sends are
// under way ([TooManyPending]), which is the moment to slow down.
//
// Messages of one topic and message group are sent one after another, in the order
// of the calls, also where one of them fails; others at the same time. The
// producer keeps msg until done is called; do not change it before.
//
// done is called by a goroutine of the producer, one for each message that is
// under way, and by several at the same time. Close waits for it: it should not
// take long and must not call Close. A panic in it is logged and otherwise ignored.
func (p *Producer) SendAsync(ctx context.Context, msg *tidegate.Message, done func(tidegate.Receipt, error)) error {
	switch {
	case msg == nil:
		return errNilMessage
	case done == nil:
		return &SendError{Topic: msg.Topic, MessageID: msg.ID, Reason: Invalid, Cause: &tidegate.Error{
			Subject: "done", Code: tidegate.CodeBadRequest, Message: "it is nil; give the function to tell the outcome to, or use Send",
		}}
	}
	s := send{producer: p, caller: ctx, msg: msg}
	sctx, cancel := context.WithCancelCause(ctx)
	a, ok := p.begin(cancel)
	if !ok {
		cancel(nil)
		return s.fail(Closed, fmt.Errorf("producer %w", tidegate.ErrClosed))
	}
	w, ok := p.pending.enter(msg, p.opts.MaxPending)
	if !ok {
		cancel(nil)
		p.end(a)
		return s.fail(TooManyPending, fmt.Errorf("%d sends are under way, the most that MaxPending allows; wait until one is done", p.opts.MaxPending))
	}
	// Counted in p.sends, which Close waits for.
	go func() {
		defer p.end(a)
		defer cancel(nil)
		defer p.pending.leave(w)
		if !w.await(sctx) {
			s.tell(done, tidegate.Receipt{}, s.ended(sctx))
			return
		}
		receipt, err := s.run(sctx)
		s.tell(done, receipt, err)
	}()
	return nil
}

// tell calls done.
func (s *send) tell(done func(tidegate.Receipt, error), receipt tidegate.Receipt, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.producer.log.Error("the function given to SendAsync panicked", "panic", v, "message_id", s.msg.ID, "stack", string(debug.Stack()))
		}
	}()
	done(receipt, err)
}

// pending are the asynchronous sends under way, and whose turn it is.
type pending struct {
	mu   sync.Mutex
	n    int                    // guarded by mu
	last map[turn]chan struct{} // guarded by mu: closed when the last send of a message group is done
}

// A turn is what is sent in order. No message group: nothing is.
type turn struct{ topic, messageGroup string }

// A place is that of one send among those of its message group.
type place struct {
	turn   turn
	before chan struct{} // closed when the send before is done; nil if there is none
	done   chan struct{} // nil without a message group
}

// enter takes a place, and returns false if there is none left.
func (p *pending) enter(msg *tidegate.Message, limit int) (place, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= limit {
		return place{}, false
	}
	p.n++
	w := place{turn: turn{msg.Topic, msg.MessageGroup}}
	if msg.MessageGroup != "" {
		w.before, w.done = p.last[w.turn], make(chan struct{})
		p.last[w.turn] = w.done
	}
	return w, true
}

// await returns when it is the turn of w, or false when ctx ends first.
func (w place) await(ctx context.Context) bool {
	if w.before == nil {
		return true
	}
	select {
	case <-w.before:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave gives the place up. The next send of the message group begins when
// this one and those before it are done.
func (p *pending) leave(w place) {
	if w.before != nil {
		<-w.before
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n--
	if w.done != nil {
		close(w.done)
		if p.last[w.turn] == w.done {
			delete(p.last, w.turn)
		}
	}
}
