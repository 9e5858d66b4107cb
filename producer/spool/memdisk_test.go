package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// A memDisk is a disk in memory that remembers its changes, to play a crash at any of them.
type memDisk struct {
	mu    sync.Mutex
	names map[string]*memFile
	trace []change

	beforeSync func() // called before each sync of a file; nil means none
	failing    int    // so many changes of files fail; a failed write leaves half of its bytes
	most       int    // bytes of all files, like the size of a disk; 0 means no limit
	badSync    int    // this sync of a file from now on fails, and loses its changes; 0 means none
}

// A memFile is a file of a memDisk.
type memFile struct {
	disk *memDisk
	data []byte
}

// A change is a change of a file or of the directory.
type change struct {
	file *memFile // nil for one of the directory
	data []byte   // written at off
	off  int64
	cut  bool // truncated to off
	sync bool // of the file, or of the directory
	lost bool // by a failed sync: the system does not write it any more

	name, to string   // created, renamed or removed, if to is empty
	node     *memFile // of a created name
}

func newMemDisk() *memDisk { return &memDisk{names: map[string]*memFile{}} }

var errBadSync = errors.New("input/output error")

var errNoSpace = errors.New("no space left on device")

// fails reports whether the next change fails. The lock is held.
func (d *memDisk) fails() bool {
	d.failing = max(0, d.failing-1)
	return d.failing > 0
}

// used returns the bytes of all files. The lock is held.
func (d *memDisk) used() (n int) {
	for _, f := range d.names {
		n += len(f.data)
	}
	return n
}

// fill leaves no space on the disk.
func (d *memDisk) fill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.most = d.used()
}

func (d *memDisk) where(name string) string { return "mem/" + name }

func (d *memDisk) open(name string, create bool) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[name]
	switch {
	case f == nil && !create:
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	case f == nil:
		f = &memFile{disk: d}
		d.names[name] = f
		d.trace = append(d.trace, change{name: name, node: f})
	case create:
		f.data = nil
		d.trace = append(d.trace, change{file: f, cut: true})
	}
	return f, nil
}

// changes is the number of changes so far.
func (d *memDisk) changes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.trace)
}

func (d *memDisk) remove(name string) error { return d.rename(name, "") }

func (d *memDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[from]
	if f == nil {
		return fmt.Errorf("rename %s: %w", from, fs.ErrNotExist)
	}
	delete(d.names, from)
	if to != "" {
		d.names[to] = f
	}
	d.trace = append(d.trace, change{name: from, to: to})
	return nil
}

func (d *memDisk) list() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.names)), nil
}

func (d *memDisk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trace = append(d.trace, change{sync: true})
	return nil
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	var err error
	if f.disk.fails() {
		b, err = b[:len(b)/2], errNoSpace
	}
	if grows := int(off) + len(b) - len(f.data); f.disk.most > 0 && grows > 0 {
		if missing := f.disk.used() + grows - f.disk.most; missing > 0 {
			b, err = b[:max(0, len(b)-missing)], errNoSpace
		}
	}
	f.write(b, off)
	f.disk.trace = append(f.disk.trace, change{file: f, data: bytes.Clone(b), off: off})
	return len(b), err
}

func (f *memFile) write(b []byte, off int64) {
	if n := int(off) + len(b); n > len(f.data) {
		f.data = append(f.data, make([]byte, n-len(f.data))...)
	}
	copy(f.data[off:], b)
}

func (f *memFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.fails() {
		return errNoSpace
	}
	f.truncate(size)
	f.disk.trace = append(f.disk.trace, change{file: f, cut: true, off: size})
	return nil
}

func (f *memFile) truncate(size int64) {
	if int(size) > len(f.data) {
		f.data = append(f.data, make([]byte, int(size)-len(f.data))...)
	}
	f.data = f.data[:size:size]
}

func (f *memFile) Sync() error {
	if f.disk.beforeSync != nil {
		f.disk.beforeSync()
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.badSync > 0 {
		if f.disk.badSync--; f.disk.badSync == 0 {
			for i := len(f.disk.trace) - 1; i >= 0; i-- {
				if c := &f.disk.trace[i]; c.file == f && c.sync {
					break
				} else if c.file == f {
					c.lost = true
				}
			}
			return errBadSync
		}
	}
	f.disk.trace = append(f.disk.trace, change{file: f, sync: true})
	return nil
}

func (f *memFile) Close() error { return nil }

func (f *memFile) size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.data)), nil
}

// crashed returns the disk after a crash before change n of the trace. Without power, a prefix of
// the changes of each file and of the directory since their last sync survives, and the last
// surviving write can be torn. The end of the process alone keeps everything.
func (d *memDisk) crashed(n int, powerFails bool, r *rand.Rand) *memDisk {
	d.mu.Lock()
	trace := slices.Clone(d.trace[:n])
	d.mu.Unlock()
	lists := map[*memFile][]change{} // nil for the directory
	synced := map[*memFile]int{}
	for _, c := range trace {
		if c.sync {
			synced[c.file] = len(lists[c.file])
			continue
		}
		if powerFails && c.lost {
			continue
		}
		lists[c.file] = append(lists[c.file], c)
	}
	survivors := func(f *memFile) []change {
		list := lists[f]
		if open := len(list) - synced[f]; powerFails && open > 0 {
			list = slices.Clone(list[:synced[f]+r.IntN(open+1)])
			if i := len(list) - 1; i >= synced[f] && len(list[i].data) > 0 {
				list[i].data = list[i].data[:r.IntN(len(list[i].data)+1)]
			}
		}
		return list
	}
	after := newMemDisk()
	for _, c := range survivors(nil) {
		switch {
		case c.node != nil:
			f := &memFile{disk: after}
			for _, w := range survivors(c.node) {
				if w.cut {
					f.truncate(w.off)
				} else {
					f.write(w.data, w.off)
				}
			}
			after.names[c.name] = f
		default:
			if c.to != "" {
				after.names[c.to] = after.names[c.name]
			}
			delete(after.names, c.name)
		}
	}
	return after
}

// clone returns a disk with the same files.
func (d *memDisk) clone() *memDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newMemDisk()
	for name, f := range d.names {
		c.names[name] = &memFile{disk: c, data: bytes.Clone(f.data)}
	}
	return c
}
