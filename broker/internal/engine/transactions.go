package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// transactions asks the producers of half messages about unresolved transactions.
type transactions struct {
	pendingConfig

	// Task is held while more than one half message is claimed. Otherwise two such claimants could
	// wait for each other.
	Task *Task

	batch        []*transactionCheck // of the last step, until the producers were asked
	needsGivenUp bool                // the last step lacked the topic of GivenUp

	mu      sync.Mutex
	claimed map[store.HalfID]chan struct{} // guarded by mu: half messages being ended or checked, until the channel is closed

	from lowerBound

	number uint64 // changed only within the message log's Add
}

// A TransactionCheck asks a producer about a transaction.
type TransactionCheck struct {
	Message       *tidegate.Message // with its topic; the receiver may change it
	TransactionID string
	Number        int // of this check, from 1

	BornAt, StoredAt time.Time
	BornHost         string
}

// newTransactions returns Transactions with its task.
func newTransactions(c pendingConfig) *transactions {
	x := &transactions{
		pendingConfig: c, claimed: map[store.HalfID]chan struct{}{},
		number: uint64(time.Now().UnixNano()),
	}
	x.Task = c.Loop.Add(taskConfig{
		Step: x.checkDue, Follow: x.askAll, Failed: "transactions of half messages not checked", Pause: time.Second, MaxPause: time.Second,
	})
	return x
}

// Recover counts the half messages, schedules the first check, and returns when the newest half
// message was stored; zero if there is none. It changes two kinds of checks, on disk. An overdue
// check is postponed by another Timeout, because producers have to reconnect first. A check that is
// further ahead than the duration for which it was set, because the wall clock was set back, comes
// after that duration. Nothing else runs yet.
func (x *transactions) Recover(topic func(id uint32) pendingTopic, now time.Time) (newest time.Time, err error) {
	var first time.Time
	type change struct {
		id            store.HalfID
		before, after store.HalfState
	}
	var changes []change
	if err := x.Store.HalfMessages(func(id store.HalfID, st store.HalfState) error {
		t := topic(id.Topic)
		if t == nil {
			return nil
		}
		t.Counters().Half.Add(1)
		x.number = max(x.number, id.Number)
		if st.Stored.After(newest) {
			newest = st.Stored
		}
		before := st
		if wait := st.Due.Sub(now); wait <= 0 {
			st.Span = t.Schedule().Timeout
			st.Due = now.Add(st.Span)
			changes = append(changes, change{id, before, st})
		} else {
			if st.Span == 0 { // a record of an earlier version
				st.Span = st.Due.Sub(st.Stored)
			}
			if wait > st.Span {
				st.Due = now.Add(st.Span)
				changes = append(changes, change{id, before, st})
			}
		}
		if first.IsZero() || st.Due.Before(first) {
			first = st.Due
		}
		return nil
	}); err != nil {
		return newest, err
	}
	if len(changes) > 0 {
		if err := x.Store.Messages.Add(func(w *store.Batch) {
			for _, c := range changes {
				w.ChangeHalf(c.id, c.before, c.after)
			}
		}, nil).Wait(); err != nil {
			return newest, err
		}
	}
	x.Task.Wake(first)
	return newest, nil
}

// Put writes a half message. firstCheck is that of Schedule.First. Only called within the message
// log's Add; Wake with due follows when the write is on disk.
func (x *transactions) Put(w *store.Batch, t pendingTopic, m *store.Message, firstCheck time.Duration, now time.Time) (id store.HalfID, due time.Time) {
	x.number++
	id = store.HalfID{Topic: t.ID(), Number: x.number}
	state := t.Schedule().First(firstCheck, now)
	m.StoredAt = now
	w.PutHalf(id, m, state)
	t.Counters().Half.Add(1)
	t.Remember(m, halfLocation(id), now)
	return id, state.Due
}

// Last returns the number of the last message of Put. Only called within the message log's Add.
func (x *transactions) Last() uint64 { return x.number }

// Wake schedules the check of half messages that are due at that time of the wall clock, or later.
func (x *transactions) Wake(due time.Time) {
	x.from.note(due)
	x.Task.Wake(due.Round(0))
}

// Claim makes the caller the only one that may end or check a half message until release is called,
// which does not wait. ctx ends the wait for another claim.
func (x *transactions) Claim(ctx context.Context, id store.HalfID) (release func(), err error) {
	for {
		busy, release := x.tryClaim(id)
		if busy == nil {
			return release, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryClaim claims a half message. If another caller has claimed it, tryClaim returns a channel that
// is closed at the end of that claim.
func (x *transactions) tryClaim(id store.HalfID) (busy <-chan struct{}, release func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if busy := x.claimed[id]; busy != nil {
		return busy, nil
	}
	done := make(chan struct{})
	x.claimed[id] = done
	return nil, func() {
		x.mu.Lock()
		delete(x.claimed, id)
		x.mu.Unlock()
		close(done)
	}
}

// Claimed returns how many half messages are claimed.
func (x *transactions) Claimed() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.claimed)
}

// claims release several claims.
type claims []func()

func (c claims) release() {
	for _, release := range c {
		release()
	}
}

// propertyCheckTimes is RocketMQ's name of the property with the number of checks of a transaction.
const propertyCheckTimes = "TRANSACTION_CHECK_TIMES"

const (
	// CheckBatch and CheckBytes bound the checks of one write: their number, and the bytes of their
	// bodies.
	CheckBatch = 256
	CheckBytes = 8 << 20

	// giveUpPause is the delay before the next try to give a transaction up while the disk is short
	// of space.
	giveUpPause = time.Minute
)

// errNoTopic is returned if a batch of checks needs the topic of GivenUp, and the topic does not
// exist.
var errNoTopic = errors.New("the topic for half messages of abandoned transactions does not exist")

// A checkAction is the decision about one half message that is due.
type checkAction int

const (
	forget        checkAction = iota // the transaction has ended, or is due at another time
	discard                          // the message is corrupt and is removed
	ask                              // the broker asks a producer
	pendingGiveUp                    // the transaction has had its last check
	postpone                         // giveUp while the disk is short of space
	repeat                           // giveUp, but the topic of GivenUp was just deleted
)

// A transactionCheck is one half message that is due, and the decision about the message.
type transactionCheck struct {
	action  checkAction
	topic   pendingTopic
	due     store.DueHalf
	state   store.HalfState
	after   store.HalfState // after ask or postpone
	message store.Message
	givenUp pendingTopic
}

// checkDue writes one batch of checks. askAll asks the producers after the write. If the process
// ends in between, a producer is asked once less, and never once more.
func (x *transactions) checkDue(ctx context.Context, now time.Time) (next time.Time, err error) {
	x.batch, next, err = x.writeChecks(ctx, now)
	x.needsGivenUp = errors.Is(err, errNoTopic)
	switch {
	case x.needsGivenUp || err == nil && len(x.batch) > 0:
		return now, nil
	case err != nil:
		return time.Time{}, err
	}
	return next, nil
}

// askAll asks the producers of the last batch, or creates the topic that the batch needs. The task
// is not held meanwhile, because a purge can wait for the task while the creation waits for the
// purge, and because a producer that is asked can purge.
func (x *transactions) askAll(ctx context.Context) error {
	if x.needsGivenUp {
		return x.CreateGivenUp()
	}
	for _, c := range x.batch {
		x.announce(ctx, c)
	}
	x.batch = nil
	return nil
}

// writeChecks writes one batch of checks. With errNoTopic nothing was written.
func (x *transactions) writeChecks(ctx context.Context, now time.Time) (batch []*transactionCheck, next time.Time, err error) {
	from := x.from.take()
	done := false
	defer func() {
		if !done {
			x.from.note(from)
		}
	}()
	due, next, err := x.Store.DueHalfMessages(from, now, CheckBatch)
	if err != nil {
		return nil, next, err
	}
	if !next.IsZero() {
		x.from.note(next)
	}
	if len(due) == 0 {
		done = true
		return nil, next, nil
	}
	batch, claims, err := x.load(ctx, due)
	if err != nil || len(batch) == 0 {
		claims.release()
		return nil, next, err
	}
	var givenUp pendingTopic
	if slices.ContainsFunc(batch, func(c *transactionCheck) bool { return c.action == pendingGiveUp }) {
		if givenUp = x.GivenUp(); givenUp == nil {
			claims.release()
			return nil, next, errNoTopic
		}
	}
	var published []func(error)
	write := x.Store.Messages.Add(func(w *store.Batch) {
		for _, c := range batch {
			if publish := c.write(w, givenUp, time.Now()); publish != nil {
				published = append(published, publish)
			}
		}
	}, func(err error) {
		claims.release()
		for _, f := range published {
			f(err)
		}
	})
	if write == nil {
		claims.release()
	}
	if err := write.Wait(); err != nil {
		return nil, next, err
	}
	done = len(batch) == len(due)
	for _, c := range batch {
		switch c.action {
		case ask, postpone:
			x.from.note(c.after.Due)
		case repeat:
			done = false
		}
	}
	return batch, next, nil
}

// load claims and reads due half messages until their bodies have CheckBytes. It always reads the
// first one.
func (x *transactions) load(ctx context.Context, due []store.DueHalf) (batch []*transactionCheck, claims claims, err error) {
	topic := x.Topics()
	short := x.ShortOfDisk()
	left := int64(CheckBytes)
	for _, d := range due {
		if left <= 0 {
			break
		}
		release, err := x.Claim(ctx, d.HalfID)
		if err != nil {
			return nil, claims, nil //nolint:nilerr // the broker closes
		}
		claims = append(claims, release)
		m, state, ok, err := x.Store.GetHalf(d.HalfID)
		if err != nil && !store.IsDamage(err) {
			return nil, claims, err
		}
		left -= int64(len(m.Body))
		c := &transactionCheck{topic: topic(d.Topic), due: d, state: state, message: m}
		switch {
		case c.topic != nil && err != nil && (state.Due.IsZero() || state.Due.Equal(d.Due)):
			c.action = discard
			x.Damaged.Add(1)
			x.Logger.Error("half message removed without a transaction check, because it is corrupt",
				"topic", c.topic.Name(), "transaction_id", consume.TransactionID(d.HalfID), "error", err)
		case c.topic == nil || !ok || !state.Due.Equal(d.Due):
			c.action = forget
		default:
			c.decide(time.Now(), short)
		}
		batch = append(batch, c)
	}
	return batch, claims, nil
}

// decide sets the action to ask, postpone or giveUp.
func (c *transactionCheck) decide(now time.Time, shortOfDisk bool) {
	var over bool
	c.after, over = c.topic.Schedule().Next(c.state, now)
	switch {
	case !over:
		c.action = ask
	case shortOfDisk:
		c.action = postpone
		c.after.Due, c.after.Span = now.Add(giveUpPause), giveUpPause
	default:
		c.action = pendingGiveUp
	}
}

// write counts the check, or gives the transaction up. The returned function makes the message of a
// transaction that is given up visible; it is nil otherwise. Only called within the message log's
// Add.
func (c *transactionCheck) write(w *store.Batch, givenUp pendingTopic, now time.Time) (publish func(error)) {
	if c.action != forget && c.topic.Deleted() {
		c.action = forget
	}
	id := c.due.HalfID
	switch c.action {
	case forget:
		w.DeleteDueHalf(c.due)
	case discard:
		w.DeleteDueHalf(c.due)
		c.remove(w)
	case ask, postpone:
		w.ChangeHalf(id, c.state, c.after)
	case pendingGiveUp:
		if givenUp.Deleted() {
			c.action = repeat
			return nil
		}
		c.remove(w)
		c.topic.Counters().GivenUp.Add(1)
		m := c.message
		m.Properties = c.properties()
		c.givenUp = givenUp
		return givenUp.Deliver(w, &m, now)
	}
	return nil
}

func (c *transactionCheck) remove(w *store.Batch) {
	w.DeleteHalf(c.due.HalfID, c.state)
	c.topic.Counters().Half.Add(-1)
	c.topic.Forget(c.state.IDHash)
}

// properties returns the properties of the message of a transaction that is given up.
func (c *transactionCheck) properties() map[string]string {
	p := maps.Clone(c.message.Properties)
	if p == nil {
		p = map[string]string{}
	}
	n := strconv.Itoa(c.state.Checks)
	p[propertyCheckTimes] = n
	p[protocol.PropertyDeadLetterTopic] = c.topic.Name()
	p[protocol.PropertyDeadLetterMessageID] = c.message.ID
	p[protocol.PropertyDeadLetterAttempts] = n
	p[protocol.PropertyDeadLetterReason] = "the transaction was neither committed nor rolled back after " + n + " checks"
	return p
}

// announce asks a producer after the check was written, or logs that the transaction was given up.
func (x *transactions) announce(ctx context.Context, c *transactionCheck) {
	switch c.action {
	case pendingGiveUp:
		x.Logger.Warn("transaction abandoned after its last check", "topic", c.topic.Name(), "message_id", c.message.ID,
			"checks", c.state.Checks, "stored_at", c.message.StoredAt, "to", c.givenUp.Name())
	case ask:
		if x.ask(ctx, c) {
			c.topic.Counters().Checks.Add(1)
			return
		}
		c.topic.Counters().Unheard.Add(1)
		x.Logger.Debug("transaction check not sent, because no producer is connected", "topic", c.topic.Name(), "message_id", c.message.ID, "check", c.after.Checks)
	}
}

// ask offers a check to the producers.
func (x *transactions) ask(ctx context.Context, c *transactionCheck) bool {
	m := c.message.Message
	m.Topic = c.topic.Name()
	check := TransactionCheck{
		Message: &m, TransactionID: consume.TransactionID(c.due.HalfID), Number: c.after.Checks,
		BornAt: c.message.BornAt, StoredAt: c.message.StoredAt, BornHost: c.message.BornHost,
	}
	asked := make(chan bool, 1)
	go func() { asked <- x.Ask(check) }() // ends with the host, which nothing waits for
	select {
	case took := <-asked:
		return took
	case <-ctx.Done():
		return false
	}
}

// Errors of End.
var (
	// errNoTransaction: the transaction has ended, or never began.
	errNoTransaction = errors.New("the transaction does not exist")

	// errTopicDeleted: the topic was deleted meanwhile.
	errTopicDeleted = errors.New("the topic of the transaction was deleted")
)

// An otherMessageError is returned if transactionEnd.MessageID is not the ID of the transaction's
// message.
type otherMessageError struct {
	Named, Is string // message IDs
}

// Error returns both IDs.
func (e *otherMessageError) Error() string {
	return fmt.Sprintf("the transaction belongs to message %.130q, not to %.130q", e.Is, e.Named)
}

// An unsyncedError is returned if the end of a transaction may or may not be on disk.
type unsyncedError struct{ Err error }

// Error returns the text of Err.
func (e *unsyncedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *unsyncedError) Unwrap() error { return e.Err }

// A transactionEnd names a transaction and its resolution.
type transactionEnd struct {
	Topic      pendingTopic
	ID         store.HalfID
	MessageID  string // empty: it is not compared
	Resolution transport.Resolution
}

// End ends a transaction. It blocks until the end is on disk. Besides the errors above it returns
// tidegate.ErrClosed if the store is closed, the errors of Room, and the cause of ctx.
func (x *transactions) End(ctx context.Context, e transactionEnd) error {
	write, deleted, err := x.writeEnd(ctx, e)
	if write == nil {
		return err
	}
	if err := write.WaitContext(ctx); err != nil {
		return &unsyncedError{err}
	}
	if *deleted {
		return errTopicDeleted
	}
	return nil
}

// writeEnd adds the end of a transaction to the message log. write is nil if there is nothing to
// add. The half message is claimed until its end is written. It is not claimed during the wait for
// room, because purges of the topic and checks wait for the claim.
func (x *transactions) writeEnd(ctx context.Context, e transactionEnd) (write *store.PendingWrite, deleted *bool, err error) {
	read := x.Store.HalfHeader
	if e.Resolution == transport.Commit {
		size, err := x.roomToCommit(ctx, e.ID)
		if err != nil {
			return nil, nil, err
		}
		defer x.Store.Messages.Release(size)
		read = x.Store.GetHalf
	}
	release, err := x.Claim(ctx, e.ID)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if write == nil {
			release()
		}
	}()
	m, state, ok, err := read(e.ID)
	switch {
	case err != nil:
		return nil, nil, err
	case !ok:
		return nil, nil, errNoTransaction
	case e.MessageID != "" && e.MessageID != m.ID:
		return nil, nil, &otherMessageError{Named: e.MessageID, Is: m.ID}
	case e.Resolution == transport.ResolutionUnknown:
		return nil, nil, nil
	}
	if e.Resolution == transport.Commit {
		if m.Properties == nil {
			m.Properties = map[string]string{}
		}
		m.Properties[protocol.PropertyTransactionID] = consume.TransactionID(e.ID)
	}
	deleted = new(bool)
	var publish func(error)
	write = x.Store.Messages.Add(func(w *store.Batch) {
		if *deleted = e.Topic.Deleted(); !*deleted {
			publish = e.write(w, state, &m, time.Now())
		}
	}, func(err error) {
		release()
		if publish != nil {
			publish(err)
		}
	})
	if write == nil {
		return nil, nil, tidegate.ErrClosed
	}
	return write, deleted, nil
}

// roomToCommit waits until the message log has room for the committed message, and returns the
// reserved bytes.
func (x *transactions) roomToCommit(ctx context.Context, id store.HalfID) (bytes int64, err error) {
	state, ok, err := x.Store.HalfState(id)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, errNoTransaction
	}
	size := state.Size + int64(len(protocol.PropertyTransactionID)+len(consume.TransactionID(id))+2) // with the property that the commit adds
	return size, x.Room(ctx, size)
}

// write ends the transaction. The returned function makes the message visible; it is nil for a
// rollback. Only called within the message log's Add, by the claimant of the half message.
func (e *transactionEnd) write(w *store.Batch, state store.HalfState, m *store.Message, now time.Time) (publish func(error)) {
	c := e.Topic.Counters()
	w.DeleteHalf(e.ID, state)
	c.Half.Add(-1)
	if e.Resolution != transport.Commit {
		c.RolledBack.Add(1)
		e.Topic.Forget(state.IDHash)
		return nil
	}
	c.Committed.Add(1)
	return e.Topic.Deliver(w, m, now)
}

// DelayedBatch is how many delayed messages are removed in one write.
const DelayedBatch = 4096

// Remove removes the delayed messages of a topic that were written up to last. last is a result of
// Last; the write of the message log in which the caller obtained last must be complete. Remove
// calls removed after each write. Other messages are sent, delivered and recalled between two
// writes.
func (d *delayed) Remove(ctx context.Context, t pendingTopic, last uint64, removed func(messages, bytes int64)) error {
	// Messages that are stored meanwhile lie behind newest, unless the clock was set back. So the
	// loop ends.
	var from, newest store.StoredDelayed
	if err := d.Store.NewestDelayed(t.ID(), time.Time{}, func(d *store.StoredDelayed) bool {
		newest = *d
		return false
	}); err != nil {
		return err
	}
	for {
		n, to, err := d.removeSome(ctx, t, from, newest, last)
		if err != nil || to == from {
			return err
		}
		from = to
		removed(n.Messages, n.Bytes)
	}
}

// removeSome removes one batch of the messages that were stored after from, up to newest. It
// returns the last message of the batch, and from if there was none.
func (d *delayed) removeSome(ctx context.Context, t pendingTopic, from, newest store.StoredDelayed, last uint64) (removed store.Waiting, to store.StoredDelayed, err error) {
	release, err := d.Task.Hold(ctx)
	if err != nil {
		return removed, from, err
	}
	defer release()
	ds, err := d.Store.DelayedOf(t.ID(), from, DelayedBatch)
	if err != nil {
		return removed, from, err
	}
	if i := slices.IndexFunc(ds, func(d store.StoredDelayed) bool { return d.StoredAfter(newest) }); i >= 0 {
		ds = ds[:i]
	}
	if len(ds) == 0 {
		return removed, from, nil
	}
	if err := d.Store.Messages.Add(func(w *store.Batch) {
		since := d.number - last // how many were written after last, with the numbers after it
		for _, m := range ds {
			if m.Number-last-1 < since {
				continue
			}
			if !m.Gone {
				removed.Messages++
				removed.Bytes += m.Size
			}
			w.DeleteDelayed(m.Delayed, m.Stored)
		}
		addDelayed(w, t, -removed.Messages, -removed.Bytes)
	}, nil).Wait(); err != nil { // also after the end of ctx: no message is moved before this is written
		return store.Waiting{}, from, err
	}
	return removed, ds[len(ds)-1], nil
}

// Remove removes the half messages of a topic up to a number. It calls removed after each write. A
// later End of their transactions returns ErrNoTransaction.
func (x *transactions) Remove(ctx context.Context, t pendingTopic, last uint64, removed func(messages, bytes int64)) error {
	for last > 0 {
		var ids []store.HalfID
		if err := x.Store.HalfMessagesOf(t.ID(), last, func(id store.HalfID, _ store.HalfState) bool {
			ids = append(ids, id)
			return len(ids) < CheckBatch
		}); err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		last = ids[len(ids)-1].Number - 1
		n, err := x.removeSome(ctx, t, ids)
		if err != nil {
			return err
		}
		removed(n.Messages, n.Bytes)
	}
	return nil
}

func (x *transactions) removeSome(ctx context.Context, t pendingTopic, ids []store.HalfID) (removed store.Waiting, err error) {
	resume, err := x.Task.Hold(ctx)
	if err != nil {
		return removed, err
	}
	defer resume()
	var claims claims
	states := make(map[store.HalfID]store.HalfState, len(ids))
	for _, id := range ids {
		release, err := x.Claim(ctx, id)
		if err != nil {
			claims.release()
			return removed, err
		}
		claims = append(claims, release)
		state, ok, err := x.Store.HalfState(id)
		if err != nil && !store.IsDamage(err) {
			claims.release()
			return removed, err
		}
		if ok || err != nil {
			states[id] = state
			removed.Messages++
			removed.Bytes += state.Size
		}
	}
	write := x.Store.Messages.Add(func(w *store.Batch) {
		if t.Deleted() { // with its half messages
			removed = store.Waiting{}
			return
		}
		for id, state := range states {
			w.DeleteHalf(id, state)
			t.Counters().Half.Add(-1)
			t.Forget(state.IDHash)
		}
	}, func(error) { claims.release() })
	if write == nil {
		claims.release()
	}
	return removed, write.WaitContext(ctx)
}
