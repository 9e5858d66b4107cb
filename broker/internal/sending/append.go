package sending

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/internal/wallclock"
	"github.com/tidegate/tidegate/transport"
)

// A Message is a message to store, with the data of its producer.
type Message struct {
	*tidegate.Message
	BornAt   time.Time // zero for now
	BornHost string

	// Half makes it a half message, for topics of type TRANSACTION. It is not delivered until
	// EndTransaction commits the transaction in its receipt. Default: false.
	Half bool

	// FirstCheck is the time from the send of a half message to the first check of its transaction,
	// at most 1 h (RocketMQ's orphaned_transaction_recovery_duration). Zero means
	// settings.Transaction.Timeout.
	FirstCheck time.Duration

	// Client identifies the sending client for Options.ClientQuota and for fair shares after a
	// throttle. Messages without it have no quota, and one common share.
	Client string
}

// A Config has the parts of the broker that a send needs.
type Config struct {
	Store        *store.Store
	Limits       *limits.Limits
	Delayed      *pending.Delayed
	Transactions *pending.Transactions

	Directory interface {
		// Topic returns the topic with a name, or an error with 40402 or 40002.
		Topic(name string) (*topic.Topic, error)
	}

	// MaxBodySize is the maximum size of a body in bytes.
	MaxBodySize int

	// Endpoint is the Endpoint of the receipts.
	Endpoint string
	Clock    *wallclock.Clock

	Throttled *limits.Counters // of the messages that a limit rejected
}

// A Sender stores messages. Several goroutines can call its methods at the same time.
type Sender struct{ Config }

// New returns a Sender.
func New(c Config) *Sender { return &Sender{c} }

// Append stores messages, and sets the result of each. It returns when the accepted messages are on
// disk. It keeps no reference to a message.
func (s *Sender) Append(ctx context.Context, messages []Message, results []transport.SendResult) {
	a := appending{Sender: s, messages: messages, topics: make([]*topic.Topic, len(results)), results: results}
	if !a.checkAll() {
		return
	}
	now := s.Clock.Look().Now
	for i, t := range a.topics {
		if t != nil && (i == 0 || t != a.topics[i-1]) {
			s.Limits.Observe(t, now)
		}
	}
	if err := a.appendAll(ctx); errors.Is(err, tidegate.ErrClosed) {
		FailAll(results, refusal.Closed())
	} else if err != nil {
		failed := &tidegate.Error{Op: "SendMessage", Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: err,
			Message: "the broker cannot confirm that the message is on disk; it may be stored"}
		for i := range results {
			if results[i].Err == nil {
				results[i] = transport.SendResult{Err: failed}
			}
		}
	}
}

// FailAll sets the error of each result.
func FailAll(results []transport.SendResult, err error) {
	for i := range results {
		results[i].Err = refusal.WithOp("SendMessage", err)
	}
}

// An appending is one Append within the message log.
type appending struct {
	*Sender
	messages []Message
	topics   []*topic.Topic // nil for messages that were rejected, found to be duplicates, or written
	results  []transport.SendResult
	order    order
	record   store.Message           // the message that write encodes
	suspects []suspect               // messages whose ID was probably stored before
	trusted  map[int]bool            // messages that are certainly no duplicates; nil for none
	absent   map[int]recent.Location // places of movable messages where no message was found; nil for none
	earliest time.Time               // first delivery time of the delayed messages; zero for none
	wrote    bool                    // at least one message

	firstCheck time.Time // first check of the half messages; zero for none
	shared     place     // of the messages without a message group
	runs       []run     // of the last write
}

// A run is n messages one after the other in a queue. end is the offset after the last one.
type run struct {
	place
	end, n int64
}

// A place is a queue and its topic.
type place struct {
	topic *topic.Topic
	queue *topic.Queue
}

// checkAll validates the messages and takes them from the quotas of their clients. It returns false
// if it rejects all of them.
func (a *appending) checkAll() (accepted bool) {
	for i := range a.topics {
		m := &a.messages[i]
		t, err := a.check(m)
		if err != nil {
			a.results[i].Err = refusal.WithOp("SendMessage", err)
			continue
		}
		if a.rejectedBefore(i, t) {
			continue
		}
		if err := a.Limits.WithinQuota(m.Client); err != nil {
			a.reject(i, t, err, limits.ClientQuota)
			continue
		}
		a.topics[i], accepted = t, true
	}
	return accepted
}

// write assigns offsets and encodes the accepted messages. The message log calls it within its Add.
func (a *appending) write(w *store.Batch) {
	now := time.Now()
	a.runs = a.runs[:0]
	a.order.begin()
	for i, t := range a.topics {
		if t == nil {
			continue
		}
		if t.Deleted() {
			a.results[i].Err = refusal.WithOp("SendMessage", refusal.TopicNotFound(t.Name()))
			continue
		}
		m := &a.messages[i]
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
		if a.rejectedBefore(i, t) || a.order.hold(i, t, m.MessageGroup) {
			continue
		}
		if th := a.Limits.Check(t, now, &limits.Sender{Client: m.Client, Size: int64(len(m.Body))}); th != nil {
			a.reject(i, t, limits.Rejected(*th), th.Limit)
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
		q := a.queue(t, m.MessageGroup)
		offset := t.Put(w, q, rec, now)
		a.extend(t, q, offset)
		a.results[i].Receipt = tidegate.Receipt{
			MessageID: m.ID, Topic: t.Name(), Queue: int(q.Number()), Offset: offset, Endpoint: a.Endpoint,
		}
	}
}

// publish makes the written messages visible to consumers.
func (a *appending) publish(err error) {
	if err != nil {
		return // the store is broken and rejects all reads and writes
	}
	if !a.earliest.IsZero() {
		a.Delayed.Wake(a.earliest)
	}
	if !a.firstCheck.IsZero() {
		a.Transactions.Wake(a.firstCheck)
	}
	for _, r := range a.runs {
		r.queue.Publish(r.end)
	}
	for _, r := range a.runs {
		r.topic.Wake(r.queue, r.n)
	}
}

// queue returns the queue for a message. The messages of a topic without a message group that come
// in one request share a queue: their keys are in order then, which costs about 7 % less processor
// time for a message than a queue for each in turn.
func (a *appending) queue(t *topic.Topic, messageGroup string) *topic.Queue {
	if messageGroup != "" {
		return t.Pick(messageGroup)
	}
	if a.shared.topic != t {
		a.shared = place{t, t.Pick("")}
	}
	return a.shared.queue
}

// extend adds the message at an offset to the runs.
func (a *appending) extend(t *topic.Topic, q *topic.Queue, offset int64) {
	if last := len(a.runs) - 1; last >= 0 && a.runs[last].queue == q {
		a.runs[last].end, a.runs[last].n = offset+1, a.runs[last].n+1
		return
	}
	a.runs = append(a.runs, run{place{t, q}, offset + 1, 1})
}

// delay writes a delayed message. Only called within the message log's Add.
func (a *appending) delay(w *store.Batch, t *topic.Topic, m *store.Message, now time.Time) tidegate.Receipt {
	d := a.Delayed.Put(w, t, m, now)
	if a.earliest.IsZero() || d.Due.Before(a.earliest) {
		a.earliest = d.Due
	}
	return a.delayedReceipt(t, m.ID, d)
}

func (s *Sender) delayedReceipt(t *topic.Topic, id string, d store.Delayed) tidegate.Receipt {
	return tidegate.Receipt{MessageID: id, Topic: t.Name(), Queue: -1, Offset: -1, Endpoint: s.Endpoint, RecallHandle: handle.Recall(d)}
}

// half writes a half message. Only called within the message log's Add.
func (a *appending) half(w *store.Batch, t *topic.Topic, m *store.Message, firstCheck time.Duration, now time.Time) tidegate.Receipt {
	id, due := a.Transactions.Put(w, t, m, firstCheck, now)
	if a.firstCheck.IsZero() || due.Before(a.firstCheck) {
		a.firstCheck = due
	}
	return a.halfReceipt(t, m.ID, id)
}

func (s *Sender) halfReceipt(t *topic.Topic, messageID string, id store.HalfID) tidegate.Receipt {
	return tidegate.Receipt{MessageID: messageID, Topic: t.Name(), Queue: -1, Offset: -1, Endpoint: s.Endpoint, TransactionID: handle.Transaction(id)}
}
