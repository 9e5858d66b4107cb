package producer

import (
	"context"

	"github.com/tidegate/tidegate"
)

// Send sends msg and returns once the server has accepted it, or once it is
// certain that it will not. Every error is a [*SendError].
//
// With [Options].Spool, Send also succeeds for a message that is on the local disk and
// not at a server yet. Its receipt has Spooled set, Queue and Offset -1, and no
// Endpoint. A message on its way to the disk does not end with ctx.
//
// Send blocks while the producer is full (see [Options].WhenFull), during
// attempts and the waits between them, behind earlier messages of the same message
// group, and as long as the limiter does. It ends with ctx, at once: a message
// that was on its way then may have been stored ([SendError].MaybeStored). Close
// ends it too.
//
// If ctx has a deadline, the attempts share the time until then. Send does not
// wait for an attempt that could not end before the deadline: it returns at once
// with [StopDeadline], and reports the time that was needed and the time that was
// left, so that the caller can still do something else. Such an error matches
// context.DeadlineExceeded.
//
// Send neither changes msg nor keeps it after the return. A message without an ID
// gets one, which all attempts carry and the receipt has.
func (p *Producer) Send(ctx context.Context, msg *tidegate.Message) (tidegate.Receipt, error) {
	it, err := p.prepare(ctx, msg, nil)
	if err == nil {
		err = p.accept(it, nil)
	}
	if err != nil {
		return tidegate.Receipt{}, err
	}
	t := it.topic
	for j, ok := t.submit(it, it); ok; {
		j, ok = t.do(j, it)
	}
	it.await()
	if it.err != nil {
		return tidegate.Receipt{}, it.err
	}
	return it.receipt, nil
}

// await waits for the end of the message, which comes with the end of its ctx at
// the latest.
func (it *item) await() {
	t := it.topic
	t.mu.Lock()
	if it.gone && !it.spooling && it.wake == nil {
		t.mu.Unlock()
		return
	}
	if it.wake == nil {
		it.wake = make(chan struct{})
	}
	t.mu.Unlock()
	select {
	case <-it.wake:
	case <-it.ctx.Done():
		t.leave(it, false)
		<-it.wake
	}
}

// SendAsync sends msg as Send does, but returns as soon as the producer has
// accepted msg, and calls done with the result of Send later, exactly once.
//
// An error, a [*SendError], means that the message was not accepted and that done
// is not called: msg or done is nil, msg is invalid, the producer is closed or full,
// or ctx ended. SendAsync blocks only while the producer is full, if
// [Options].WhenFull is WaitWhenFull. ctx bounds the whole send and usually outlives
// SendAsync. If it ends later, the message fails and frees its place at once.
//
// Messages of one topic and message group are sent in the order of the calls of
// Send, SendAsync and SendBatch, also if one of them fails. Others are sent in any
// order. Do not change msg before done is called.
//
// The producer calls the functions of all messages one after the other, in the order of
// the results, from a goroutine of its own and without a lock. The stored messages of a
// message group have their results in the order of the messages; one that fails can
// have its result earlier, for example when its ctx ends. A slow function delays those
// after it; the producer fills up meanwhile. done must not call Close, which waits for
// it. A panic in done is logged and otherwise ignored.
func (p *Producer) SendAsync(ctx context.Context, msg *tidegate.Message, done func(tidegate.Receipt, error)) error {
	if msg != nil && done == nil {
		return &SendError{Topic: msg.Topic, MessageID: msg.ID, Reason: StopInvalid, Cause: &tidegate.Error{
			Subject: "done", Code: tidegate.CodeBadRequest, Message: "it is nil; give the function that takes the result, or use Send",
		}}
	}
	it, err := p.prepare(ctx, msg, done)
	if err == nil {
		err = p.accept(it, nil)
	}
	if err != nil {
		return err
	}
	it.watch()
	it.topic.submit(nil, it)
	if it.forced {
		<-it.wake
	}
	return nil
}

// watch ends the message when its ctx ends.
func (it *item) watch() {
	if it.ctx.Done() == nil {
		return
	}
	stop := context.AfterFunc(it.ctx, func() { it.topic.leave(it, false) })
	it.topic.mu.Lock()
	defer it.topic.mu.Unlock()
	if it.gone {
		stop()
		return
	}
	it.stop = stop
}

// A Result is the result of one message of [Producer.SendBatch]. Receipt is valid
// if Err is nil; otherwise Err is a [*SendError].
type Result struct {
	Receipt tidegate.Receipt
	Err     error
}

// SendBatch sends msgs as Send does and returns a result for each, in their order.
// It returns when all of them have one. The messages can be of several topics. Each
// succeeds or fails on its own. Those that go to the same server share requests if
// the server supports that. SendBatch blocks as Send does.
func (p *Producer) SendBatch(ctx context.Context, msgs []*tidegate.Message) []Result {
	results := make([]Result, len(msgs))
	items := make([]*item, len(msgs))
	queued := map[*topic][]*item{} // accepted, and not yet submitted
	submit := func() {
		for t, list := range queued {
			t.submit(nil, list...)
		}
		clear(queued)
	}
	for i, msg := range msgs {
		it, err := p.prepare(ctx, msg, nil)
		if err == nil {
			it.wake = make(chan struct{})
			err = p.accept(it, submit)
		}
		if err != nil {
			results[i].Err = err
			continue
		}
		items[i] = it
		queued[it.topic] = append(queued[it.topic], it)
	}
	submit()
	for i, it := range items {
		if it == nil {
			continue
		}
		it.await()
		if results[i].Receipt = it.receipt; it.err != nil {
			results[i].Err = it.err
		}
	}
	return results
}
