package store

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// A scheduler admits Pebble's compactions when Pebble asks for one and when one ends. Pebble's
// own scheduler also looks every 100 ms, which in virtual time would be all that a test
// does. Pebble asks after each flush, so a store in memory or on the files of a test needs no more.
//
// Pebble calls TrySchedule with its mutex held, and the methods of db take that mutex. So no
// method holds mu while it calls db, except for GetAllowedWithoutPermission, which takes none.
type scheduler struct {
	db pebble.DBForCompaction // set by Register, before all other calls

	mu      sync.Mutex
	running int  // guarded by mu: compactions admitted that have not ended
	closed  bool // guarded by mu

	grants sync.WaitGroup // calls of grant; none is added once closed is true
}

// Register notes the database. Pebble calls it once.
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) { s.db = db }

// Unregister ends admission and waits for the calls of the database's methods.
func (s *scheduler) Unregister() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.grants.Wait()
}

// TrySchedule admits a compaction unless as many run as the database allows.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !s.admit() {
		return false, nil
	}
	return true, s
}

// UpdateGetAllowedWithoutPermission does nothing: Pebble asks again after a flush.
func (s *scheduler) UpdateGetAllowedWithoutPermission() {}

// Done ends an admitted compaction, and admits the next ones.
func (s *scheduler) Done() {
	s.mu.Lock()
	s.running--
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.grants.Add(1)
	s.mu.Unlock()
	defer s.grants.Done()
	for s.admit() {
		if waiting, _ := s.db.GetWaitingCompaction(); waiting && s.db.Schedule(s) {
			continue
		}
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
		return
	}
}

// admit counts a compaction as running if there may be one more.
func (s *scheduler) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= s.db.GetAllowedWithoutPermission() {
		return false
	}
	s.running++
	return true
}

// Started, MeasureCPU and CumulativeStats report the use of a grant, which changes nothing here.
func (s *scheduler) Started() {}

// MeasureCPU does nothing, see Started.
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats does nothing, see Started.
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
