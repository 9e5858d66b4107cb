package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// lazySyncDelay is how long after a lazy write its fsync begins, unless another write
// brings one sooner.
const lazySyncDelay = 20 * time.Millisecond

// maxSyncing is how many batches may wait for their fsync. Lazy writes do not wait for the
// fsync under way, so each may add a batch.
const maxSyncing = 16

// maxBatchBuffer bounds, in bytes, the buffers of batches that are used again. 512 messages of
// 1 KiB, which the SDK sends in one request, need half of it.
const maxBatchBuffer = 4 << 20

// A Log gathers the writes of many goroutines into one batch and commits it while the next one
// gathers: one fsync serves all writes of a batch. Batches are committed in the order in which
// their writes were added.
//
// A batch is committed when the fsync of the batch before it has ended. A lazy write does not
// wait for that: its batch is written at once.
type Log struct {
	db    *pebble.DB
	name  string
	store *Store // reports whether the database can still write
	meter *logMeter
	tail  *tail // of the messages; nil for the log of the groups' progress

	other    atomic.Pointer[Log] // the log of the other database, whose position this one records; nil in memory
	noted    uint64              // the last recorded position; only run uses it
	position atomic.Uint64       // after the last write that is on disk, of those since opening

	held     atomic.Int64  // bytes in next and in batches that are not on disk
	reserved atomic.Int64  // bytes that Room has reserved
	freed    chan struct{} // size 1: Room may find some

	mu       sync.Mutex
	changed  sync.Cond     // of mu: something that run or pause waits for has changed
	next     *PendingWrite // guarded by mu, as is all below; nil after close
	buffer   int64         // bytes to give a new batch without a buffer: about the largest batch lately
	syncing  int           // batches that wait for their fsync
	unsynced bool          // a batch was written without an fsync, and none began since
	lazily   *time.Timer   // requests that fsync; nil: none is needed, or there was never one
	closing  bool
	writing  bool // run has a batch that is not written
	paused   bool // run takes no batch

	syncs chan *PendingWrite // batches that wait for their fsync, in order
	done  chan struct{}      // closed when both goroutines have ended
}

// A PendingWrite is one batch on its way to the disk, which the writes of several callers share.
// Any number of goroutines may wait for it.
type PendingWrite struct {
	log   *Log
	batch *pebble.Batch
	size  int64 // of the batch; guarded by log.mu
	after []func(error)
	begun time.Time // when the commit began

	added bool // guarded by log.mu: it has a write, or a waiting caller
	sync  bool // guarded by log.mu: a caller needs it on disk
	lazy  bool // guarded by log.mu: a caller waits until it is written

	written  chan struct{} // closed when the batch is written, or has failed
	writeErr error         // valid once written is closed
	done     chan struct{} // closed when the batch is on disk, or has failed
	err      error         // valid once done is closed
}

var (
	errStopped   = errors.New("the wait was stopped")
	errLogClosed = errors.New("the store is closed")
)

func newLog(db *pebble.DB, name string, s *Store, t *tail) *Log {
	l := &Log{
		db: db, name: name, store: s, meter: newLogMeter(db), tail: t,
		syncs: make(chan *PendingWrite, maxSyncing), done: make(chan struct{}), freed: make(chan struct{}, 1),
	}
	l.changed.L = &l.mu
	l.next = l.newWrite()
	go func() { // ends with close
		var syncer sync.WaitGroup
		syncer.Go(l.sync)
		l.run()
		close(l.syncs)
		syncer.Wait()
		close(l.done)
	}()
	return l
}

// newWrite returns an empty batch. A batch whose buffer grows while it is filled is copied each
// time, so a new buffer has the size of the largest of the last batches. mu is held.
func (l *Log) newWrite() *PendingWrite {
	l.buffer -= l.buffer / 16
	if l.next != nil {
		l.buffer = min(max(l.buffer, l.next.size), maxBatchBuffer)
	}
	batch := l.db.NewBatch(pebble.WithInitialSizeBytes(int(l.buffer)), pebble.WithMaxRetainedSizeBytes(maxBatchBuffer))
	return &PendingWrite{log: l, batch: batch, written: make(chan struct{}), done: make(chan struct{})}
}

// Add adds writes to the next batch, which an fsync follows. write encodes them and must not
// wait; the calls of all goroutines are one after another, so write may also assign offsets.
// after, if not nil, is called once the batch is on disk, or with the error why not, before
// Wait returns; the calls are in the order of the writes. A nil return means that the Log is
// closed; neither function was called. If write panics the store is broken: half of a change
// must not be committed.
func (l *Log) Add(write func(*Batch), after func(error)) *PendingWrite {
	return l.add(write, after, false)
}

// AddLazy is Add for writes that a crash may take back: their fsync follows within 20 ms, or with
// that of a later write. WaitWritten waits for no fsync, and Wait requests one.
func (l *Log) AddLazy(write func(*Batch)) *PendingWrite { return l.add(write, nil, true) }

// Barrier is Add without a write. When it is on disk, so are all earlier writes, lazy ones too.
func (l *Log) Barrier() *PendingWrite { return l.add(func(*Batch) {}, nil, false) }

func (l *Log) add(write func(*Batch), after func(error), lazy bool) *PendingWrite {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.next
	if w == nil {
		return nil
	}
	whole := false
	defer func() {
		if !whole {
			l.store.fail(fmt.Errorf("a write to %s was not encoded completely", l.name))
		}
	}()
	write((*Batch)(w.batch))
	whole = true
	size := int64(w.batch.Len())
	l.held.Add(size - w.size)
	w.size = size
	if after != nil {
		w.after = append(w.after, after)
	}
	w.added = true
	w.lazy = w.lazy || lazy
	w.sync = w.sync || !lazy
	l.changed.Broadcast()
	return w
}

// synced returns the write after whose end w is on disk: w, or the next write if w was written
// without an fsync.
func (l *Log) synced(w *PendingWrite) *PendingWrite {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case w.sync:
		return w
	case l.next == nil: // closing, which syncs
		return w
	case w != l.next:
		w = l.next
		w.added = true
	}
	w.sync = true
	l.changed.Broadcast()
	return w
}

// run writes batches until the Log is closed.
func (l *Log) run() {
	for {
		w, last := l.take()
		if w != nil {
			l.write(w)
			l.wrote()
		}
		if last {
			return
		}
	}
}

// take waits for a batch that can be written. last means that the Log is closed.
func (l *Log) take() (w *PendingWrite, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.paused || !l.closing && (!l.next.added || l.syncing > 0 && !l.next.lazy) {
		l.changed.Wait()
	}
	w = l.next
	l.writing = true
	if l.next = l.newWrite(); l.closing {
		l.next = nil
		w.sync = true
	}
	if w.sync {
		l.syncing++
		l.needSync(false)
	} else {
		l.needSync(true)
	}
	return w, l.closing
}

// wrote notes that the batch of take is written.
func (l *Log) wrote() {
	l.mu.Lock()
	l.writing = false
	l.mu.Unlock()
	l.changed.Broadcast()
}

// pause returns when no batch is being written or synced, and lets none begin before resume. Only
// one caller at a time may pause a Log.
func (l *Log) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.paused = true; l.writing || l.syncing > 0; {
		l.changed.Wait()
	}
}

// resume ends a pause.
func (l *Log) resume() {
	l.mu.Lock()
	l.paused = false
	l.mu.Unlock()
	l.changed.Broadcast()
}

// needSync notes whether batches are written that no fsync follows, and has one follow. mu is
// held.
func (l *Log) needSync(needed bool) {
	if l.unsynced == needed {
		return
	}
	l.unsynced = needed
	switch {
	case !needed:
		l.lazily.Stop()
	case l.lazily == nil:
		l.lazily = time.AfterFunc(lazySyncDelay, func() { l.Barrier() })
	default:
		l.lazily.Reset(lazySyncDelay)
	}
}

// write applies a batch to the database, without a wait for its fsync.
func (l *Log) write(w *PendingWrite) {
	w.begun = time.Now()
	if w.writeErr = l.store.Broken(); w.writeErr == nil {
		w.writeErr = l.apply(w)
	}
	w.err = w.writeErr
	close(w.written)
	if w.sync {
		l.syncs <- w
		return
	}
	l.release(w)
}

func (l *Log) apply(w *PendingWrite) error {
	l.noteOther(w.batch)
	if l.tail != nil {
		l.tail.apply(w.batch)
	}
	l.meter.countWritten(w.batch)
	var err error
	if w.sync {
		if w.batch.Empty() { // its fsync is for batches before it
			must(w.batch.LogData(nil, nil))
		}
		err = l.db.ApplyNoSyncWait(w.batch, pebble.Sync)
	} else {
		err = l.db.Apply(w.batch, pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("writing to %s: %w", l.name, err)
	}
	return l.store.Broken() // Pebble reports a failed commit to its logger, not to the caller
}

// sync waits for the fsync of each batch.
func (l *Log) sync() {
	for w := range l.syncs {
		if w.err == nil {
			if err := w.batch.SyncWait(); err != nil {
				l.store.fail(fmt.Errorf("syncing %s: %w", l.name, err)) // a later fsync may succeed without this data
				w.err = l.store.Broken()
			} else if w.err = l.store.Broken(); w.err == nil {
				l.meter.countSynced(w)
				l.position.Store(uint64(w.batch.SeqNum()) + uint64(w.batch.Count()))
			}
		}
		l.release(w)
		l.mu.Lock()
		l.syncing--
		l.mu.Unlock()
		l.changed.Broadcast()
	}
}

// release releases a batch that is on disk, or whose fsync comes later.
func (l *Log) release(w *PendingWrite) {
	for _, after := range w.after {
		after(w.err)
	}
	l.held.Add(-w.size)
	signal(l.freed)
	close(w.done)
	if w.err == nil { // a batch that failed may still be in Pebble's hands: the collector frees it
		_ = w.batch.Close() // it cannot fail
	}
}

// stuckAfter is how long closing waits for a write of a broken database.
const stuckAfter = 5 * time.Second

// close commits all added writes and rejects later ones. It returns false if the database is
// broken and a write does not return from it.
func (l *Log) close() bool {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.changed.Broadcast()
	select {
	case <-l.done:
		return true
	case <-l.store.failed:
	}
	select {
	case <-l.done:
		return true
	case <-time.After(stuckAfter):
		return false
	}
}

// signal wakes one present or future waiter.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A Batch takes the writes of one Add. Its methods cannot fail: they write to memory.
type Batch pebble.Batch

func (b *Batch) pebble() *pebble.Batch { return (*pebble.Batch)(b) }

// must reports a bug: writing to a batch in memory fails only on wrong use.
func must(err error) {
	if err != nil {
		panic("store: " + err.Error())
	}
}

// PutMessage writes a message to the log.
func (b *Batch) PutMessage(p Place, m *Message) {
	op := b.pebble().SetDeferred(messageKeyLen, m.EncodedSize())
	appendMessageKey(op.Key[:0], p)
	m.AppendTo(op.Value[:0])
	must(op.Finish())
}

// PutLease writes a lease.
func (b *Batch) PutLease(group uint32, p Place, l *Lease) {
	op := b.pebble().SetDeferred(leaseKeyLen, l.EncodedSize())
	appendLeaseKey(op.Key[:0], prefixLease, group, p)
	l.AppendTo(op.Value[:0])
	must(op.Finish())
}

// DeleteLease removes a lease: the message is consumed, or given up.
func (b *Batch) DeleteLease(group uint32, p Place) {
	op := b.pebble().DeleteDeferred(leaseKeyLen)
	appendLeaseKey(op.Key[:0], prefixLease, group, p)
	must(op.Finish())
}

// PutCursor writes how far a group is in a queue: the offset of the next
// message that was never handed out, and the queue's bytes before it.
func (b *Batch) PutCursor(group, topic uint32, queue uint16, c Cursor) {
	op := b.pebble().SetDeferred(cursorKeyLen, 24)
	appendCursorKey(op.Key[:0], prefixCursor, group, topic, queue)
	binary.BigEndian.PutUint64(op.Value, uint64(c.Next))
	binary.BigEndian.PutUint64(op.Value[8:], uint64(c.Bytes))
	binary.BigEndian.PutUint64(op.Value[16:], uint64(c.Rewound))
	must(op.Finish())
}

// MarkDeadLetter notes that the message is a dead letter of the group, so
// that it does not become another one if the process ends before its lease is removed.
// rewound is its cursor's: a message that is consumed anew may die anew.
func (b *Batch) MarkDeadLetter(group uint32, p Place, rewound int64) {
	must(b.pebble().Set(appendLeaseKey(nil, prefixDeadLetter, group, p), binary.BigEndian.AppendUint64(nil, uint64(rewound)), nil))
}

// PutTopic writes a topic's settings.
func (b *Batch) PutTopic(name string, v []byte) {
	must(b.pebble().Set(append([]byte{prefixTopic}, name...), v, nil))
}

// PutGroup writes a group's settings.
func (b *Batch) PutGroup(name string, v []byte) {
	must(b.pebble().Set(append([]byte{prefixGroup}, name...), v, nil))
}

// PutAddressSettings writes the address settings of a pattern.
func (b *Batch) PutAddressSettings(match string, v []byte) {
	must(b.pebble().Set(append([]byte{prefixAddress}, match...), v, nil))
}

// DeleteAddressSettings removes them.
func (b *Batch) DeleteAddressSettings(match string) {
	must(b.pebble().Delete(append([]byte{prefixAddress}, match...), nil))
}

// PutNumber writes the last number given to a topic or group.
func (b *Batch) PutNumber(n uint32) {
	must(b.pebble().Set([]byte{prefixNumber}, binary.BigEndian.AppendUint32(nil, n), nil))
}

// PutLimits writes the limits of the whole broker.
func (b *Batch) PutLimits(v []byte) { must(b.pebble().Set([]byte{prefixLimits}, v, nil)) }

// DeleteLimits removes them.
func (b *Batch) DeleteLimits() { must(b.pebble().Delete([]byte{prefixLimits}, nil)) }

// DeleteTopic removes a topic's settings and messages, except for the leftovers of groups
// (DeleteSubscriptionOfTopic) and for its delayed messages, which DelayedOf still finds.
func (b *Batch) DeleteTopic(name string, topic uint32) {
	must(b.pebble().Delete(append([]byte{prefixTopic}, name...), nil))
	for _, prefix := range []byte{prefixMessage, prefixMark, prefixRemoved, prefixWaiting, prefixRecentIDs, prefixClass, prefixClassOf, prefixLite} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, topic)
		must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
	}
	b.deleteHalfMessages(topic)
}

// DeleteGroup removes a group's settings, the marks of its dead letters, and its subscriptions.
func (b *Batch) DeleteGroup(name string, group uint32) {
	must(b.pebble().Delete(append([]byte{prefixGroup}, name...), nil))
	for _, prefix := range []byte{prefixDeadLetter, prefixSubscription} {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, group)
		must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
	}
}

// DeleteSubscription removes all that a group has in a topic.
func (b *Batch) DeleteSubscription(group, topic uint32) {
	for _, prefix := range append([]byte{prefixCursor}, progressPrefixes...) {
		p := binary.BigEndian.AppendUint32([]byte{prefix}, group)
		p = binary.BigEndian.AppendUint32(p, topic)
		must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
	}
}

// Wait returns nil once the batch and all earlier ones are on disk, so that no power failure loses
// them. Otherwise it returns the reason. A nil PendingWrite was rejected: the Log is closed.
func (w *PendingWrite) Wait() error { return w.waitSynced(nil) }

// WaitContext is Wait, but returns the cause of ctx if ctx ends first. The batch is written in both
// cases.
func (w *PendingWrite) WaitContext(ctx context.Context) error {
	return causeOf(ctx, w.waitSynced(ctx.Done()))
}

// WaitWritten returns when the batch is readable and on its way to disk, or with the reason why it
// is not. It returns the cause of ctx if that ends first.
func (w *PendingWrite) WaitWritten(ctx context.Context) error {
	if w == nil {
		return errLogClosed
	}
	return causeOf(ctx, w.wait(w.written, &w.writeErr, ctx.Done()))
}

func causeOf(ctx context.Context, err error) error {
	if errors.Is(err, errStopped) {
		return context.Cause(ctx)
	}
	return err
}

func (w *PendingWrite) waitSynced(stop <-chan struct{}) error {
	if w == nil {
		return errLogClosed
	}
	w = w.log.synced(w)
	return w.wait(w.done, &w.err, stop)
}

// wait waits for done and returns *err, or for the store to break (a batch may then be stuck in the
// database), or for stop.
func (w *PendingWrite) wait(done <-chan struct{}, err *error, stop <-chan struct{}) error {
	select {
	case <-done:
		return *err
	case <-stop:
		return errStopped
	case <-w.log.store.failed:
	}
	select {
	case <-done:
		return *err
	default:
		return w.log.store.Broken()
	}
}

// roomLook is the interval at which Room checks whether to continue to wait.
const roomLook = 50 * time.Millisecond

// Full reports whether the Log holds as many bytes as it may, 64 MiB or less on a small disk: Room
// would wait.
func (l *Log) Full() bool { return l.held.Load()+l.reserved.Load() >= l.store.maxHeld }

// Room waits until the Log can hold more, and reserves n bytes for the caller. The caller calls
// Release after it has added them, or if it does not add them. The bound can be exceeded by the
// bytes of one caller, but not by those of several. An error reserves nothing: it is the cause of
// ctx or the result of refused. refused, if not nil, is called before and during the wait; its
// error ends the wait.
func (l *Log) Room(ctx context.Context, n int64, refused func() error) error {
	waited := false
	for ; !l.reserve(n); waited = true {
		if refused != nil {
			if err := refused(); err != nil {
				return err
			}
		}
		select {
		case <-l.freed:
		case <-time.After(roomLook):
		case <-l.done:
			l.reserved.Add(n) // Add reports that the Log is closed
			return nil
		case <-l.store.failed:
			l.reserved.Add(n) // likewise
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if waited {
		signal(l.freed) // for the next one
	}
	return nil
}

func (l *Log) reserve(n int64) bool {
	for {
		reserved := l.reserved.Load()
		if l.held.Load()+reserved >= l.store.maxHeld {
			return false
		}
		if l.reserved.CompareAndSwap(reserved, reserved+n) {
			return true
		}
	}
}

// Release ends a reservation of Room. The bytes that were added by then count as held.
func (l *Log) Release(n int64) {
	l.reserved.Add(-n)
	signal(l.freed)
}

// MaxRecentIDs is how many IDs a RecentIDs has at most.
const MaxRecentIDs = maxRecentIDs

// IsDamage reports whether an error is that of a damaged file or record, which no
// second reading will cure.
func IsDamage(err error) bool { return isDamage(err) }
