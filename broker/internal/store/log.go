package store

import (
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
