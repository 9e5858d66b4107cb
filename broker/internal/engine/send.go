package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wallclock"
	"github.com/tidegate/tidegate/transport"
)

// Send executes the method of broker.Broker.
func (e *Engine) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	in := make([]Incoming, len(msgs))
	for i, m := range msgs {
		in[i] = Incoming{Message: m, BornHost: e.host}
	}
	return e.Append(ctx, in)
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
func (e *Engine) Append(ctx context.Context, msgs []Incoming) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	defer e.counters.countRefused(results)
	if !e.calls.Begin() {
		FailAll(results, refusal.Closed())
		return results
	}
	defer e.calls.End()
	if ctx.Err() != nil {
		FailAll(results, context.Cause(ctx))
		return results
	}
	e.sender.Append(ctx, msgs, results)
	return results
}

// A Incoming is a message to store, with the data of its producer.
type Incoming struct {
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

// A SendingConfig has the parts of the broker that a send needs.
type SendingConfig struct {
	Store        *store.Store
	Limits       *Limits
	Delayed      *delayed
	Transactions *transactions
	LiteTopics   *LiteTopics // nil if there are none

	Directory interface {
		// Topic returns the topic with a name, or an error with 40402 or 40002.
		Topic(name string) (*Topic, error)
	}

	// MaxBodySize is the maximum size of a body in bytes.
	MaxBodySize int

	// Endpoint is the Endpoint of the receipts.
	Endpoint string
	Clock    *wallclock.Clock

	Throttled *Counters // of the messages that a limit rejected
}

// A Sending stores messages. Several goroutines can call its methods at the same time.
type Sending struct{ SendingConfig }

// NewSending returns a Sending.
func NewSending(c SendingConfig) *Sending { return &Sending{c} }

// Append stores messages, and sets the result of each. It returns when the accepted messages are on
// disk. It keeps no reference to a message.
func (s *Sending) Append(ctx context.Context, messages []Incoming, results []transport.SendResult) {
	a := appending{Sending: s, messages: messages, topics: make([]*Topic, len(results)), results: results}
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
	*Sending
	messages []Incoming
	topics   []*Topic // nil for messages that were rejected, found to be duplicates, or written
	results  []transport.SendResult
	order    order
	record   store.Message           // the message that write encodes
	suspects []suspect               // messages whose ID was probably stored before
	trusted  map[int]bool            // messages that are certainly no duplicates; nil for none
	absent   map[int]PendingLocation // places of movable messages where no message was found; nil for none
	earliest time.Time               // first delivery time of the delayed messages; zero for none
	wrote    bool                    // at least one message

	lites      []*Topic  // those with lite topics, of the last write
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
	topic *Topic
	queue *Queue
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
			a.reject(i, t, err, ClientQuota)
			continue
		}
		a.topics[i], accepted = t, true
	}
	return accepted
}

// write assigns offsets and encodes the accepted messages. The message log calls it within its Add.
func (a *appending) write(w *store.Batch) {
	now := time.Now()
	a.runs, a.lites = a.runs[:0], a.lites[:0]
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
				a.order.suspect(t, m.OrderKey())
				continue
			}
		}
		if a.rejectedBefore(i, t) || a.order.hold(i, t, m.OrderKey()) {
			continue
		}
		if th := a.Limits.Check(t, now, &Sender{Client: m.Client, Size: int64(len(m.Body))}); th != nil {
			a.reject(i, t, Rejected(*th), th.Limit)
			continue
		}
		if t.lite() {
			if err := t.admitsLite(m.LiteTopic); err != nil {
				a.results[i].Err = refusal.WithOp("SendMessage", err)
				continue
			}
			if n := len(a.lites); n == 0 || a.lites[n-1] != t {
				a.lites = append(a.lites, t)
			}
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
		q := a.queue(t, m.Message)
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
	for _, t := range a.lites {
		a.LiteTopics.Wake(t)
	}
	for _, r := range a.runs {
		r.queue.Publish(r.end)
	}
	for _, r := range a.runs {
		r.topic.Wake(r.queue, r.n)
	}
}

// queue returns the queue for a message. The messages of a topic without order or rank that come
// in one request share a queue: their keys are in order then, which costs about 7 % less processor
// time for a message than a queue for each in turn.
func (a *appending) queue(t *Topic, m *tidegate.Message) *Queue {
	if m.MessageGroup != "" || t.ranked() || t.lite() {
		return t.Pick(m)
	}
	if a.shared.topic != t {
		a.shared = place{t, t.Pick(m)}
	}
	return a.shared.queue
}

// extend adds the message at an offset to the runs.
func (a *appending) extend(t *Topic, q *Queue, offset int64) {
	if last := len(a.runs) - 1; last >= 0 && a.runs[last].queue == q {
		a.runs[last].end, a.runs[last].n = offset+1, a.runs[last].n+1
		return
	}
	a.runs = append(a.runs, run{place{t, q}, offset + 1, 1})
}

// delay writes a delayed message. Only called within the message log's Add.
func (a *appending) delay(w *store.Batch, t *Topic, m *store.Message, now time.Time) tidegate.Receipt {
	d := a.Delayed.Put(w, t, m, now)
	if a.earliest.IsZero() || d.Due.Before(a.earliest) {
		a.earliest = d.Due
	}
	return a.delayedReceipt(t, m.ID, d)
}

func (s *Sending) delayedReceipt(t *Topic, id string, d store.Delayed) tidegate.Receipt {
	return tidegate.Receipt{MessageID: id, Topic: t.Name(), Queue: -1, Offset: -1, Endpoint: s.Endpoint, RecallHandle: consume.RecallHandle(d)}
}

// half writes a half message. Only called within the message log's Add.
func (a *appending) half(w *store.Batch, t *Topic, m *store.Message, firstCheck time.Duration, now time.Time) tidegate.Receipt {
	id, due := a.Transactions.Put(w, t, m, firstCheck, now)
	if a.firstCheck.IsZero() || due.Before(a.firstCheck) {
		a.firstCheck = due
	}
	return a.halfReceipt(t, m.ID, id)
}

func (s *Sending) halfReceipt(t *Topic, messageID string, id store.HalfID) tidegate.Receipt {
	return tidegate.Receipt{MessageID: messageID, Topic: t.Name(), Queue: -1, Offset: -1, Endpoint: s.Endpoint, TransactionID: consume.TransactionID(id)}
}

const (
	maxDelay      = 24 * time.Hour // maximum time until a delivery time (RocketMQ: 24 h)
	maxFirstCheck = time.Hour      // maximum of Message.FirstCheck (RocketMQ: maxTransactionRecoverySecond)
)

// check returns the topic of a message, or the reason why the message is invalid.
func (s *Sending) check(m *Incoming) (*Topic, error) {
	if err := m.Validate(s.MaxBodySize); err != nil {
		return nil, err
	}
	if m.ID == "" {
		return nil, refusal.New(protocol.CodeIllegalMessageID, "message ID", "the ID is empty; give each message its own")
	}
	t, err := s.Directory.Topic(m.Topic)
	if err != nil {
		return nil, err
	}
	kind := m.kind()
	if m.Half {
		if err := m.checkHalf(); err != nil {
			return nil, err
		}
	}
	if kind == settings.TopicDelay {
		if ahead := time.Until(m.DeliverAt); ahead > maxDelay {
			return nil, refusal.New(protocol.CodeIllegalDeliveryTime, "delivery time", "it is %v ahead; the limit is %v", ahead.Round(time.Millisecond), maxDelay)
		}
	}
	want := t.Settings().Type
	if kind == settings.TopicNormal && want == settings.TopicPriority {
		kind = want // with the lowest priority
	}
	if kind != want && (m.Half || !isDeadLetter(m.Topic)) {
		return nil, refusal.New(protocol.CodeMessagePropertyConflict, m.Topic, "the topic's type is %s, and the message is %s; %s", want, because(kind, m.Message), needs(want))
	}
	return t, nil
}

// kind returns the type of topics that accept the message.
func (m *Incoming) kind() settings.TopicType {
	if m.Half {
		return settings.TopicTransaction
	}
	return typeOf(m.Message)
}

// typeOf returns the type of topics that accept a message, which is no half message.
func typeOf(m *tidegate.Message) settings.TopicType {
	switch {
	case m.MessageGroup != "":
		return settings.TopicFIFO
	case !m.DeliverAt.IsZero():
		return settings.TopicDelay
	case m.Priority != 0:
		return settings.TopicPriority
	case m.LiteTopic != "":
		return settings.TopicLite
	}
	return settings.TopicNormal
}

// checkHalf returns the reason why a message cannot be a half message, or nil.
func (m *Incoming) checkHalf() error {
	switch {
	case m.MessageGroup != "":
		return refusal.New(protocol.CodeMessagePropertyConflict, "message", "a half message cannot have a message group (%q); leave it out", m.MessageGroup)
	case !m.DeliverAt.IsZero():
		return refusal.New(protocol.CodeMessagePropertyConflict, "message", "a half message cannot have a delivery time; leave it out")
	case m.Priority != 0:
		return refusal.New(protocol.CodeMessagePropertyConflict, "message", "a half message cannot have a priority (%d); leave it out", m.Priority)
	case m.LiteTopic != "":
		return refusal.New(protocol.CodeMessagePropertyConflict, "message", "a half message cannot have a lite topic (%q); leave it out", m.LiteTopic)
	case m.FirstCheck < 0 || m.FirstCheck > maxFirstCheck:
		return refusal.New(tidegate.CodeBadRequest, "first check", "it is %v; give 0 to %v", m.FirstCheck, maxFirstCheck)
	}
	return nil
}

// because returns the type of a message and the reason for it, as a text for people.
func because(k settings.TopicType, m *tidegate.Message) string {
	switch k {
	case settings.TopicFIFO:
		return fmt.Sprintf("FIFO: it has the message group %q", m.MessageGroup)
	case settings.TopicDelay:
		return "DELAY: it has a delivery time"
	case settings.TopicPriority:
		return fmt.Sprintf("PRIORITY: it has the priority %d", m.Priority)
	case settings.TopicTransaction:
		return "TRANSACTION: it is a half message"
	case settings.TopicLite:
		return fmt.Sprintf("LITE: it has the lite topic %q", m.LiteTopic)
	}
	return "NORMAL: it has no message group, delivery time, priority or lite topic"
}

// needs returns the remedy for a message that a topic of the type rejects.
func needs(k settings.TopicType) string {
	switch k {
	case settings.TopicFIFO:
		return "give the message a message group and no delivery time"
	case settings.TopicDelay:
		return "give the message a delivery time and no message group"
	case settings.TopicTransaction:
		return "send the message in a transaction"
	case settings.TopicPriority:
		return "give the message no message group and no delivery time"
	case settings.TopicLite:
		return "give the message a lite topic"
	}
	return "send it without a message group, a delivery time, a priority, a lite topic and a transaction"
}

// An order keeps the messages of one message group in the order of their Append: a message is not
// stored while an earlier one is not, but may be stored later. The zero value is ready for use.
type order struct {
	rejected map[group]rejection // message groups with a message that was rejected for now
	behind   map[group]bool      // message groups with a suspected duplicate, in this write
	held     []int               // messages that wait behind one of these duplicates, in this write
}

// A group is a message group of a topic.
type group struct {
	topic *Topic
	name  string
}

// A rejection is the first rejected message of a message group.
type rejection struct {
	at    int
	err   error
	limit string // the limit that rejected it; empty for another reason
}

// begin begins a write.
func (o *order) begin() { o.behind, o.held = nil, nil }

// suspect notes that a message was left out of a write because it may be a duplicate.
func (o *order) suspect(t *Topic, name string) {
	if name == "" {
		return
	}
	if o.behind == nil {
		o.behind = map[group]bool{}
	}
	o.behind[group{t, name}] = true
}

// hold reports whether a message must wait behind one that was left out, and notes it if so.
func (o *order) hold(i int, t *Topic, name string) bool {
	if name == "" || !o.behind[group{t, name}] {
		return false
	}
	o.held = append(o.held, i)
	return true
}

// reject rejects a message for now. The later messages of its message group will be rejected too.
func (a *appending) reject(i int, t *Topic, err error, limit string) {
	a.results[i].Err = refusal.WithOp("SendMessage", err)
	if limit != "" {
		a.Throttled.Add(limit)
	}
	if name := a.messages[i].OrderKey(); name != "" {
		if a.order.rejected == nil {
			a.order.rejected = map[group]rejection{}
		}
		if r, ok := a.order.rejected[group{t, name}]; !ok || i < r.at {
			a.order.rejected[group{t, name}] = rejection{i, err, limit}
		}
	}
}

// rejectedBefore rejects a message if an earlier one of its message group was rejected for now.
func (a *appending) rejectedBefore(i int, t *Topic) bool {
	name := a.messages[i].OrderKey()
	if name == "" {
		return false
	}
	r, ok := a.order.rejected[group{t, name}]
	if !ok || i < r.at {
		return false
	}
	a.reject(i, t, r.err, r.limit)
	return true
}

// rejectAll rejects all messages that have no result yet.
func (a *appending) rejectAll(err error, limit string) {
	for i, t := range a.topics {
		if t != nil {
			a.reject(i, t, err, limit)
		}
	}
}

// A suspect is a message of an Append whose ID was probably stored before.
type suspect struct {
	index int // in the Append
	at    PendingLocation
}

// resolve sets the receipt of the first message for each suspect that is a duplicate. It returns
// the other suspects: another ID has the same hash, the duplicate window is over, or the first
// message is corrupt. The first messages are on disk, because they were written before the batch of
// this Append.
func (a *appending) resolve() []suspect {
	var innocent []suspect
	clock := a.Clock.At(time.Now())
	for _, s := range a.suspects {
		t, m := a.topics[s.index], &a.messages[s.index]
		first, ok, err := a.first(t, s.at)
		switch {
		case err == nil && !ok && s.at.Moves():
			// The first message was delivered or recalled meanwhile, or its transaction has ended.
			// If it has a new place, the memory of IDs has that place by now.
			if a.absent == nil {
				a.absent = map[int]PendingLocation{}
			}
			a.absent[s.index] = s.at
			innocent = append(innocent, s)
		case err != nil && !store.IsDamage(err):
			a.reject(s.index, t, refusal.Store(err), "")
		case err != nil || !ok || first.ID != m.ID || clock.Ages().Sub(first.StoredAt) >= t.Settings().IDWindow():
			if a.trusted == nil {
				a.trusted = map[int]bool{}
			}
			a.trusted[s.index] = true
			innocent = append(innocent, s)
		case s.at.Half:
			t.CountDuplicate()
			a.results[s.index].Receipt = a.halfReceipt(t, m.ID, halfAt(t.ID(), s.at))
		case s.at.Due != 0:
			t.CountDuplicate()
			a.results[s.index].Receipt = a.delayedReceipt(t, m.ID, delayedAt(t.ID(), s.at))
		default:
			t.CountDuplicate()
			a.results[s.index].Receipt = tidegate.Receipt{
				MessageID: m.ID, Topic: t.Name(), Queue: int(s.at.Queue), Offset: s.at.Offset, Endpoint: a.Endpoint,
			}
			if m.Half { // it was committed, so a further end gets the error that there is no such transaction
				a.results[s.index].Receipt.TransactionID = m.ID
			}
		}
	}
	return innocent
}

// wasAbsent reports whether an earlier look at that place has found no message.
func (a *appending) wasAbsent(i int, at PendingLocation) bool {
	was, ok := a.absent[i]
	return ok && was == at
}

// first returns the message at a location.
func (a *appending) first(t *Topic, at PendingLocation) (store.Message, bool, error) {
	switch {
	case at.Half:
		m, _, ok, err := a.Store.GetHalf(halfAt(t.ID(), at))
		return m, ok, err
	case at.Due == 0:
		return a.Store.Get(store.Place{Topic: t.ID(), Queue: at.Queue, Offset: at.Offset})
	}
	return a.Store.GetDelayed(delayedAt(t.ID(), at))
}

// appendAll appends the messages. It appends again those that are no duplicates after all, and
// those that waited behind them in their message groups.
func (a *appending) appendAll(ctx context.Context) error {
	for {
		bytes := a.bytes()
		if limit, err := a.Limits.Room(ctx, bytes); err != nil {
			a.rejectAll(err, limit)
			return nil
		}
		write := a.Store.Messages.Add(a.write, a.publish)
		a.Store.Messages.Release(bytes)
		if write == nil {
			return tidegate.ErrClosed
		}
		if !a.wrote && len(a.suspects) == 0 {
			return nil // all messages are rejected, so there is no write to wait for
		}
		if err := write.WaitContext(ctx); err != nil {
			return err
		}
		innocent := a.resolve()
		if len(innocent)+len(a.order.held) == 0 {
			return nil
		}
		again := make([]*Topic, len(a.topics))
		for _, s := range innocent {
			again[s.index] = a.topics[s.index]
		}
		for _, i := range a.order.held {
			again[i] = a.topics[i]
		}
		a.topics, a.suspects, a.wrote = again, nil, false
	}
}

// bytes returns the size of the bodies to write.
func (a *appending) bytes() (n int64) {
	for i, t := range a.topics {
		if t != nil {
			n += int64(len(a.messages[i].Body))
		}
	}
	return n
}

// Recall executes the method of broker.Broker.
func (e *Engine) Recall(ctx context.Context, topicName, recallHandle string) (id string, err error) {
	id, err = e.recall(ctx, topicName, recallHandle)
	return id, refusal.WithOp("RecallMessage", err)
}

func (e *Engine) recall(ctx context.Context, topicName, recallHandle string) (string, error) {
	if !e.calls.Begin() {
		return "", refusal.Closed()
	}
	defer e.calls.End()
	t, err := e.catalog.Topic(topicName)
	if err != nil {
		return "", err
	}
	d, err := consume.ParseRecallHandle(recallHandle)
	if err != nil || d.Topic != t.ID() {
		return "", refusal.New(tidegate.CodeBadRequest, "recall handle", "this broker did not issue it for a message of topic %q; give the RecallHandle of that message's receipt", topicName)
	}
	id, ok, err := e.delayed.Recall(ctx, t, d)
	if err != nil {
		return "", refusal.StoreUnless(ctx, err)
	}
	if !ok {
		return "", refusal.New(protocol.CodeMessageNotFound, "recall handle", "no such message waits for its delivery time: it was already delivered to its queue, or recalled")
	}
	return id, nil
}

// AbandonedTransactions is that of package broker.
const AbandonedTransactions = protocol.DeadLetterPrefix + "TRANS_CHECK_MAX_TIME_TOPIC"

// EndTransaction ends a transaction and returns when that is on disk. A commit writes the message
// to a queue, exactly once; a rollback removes it; ResolutionUnknown changes nothing. If ctx ends
// before the disk responds, the transaction may end nevertheless. The errors are
//
//   - 40000 for an invalid Resolution,
//   - 40402 if there is no such topic,
//   - 40008 for an empty transaction ID, or one of another message than MessageID,
//   - tidegate.ErrThrottled for a commit while the storage limits reject all sends; the half
//     message stays as it is,
//   - 50001, as in RocketMQ, if there is no such transaction. It may have ended by an earlier call
//     whose response was lost.
func (e *Engine) EndTransaction(ctx context.Context, end TransactionEnd) error {
	return refusal.WithOp("EndTransaction", e.endTransaction(ctx, end))
}

func (e *Engine) endTransaction(ctx context.Context, end TransactionEnd) error {
	if !e.calls.Begin() {
		return refusal.Closed()
	}
	defer e.calls.End()
	if end.TransactionID == "" {
		return refusal.New(protocol.CodeInvalidTransactionID, "transaction ID", "it is empty")
	}
	if end.Resolution < transport.ResolutionUnknown || end.Resolution > transport.Rollback {
		return refusal.New(tidegate.CodeBadRequest, "resolution", "it is %d; give unknown (0), commit (1) or rollback (2)", end.Resolution)
	}
	t, err := e.catalog.Topic(end.Topic)
	if err != nil {
		return err
	}
	id, err := consume.ParseTransactionID(end.TransactionID)
	if err != nil || id.Topic != t.ID() {
		return noTransaction(end)
	}
	err = e.transactions.End(ctx, transactionEnd{Topic: t, ID: id, MessageID: end.MessageID, Resolution: end.Resolution})
	return endError(ctx, end, err)
}

// endError returns the error of EndTransaction for one of pending.
func endError(ctx context.Context, e TransactionEnd, err error) error {
	if other, ok := errors.AsType[*otherMessageError](err); ok {
		return refusal.New(protocol.CodeInvalidTransactionID, "transaction ID", "%v", other)
	}
	if unsynced, ok := errors.AsType[*unsyncedError](err); ok {
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: unsynced.Err,
			Message: "the broker cannot confirm that the end of the transaction is on disk; the transaction may have ended"}
	}
	if throttled, ok := errors.AsType[*tidegate.Error](err); ok {
		return throttled
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoTransaction):
		return noTransaction(e)
	case errors.Is(err, errTopicDeleted):
		return refusal.TopicNotFound(e.Topic)
	case errors.Is(err, tidegate.ErrClosed):
		return refusal.Closed()
	}
	return refusal.StoreUnless(ctx, err)
}

func noTransaction(e TransactionEnd) error {
	return refusal.New(tidegate.CodeInternalServerError, "transaction ID",
		"topic %[2]q has no transaction %.64[1]q: it has ended, or never began (TRANSACTION_DATA_NOT_FOUND)", e.TransactionID, e.Topic)
}

// A TransactionEnd has the result of a transaction.
type TransactionEnd struct {
	Topic         string
	TransactionID string // as in the receipt of the half message

	// MessageID is the ID of the half message. Empty means that it is not compared.
	MessageID string

	Resolution transport.Resolution
}
