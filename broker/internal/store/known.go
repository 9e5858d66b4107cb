package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// knownPrefix and the name of a database make the file that says how much of the
	// database's manifest is on disk at least.
	knownPrefix = "KNOWN."

	manifestPrefix = "MANIFEST-"
	markerPrefix   = "marker.manifest."
)

// knownFS notes the size and checksum of a database's manifest after each fsync of
// it. Pebble takes the end of a manifest as it finds it and removes the tables
// that it does not name: one wrong byte after a crash would remove messages.
// What is noted is noted before a marker names the manifest.
type knownFS struct {
	vfs.FS
	path string // of the file with knownPrefix

	mu    sync.Mutex // held over writing that file, which Pebble's one writer of a manifest waits for anyway
	order []string   // the manifests in sums, the oldest first
	sums  map[string]string
}

// newKnownFS returns a knownFS; noted is the line of the manifest that a marker names, if there is
// one.
func newKnownFS(fs vfs.FS, path string, noted [2]string) *knownFS {
	k := &knownFS{FS: fs, path: path, sums: map[string]string{}}
	if manifest, line := noted[0], noted[1]; line != "" {
		k.order, k.sums[manifest] = []string{manifest}, line
	}
	return k
}

// Create implements vfs.FS.
func (k *knownFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := k.FS.Create(name, c)
	if base := k.PathBase(name); err == nil && strings.HasPrefix(base, manifestPrefix) {
		return &manifestFile{File: f, fs: k, name: base}, nil
	}
	return f, err
}

// Unwrap implements vfs.FS.
func (k *knownFS) Unwrap() vfs.FS { return k.FS }

// note writes down what is on disk of a manifest. The one before it stays
// noted: a crash can come before the marker names the new one.
func (k *knownFS) note(name string, size int64, sum uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sums[name] == "" {
		k.order = append(k.order, name)
		if len(k.order) > 2 {
			delete(k.sums, k.order[0])
			k.order = k.order[1:]
		}
	}
	k.sums[name] = sumLine(size, sum)
	return writeFile(k.FS, k.path, formatSums(k.sums))
}

// A manifestFile is a manifest that is being written.
type manifestFile struct {
	vfs.File
	fs   *knownFS
	name string
	size int64 // Pebble writes a manifest from one goroutine at a time
	sum  uint32
	bad  error // of a write: what the file has is not known any more
}

// Write implements vfs.File.
func (f *manifestFile) Write(p []byte) (int, error) {
	// Computed before the write, which may change p: Pebble's file system in
	// memory does so under the race detector.
	sum := crc32.Update(f.sum, castagnoli, p)
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

// restore is the remedy in errors about databases that are not whole.
const restore = "restore the whole data directory from a copy; nothing in it was changed"

// checkKnown compares the manifest of a database with what was noted of it,
// before Pebble opens it and removes what the manifest does not name.
func (s *Store) checkKnown(db string, known bool) error {
	dir := s.fs.PathJoin(s.dir, db)
	names, err := s.fs.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	marker, data := "", ""
	for _, name := range names {
		if strings.HasPrefix(name, markerPrefix) && name > marker { // a number of fixed width follows
			marker = name
		}
		if isTable(name) {
			data = name
		}
	}
	_, manifest, _ := strings.Cut(strings.TrimPrefix(marker, markerPrefix), ".")
	switch {
	case manifest == "" && (known || data != ""):
		return fmt.Errorf("%s has no file %s* that names its manifest: a part of it is missing; %s", dir, markerPrefix, restore)
	case manifest == "": // new
		return nil
	}
	path := s.fs.PathJoin(s.dir, knownPrefix+db)
	text, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) && !known {
		return nil // of a version that noted nothing
	}
	if err != nil {
		return fmt.Errorf("the state of %s: %w; %s", dir, err, restore)
	}
	sums, ok := parseSums(text)
	if !ok {
		return fmt.Errorf("%s is damaged; %s", path, restore)
	}
	if !known && sums[manifest] == "" {
		return nil // the broker ended while it noted the first one
	}
	s.noted[db] = [2]string{manifest, sums[manifest]}
	return s.checkManifest(dir, manifest, sums[manifest])
}

// checkManifest compares the beginning of a manifest with the line that was noted of it.
func (s *Store) checkManifest(dir, name, line string) error {
	var size int64
	var sum uint32
	path := s.fs.PathJoin(dir, name)
	if _, err := fmt.Sscanf(line, sumFormat, &size, &sum); err != nil {
		return fmt.Errorf("%s is not the manifest that the broker left: it is old, or of another directory; %s", path, restore)
	}
	f, err := s.fs.Open(path)
	if err != nil {
		return fmt.Errorf("%w; %s", err, restore)
	}
	h := crc32.New(castagnoli)
	n, err := io.Copy(h, io.LimitReader(struct{ io.Reader }{f}, size))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n != size || h.Sum32() != sum {
		return fmt.Errorf("%s is damaged or cut off within the first %d bytes, which were on disk: opening would lose messages; %s", path, size, restore)
	}
	return nil
}
