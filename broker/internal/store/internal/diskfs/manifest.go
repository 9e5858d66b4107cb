package diskfs

import (
	"hash/crc32"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const ManifestPrefix = "MANIFEST-"

// KnownFS records the size and checksum of a database's manifest after each fsync of it. Pebble
// accepts any end of a manifest and removes the tables that the manifest does not name: one wrong
// byte after a crash would remove messages. The record is on disk before a marker names the
// manifest.
type KnownFS struct {
	vfs.FS
	dir  string // of the database
	path string // of the file that has sums

	mu    sync.Mutex // held over writing that file, which Pebble's one writer of a manifest waits for anyway
	order []string   // the manifests in sums, the oldest first
	sums  map[string]string
}

// NewKnownFS returns a KnownFS of the database in a directory. noted is the line of the manifest
// that a marker names, if there is one.
func NewKnownFS(fs vfs.FS, dir, path string, noted [2]string) *KnownFS {
	k := &KnownFS{FS: fs, dir: dir, path: path, sums: map[string]string{}}
	if manifest, line := noted[0], noted[1]; line != "" {
		k.order, k.sums[manifest] = []string{manifest}, line
	}
	return k
}

// Create implements vfs.FS.
func (k *KnownFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := k.FS.Create(name, c)
	if base := k.PathBase(name); err == nil && k.PathDir(name) == k.dir && strings.HasPrefix(base, ManifestPrefix) {
		return &manifestFile{File: f, fs: k, name: base}, nil
	}
	return f, err
}

// Unwrap implements vfs.FS.
func (k *KnownFS) Unwrap() vfs.FS { return k.FS }

// note records the content of a manifest on disk. The record of the previous manifest stays,
// because a crash can occur before the marker names the new one.
func (k *KnownFS) note(name string, size int64, sum uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sums[name] == "" {
		k.order = append(k.order, name)
		if len(k.order) > 2 {
			delete(k.sums, k.order[0])
			k.order = k.order[1:]
		}
	}
	k.sums[name] = SumLine(size, sum)
	return WriteFile(k.FS, k.path, FormatSums(k.sums))
}

// A manifestFile is a manifest that is being written.
type manifestFile struct {
	vfs.File
	fs   *KnownFS
	name string
	size int64 // Pebble writes a manifest from one goroutine at a time
	sum  uint32
	bad  error // of a write: the content of the file is unknown from then on
}

// Write implements vfs.File.
func (f *manifestFile) Write(p []byte) (int, error) {
	// Computed before the write, which may change p: Pebble's file system in
	// memory does so under the race detector.
	sum := crc32.Update(f.sum, Castagnoli, p)
	n, err := f.File.Write(p)
	f.size += int64(n)
	f.sum = sum
	if err != nil {
		f.bad = err
	}
	return n, err
}

// Sync implements vfs.File.
func (f *manifestFile) Sync() error {
	if f.bad != nil {
		return f.bad
	}
	if err := f.File.Sync(); err != nil {
		return err
	}
	return f.fs.note(f.name, f.size, f.sum)
}

// SyncData implements vfs.File.
func (f *manifestFile) SyncData() error { return f.Sync() }
