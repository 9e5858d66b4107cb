package store

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Pressure is how hard pressed the storage is.
type Pressure struct {
	Disk           bool   // whether there is a disk whose room is known; Free and Total are of it
	Free, Total    uint64 // bytes
	CompactionDebt uint64 // bytes of the messages database that are to be compacted
}

// Pressure asks the file system and the messages database: one system call,
// and a look at the tree's levels. The store must be open.
func (s *Store) Pressure() Pressure {
	p := Pressure{CompactionDebt: s.messages.Metrics().Compact.EstimatedDebt}
	// A file system that does not tell is no fault: sends are then not refused for want of room.
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

// FirstStored returns when the first message of a queue at or after offset
// from, and below to, was stored, in nanoseconds since 1970; 0 if there is none.
func (s *Store) FirstStored(topic uint32, queue uint16, from, to int64) (int64, error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{
		LowerBound: appendMessageKey(nil, Place{topic, queue, from}),
		UpperBound: appendMessageKey(nil, Place{topic, queue, to}),
	})
	if err != nil {
		return 0, fmt.Errorf("reading messages: %w", err)
	}
	defer it.Close()
	if !it.First() {
		return 0, it.Error()
	}
	v, err := value(it)
	if err != nil {
		return 0, fmt.Errorf("reading messages: %w", err)
	}
	var m Message
	if _, err := decodeHeader(v, &m); err != nil {
		return 0, fmt.Errorf("reading the message at offset %d: %w", offsetOfMessageKey(it.Key()), err)
	}
	return nanos(m.StoredAt), nil
}
