package diskfs

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

const (
	// ValuesFile has the size and a checksum of each file of values.
	ValuesFile = "VALUES"

	// identified is how many bytes at the beginning and at the end of a file of values its checksum
	// covers. The rest has checksums of its own.
	identified = 4 << 10
)

// ValueNotes has the files of values of a database, so that a missing or a replaced file is found
// before Pebble reads it. Pebble does not compare these files with its manifest, and a file of
// other values ends the process.
//
// A file is noted when it is whole and its name is on disk, before a manifest names the file. It is
// removed only after its note.
type ValueNotes struct {
	fs   vfs.FS
	path string
	dir  string // of the database

	mu    sync.Mutex // held over writing the notes, which Pebble's flushes and compactions wait for
	lines map[string]string
}

// ReadValues reads the notes of the database in the directory dir. Without notes, as in a directory
// of an older version, it notes the files that are there. lost has the files that are missing or
// have another length.
func ReadValues(fsys vfs.FS, path, dir string) (notes *ValueNotes, lost []*Shortened, err error) {
	n := &ValueNotes{fs: fsys, path: path, dir: dir, lines: map[string]string{}}
	text, err := ReadFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		err = n.readAll()
		return n, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	var ok bool
	if n.lines, ok = ParseSums(text); !ok {
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
			lost = append(lost, &Shortened{Path: file, Known: known, Missing: true})
		case err != nil:
			return nil, nil, err
		case info.Size() != known:
			lost = append(lost, &Shortened{Path: file, Left: info.Size(), Known: known, Replaced: true})
		}
	}
	return n, lost, nil
}

// readAll notes all files of values in the directory.
func (n *ValueNotes) readAll() error {
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
	h := crc32.New(Castagnoli)
	for _, at := range []int64{0, size - int64(len(edge))} {
		if _, err := f.ReadAt(edge, at); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		_, _ = h.Write(edge)
	}
	return SumLine(size, h.Sum32()), nil
}

// has reports whether the notes are about a file: one of values, in the database's directory.
func (n *ValueNotes) has(name string) bool {
	return n != nil && isValues(name) && n.fs.PathDir(name) == n.dir
}

// check returns an error if a file is not the one that is noted under its name. A file without a
// note is accepted.
func (n *ValueNotes) check(name string, f vfs.File) error {
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
	return fmt.Errorf("%w: it is not the file that the broker wrote: size and checksum are %s, not %s", record.ErrCorrupt, line, want)
}

// Lose notes that an empty file replaces a lost one.
func (n *ValueNotes) Lose(path string) error { return n.add(path, SumLine(0, 0)) }

// add notes a file that is on disk.
func (n *ValueNotes) add(name, line string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines[n.fs.PathBase(name)] = line
	return n.write()
}

// remove removes the note of a file.
func (n *ValueNotes) remove(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if base := n.fs.PathBase(name); n.lines[base] != "" {
		delete(n.lines, base)
		return n.write()
	}
	return nil
}

func (n *ValueNotes) write() error { return WriteFile(n.fs, n.path, FormatSums(n.lines)) }

// A newValues is a file of values that is being written.
type newValues struct {
	vfs.File
	notes           *ValueNotes
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
	if err := SyncDir(f.notes.fs, f.notes.fs.PathDir(f.path)); err != nil {
		return err
	}
	sum := crc32.Update(crc32.Checksum(f.head, Castagnoli), Castagnoli, f.tail)
	return f.notes.add(f.path, SumLine(f.written, sum))
}
