// Package diskfs has the file systems between the store's databases and the disk. Each one changes
// a single thing that Pebble does:
//
//   - [FullFS] waits at a full disk instead of failing, and keeps a reserve of disk space.
//   - [BlobFS] checks files of values before Pebble reads them. [DamageNotes] has those that are
//     corrupt, and [PausingFS] slows the compactions that fail because of them.
//   - [KnownFS] notes the checksum of each manifest after its fsync.
//   - [SyncedFS] notes how many bytes of each log and manifest are on disk, and [CheckSynced]
//     compares the files with these notes.
//   - [LogSyncFS] and [MarkerFS] correct the order and the extent of Pebble's syncs.
//
// Beside them it has small files that are written whole or not at all, with checksums.
package diskfs
