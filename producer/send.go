package producer

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Send sends msg and returns when the server has accepted it or the send has failed. Every error is
// a [*SendError].
//
// With [Options].Spool, Send also succeeds for a message that is only on the local disk so far. The
// receipt of such a message has Spooled set, Queue and Offset -1, and no Endpoint. The end of ctx
// does not interrupt a write to the disk.
//
// Send blocks while the producer is full (see [Options].WhenFull), during attempts and the waits
// between them, behind earlier messages of the same message group, and while the limiter blocks. It
// returns at once when ctx ends or Close is called. If an attempt was under way then, the message
// may have been stored ([SendError].MaybeStored).
//
// If ctx has a deadline, the attempts share the time until the deadline. If the next attempt could
// not end before the deadline, Send returns at once with [StopDeadline]. The error has the
// necessary and the remaining time, which the caller can still use, and matches
// context.DeadlineExceeded.
//
// Send does not change msg and does not keep it after the return. A message without an ID gets one.
// All attempts and the receipt have the same ID.
func (p *Producer) Send(ctx context.Context, msg *tidegate.Message) (tidegate.Receipt, error) {
	it, err := p.prepare(ctx, msg, nil)
	if err == nil {
		err = p.admit(it, nil)
	}
	if err != nil {
		return tidegate.Receipt{}, err
	}
	if j, ok := it.topic.submit(&it.Item, it); !ok || !it.topic.work(j) {
		it.await()
	}
	if it.err != nil {
		return tidegate.Receipt{}, it.err
	}
	return it.receipt, nil
}

// await waits for the end of the message, which is at the latest the end of its ctx.
func (it *item) await() {
	t := it.topic
	t.mu.Lock()
	if it.state > spooling && it.wake == nil { // it has its result
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

// SendAsync sends msg like Send, but returns when the producer has accepted msg. Later it calls
// done with the result of the send, exactly once.
//
// An error, a [*SendError], means that the message was not accepted and that done is not called:
// msg or done is nil, msg is invalid, the producer is closed or full, or ctx ended. SendAsync
// blocks only while the producer is full (see [Options].WhenFull). ctx bounds the whole send, so do
// not cancel it when SendAsync returns. If ctx ends before the result, the message fails at once
// and no longer counts in MaxPending.
//
// Messages of one topic and message group are sent in the order of the calls of Send, SendAsync and
// SendBatch, also if one of them fails. Other messages have no order. Do not change msg before done
// is called.
//
// The producer calls the functions one after the other, in the order of the results, from its own
// goroutine and without a lock. Within a message group the results of the stored messages come in
// the order of the messages. The result of a failed message can come earlier, for example when its
// ctx ends. A slow function delays the later ones, and the producer fills up. done must call
// neither Close nor Shutdown, because both wait for it. A panic in done is logged and otherwise
// ignored, and so is the end of its goroutine by runtime.Goexit.
func (p *Producer) SendAsync(ctx context.Context, msg *tidegate.Message, done func(tidegate.Receipt, error)) error {
	if msg != nil && done == nil {
		return &SendError{Topic: msg.Topic, MessageID: msg.ID, Reason: StopInvalid, Cause: &tidegate.Error{
			Subject: "done", Code: tidegate.CodeBadRequest, Message: "it is nil; give the function that takes the result, or use Send",
		}}
	}
	it, err := p.prepare(ctx, msg, done)
	if err == nil {
		err = p.admit(it, nil)
	}
	if err != nil {
		return err
	}
	it.topic.submit(nil, it)
	if it.full {
		<-it.wake
	}
	return nil
}

// SendBatch sends msgs like Send and returns a result for each, in their order. It returns when all
// messages have a result. The messages can have different topics, and each succeeds or fails on its
// own. Messages for the same server share requests if the server supports that. SendBatch blocks
// like Send. Each error is a [*SendError].
func (p *Producer) SendBatch(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	items := make([]*item, len(msgs))
	queued := map[*topic][]*item{} // accepted and not submitted yet
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
			err = p.admit(it, submit)
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
