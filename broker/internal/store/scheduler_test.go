package store

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A fakeDB has compactions that wait, and runs those that it is granted.
type fakeDB struct {
	allowed, waiting, granted int
	handle                    pebble.CompactionGrantHandle
	block                     chan struct{} // GetWaitingCompaction waits for it, unless nil
}

func (d *fakeDB) GetAllowedWithoutPermission() int { return d.allowed }

func (d *fakeDB) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	if d.block != nil {
		<-d.block
	}
	return d.waiting > 0, pebble.WaitingCompaction{}
}

func (d *fakeDB) Schedule(h pebble.CompactionGrantHandle) bool {
	if d.waiting == 0 {
		return false
	}
	d.waiting--
	d.granted++
	d.handle = h
	return true
}

func TestSchedulerAdmitsWhatIsAllowed(t *testing.T) {
	db := &fakeDB{allowed: 2}
	s := &scheduler{}
	s.Register(1, db)
	try := func(want bool) pebble.CompactionGrantHandle {
		t.Helper()
		ok, h := s.TrySchedule()
		if ok != want {
			t.Fatalf("TrySchedule() = %v, want %v, with %d running of %d", ok, want, s.running, db.allowed)
		}
		return h
	}
	first, second := try(true), try(true)
	try(false)
	first.Done() // nothing waits, so its place is free
	third := try(true)
	try(false)
	db.waiting = 3
	second.Done() // the next one takes its place
	if db.granted != 1 || db.waiting != 2 {
		t.Errorf("%d compactions were granted and %d wait, want 1 and 2", db.granted, db.waiting)
	}
	db.allowed = 3
	third.Done() // two places now
	if db.granted != 3 || db.waiting != 0 {
		t.Errorf("%d compactions were granted and %d wait, want 3 and 0", db.granted, db.waiting)
	}
	try(false)
	s.Unregister()
	db.waiting = 1
	db.handle.Done()
	try(false)
	if db.granted != 3 {
		t.Errorf("a compaction was granted after Unregister")
	}
}

// Unregister returns after the calls of the database's methods.
func TestSchedulerUnregisterWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDB{allowed: 1, block: make(chan struct{})}
		s := &scheduler{}
		s.Register(1, db)
		_, h := s.TrySchedule()
		ended, unregistered := make(chan struct{}), make(chan struct{})
		go func() { h.Done(); close(ended) }()
		synctest.Wait()
		go func() { s.Unregister(); close(unregistered) }()
		synctest.Wait()
		select {
		case <-unregistered:
			t.Error("Unregister returned during a call of the database")
		default:
		}
		close(db.block)
		<-ended
		<-unregistered
	})
}

// A store in memory compacts its tables after flushes, without a look at the clock.
func TestMemoryStoreCompacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		start := time.Now()
		const flushes = 40
		for n := range flushes {
			for key := range 10 {
				if err := s.messages.Set(fmt.Append(nil, "overlapping ", key), fmt.Append(nil, n), pebble.NoSync); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.messages.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if m := s.messages.Metrics(); m.Compact.Count-m.Compact.MoveCount == 0 || m.Total().TablesCount >= flushes/2 {
			t.Errorf("%d tables after %d flushes and %d compactions", m.Total().TablesCount, flushes, m.Compact.Count)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v of virtual time", took)
		}
	})
}
