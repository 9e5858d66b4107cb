package engine

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// DueBatch and dueBytes bound the messages that one write moves to the queues: their number,
	// and the bytes of their bodies.
	DueBatch = 256
	dueBytes = 8 << 20

	// diskPause is the delay before the next try to move due messages while the disk is short of
	// space.
	diskPause = time.Second
)

// delayed moves messages to their queues when their delivery time comes. Until then they are on
// disk only, in the order of their times, like the half messages of transactions. Both have a task
// of the maintenance, which is due when its first message is.
//
// Liveness: a stored message wakes its task for its own time, if that is earlier than the due time.
// Each step takes at most 256 messages and returns the time of the first remaining one. A task has
// a step only for a stored message, for the time of one, or after the pause of a failure.
type delayed struct {
	pendingConfig

	// Task is held while messages are recalled or purged, so that no message is also moved.
	Task *Task

	from lowerBound

	// number starts at a random value, so that a restarted process uses other numbers even if the
	// clock was set back. Changed only within the message log's Add.
	number uint64
}

// newDelayed returns a Delayed with its task.
func newDelayed(c pendingConfig) *delayed {
	d := &delayed{pendingConfig: c, number: rand.Uint64()}
	d.Task = c.Loop.Add(taskConfig{
		Step: d.move, Failed: "delayed messages not moved to their queues", Pause: time.Second, MaxPause: time.Second,
	})
	return d
}

// Recover restores the counters of the topics and schedules the move of the first message. Nothing
// else runs yet.
func (d *delayed) Recover(topic func(id uint32) pendingTopic) error {
	if err := d.Store.Waiting(func(id uint32, n store.Waiting) error {
		if t := topic(id); t != nil {
			t.Counters().Restore(n)
		}
		return nil
	}); err != nil {
		return err
	}
	_, _, next, err := d.Store.Due(time.Time{}, time.Time{}, 0, 0)
	if err == nil && !next.IsZero() {
		d.Wake(next)
	}
	return err
}

// AdvanceRetries brings the messages of a retry topic forward whose delivery is further ahead than
// the delay for which the broker stored them, because the wall clock was set back since. Other
// delayed messages keep their time, which their producers chose. Nothing else runs yet.
func (d *delayed) AdvanceRetries(t pendingTopic, now time.Time) error {
	for from := (store.StoredDelayed{}); ; {
		page, err := d.Store.DelayedOf(t.ID(), from, DueBatch)
		if err != nil || len(page) == 0 {
			return err
		}
		from = page[len(page)-1]
		var changes []func(w *store.Batch)
		bytes := 0
		write := func() error {
			if len(changes) == 0 {
				return nil
			}
			put := d.Store.Messages.Add(func(w *store.Batch) {
				for _, change := range changes {
					change(w)
				}
			}, nil)
			err := put.Wait()
			changes, bytes = nil, 0
			return err
		}
		for _, is := range page {
			delay := is.Due.Sub(is.Stored)
			if is.Gone || is.Due.Sub(now) <= delay {
				continue
			}
			m, ok, err := d.Store.GetDelayed(is.Delayed)
			if store.IsDamage(err) || err == nil && (!ok || m.Properties[protocol.PropertyRetryTopic] != t.Name()) {
				continue
			} else if err != nil {
				return err
			}
			before := is
			is.Due = now.Add(delay)
			m.StoredAt, m.DeliverAt, m.IDHash = now, is.Due, is.IDHash
			changes = append(changes, func(w *store.Batch) {
				w.DeleteDelayed(before.Delayed, before.Stored)
				w.PutDelayed(is.Delayed, &m)
			})
			d.Wake(is.Due)
			if bytes += len(m.Body); bytes >= dueBytes {
				if err := write(); err != nil {
					return err
				}
			}
		}
		if err := write(); err != nil {
			return err
		}
	}
}

// Put writes a message with a delivery time. Only called within the message log's Add; Wake follows
// when the write is on disk.
func (d *delayed) Put(w *store.Batch, t pendingTopic, m *store.Message, now time.Time) store.Delayed {
	d.number++
	at := store.Delayed{Due: m.DeliverAt, Topic: t.ID(), Number: d.number}
	m.StoredAt = now
	t.HashID(m)
	w.PutDelayed(at, m)
	t.Remember(m, delayedLocation(at), now)
	addDelayed(w, t, 1, int64(len(m.Body)))
	return at
}

// Last returns the number of the last message of Put. Only called within the message log's Add.
func (d *delayed) Last() uint64 { return d.number }

// Wake schedules the move of messages that are due at that time of the wall clock, or later.
func (d *delayed) Wake(due time.Time) {
	d.from.note(due)
	d.Task.Wake(due.Round(0))
}

// From returns a time before which no message is due: the next look for due messages begins there.
func (d *delayed) From() time.Time {
	d.from.mu.Lock()
	defer d.from.mu.Unlock()
	return d.from.at
}

// move moves one batch of due messages to their queues. While the disk is short of space it moves
// none.
func (d *delayed) move(_ context.Context, now time.Time) (next time.Time, err error) {
	if d.ShortOfDisk() {
		return now.Add(diskPause), nil
	}
	from := d.from.take()
	defer func() {
		if err != nil {
			d.from.note(from)
		} else if !next.IsZero() {
			d.from.note(next)
		}
	}()
	ds, ms, next, err := d.Store.Due(from, now, DueBatch, dueBytes)
	if err != nil || len(ds) == 0 {
		return next, err
	}
	topic := d.Topics()
	for i := range ds {
		if t := topic(ds[i].Topic); t != nil && ms[i].ID == "" {
			d.Damaged.Add(1)
			d.Logger.Error("delayed message skipped, because it is corrupt", "topic", t.Name(), "due", ds[i].Due)
		}
	}
	var published []func(error)
	moved := moves{}
	if err := d.Store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		for i := range ds {
			w.DeleteDelayed(ds[i], ms[i].StoredAt)
			t := topic(ds[i].Topic)
			if t == nil || t.Deleted() {
				continue
			}
			moved.add(t, len(ms[i].Body))
			if ms[i].ID != "" {
				published = append(published, t.Deliver(w, &ms[i], now))
			}
		}
		moved.count(w)
	}, func(err error) {
		for _, f := range published {
			f(err)
		}
	}).Wait(); err != nil {
		return time.Time{}, err
	}
	for at := time.Now(); len(ds) > 0; ds = ds[1:] {
		if topic(ds[0].Topic) != nil {
			d.Late.Observe(max(at.Sub(ds[0].Due), 0).Seconds())
		}
	}
	return next, nil
}

// moves counts the messages that one write has moved to their queues, by topic.
type moves map[pendingTopic]store.Waiting

func (m moves) add(t pendingTopic, bytes int) {
	n := m[t]
	m[t] = store.Waiting{Messages: n.Messages + 1, Bytes: n.Bytes + int64(bytes)}
}

func (m moves) count(w *store.Batch) {
	for _, t := range slices.SortedFunc(maps.Keys(m), func(x, y pendingTopic) int { return int(x.ID()) - int(y.ID()) }) {
		addDelayed(w, t, -m[t].Messages, -m[t].Bytes)
	}
}

// Recall removes a delayed message before its delivery time. ok is false if the message is no
// longer waiting. ctx ends the wait for a move under way.
func (d *delayed) Recall(ctx context.Context, t pendingTopic, at store.Delayed) (id string, ok bool, err error) {
	release, err := d.Task.Hold(ctx)
	if err != nil {
		return "", false, err
	}
	defer release()
	m, ok, err := d.Store.GetDelayed(at)
	if err != nil || !ok {
		return "", false, err
	}
	t.HashID(&m)
	err = d.Store.Messages.Add(func(w *store.Batch) {
		w.DeleteDelayed(at, m.StoredAt)
		addDelayed(w, t, -1, -int64(len(m.Body)))
		t.Forget(m.IDHash)
	}, nil).Wait()
	return m.ID, err == nil, err
}

// A pendingTopic is the topic of pending messages. The methods except ID, Name, Deleted and
// Schedule are only called within the message log's Add.
type pendingTopic interface {
	ID() uint32
	Name() string
	Deleted() bool
	Counters() *PendingCounters
	Schedule() CheckSchedule // of transaction checks, as it is now

	// Deliver writes a message as the next one of a queue. The returned function makes the message
	// visible once the message is on disk.
	Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error))

	// Remember notes where a message is, for the duplicate check. It sets the hash of its ID.
	Remember(m *store.Message, at PendingLocation, now time.Time)

	// HashID sets the hash of a message's ID.
	HashID(m *store.Message)

	// Forget ends Remember.
	Forget(idHash uint64)
}

// A pendingConfig holds the parts of the broker that Delayed and Transactions use.
type pendingConfig struct {
	Store  *store.Store
	Loop   *maintenance
	Logger *slog.Logger
	pendingParts

	Damaged *atomic.Int64    // counts messages that cannot be read
	Late    *store.Histogram // times from the delivery time of a delayed message to its queue, in seconds
}

// pendingParts are the parts of the engine that delayed messages and transactions use.
type pendingParts interface {
	// Topics returns a function that finds the topic of a number, nil if there is none.
	Topics() func(id uint32) pendingTopic

	// ShortOfDisk reports whether the disk has no space for messages.
	ShortOfDisk() bool

	// Room waits until the message log has room for that number of bytes, and reserves them.
	Room(ctx context.Context, bytes int64) error

	// GivenUp returns the topic for the messages of transactions that are given up, and nil if the
	// topic does not exist. CreateGivenUp creates it.
	GivenUp() pendingTopic
	CreateGivenUp() error

	// Ask passes a check on to a producer of the topic. It returns false if there is none.
	Ask(c TransactionCheck) bool
}

// PendingCounters count the pending messages and the transactions of one topic. Delayed and Half
// change only within the message log's Add.
type PendingCounters struct {
	delayedMessages, delayedBytes atomic.Int64

	Half atomic.Int64 // half messages

	Committed, RolledBack, GivenUp atomic.Int64 // transactions
	Checks, Unheard                atomic.Int64 // checks that reached a producer, and those that reached none
}

// Delayed returns how many messages wait for their delivery time, and their bytes.
func (c *PendingCounters) Delayed() (messages, bytes int64) {
	return c.delayedMessages.Load(), c.delayedBytes.Load()
}

// Restore sets the counters of delayed messages.
func (c *PendingCounters) Restore(delayed store.Waiting) {
	c.delayedMessages.Store(delayed.Messages)
	c.delayedBytes.Store(delayed.Bytes)
}

// addDelayed adds to the counters of delayed messages of a topic, and writes their record. Only
// called within the message log's Add.
func addDelayed(w *store.Batch, t pendingTopic, messages, bytes int64) {
	c := t.Counters()
	n := store.Waiting{Messages: max(0, c.delayedMessages.Load()+messages), Bytes: max(0, c.delayedBytes.Load()+bytes)}
	if n.Messages == 0 {
		n.Bytes = 0 // the size of a corrupt message is not known
	}
	c.Restore(n)
	if !t.Deleted() {
		w.PutWaiting(t.ID(), n)
	}
}

// delayedLocation returns where a delayed message is, for the duplicate check.
func delayedLocation(d store.Delayed) PendingLocation {
	return PendingLocation{Due: d.Due.UnixNano(), Offset: int64(d.Number)}
}

// delayedAt is the inverse of DelayedLocation.
func delayedAt(topic uint32, l PendingLocation) store.Delayed {
	return store.Delayed{Due: time.Unix(0, l.Due), Topic: topic, Number: uint64(l.Offset)}
}

// halfLocation returns where a half message is, for the duplicate check.
func halfLocation(id store.HalfID) PendingLocation {
	return PendingLocation{Half: true, Offset: int64(id.Number)}
}

// halfAt is the inverse of HalfLocation.
func halfAt(topic uint32, l PendingLocation) store.HalfID {
	return store.HalfID{Topic: topic, Number: uint64(l.Offset)}
}

// farAhead is after every time at which something is due.
var farAhead = time.Unix(0, math.MaxInt64)

// A lowerBound is a time before which nothing is due. A search for due messages begins there, so it
// does not scan the deletion markers of earlier messages. With the zero value it begins at the
// first message.
type lowerBound struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

// note lowers the bound to t. The caller notes a write once the write can be read. A search that
// begins at the bound then sees the write, or finds it noted afterwards.
func (l *lowerBound) note(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Before(l.at) {
		l.at = t
	}
}

// take returns the bound for a search, and resets it to farAhead. After the search the caller notes
// the first due time that is left or, if the search failed, the returned bound.
func (l *lowerBound) take() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at
	l.at = farAhead
	return at
}

// A CheckSchedule sets the times of the checks of unresolved transactions.
type CheckSchedule struct {
	Timeout  time.Duration // from the send of the half message to the first check
	Interval time.Duration // between two checks
	Max      int           // of checks; negative for no maximum
}

// First returns the state of a new half message. firstCheck replaces Timeout unless it is 0.
func (s CheckSchedule) First(firstCheck time.Duration, now time.Time) store.HalfState {
	if firstCheck == 0 {
		firstCheck = s.Timeout
	}
	return store.HalfState{Due: now.Add(firstCheck), Span: firstCheck}
}

// Next returns the state of a half message after the check that is due now. giveUp is true if the
// message has had its last check. A check that is a little late does not delay the checks after it.
// Missed checks are not repeated.
func (s CheckSchedule) Next(is store.HalfState, now time.Time) (after store.HalfState, giveUp bool) {
	if s.Max >= 0 && is.Checks >= s.Max {
		return is, true
	}
	after = is
	after.Due, after.Span, after.Checks = is.Due.Add(s.Interval), s.Interval, is.Checks+1
	if !after.Due.After(now) {
		after.Due = now.Add(s.Interval)
	}
	return after, false
}

// A duplicatesSource has the inputs of [duplicates.Restore].
type duplicatesSource struct {
	Store  *store.Store
	Logger *slog.Logger
	Topic  string // name of the topic, for the log

	Ends   []int64 // by queue: the offset after its last message
	Window time.Duration
	Now    time.Time
}

// A duplicatesRestoration restores the recent IDs of a topic after a restart. It reads the index,
// and the messages that are not in the index. It cannot restore the IDs of corrupt messages:
// duplicates of these are stored again.
type duplicatesRestoration struct {
	*Duplicates
	duplicatesSource
	since   time.Time           // messages stored before since are not remembered
	records [][]store.RecentIDs // by queue: the records of the index, the last one first
	whole   bool                // the index has Capacity IDs; the messages before it are not read
	read    []recentStored      // messages that are not in the index
}

// Restore restores the IDs of the window from the store. Call it during the start, before other
// goroutines use the topic, and then schedule Expire at ExpiresAt. Restore logs and skips damaged
// parts of the index and of queues; it returns the other errors of the store.
func (m *Duplicates) Restore(from duplicatesSource) error {
	some, err := from.Store.HasRecentIDs(m.topic)
	if err != nil && !store.IsDamage(err) {
		return err
	}
	if some || err != nil { // its records may be old: Expire must cover the whole index
		m.index = idIndex{Last: from.Now.UnixNano(), From: 1}
	}
	if from.Window == 0 {
		return nil
	}
	r := duplicatesRestoration{Duplicates: m, duplicatesSource: from, since: from.Now.Add(-from.Window), records: make([][]store.RecentIDs, len(from.Ends))}
	if err := r.readIndex(); err != nil {
		return err
	}
	for queue := range from.Ends {
		if err := r.readMessages(uint16(queue)); store.IsDamage(err) {
			from.Logger.Error("recent message IDs cannot be read; duplicates of these messages are not detected", "topic", from.Topic, "queue", queue, "error", err)
		} else if err != nil {
			return err
		}
	}
	m.ids = restore(from.Now, slices.Concat(r.records...), r.read)
	return r.readPending()
}

// ExpiresAt returns when to call Expire after Restore; zero if Restore found no IDs and no index.
func (m *Duplicates) ExpiresAt(window time.Duration, now time.Time) time.Time {
	if m.expires = !m.ids.Forgotten() || m.index != (idIndex{}); m.expires {
		return now.Add(window)
	}
	return time.Time{}
}

// readIndex reads the records of the index, until these have Capacity IDs.
func (r *duplicatesRestoration) readIndex() error {
	left := idCapacity
	err := r.Store.RecentIDs(r.topic, r.since, func(ids store.RecentIDs) bool {
		if int(ids.Queue) >= len(r.Ends) || ids.End > r.Ends[ids.Queue] {
			return true
		}
		ids.Hashes = slices.Clone(ids.Hashes)
		r.records[ids.Queue] = append(r.records[ids.Queue], ids)
		left -= len(ids.Hashes)
		return left > 0
	})
	r.whole = left <= 0
	if store.IsDamage(err) {
		r.Logger.Warn("index of message IDs is corrupt; reading the messages instead", "topic", r.Topic, "error", err)
		return nil
	}
	return err
}

// readMessages reads the messages of a queue that are not in the index, the last ones first.
func (r *duplicatesRestoration) readMessages(queue uint16) error {
	records, end := r.records[queue], r.Ends[queue]
	slices.SortFunc(records, func(x, y store.RecentIDs) int { return cmp.Compare(y.End, x.End) })
	left := idCapacity
	begin := len(r.read)
	for at := end; ; {
		gap := store.Range{Topic: r.topic, Queue: queue, To: at}
		if len(records) > 0 {
			gap.From = records[0].End
		} else if r.whole && at < end {
			return nil
		}
		over := false
		if gap.From < gap.To {
			if err := r.Store.NewestIDs(gap, func(id string, offset int64, stored time.Time) bool {
				left--
				if over = left < 0 || stored.Before(r.since); over {
					return false
				}
				r.read = append(r.read, recentStored{Queue: queue, Offset: offset, Hash: r.Hash(id), At: stored})
				return true
			}); err != nil {
				return err
			}
		}
		if at == end {
			r.indexTail(queue, r.read[begin:])
		}
		if over || len(records) == 0 {
			return nil
		}
		at, records = min(at, records[0].First()), records[1:]
	}
}

// indexTail adds the messages after the last record of a queue to the index. tail has these
// messages, the last one first.
func (r *duplicatesRestoration) indexTail(queue uint16, tail []recentStored) {
	if len(tail) == 0 {
		return
	}
	r.Store.Messages.Add(func(w *store.Batch) {
		for _, s := range slices.Backward(tail) {
			r.addToIndex(w, queue, s.Offset, s.Hash, s.At.UnixNano(), r.Window)
		}
	}, nil)
}

// readPending restores the IDs of the delayed and the half messages.
func (r *duplicatesRestoration) readPending() error {
	left := idCapacity
	if err := r.Store.NewestDelayed(r.topic, r.since, func(d *store.StoredDelayed) bool {
		if d.IDHash != 0 {
			r.ids.Put(d.IDHash, delayedLocation(d.Delayed))
		}
		left--
		return left > 0
	}); err != nil {
		return err
	}
	left = idCapacity
	return r.Store.HalfMessagesOf(r.topic, math.MaxUint64, func(id store.HalfID, st store.HalfState) bool {
		if left--; left < 0 || st.Stored.Before(r.since) {
			return false
		}
		if st.IDHash != 0 {
			r.ids.Put(st.IDHash, halfLocation(id))
		}
		return true
	})
}
