package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// logMeter has the counters of one Log. Only one goroutine writes each, so the atomics are never
// contended.
type logMeter struct {
	seconds, records, fsync Histogram
	bytes                   atomic.Int64
}

func newLogMeter(db *pebble.DB) *logMeter {
	return &logMeter{seconds: DurationHistogram(), records: SizeHistogram(), fsync: PebbleHistogram(db.Metrics().LogWriter.FsyncLatency)}
}

// countWritten counts a batch that is about to be written.
func (m *logMeter) countWritten(b *pebble.Batch) {
	m.records.Observe(float64(b.Count()))
	m.bytes.Add(int64(b.Len()))
}

// countSynced counts a batch that is on disk.
func (m *logMeter) countSynced(w *PendingWrite) { m.seconds.Observe(time.Since(w.begun).Seconds()) }

// LogStats are the counts of a Log since it was opened.
type LogStats struct {
	Commit  HistogramSnapshot // from the write to the end of its fsync, in seconds
	Records HistogramSnapshot // records in a commit
	Bytes   int64             // committed
	Fsync   HistogramSnapshot // how long the fsyncs of the write-ahead log took, in seconds
}

// Stats returns the counts since the log was opened.
func (l *Log) Stats() LogStats {
	m := l.meter
	return LogStats{m.seconds.Snapshot(), m.records.Snapshot(), m.bytes.Load(), m.fsync.Snapshot()}
}

// DatabaseStats is the state of one database, as Pebble sees it.
type DatabaseStats struct {
	Disk              uint64 // bytes of all files, obsolete ones included
	WAL               uint64 // bytes of the write-ahead log
	MemTables         uint64 // bytes
	CompactionDebt    uint64 // bytes to compact until the tree has its form
	ReadAmplification int    // tables that a read may have to look at
	L0Files           int64
	Compactions       int64 // since it was opened, as is Flushes
	Flushes           int64
	CacheHits         int64 // of the block cache, which both databases share
	CacheMisses       int64
}

// DatabaseStats returns the state of the two databases. The store must be open.
func (s *Store) DatabaseStats() (messages, groups DatabaseStats) {
	return databaseStats(s.messages), databaseStats(s.groups)
}

func databaseStats(db *pebble.DB) DatabaseStats {
	m := db.Metrics()
	return DatabaseStats{
		Disk: m.DiskSpaceUsage(), WAL: m.WAL.Size, MemTables: m.MemTable.Size,
		CompactionDebt: m.Compact.EstimatedDebt, ReadAmplification: m.ReadAmp(), L0Files: m.Levels[0].TablesCount,
		Compactions: m.Compact.Count, Flushes: m.Flush.Count,
		CacheHits: m.BlockCache.Hits, CacheMisses: m.BlockCache.Misses,
	}
}

// Marks looks up which messages are dead letters already, for callers that
// ask in the order of group and place: that costs little however many marks or
// questions there are. It is one goroutine's.
type Marks struct {
	it    *pebble.Iterator
	key   []byte
	valid bool
	begun bool
	err   error
}

// Marks returns a reader of the marks of dead letters in their current state. The caller closes it.
func (s *Store) Marks() (*Marks, error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixDeadLetter}, UpperBound: []byte{prefixDeadLetter + 1}})
	if err != nil {
		return nil, fmt.Errorf("reading the marks of dead letters: %w", err)
	}
	return &Marks{it: it}, nil
}

// Has reports whether the message became a dead letter of the group since the last rewind. Close
// returns read errors.
func (m *Marks) Has(group uint32, p Place, rewound int64) bool {
	m.key = appendLeaseKey(m.key[:0], prefixDeadLetter, group, p)
	if !m.begun || m.valid && bytes.Compare(m.it.Key(), m.key) < 0 {
		m.begun, m.valid = true, m.it.SeekGE(m.key)
	}
	if !m.valid || !bytes.Equal(m.it.Key(), m.key) {
		return false
	}
	v, err := m.it.ValueAndErr()
	if err == nil && len(v) != 8 {
		err = fmt.Errorf("%w: the mark of a dead letter has %d bytes, not 8", errCorrupt, len(v))
	}
	m.err = errors.Join(m.err, err)
	return err == nil && int64(binary.BigEndian.Uint64(v)) >= rewound
}

// Close ends the use of m, and returns why marks could not be read, if so.
func (m *Marks) Close() error {
	if err := errors.Join(m.err, m.it.Close()); err != nil {
		return fmt.Errorf("reading the marks of dead letters: %w", err)
	}
	return nil
}

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
