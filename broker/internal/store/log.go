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
	db     *pebble.DB
	name   string
	store  *Store // reports whether the database can still write
	meter  *logMeter
	before func(*pebble.Batch) // sees each batch that is about to be written; may be nil

	held     atomic.Int64  // bytes in next and in batches that are not on disk
	reserved atomic.Int64  // bytes that Room has reserved
	freed    chan struct{} // size 1: Room may find some

	mu       sync.Mutex
	changed  sync.Cond   // of mu: something that run waits for has changed
	next     *Flight     // guarded by mu, as is all below; nil after close
	buffer   int64       // bytes to give a new batch without a buffer: about the largest batch lately
	syncing  int         // batches that wait for their fsync
	unsynced bool        // a batch was written without an fsync, and none began since
	lazily   *time.Timer // requests that fsync; nil: none is needed, or there was never one
	closing  bool

	syncs chan *Flight  // batches that wait for their fsync, in order
	done  chan struct{} // closed when both goroutines have ended
}

// A Flight is one batch on its way to the disk.
type Flight struct {
	log   *Log
	batch *pebble.Batch
	size  int64 // of the batch; guarded by log.mu
	after []func(error)
	begun time.Time // when the commit began

	added bool // guarded by log.mu: it has a write, or a caller who waits
	sync  bool // guarded by log.mu: somebody needs it on disk
	lazy  bool // guarded by log.mu: somebody waits until it is written

	written  chan struct{} // closed when the batch is written, or has failed
	writeErr error         // valid once written is closed
	done     chan struct{} // closed when the batch is on disk, or has failed
	err      error         // valid once done is closed
}

var (
	errStopped   = errors.New("the wait was stopped")
	errLogClosed = errors.New("the store is closed")
)

func newLog(db *pebble.DB, name string, s *Store, before func(*pebble.Batch)) *Log {
	l := &Log{
		db: db, name: name, store: s, meter: newLogMeter(db), before: before,
		syncs: make(chan *Flight, maxSyncing), done: make(chan struct{}), freed: make(chan struct{}, 1),
	}
	l.changed.L = &l.mu
	l.next = l.newFlight()
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

// newFlight returns an empty batch. A batch whose buffer grows while it is filled is copied each
// time, so a new buffer has the size of the largest of the last batches. mu is held.
func (l *Log) newFlight() *Flight {
	l.buffer -= l.buffer / 16
	if l.next != nil {
		l.buffer = min(max(l.buffer, l.next.size), maxBatchBuffer)
	}
	batch := l.db.NewBatch(pebble.WithInitialSizeBytes(int(l.buffer)), pebble.WithMaxRetainedSizeBytes(maxBatchBuffer))
	return &Flight{log: l, batch: batch, written: make(chan struct{}), done: make(chan struct{})}
}

// Add adds writes to the next batch, which an fsync follows. write encodes them and must not
// wait; the calls of all goroutines are one after another, so write may also assign offsets.
// after, if not nil, is called once the batch is on disk, or with the error why not, before
// Wait returns; the calls are in the order of the writes. A nil return means that the Log is
// closed; neither function was called. If write panics the store is broken: half of a change
// must not be committed.
func (l *Log) Add(write func(*Batch), after func(error)) *Flight {
	return l.add(write, after, false)
}

// AddLazy is Add for writes that a crash may take back: their fsync follows within 20 ms, or with
// that of a later write. WaitWritten waits for no fsync, and Wait requests one.
func (l *Log) AddLazy(write func(*Batch)) *Flight { return l.add(write, nil, true) }

func (l *Log) add(write func(*Batch), after func(error), lazy bool) *Flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.next
	if f == nil {
		return nil
	}
	whole := false
	defer func() {
		if !whole {
			l.store.fail(fmt.Errorf("a write to %s was not encoded whole", l.name))
		}
	}()
	write((*Batch)(f.batch))
	whole = true
	size := int64(f.batch.Len())
	l.held.Add(size - f.size)
	f.size = size
	if after != nil {
		f.after = append(f.after, after)
	}
	f.added = true
	f.lazy = f.lazy || lazy
	f.sync = f.sync || !lazy
	l.changed.Signal()
	return f
}

// synced returns the flight whose end means that f is on disk: f, or the next one if f is
// written already and no fsync follows.
func (l *Log) synced(f *Flight) *Flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case f.sync:
		return f
	case l.next == nil: // closing, which syncs
		return f
	case f != l.next:
		f = l.next
		f.added = true
	}
	f.sync = true
	l.changed.Signal()
	return f
}

// run writes batches until the Log is closed.
func (l *Log) run() {
	for {
		f, last := l.take()
		if f != nil {
			l.write(f)
		}
		if last {
			return
		}
	}
}

// take waits for a batch that can be written. last means that the Log is closed.
func (l *Log) take() (f *Flight, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closing && (!l.next.added || l.syncing > 0 && !l.next.lazy) {
		l.changed.Wait()
	}
	f = l.next
	if l.next = l.newFlight(); l.closing {
		l.next = nil
		f.sync = true
	}
	if f.sync {
		l.syncing++
		l.needSync(false)
	} else {
		l.needSync(true)
	}
	return f, l.closing
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
		l.lazily = time.AfterFunc(lazySyncDelay, func() { l.Add(func(*Batch) {}, nil) })
	default:
		l.lazily.Reset(lazySyncDelay)
	}
}

// write applies a batch to the database, without a wait for its fsync.
func (l *Log) write(f *Flight) {
	f.begun = time.Now()
	if f.writeErr = l.store.Broken(); f.writeErr == nil {
		f.writeErr = l.apply(f)
	}
	f.err = f.writeErr
	close(f.written)
	if f.sync {
		l.syncs <- f
		return
	}
	l.end(f)
}

func (l *Log) apply(f *Flight) error {
	if l.before != nil {
		l.before(f.batch)
	}
	l.meter.begin(f.batch)
	var err error
	if f.sync {
		if f.batch.Empty() { // its fsync is for batches before it
			must(f.batch.LogData(nil, nil))
		}
		err = l.db.ApplyNoSyncWait(f.batch, pebble.Sync)
	} else {
		err = l.db.Apply(f.batch, pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("writing to %s: %w", l.name, err)
	}
	return l.store.Broken() // Pebble reports a failed commit to its logger, not to the caller
}

// sync waits for the fsync of each batch.
func (l *Log) sync() {
	for f := range l.syncs {
		if f.err == nil {
			if err := f.batch.SyncWait(); err != nil {
				l.store.fail(fmt.Errorf("syncing %s: %w", l.name, err)) // a later fsync may succeed without this data
				f.err = l.store.Broken()
			} else if f.err = l.store.Broken(); f.err == nil {
				l.meter.end(f)
			}
		}
		l.end(f)
		l.mu.Lock()
		l.syncing--
		l.mu.Unlock()
		l.changed.Signal()
	}
}

// end releases a batch that is on disk, or whose fsync comes later.
func (l *Log) end(f *Flight) {
	for _, after := range f.after {
		after(f.err)
	}
	l.held.Add(-f.size)
	signal(l.freed)
	close(f.done)
	if f.err == nil { // a batch that failed may still be in Pebble's hands: the collector frees it
		_ = f.batch.Close() // it cannot fail
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
	l.changed.Signal()
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

// signal wakes one who waits, or comes to.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
