package broker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// AbandonedTransactions is the topic of the half messages that were given up
// after the last check, with the properties of dead letters: which topic they
// were sent to, how often their producers were asked. (RocketMQ keeps
// them in TRANS_CHECK_MAX_TIME_TOPIC, which its clients cannot read.)
const AbandonedTransactions = tidegate.DeadLetterPrefix + "TRANS_CHECK_MAX_TIME_TOPIC"

const (
	// PropertyCheckTimes is RocketMQ's name of the property that tells how
	// often a transaction was checked: in checks and in abandoned transactions.
	PropertyCheckTimes = "TRANSACTION_CHECK_TIMES"

	// checkBatch and checkBytes bound what is checked in one write.
	checkBatch = 256
	checkBytes = 8 << 20

	// giveUpPause is how much later a transaction is given up if the disk is short of room.
	giveUpPause = time.Minute
)

// halves asks the producers of half messages about the state of their transactions. The half
// messages are on disk only; the task is due when the first check is.
type halves struct {
	broker *Broker

	// Held while more than one half message is claimed: two claimants would wait for one another.
	task *maintain.Task

	batch       []*checking // of the last step, until the producers were asked
	needLetters bool        // the last step lacked the topic AbandonedTransactions

	mu       sync.Mutex
	claimed  map[store.HalfID]chan struct{}       // guarded by mu: those being ended or checked, until the channel is closed
	handlers map[*func(TransactionCheck) bool]int // guarded by mu: with their order
	handler  int                                  // guarded by mu: the last order given

	from lowerBound

	number uint64 // changed only within the message log's Add
}

// halfCounters are a topic's, of its half messages.
type halfCounters struct {
	waiting                          atomic.Int64
	committed, rolledBack, abandoned atomic.Int64
	checks, unheard                  atomic.Int64 // checks that a producer took, and those that none took
}

func newHalves(b *Broker) *halves {
	h := &halves{
		broker: b, claimed: map[store.HalfID]chan struct{}{}, handlers: map[*func(TransactionCheck) bool]int{},
		number: uint64(time.Now().UnixNano()),
	}
	h.task = b.maintenance.Add(maintain.TaskConfig{
		Step: h.check, Follow: h.follow, Failed: "half messages could not be checked", Pause: time.Second, MaxPause: time.Minute,
	})
	return h
}

// OnTransactionCheck has f called with every check of a transaction. f passes it on to a producer
// of the message's topic and reports whether it could; if it could not, the next function is asked,
// in the order in which they were added. It may call the broker and may be called by several
// goroutines at once, and must not wait for long: other checks wait behind it. After remove no new
// call begins; one under way is not waited for, by Close neither. If f panics the process ends.
func (b *Broker) OnTransactionCheck(f func(TransactionCheck) bool) (remove func()) {
	h := b.halves
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handler++
	h.handlers[&f] = h.handler
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.handlers, &f)
	}
}

// wake has half messages checked that are due at that time or later, by the wall clock.
func (h *halves) wake(due time.Time) {
	h.from.note(due)
	h.task.Wake(due.Round(0))
}

// claim makes the caller the only one who may end or check a half message,
// until release is called, which does not wait.
func (h *halves) claim(ctx context.Context, id store.HalfID) (release func(), err error) {
	for {
		h.mu.Lock()
		busy := h.claimed[id]
		if busy == nil {
			done := make(chan struct{})
			h.claimed[id] = done
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				delete(h.claimed, id)
				h.mu.Unlock()
				close(done)
			}, nil
		}
		h.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// half writes a half message of an Append. Only called within the message log's Add.
func (a *appending) half(w *store.Batch, t *topic, m *store.Message, firstCheck, window time.Duration, now time.Time) tidegate.Receipt {
	b := a.broker
	b.halves.number++
	id := store.HalfID{Topic: t.id, Number: b.halves.number}
	state := b.transactionConfig(t).first(firstCheck, now)
	m.StoredAt = now
	w.PutHalf(id, m, state)
	t.halves.waiting.Add(1)
	t.remember(m, halfLocation(id), window, now)
	if a.firstCheck.IsZero() || state.Due.Before(a.firstCheck) {
		a.firstCheck = state.Due
	}
	return b.halfReceipt(t, m.ID, id)
}

func (b *Broker) halfReceipt(t *topic, messageID string, id store.HalfID) tidegate.Receipt {
	return tidegate.Receipt{MessageID: messageID, Topic: t.name, Queue: -1, Offset: -1, Endpoint: b.name, TransactionID: handle.Transaction(id)}
}

// transactionConfig returns what holds for a topic, with every field set.
func (b *Broker) transactionConfig(t *topic) TransactionConfig {
	return t.config.Load().Transaction.or(*b.transactions.Load())
}

// A checking is one half message whose time has come.
type checking struct {
	ending
	due   store.DueHalf
	after store.HalfState
	stale bool // there is nothing to check: the transaction has ended, or is due at another time
	asks  bool // or gives the transaction up
	again bool // it could not be given up: it is due still
	lost  bool // it is damaged: there is nothing to check or to deliver, and it is removed
	later bool // it is to be given up, and there is no room for that now
}

// check writes one batch of checks. follow asks the producers afterwards: when the process ends in
// between, that costs a check, and never adds one.
func (h *halves) check(ctx context.Context, now time.Time) (next time.Time, err error) {
	h.batch, next, err = h.count(ctx, now)
	h.needLetters = errors.Is(err, errNoLetters)
	switch {
	case h.needLetters || err == nil && len(h.batch) > 0:
		return now, nil
	case err != nil:
		return time.Time{}, err
	}
	return next, nil
}

// follow asks the producers of the last batch, or creates the topic that the batch needs. The task
// is not held meanwhile: a purge holds admin and waits for the task, and functions of
// OnTransactionCheck may purge.
func (h *halves) follow(context.Context) error {
	if h.needLetters {
		ctx, cancel := h.broker.ownContext()
		defer cancel()
		_, err := h.broker.ownTopic(ctx, AbandonedTransactions, TopicConfig{Queues: 1}, false)
		return err
	}
	for _, c := range h.batch {
		h.announce(c)
	}
	h.batch = nil
	return nil
}

// errNoLetters tells that the topic of what is given up is to be made first.
var errNoLetters = errors.New("there is no topic " + AbandonedTransactions)

// count writes one batch of checks. It makes no topic: errNoLetters tells that
// it would need one, and then nothing was written.
func (h *halves) count(ctx context.Context, now time.Time) (batch []*checking, next time.Time, err error) {
	b := h.broker
	from := h.from.take()
	done := false
	defer func() {
		if !done {
			h.from.note(from)
		}
	}()
	due, next, err := b.store.DueHalves(from, now, checkBatch)
	if err != nil {
		return nil, next, err
	}
	if !next.IsZero() {
		h.from.note(next)
	}
	if len(due) == 0 {
		done = true
		return nil, next, nil
	}
	batch, release, err := h.load(ctx, due)
	if err != nil || len(batch) == 0 {
		release()
		return nil, next, err
	}
	var letters *topic
	if slices.ContainsFunc(batch, func(c *checking) bool { return !c.stale && !c.asks && !c.later }) {
		if letters, err = b.topic(AbandonedTransactions); err != nil {
			release()
			return nil, next, errNoLetters
		}
	}
	flight := b.store.Messages.Add(func(w *store.Batch) {
		for _, c := range batch {
			c.write(w, letters, time.Now())
		}
	}, func(err error) {
		release()
		for _, c := range batch {
			c.publish(err)
		}
	})
	if flight == nil {
		release()
	}
	if err := flight.Wait(); err != nil {
		return nil, next, err
	}
	done = len(batch) == len(due)
	for _, c := range batch {
		if !c.stale && (c.asks || c.later) {
			h.from.note(c.after.Due)
		}
		done = done && !c.again
	}
	return batch, next, nil
}

// load claims and reads what is due: the first, and then as many as have checkBytes
// of bodies. release gives the claims back.
func (h *halves) load(ctx context.Context, due []store.DueHalf) (batch []*checking, release func(), err error) {
	b := h.broker
	var claims []func()
	release = func() {
		for _, r := range claims {
			r()
		}
	}
	topics := b.topicsByID()
	short := b.shortOfDisk() != nil
	left := int64(checkBytes)
	for _, d := range due {
		if left <= 0 {
			break
		}
		r, err := h.claim(ctx, d.HalfID)
		if err != nil {
			return nil, release, nil //nolint:nilerr // the broker closes
		}
		claims = append(claims, r)
		m, state, ok, err := b.store.GetHalf(d.HalfID)
		damaged := store.IsDamage(err)
		if err != nil && !damaged {
			return nil, release, err
		}
		left -= int64(len(m.Body))
		c := &checking{due: d}
		c.ending = ending{topic: topics[d.Topic], id: d.HalfID, state: state, message: &m}
		switch {
		case c.topic != nil && damaged && (state.Due.IsZero() || state.Due.Equal(d.Due)):
			c.lost, c.stale = true, true
			b.counters.damaged.Add(1)
			b.logger.Error("a half message cannot be read from disk any more and is removed: its producer is not asked",
				"topic", c.topic.name, "transaction", handle.Transaction(d.HalfID), "error", err)
		case c.topic == nil || !ok || !state.Due.Equal(d.Due):
			c.stale = true
		default:
			var giveUp bool
			now := time.Now()
			c.after, giveUp = b.transactionConfig(c.topic).next(state, now)
			c.asks = !giveUp
			if giveUp && short {
				c.later, c.after.Due = true, now.Add(giveUpPause)
			}
		}
		batch = append(batch, c)
	}
	return batch, release, nil
}

// write counts the check, or gives the transaction up. Only called within the message log's Add.
func (c *checking) write(w *store.Batch, letters *topic, now time.Time) {
	t := c.topic
	switch {
	case c.stale || t.deleted.Load():
		c.stale = true
		w.DeleteDueHalf(c.due)
		if c.lost && !t.deleted.Load() {
			w.DeleteHalf(c.id, c.state)
			t.halves.waiting.Add(-1)
			t.recent.Forget(c.state.IDHash)
		}
	case c.asks || c.later:
		w.ChangeHalf(c.id, c.state, c.after)
	case letters.deleted.Load(): // just now: the next batch makes it anew
		c.stale, c.again = true, true
	default:
		w.DeleteHalf(c.id, c.state)
		t.halves.waiting.Add(-1)
		t.halves.abandoned.Add(1)
		t.recent.Forget(c.state.IDHash)
		m := *c.message
		m.Properties = c.properties()
		c.to, c.queue = letters, (*letters.queues.Load())[0]
		letters.put(w, c.queue, &m, now)
	}
}

// properties are those of an abandoned transaction's message.
func (c *checking) properties() map[string]string {
	p := maps.Clone(c.message.Properties)
	if p == nil {
		p = map[string]string{}
	}
	n := strconv.Itoa(c.state.Checks)
	p[PropertyCheckTimes] = n
	p[tidegate.PropertyDeadLetterTopic] = c.topic.name
	p[tidegate.PropertyDeadLetterMessageID] = c.message.ID
	p[tidegate.PropertyDeadLetterAttempts] = n
	p[tidegate.PropertyDeadLetterReason] = "the transaction was not ended, and its producer was asked " + n + " times"
	return p
}

// announce asks a producer after the check was written, or logs that the transaction was given up.
func (h *halves) announce(c *checking) {
	b := h.broker
	switch {
	case c.stale || c.later:
	case !c.asks:
		b.logger.Warn("a transaction was given up: its producer did not end it", "topic", c.topic.name, "message", c.message.ID,
			"checks", c.state.Checks, "sent", c.message.StoredAt, "kept_in", AbandonedTransactions)
	case h.ask(c):
		c.topic.halves.checks.Add(1)
	default:
		c.topic.halves.unheard.Add(1)
		b.logger.Debug("no producer could be asked about a transaction", "topic", c.topic.name, "message", c.message.ID, "check", c.after.Checks)
	}
}

// ask hands a check to the first function that passes it on to a producer.
func (h *halves) ask(c *checking) bool {
	h.mu.Lock()
	handlers := slices.SortedFunc(maps.Keys(h.handlers), func(x, y *func(TransactionCheck) bool) int { return h.handlers[x] - h.handlers[y] })
	h.mu.Unlock()
	asked := make(chan bool, 1)
	go func() { asked <- c.askFirst(handlers) }() // ends with the functions, which Close does not wait for
	select {
	case took := <-asked:
		return took
	case <-h.broker.life.Done():
		return false
	}
}

func (c *checking) askFirst(handlers []*func(TransactionCheck) bool) bool {
	for _, f := range handlers {
		m := c.message.Message
		m.Topic = c.topic.name
		if (*f)(TransactionCheck{
			Message: &m, TransactionID: handle.Transaction(c.id), Number: c.after.Checks,
			BornAt: c.message.BornAt, StoredAt: c.message.StoredAt, BornHost: c.message.BornHost,
		}) {
			return true
		}
	}
	return false
}
