package store

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// blobFS checks Pebble's reads of blob files. If such a file is corrupt or missing, Pebble 2.1
// panics, in reads and in compactions, because it reports the corruption of a file without
// metadata. It returns an error other than its own corruption error like any other. With BlobFS no
// panic occurs, and the process continues.
type blobFS struct {
	vfs.FS
	Damage *damageNotes // gets each corruption
	Notes  *valueNotes  // nil: a replaced file is not found
}

// Create implements vfs.FS.
func (b blobFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := b.FS.Create(name, c)
	if err != nil || !b.Notes.has(name) {
		return f, err
	}
	return &newValues{File: f, notes: b.Notes, path: name}, nil
}

// Remove implements vfs.FS.
func (b blobFS) Remove(name string) error {
	if b.Notes.has(name) {
		if err := b.Notes.remove(name); err != nil {
			return err
		}
	}
	return b.FS.Remove(name)
}

// Open implements vfs.FS.
func (b blobFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := b.FS.Open(name, opts...)
	switch {
	case !isValues(name):
		return f, err
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: the file %s is missing", errCorrupt, name)
		b.Damage.Found(name, err)
		return nil, err
	case err != nil:
		return nil, err
	}
	var size int64
	if b.Notes.has(name) {
		err = b.Notes.check(name, f)
	}
	if err == nil {
		size, err = checkBlobFooter(f)
	}
	if err != nil {
		if isDamage(err) {
			b.Damage.Found(name, err)
		}
		return nil, errors.Join(fmt.Errorf("the file %s: %w", name, err), f.Close())
	}
	return &blobFile{f, name, size, b.Damage}, nil
}

// Unwrap implements vfs.FS.
func (b blobFS) Unwrap() vfs.FS { return b.FS }

// checkBlobFooter has Pebble read the footer of a file of values, and returns the file's size.
func checkBlobFooter(f vfs.File) (size int64, err error) {
	r, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return 0, err
	}
	// The reader holds nothing but f, which stays open.
	if _, err := blob.NewFileReader(context.Background(), r, blob.FileReaderOptions{}); isDamage(err) {
		return 0, foreign(err)
	} else if err != nil {
		return 0, err
	}
	return r.Size(), nil
}

// foreign returns a corruption error of Pebble as one that Pebble does not know.
func foreign(err error) error { return fmt.Errorf("%w: %s", errCorrupt, err.Error()) }

// A blobFile is a file of values: blocks, and the footer, which is not checked again.
type blobFile struct {
	vfs.File
	name   string
	size   int64
	damage *damageNotes
}

// ReadAt implements vfs.File. Pebble reads one block at a time.
func (f *blobFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	length := len(p) - block.TrailerLen
	if err != nil || length < 0 || off+int64(len(p)) >= f.size {
		return n, err
	}
	if err := block.ValidateChecksum(block.ChecksumTypeCRC32c, p, block.Handle{Offset: uint64(off), Length: uint64(length)}); err != nil {
		err = fmt.Errorf("the file %s: %w", f.name, foreign(err))
		f.damage.Found(f.name, err)
		return 0, err
	}
	return n, nil
}

const (
	// valuesFile has the size and a checksum of each file of values.
	valuesFile = "VALUES"

	// identified is how many bytes at the beginning and at the end of a file of values its checksum
	// covers. The rest has checksums of its own.
	identified = 4 << 10
)

// valueNotes has the files of values of a database, so that a missing or a replaced file is found
// before Pebble reads it. Pebble does not compare these files with its manifest, and a file of
// other values ends the process.
//
// A file is noted when it is whole and its name is on disk, before a manifest names the file. It is
// removed only after its note.
type valueNotes struct {
	fs   vfs.FS
	path string
	dir  string // of the database

	mu    sync.Mutex // held over writing the notes, which Pebble's flushes and compactions wait for
	lines map[string]string
}

// readValues reads the notes of the database in the directory dir. Without notes, as in a directory
// of an older version, it notes the files that are there. lost has the files that are missing or
// have another length.
func readValues(fsys vfs.FS, path, dir string) (notes *valueNotes, lost []*shortened, err error) {
	n := &valueNotes{fs: fsys, path: path, dir: dir, lines: map[string]string{}}
	text, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		err = n.readAll()
		return n, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	var ok bool
	if n.lines, ok = parseSums(text); !ok {
		return nil, nil, fmt.Errorf("%s is corrupt; restore the whole data directory from a backup", path)
	}
	for _, name := range slices.Sorted(maps.Keys(n.lines)) {
		var known int64
		if _, err := fmt.Sscanf(n.lines[name], "%d", &known); err != nil {
			return nil, nil, fmt.Errorf("%s has %q: %w; restore the whole data directory from a backup", path, n.lines[name], err)
		}
		file := fsys.PathJoin(dir, name)
		info, err := fsys.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			lost = append(lost, &shortened{Path: file, Known: known, Missing: true})
		case err != nil:
			return nil, nil, err
		case info.Size() != known:
			lost = append(lost, &shortened{Path: file, Left: info.Size(), Known: known, Replaced: true})
		}
	}
	return n, lost, nil
}

// readAll notes all files of values in the directory.
func (n *valueNotes) readAll() error {
	names, err := n.fs.List(n.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if !isValues(name) {
			continue
		}
		f, err := n.fs.Open(n.fs.PathJoin(n.dir, name))
		if err != nil {
			return err
		}
		line, err := identify(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		n.lines[name] = line
	}
	return n.write()
}

// identify returns the line of a file of values.
func identify(f vfs.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	size := info.Size()
	edge := make([]byte, min(size, identified))
	h := crc32.New(castagnoli)
	for _, at := range []int64{0, size - int64(len(edge))} {
		if _, err := f.ReadAt(edge, at); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		_, _ = h.Write(edge)
	}
	return sumLine(size, h.Sum32()), nil
}

// has reports whether the notes are about a file: one of values, in the database's directory.
func (n *valueNotes) has(name string) bool {
	return n != nil && isValues(name) && n.fs.PathDir(name) == n.dir
}

// check returns an error if a file is not the one that is noted under its name. A file without a
// note is accepted.
func (n *valueNotes) check(name string, f vfs.File) error {
	n.mu.Lock()
	want := n.lines[n.fs.PathBase(name)]
	n.mu.Unlock()
	if want == "" {
		return nil
	}
	line, err := identify(f)
	if err != nil || line == want {
		return err
	}
	return fmt.Errorf("%w: it is not the file that the broker wrote: size and checksum are %s, not %s", errCorrupt, line, want)
}

// Lose notes that an empty file replaces a lost one.
func (n *valueNotes) Lose(path string) error { return n.add(path, sumLine(0, 0)) }

// add notes a file that is on disk.
func (n *valueNotes) add(name, line string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines[n.fs.PathBase(name)] = line
	return n.write()
}

// remove removes the note of a file.
func (n *valueNotes) remove(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if base := n.fs.PathBase(name); n.lines[base] != "" {
		delete(n.lines, base)
		return n.write()
	}
	return nil
}

func (n *valueNotes) write() error { return writeFile(n.fs, n.path, formatSums(n.lines)) }

// A newValues is a file of values that is being written.
type newValues struct {
	vfs.File
	notes           *valueNotes
	path            string
	written, synced int64
	head, tail      []byte // at most identified bytes each
}

// Write implements vfs.File.
func (f *newValues) Write(p []byte) (int, error) {
	f.head = append(f.head, p[:min(len(p), identified-len(f.head))]...) // before the write, which may change p
	end := p[max(0, len(p)-identified):]
	keep := min(len(f.tail), identified-len(end))
	f.tail = append(f.tail[:copy(f.tail, f.tail[len(f.tail)-keep:])], end...)
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// Sync implements vfs.File.
func (f *newValues) Sync() error { return f.noted(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *newValues) SyncData() error { return f.noted(f.File.SyncData()) }

func (f *newValues) noted(err error) error {
	if err == nil {
		f.synced = f.written
	}
	return err
}

// Close implements vfs.File. It notes the file if all of it is on disk.
func (f *newValues) Close() error {
	if err := f.File.Close(); err != nil || f.synced < f.written || f.written == 0 {
		return err
	}
	if err := syncDir(f.notes.fs, f.notes.fs.PathDir(f.path)); err != nil {
		return err
	}
	sum := crc32.Update(crc32.Checksum(f.head, castagnoli), castagnoli, f.tail)
	return f.notes.add(f.path, sumLine(f.written, sum))
}
