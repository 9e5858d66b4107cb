package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/transport"
)

// maxFirstCheck bounds Incoming.FirstCheck (RocketMQ: maxTransactionRecoverySecond).
const maxFirstCheck = time.Hour

// Incoming is a message to store, with the data of its producer.
type Incoming struct {
	*tidegate.Message
	BornAt   time.Time // zero for now
	BornHost string

	// Half makes it a half message, for topics of type TRANSACTION. It is not delivered until
	// [Broker.EndTransaction] commits the transaction in its receipt. Default: false.
	Half bool

	// FirstCheck is the time from the send of a half message to the first check of its transaction,
	// at most 1 h (RocketMQ's orphaned_transaction_recovery_duration). Zero means
	// TransactionConfig.Timeout.
	FirstCheck time.Duration

	// Client identifies the sending client for Options.ClientQuota and for fair shares after a
	// throttle. Messages without it have no quota, and one common share.
	Client string
}

// Send stores messages and returns a result for each, in their order, when the accepted messages
// are on disk. See [Broker.Append].
func (b *Broker) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	in := make([]Incoming, len(msgs))
	for i, m := range msgs {
		in[i] = Incoming{Message: m, BornHost: b.host}
	}
	return b.Append(ctx, in)
}

// Append stores messages of one or several topics. It returns a result for each message, in their
// order, when the accepted messages are on disk. The errors of a message are:
//
//   - 400xx, 413xx, 431xx: the message is invalid
//   - 40402: its topic does not exist
//   - 40014: its topic has another type
//   - tidegate.ErrThrottled: a limit or quota rejects it
//
// An invalid message rejects no other one. If a limit or quota rejects a message with a message
// group, Append also rejects the later messages of that group, so that they keep their order when
// they are sent again. If ctx ends while Append waits for the disk, the messages may be stored. If
// the topic stored the ID of a message within its duplicate window, the result is the first
// receipt, and the message is not stored again. Append keeps no reference to a message.
func (b *Broker) Append(ctx context.Context, msgs []Incoming) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	defer b.counters.countRefused(results)
	if !b.begin() {
		return failAll(results, fail.Closed())
	}
	defer b.end()
	if ctx.Err() != nil {
		return failAll(results, context.Cause(ctx))
	}
	a := appending{broker: b, msgs: msgs, topics: make([]*topic.Topic, len(msgs)), results: results}
	if !a.checkAll() {
		return results
	}
	now := time.Now()
	for i, t := range a.topics {
		if t != nil && (i == 0 || t != a.topics[i-1]) {
			b.limits.Observe(t, now)
		}
	}
	if err := a.appendAll(ctx); errors.Is(err, tidegate.ErrClosed) {
		return failAll(results, fail.Closed())
	} else if err != nil {
		failed := &tidegate.Error{Op: "SendMessage", Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: err,
			Message: "the broker could not make sure that the message is on disk"}
		for i := range results {
			if results[i].Err == nil {
				results[i] = transport.SendResult{Err: failed}
			}
		}
	}
	return results
}

func failAll(results []transport.SendResult, err error) []transport.SendResult {
	for i := range results {
		results[i].Err = fail.WithOp("SendMessage", err)
	}
	return results
}

// check returns the topic of a message that the topic can take.
func (b *Broker) check(m Incoming) (*topic.Topic, error) {
	if err := m.Validate(b.opts.MaxBodySize); err != nil {
		return nil, err
	}
	if m.ID == "" {
		return nil, fail.New(tidegate.CodeIllegalMessageID, "message ID", "the ID is empty; a producer gives each message one")
	}
	t, err := b.topic(m.Topic)
	if err != nil {
		return nil, err
	}
	kind := m.kind()
	if m.Half {
		if err := m.checkHalf(); err != nil {
			return nil, err
		}
	}
	if kind == TopicDelay {
		if ahead := time.Until(m.DeliverAt); ahead > maxDelay {
			return nil, fail.New(tidegate.CodeIllegalDeliveryTime, "delivery time", "it is %v ahead, at most %v are allowed", ahead.Round(time.Millisecond), maxDelay)
		}
	}
	want := t.Settings().Type
	if kind != want && (m.Half || !topic.IsDeadLetter(m.Topic)) {
		return nil, fail.New(tidegate.CodeMessagePropertyConflict, m.Topic, "the topic's type is %s, and the message is %s; %s", want, because(kind, m.Message), needs(want))
	}
	return t, nil
}

// kind returns the type of topics that take a message.
func (m Incoming) kind() TopicType {
	if m.Half {
		return TopicTransaction
	}
	return typeOf(m.Message)
}

// typeOf returns the type of topics that take a message which is no half message.
func typeOf(m *tidegate.Message) TopicType {
	switch {
	case m.MessageGroup != "":
		return TopicFIFO
	case !m.DeliverAt.IsZero():
		return TopicDelay
	}
	return TopicNormal
}

// checkHalf returns what is wrong with a message as a half message.
func (m Incoming) checkHalf() error {
	switch {
	case m.MessageGroup != "":
		return fail.New(tidegate.CodeMessagePropertyConflict, "message", "a half message cannot have a message group (%q)", m.MessageGroup)
	case !m.DeliverAt.IsZero():
		return fail.New(tidegate.CodeMessagePropertyConflict, "message", "a half message cannot have a delivery time")
	case m.FirstCheck < 0 || m.FirstCheck > maxFirstCheck:
		return fail.New(tidegate.CodeBadRequest, "first check", "it is %v; give 0 to %v", m.FirstCheck, maxFirstCheck)
	}
	return nil
}

// An appending is one Append within the message log.
type appending struct {
	broker   *Broker
	msgs     []Incoming
	topics   []*topic.Topic // nil for messages that were refused, answered or written
	results  []transport.SendResult
	order    sendOrder
	record   store.Message           // the message that write encodes
	suspects []suspect               // messages whose ID was probably stored before
	trusted  map[int]bool            // messages that are certainly no duplicates; nil for none
	absent   map[int]recent.Location // where a message was looked for that can have moved, and was not; nil for none
	earliest time.Time               // delivery time among those delayed; zero for none
	wrote    bool                    // at least one message

	firstCheck time.Time // among the half messages; zero for none
	queues     []*topic.Queue
	ends       []int64 // the offset after each message: results are the caller's once Append has returned
}

// checkAll validates the messages and takes them from the quotas of their clients. It returns false
// if it rejects all of them.
func (a *appending) checkAll() (accepted bool) {
	for i, m := range a.msgs {
		t, err := a.broker.check(m)
		if err != nil {
			a.results[i].Err = fail.WithOp("SendMessage", err)
			continue
		}
		if a.refusedBefore(i, t) {
			continue
		}
		if err := a.broker.limits.WithinQuota(m.Client); err != nil {
			a.refuse(i, t, err, limits.ClientQuota)
			continue
		}
		a.topics[i], accepted = t, true
	}
	return accepted
}

// write assigns offsets and encodes the accepted messages. The log calls it, for one append of the
// broker at a time.
func (a *appending) write(w *store.Batch) {
	now := time.Now()
	a.queues, a.ends = make([]*topic.Queue, len(a.msgs)), make([]int64, len(a.msgs))
	a.order.begin()
	for i, t := range a.topics {
		if t == nil {
			continue
		}
		if t.Deleted() {
			a.results[i].Err = fail.WithOp("SendMessage", fail.TopicNotFound(t.Name()))
			continue
		}
		m := a.msgs[i]
		window := t.Settings().IDWindow()
		var hash uint64
		if window > 0 {
			hash = t.IDs().Hash(m.ID)
		}
		if window > 0 && !a.trusted[i] {
			if at, ok := t.IDs().Find(hash, t.NextOffset); ok && !a.wasAbsent(i, at) {
				a.suspects = append(a.suspects, suspect{i, at})
				a.order.suspect(t, m.MessageGroup)
				continue
			}
		}
		if a.refusedBefore(i, t) || a.order.hold(i, t, m.MessageGroup) {
			continue
		}
		if th := a.broker.limits.Check(t, now, &limits.Sender{Client: m.Client, Size: int64(len(m.Body))}); th != nil {
			a.refuse(i, t, limits.Rejected(*th), th.Limit)
			continue
		}
		rec := &a.record // one for all messages: a variable of the loop would be allocated for each
		*rec = store.Message{Message: *m.Message, BornAt: m.BornAt, BornHost: m.BornHost, IDHash: hash}
		if rec.BornAt.IsZero() {
			rec.BornAt = now
		}
		a.wrote = true
		if m.Half {
			a.results[i].Receipt = a.half(w, t, rec, m.FirstCheck, now)
			continue
		}
		if m.DeliverAt.After(now) {
			a.results[i].Receipt = a.delay(w, t, rec, now)
			continue
		}
		q := t.Pick(m.MessageGroup)
		offset := t.Put(w, q, rec, now)
		a.queues[i], a.ends[i] = q, offset+1
		a.results[i].Receipt = tidegate.Receipt{
			MessageID: m.ID, Topic: t.Name(), Queue: int(q.Number()), Offset: offset, Endpoint: a.broker.name,
		}
	}
}

// publish makes the written messages visible to consumers.
func (a *appending) publish(err error) {
	if err != nil {
		return // the store is broken: nothing is read or written any more
	}
	if !a.earliest.IsZero() {
		a.broker.delayed.Wake(a.earliest)
	}
	if !a.firstCheck.IsZero() {
		a.broker.transactions.Wake(a.firstCheck)
	}
	for i, q := range a.queues {
		if q != nil {
			q.Publish(a.ends[i])
		}
	}
	for i, q := range a.queues {
		if q != nil {
			a.topics[i].Wake(q, 1)
		}
	}
}
