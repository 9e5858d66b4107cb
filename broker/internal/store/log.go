package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A Log gathers the writes of many goroutines into one batch and commits it
// while the next one gathers: one fsync serves all that wait. Batches are
// committed in the order in which their writes were added.
type Log struct {
	db    *pebble.DB
	name  string
	store *Store // says whether the database can still write

	meter  *logMeter
	lazy   *lazyFS             // of a database whose log is synced later; nil: a commit is on disk
	before func(*pebble.Batch) // sees each batch that is about to be committed; may be nil

	gathered atomic.Int64  // bytes in next
	aside    atomic.Int64  // bytes that Room has set aside in it
	freed    chan struct{} // size 1: Room may find some

	mu     sync.Mutex
	next   *Flight // guarded by mu; nil after close
	closed error   // guarded by mu

	kick chan struct{} // size 1: next has something
	done chan struct{} // closed when the committing goroutine has ended
}

// A Flight is one batch on its way to the disk.
type Flight struct {
	log   *Log
	batch *pebble.Batch
	after []func(error)
	done  chan struct{}
	err   error // valid once done is closed
	at    int64 // valid once done is closed: what lazyFS must sync for the batch to be on disk
}

// Wait returns when the batch is committed, or with the reason why it is not.
// What is committed survives the end of the process, and, but for the groups'
// progress, a power failure. A nil Flight was refused: the Log is closed.
func (f *Flight) Wait() error {
	if f == nil {
		return errLogClosed
	}
	return f.wait(nil)
}

// WaitSynced returns when the batch, and all before it, is on disk, or with
// the reason why it is not: no power failure takes it back. Calls that wait at the
// same time share one fsync, and nothing else waits for that. A nil Flight was
// refused: the Log is closed.
func (f *Flight) WaitSynced() error { return f.waitSynced(nil) }

// WaitSyncedContext is WaitSynced, but returns the cause of ctx if that ends
// first; the batch comes to disk all the same, with a later one at the latest.
func (f *Flight) WaitSyncedContext(ctx context.Context) error {
	err := f.waitSynced(ctx.Done())
	if errors.Is(err, errStopped) {
		return context.Cause(ctx)
	}
	return err
}

func (f *Flight) waitSynced(stop <-chan struct{}) error {
	if f == nil {
		return errLogClosed
	}
	if err := f.wait(stop); err != nil || f.log.lazy == nil {
		return err
	}
	r, err := f.log.lazy.sync(f.at)
	if r == nil {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-stop:
		return errStopped
	case <-f.log.store.failed:
		return f.log.store.Broken()
	}
}

// wait waits for the batch, for the store to break (a batch may then be stuck
// within the database), or for stop.
func (f *Flight) wait(stop <-chan struct{}) error {
	select {
	case <-f.done:
		return f.err
	case <-stop:
		return errStopped
	case <-f.log.store.failed:
	}
	select {
	case <-f.done:
		return f.err
	default:
		return f.log.store.Broken()
	}
}

var errStopped = errors.New("the wait was stopped")

var errLogClosed = errors.New("the store is closed")

func newLog(db *pebble.DB, name string, s *Store, meter *logMeter, lazy *lazyFS) *Log {
	l := &Log{db: db, name: name, store: s, meter: meter, lazy: lazy, kick: make(chan struct{}, 1), done: make(chan struct{}), freed: make(chan struct{}, 1)}
	l.next = l.newFlight()
	go l.run()
	return l
}

func (l *Log) newFlight() *Flight {
	return &Flight{log: l, batch: l.db.NewBatch(), done: make(chan struct{})}
}

// Add puts writes into the next batch. write encodes them and must not wait;
// the calls of all goroutines are one after another, so write may also give out offsets.
// after, if not nil, is called once the batch is committed, or with the error
// why not, before Wait returns; the calls are in the order of the writes.
// A nil return means that the Log is closed; neither function was called. If write
// panics the store is broken: a part of what belongs together must not be committed.
func (l *Log) Add(write func(*Batch), after func(error)) *Flight {
	f := l.add(write, after)
	if f != nil {
		signal(l.kick)
	}
	return f
}

func (l *Log) add(write func(*Batch), after func(error)) *Flight {
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
	l.gathered.Store(int64(f.batch.Len()))
	if after != nil {
		f.after = append(f.after, after)
	}
	return f
}

// signal wakes one who waits, or comes to.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *Log) run() {
	defer close(l.done)
	for range l.kick {
		l.mu.Lock()
		f := l.next
		if l.closed != nil {
			l.next = nil
		} else {
			l.next = l.newFlight()
		}
		l.gathered.Store(0)
		l.mu.Unlock()
		signal(l.freed)
		l.commit(f)
		if l.next == nil { // only this goroutine changes next, so reading it needs no lock
			return
		}
	}
}

func (l *Log) commit(f *Flight) {
	if err := l.store.Broken(); err != nil {
		f.err = err
	} else if !f.batch.Empty() {
		if l.before != nil {
			l.before(f.batch)
		}
		if err := l.meter.apply(l.db, f.batch); err != nil {
			f.err = fmt.Errorf("writing to %s: %w", l.name, err)
		} else if err := l.store.Broken(); err != nil {
			// Pebble reports a failed commit to its logger, not to the caller.
			f.err = err
		}
	}
	if l.lazy != nil {
		f.at = l.lazy.position()
	}
	for _, after := range f.after {
		after(f.err)
	}
	close(f.done)
	// A batch that failed may still be in Pebble's hands: leave it to the collector.
	if f.err == nil {
		_ = f.batch.Close() // gives its memory back; it cannot fail
	}
}

// stuckAfter is how long closing waits for a write of a broken database.
const stuckAfter = 5 * time.Second

// close commits what was added, and refuses what comes after. It returns false if
// the database is broken and a write does not come back from it.
func (l *Log) close() bool {
	l.mu.Lock()
	l.closed = errLogClosed
	l.mu.Unlock()
	signal(l.kick)
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

// WaitContext is Wait, but returns the cause of ctx if that ends first; the
// batch is committed all the same.
func (f *Flight) WaitContext(ctx context.Context) error {
	if f == nil {
		return errLogClosed
	}
	err := f.wait(ctx.Done())
	if errors.Is(err, errStopped) {
		return context.Cause(ctx)
	}
	return err
}

// maxGathered is from how many bytes on a batch is full: memory holds about one
// that gathers and one that is committed.
const maxGathered = 32 << 20

// Full reports whether the batch that gathers is full: Room would wait.
func (l *Log) Full() bool { return l.gathered.Load()+l.aside.Load() >= maxGathered }

// roomLook is how often Room asks whether to go on waiting.
const roomLook = 50 * time.Millisecond

// Room returns when the batch that gathers is not full, and n bytes of it are set aside
// for the caller, who calls Release once it has added them, or will not. So
// the bound is exceeded by what one caller has, however many come. An error, the cause of
// ctx or what refused has returned, sets nothing aside. refused, if not nil, is asked before
// and during the wait; an error of it ends that.
func (l *Log) Room(ctx context.Context, n int64, refused func() error) error {
	waited := false
	for ; !l.setAside(n); waited = true {
		if refused != nil {
			if err := refused(); err != nil {
				return err
			}
		}
		select {
		case <-l.freed:
		case <-time.After(roomLook):
		case <-l.done:
			l.aside.Add(n) // it is closed, which Add tells
			return nil
		case <-l.store.failed:
			l.aside.Add(n) // likewise
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

func (l *Log) setAside(n int64) bool {
	for {
		aside := l.aside.Load()
		if l.gathered.Load()+aside >= maxGathered {
			return false
		}
		if l.aside.CompareAndSwap(aside, aside+n) {
			return true
		}
	}
}

// Release gives back what Room has set aside. What was added by then counts as gathered.
func (l *Log) Release(n int64) {
	l.aside.Add(-n)
	signal(l.freed)
}
