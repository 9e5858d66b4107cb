package broker

import (
	"github.com/cockroachdb/pebble/v2/vfs"
)

// On keeps the data in a file system of the test, which can fail, block or lose its power.
func (o Options) On(fs vfs.FS) Options { o.seams.FS = fs; return o }

// MemTable bounds the memory of new writes, so that a test reaches the tables on disk early.
func (o Options) MemTable(bytes uint64) Options { o.seams.MemTableBytes = bytes; return o }

// ProcessMemory replaces the memory limit of the process.
func (o Options) ProcessMemory(bytes int64) Options { o.seams.ProcessMemory = bytes; return o }

// HistoryMemory replaces the memory of the history of rates and backlogs.
func (o Options) HistoryMemory(bytes int64) Options { o.seams.HistoryMemory = bytes; return o }
