package store

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Pressure is how hard pressed the storage is.
type Pressure struct {
	Disk           bool   // Free and Total are known
	Free, Total    uint64 // bytes
	CompactionDebt uint64 // bytes of the messages database that are to be compacted
}

// Pressure asks the file system and the messages database: one system call,
// and a look at the tree's levels. The store must be open.
func (s *Store) Pressure() Pressure {
	p := Pressure{CompactionDebt: s.messages.Metrics().Compact.EstimatedDebt}
	// Some file systems report no free space. Sends are then not rejected for lack of space.
	if u, err := s.fs.GetDiskUsage(s.dir); err == nil && u.TotalBytes > 0 {
		p.Disk, p.Free, p.Total = true, u.AvailBytes, u.TotalBytes
	}
	return p
}

// StalledSince returns since when the messages database holds up writes
// because flushes or compactions do not keep up; zero if it does not. It costs nothing.
func (s *Store) StalledSince() time.Time {
	n := s.stall.Load()
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

func (s *Store) watchStalls(l *pebble.EventListener) {
	l.WriteStallBegin = func(pebble.WriteStallBeginInfo) { s.stall.CompareAndSwap(0, time.Now().UnixNano()) }
	l.WriteStallEnd = func() { s.stall.Store(0) }
}

// Committed returns how many bytes the log has committed since it was opened.
func (l *Log) Committed() int64 { return l.meter.bytes.Load() }
