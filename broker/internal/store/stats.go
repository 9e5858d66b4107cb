package store

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/histogram"
)

// logMeter has the counters of one Log. Only one goroutine writes each, so the atomics are never
// contended.
type logMeter struct {
	seconds, records, fsync histogram.Histogram
	bytes                   atomic.Int64
}

func newLogMeter(db *pebble.DB) *logMeter {
	return &logMeter{seconds: histogram.Durations(), records: histogram.Sizes(), fsync: histogram.Pebbles(db.Metrics().LogWriter.FsyncLatency)}
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
	Commit  histogram.Snapshot // from the write to the end of its fsync, in seconds
	Records histogram.Snapshot // records in a commit
	Bytes   int64              // committed
	Fsync   histogram.Snapshot // how long the fsyncs of the write-ahead log took, in seconds
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
