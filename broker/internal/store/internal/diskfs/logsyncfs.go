package diskfs

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The form of Pebble's write-ahead log from FormatWALSyncChunks on: blocks of 32 KiB
// with chunks in them, each with its checksum (4 bytes), length (2), type (1), the
// log's number (4), and how far the log was synced when the chunk was written (8).
const (
	walBlock      = 32 << 10
	walHeader     = 19
	walLengthAt   = 4
	walTypeAt     = 6
	walNumberAt   = 7
	walSyncedAt   = 11
	walFirstType  = 9 // 9 to 12: whole records, and their first, middle and last parts
	walLastType   = 12
	walCheckedAt  = walTypeAt // the checksum covers the bytes after it
	walCRCAddend  = 0xa282ead8
	walCRCRotated = 15
)

// LogSyncFS adds to write-ahead logs how far they were synced. A reader treats a damaged chunk as
// the end of the log, unless a later chunk records that the log was synced beyond it. Pebble 2.1.7
// writes too small a number (record/log_writer.go counts no full blocks that were waiting). Damage
// in megabytes of synced data was therefore the end of the log, and messages after it were lost
// silently.
type LogSyncFS struct{ vfs.FS }

// Create implements vfs.FS.
func (fs LogSyncFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return wrapLog(name, f, err)
}

// ReuseForWrite implements vfs.FS.
func (fs LogSyncFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return wrapLog(name, f, err)
}

// Unwrap implements vfs.FS.
func (fs LogSyncFS) Unwrap() vfs.FS { return fs.FS }

func wrapLog(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, logSuffix) {
		return f, err
	}
	return &syncedLog{File: f}, nil
}

// A syncedLog is a log that is being written. Pebble writes and syncs one from one goroutine.
type syncedLog struct {
	vfs.File
	written, synced int64
	buf             []byte
}

// Write implements vfs.File. Pebble writes whole chunks, at most to the end of a block.
func (f *syncedLog) Write(p []byte) (int, error) {
	f.buf = append(f.buf[:0], p...)
	noteSynced(f.buf, f.written, f.synced)
	n, err := f.File.Write(f.buf)
	f.written += int64(n)
	return n, err
}

// Sync implements vfs.File.
func (f *syncedLog) Sync() error { return f.noted(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *syncedLog) SyncData() error { return f.noted(f.File.SyncData()) }

func (f *syncedLog) noted(err error) error {
	if err == nil {
		f.synced = f.written
	}
	return err
}

// noteSynced writes into the chunks of p, which is for offset at of a log, how far the log is
// synced. If p does not have the expected form, the rest is not changed.
func noteSynced(p []byte, at, synced int64) {
	for len(p) > 0 {
		left := walBlock - int(at%walBlock) // of the block
		if left < walHeader {               // padding
			n := min(left, len(p))
			p, at = p[n:], at+int64(n)
			continue
		}
		if len(p) < walHeader || p[walTypeAt] < walFirstType || p[walTypeAt] > walLastType {
			return // the end of the log
		}
		n := walHeader + int(binary.LittleEndian.Uint16(p[walLengthAt:]))
		if n > len(p) || n > left || binary.LittleEndian.Uint32(p) != walChecksum(p[walCheckedAt:n]) {
			return
		}
		if binary.LittleEndian.Uint64(p[walSyncedAt:]) < uint64(synced) {
			binary.LittleEndian.PutUint64(p[walSyncedAt:], uint64(synced))
			binary.LittleEndian.PutUint32(p, walChecksum(p[walCheckedAt:n]))
		}
		p, at = p[n:], at+int64(n)
	}
}

func walChecksum(p []byte) uint32 {
	c := crc32.Checksum(p, Castagnoli)
	return (c>>walCRCRotated | c<<(32-walCRCRotated)) + walCRCAddend
}
