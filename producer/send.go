package producer

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/producer/internal/retry"
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
// Messages of one topic and message group, or of one topic and lite topic, are sent in the order of
// the calls of Send, SendAsync and SendBatch, also if one of them fails. Other messages have no
// order. Do not change msg before done is called.
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

// The operations of attempts.
const (
	sendOperation     = "send" // of messages of the spool too
	beginOperation    = "begin"
	commitOperation   = "commit"
	rollbackOperation = "rollback"
	recallOperation   = "recall"
)

// An Attempt is the event of one decision: an attempt for one message and the step after it. Each
// message of a shared request has its own event.
//
// The pause after a throttle also counts against the limits of the messages that wait in the queue.
// If a waiting message reaches a limit, its send fails without a further attempt. The event of that
// decision has a Duration and a Messages of 0, and Number is 0 if the message never had an attempt.
type Attempt struct {
	Operation string // "send", "begin", "commit", "rollback" or "recall"
	Topic     string
	MessageID string        // empty for a recall
	Number    int           // attempts of the operation so far; 1 for the first, 0 without an attempt
	Endpoint  string        // the server of the attempt; empty if unknown
	Messages  int           // in the request, including this one
	Began     time.Time     // start of the attempt
	Duration  time.Duration // of the attempt

	Err         error // nil if it succeeded
	MaybeStored bool  // a failed attempt may have been stored

	// The step after the attempt. If Class is tidegate.ClassOK, the operation succeeded; if Stop is
	// set, it failed; otherwise another attempt follows.
	Class tidegate.Class // of Err, corrected by the end of ctx and by earlier successes
	Stop  StopReason

	// Delay is the wait from the end of the attempt to the next at the same server. DelayFrom is
	// its origin: "backoff" for Options.Backoff, "pacing" for Options.Pacing, or "push-back" if the
	// server requested a longer wait. Both are zero if there is no wait or no next attempt.
	Delay     time.Duration
	DelayFrom string
}

// observe reports the decision about an attempt to the log and to OnAttempt. messages is the number
// of messages in the request.
func (t *topic) observe(messages int, o *outcome, began time.Time) {
	p := t.p
	logs := o.err != nil && p.log.Enabled(context.Background(), slog.LevelDebug) // a log line outlives the send
	if o.skipped || (!logs && p.opts.OnAttempt == nil) {
		return
	}
	a := Attempt{
		Operation: o.operation, Topic: t.name, MessageID: o.it.Message.ID, Number: o.in.Attempts,
		Endpoint: o.endpoint(), Messages: messages, Began: began, Duration: o.ended.Sub(began),
		Err: o.err, MaybeStored: retry.MaybeStored(o.err) && o.operation != recallOperation,
		Class: o.decision.Class, Stop: o.decision.Stop,
		Delay: o.decision.Delay, DelayFrom: o.decision.Source.String(),
	}
	if a.Operation == "" {
		a.Operation = sendOperation
	}
	if o.waiting {
		a.Began, a.Duration, a.MaybeStored, a.Messages = o.ended, 0, false, 0
	}
	if logs {
		p.log.LogAttrs(context.Background(), slog.LevelDebug, "attempt failed", // as above
			slog.String("operation", a.Operation), slog.String("topic", a.Topic), slog.String("message_id", a.MessageID),
			slog.Int("attempt", a.Number), slog.String("endpoint", a.Endpoint),
			slog.String("class", a.Class.String()), slog.Any("error", a.Err),
			slog.String("stop", a.Stop.String()),
			slog.Duration("delay", a.Delay), slog.String("delay_from", a.DelayFrom))
	}
	if p.opts.OnAttempt == nil {
		return
	}
	defer p.recovered("OnAttempt panicked", a.MessageID)
	p.opts.OnAttempt(a)
}

// reportPanic tallies a panic of a function that package guard calls.
func (p *Producer) reportPanic(function string, value any, stack []byte) {
	p.events.Note(slog.LevelError, function+" panicked", nil, []slog.Attr{slog.Any("panic", value), slog.String("stack", string(stack))})
}

// recovered tallies a panic of a user's function. The caller must defer it.
func (p *Producer) recovered(event, messageID string) {
	if v := recover(); v != nil {
		p.events.Note(slog.LevelError, event, nil, []slog.Attr{
			slog.Any("panic", v), slog.String("message_id", messageID), slog.String("stack", string(debug.Stack())),
		})
	}
}

// A Fault classifies a failed send by its remedy.
type Fault int

// The faults.
const (
	// PassingFault: the same message can succeed later. Examples are throttling, outages, deadlines
	// and a closed producer.
	PassingFault Fault = iota

	// MessageFault: the server rejects this message and accepts others. Change the message.
	MessageFault

	// SetupFault: no message of this topic can succeed until the set-up changes. Examples are a
	// missing topic and rejected credentials.
	SetupFault
)

// String returns the lower-case name.
func (f Fault) String() string {
	switch f {
	case PassingFault:
		return "passing"
	case MessageFault:
		return "message"
	case SetupFault:
		return "set-up"
	}
	return "unknown"
}

// Fault returns the class of the remedy. A gateway, for example, rejects the message after a
// MessageFault, alerts and keeps the message after a SetupFault, and keeps it after a PassingFault.
// The classes are those of sends: a Recall of a delivered message fails with a SetupFault too.
func (e *SendError) Fault() Fault {
	switch e.Reason {
	case StopInvalid:
		return MessageFault
	case StopPermanent:
		if e.Last == nil {
			return SetupFault // no attempt is possible for any message
		}
		return faultOf(e.Last)
	}
	return PassingFault
}

// faultOf returns the fault behind a permanent error.
func faultOf(err error) Fault {
	switch {
	case tidegate.IsMessageFault(err):
		return MessageFault
	case tidegate.Classify(err) == tidegate.ClassPermanent:
		return SetupFault
	}
	return PassingFault
}

// outcomePool reuses the slices of finished requests.
var outcomePool = sync.Pool{New: func() any { return new([]outcome) }}

// settle decides about each message of a request from its result, or from err if that is set. Then
// it updates the queue. It returns the messages that have ended, for wakeCallers, and if worker is
// true the next job.
func (t *topic) settle(r *request, results []transport.SendResult, err error, worker bool) (ended []*item, next job, ok bool) {
	c := &r.Call
	outs := c.oneOutcome[:min(len(c.items), 1)]
	if len(c.items) > 1 {
		pooled := outcomePool.Get().(*[]outcome)
		*pooled = slices.Grow((*pooled)[:0], len(c.items))[:len(c.items)]
		outs = *pooled
		defer func() {
			clear(outs)
			outcomePool.Put(pooled)
		}()
	}
	now := time.Now()
	failed := false
	for i, it := range c.items {
		outs[i] = outcome{it: it, err: err, ended: now}
		if err == nil {
			outs[i].receipt, outs[i].err = results[i].Receipt, results[i].Err
		}
		failed = failed || outs[i].err != nil
		if r.Lane != nil {
			outs[i].lane = r.Info.Endpoint
		}
	}
	t.mu.Lock()
	charged := t.charge(r, outs, now)
	c.end(results, now)
	if !charged || !failed && t.p.opts.OnAttempt == nil && t.p.observer == nil {
		return t.finish(r, outs, charged, worker) // the zero decision is that of a success
	}
	t.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // OnAttempt has ended this goroutine
			t.mu.Lock()
			ended, _, _ = t.finish(r, outs, true, false)
			t.p.wakeCallers(ended)
		}
	}()
	t.decide(r, outs)
	for i := range outs {
		if l := t.p.observer; l != nil && !outs[i].skipped && r.Lane != nil {
			guard.Call("Options.Limiter", t.p.reportPanic, func() { l.Observe(outs[i].err) })
		}
		t.observe(messagesOf(r), &outs[i], c.began)
	}
	returned = true
	t.mu.Lock()
	return t.finish(r, outs, true, worker)
}

// finish carries out the decisions about the messages of a request, and begins the next job that
// they make possible. The lock is held; finish releases it.
func (t *topic) finish(r *request, outs []outcome, charged, worker bool) (ended []*item, next job, ok bool) {
	now := time.Now()
	var spooled []string
	var waited []outcome
	ended = r.Call.oneEnded[:0]
	if charged {
		if t.p.spooler != nil {
			spooled = t.groupsToSpool(outs)
		}
		for i := range outs {
			if o := &outs[i]; o.it.state == pending && t.apply(o, r.Lane, spooled, now) {
				ended = append(ended, o.it)
			}
		}
		if r.Lane != nil {
			waited = t.adapt(r, outs, now)
		}
	}
	t.queue.Finished(r, now)
	for _, group := range spooled {
		t.spoolGroup(group, nil, nil, now)
	}
	ended = append(ended, t.hopeless(now, r.Call.items...)...)
	t.p.conclude(ended)
	next, ok = t.pump(now, nil, worker && len(waited) == 0)
	t.mu.Unlock()
	if len(waited) > 0 {
		t.p.wakeCallers(ended) // OnAttempt may end this goroutine
		t.report(r, waited)
		return nil, next, ok
	}
	return ended, next, ok
}

// report reports the messages that ended because they waited for a throttled lane.
func (t *topic) report(r *request, waited []outcome) {
	var late []*item
	for i := range waited {
		if waited[i].gone {
			late = append(late, waited[i].it)
		}
	}
	defer t.p.complete(late) // also if OnAttempt ends this goroutine
	for i := range waited {
		t.observe(messagesOf(r), &waited[i], r.Call.began)
	}
}

// charge counts the attempt in each message of the request. It returns false if the request does
// not count as an attempt: if the lane had changed, or if the server rejected several messages
// because of one of them. In the latter case the request is repeated in halves, until the faulty
// message is alone. The lock is held.
func (t *topic) charge(r *request, outs []outcome, ended time.Time) bool {
	changed, refused := len(outs) > 0, len(outs) > 1
	for i := range outs {
		changed = changed && errors.Is(outs[i].err, transport.ErrLaneChanged)
		refused = refused && faultOf(outs[i].err) == MessageFault
	}
	if changed {
		r.Lane.MaxMessages = 1
		for i := range outs {
			outs[i].it.changes++
			changed = changed && outs[i].it.changes <= maxLaneChanges
		}
	}
	if refused {
		for i := range outs {
			outs[i].it.Limit = (len(outs) + 1) / 2
		}
	}
	r.Call.sent = false // a message that ends from here on is not in a request under way
	if changed || refused {
		return false
	}
	for i := range outs {
		o := &outs[i]
		it := o.it
		if o.skipped = it.state != pending; o.skipped {
			continue
		}
		o.in = it.record(o.err, r.Call.began, ended)
		if tidegate.Classify(o.err) == tidegate.ClassThrottled && it.ctx.Err() == nil && r.Lane != nil {
			r.Lane.Deciding, r.Call.decides = true, true
		}
	}
	return true
}
