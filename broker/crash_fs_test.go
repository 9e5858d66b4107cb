package broker_test

import (
	"io"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A crashFS numbers everything that changes a file system, and calls before
// with the number, one call after another, before it happens.
type crashFS struct {
	*vfs.MemFS
	before func(index int)

	mu    sync.Mutex
	count int // guarded by mu
}

// do makes one change. Nothing else changes meanwhile.
func (fs *crashFS) do(change func()) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.before(fs.count)
	fs.count++
	change()
}

// clone returns the content after a power failure, with percent of the unsynced data. Only before
// may call it.
func (fs *crashFS) clone(percent int, seed uint64) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 1))})
}

func (fs *crashFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return crashFile{f, fs}, nil
}

func (fs *crashFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.do(func() { f, err = fs.wrap(fs.MemFS.Create(name, c)) })
	return
}

func (fs *crashFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (f vfs.File, err error) {
	fs.do(func() { f, err = fs.wrap(fs.MemFS.OpenReadWrite(name, c, o...)) })
	return
}

func (fs *crashFS) OpenDir(name string) (vfs.File, error) { return fs.wrap(fs.MemFS.OpenDir(name)) }

func (fs *crashFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.do(func() { f, err = fs.wrap(fs.MemFS.ReuseForWrite(old, name, c)) })
	return
}

func (fs *crashFS) Link(old, name string) (err error) {
	fs.do(func() { err = fs.MemFS.Link(old, name) })
	return
}

func (fs *crashFS) Remove(name string) (err error) {
	fs.do(func() { err = fs.MemFS.Remove(name) })
	return
}

func (fs *crashFS) RemoveAll(name string) (err error) {
	fs.do(func() { err = fs.MemFS.RemoveAll(name) })
	return
}

func (fs *crashFS) Rename(old, name string) (err error) {
	fs.do(func() { err = fs.MemFS.Rename(old, name) })
	return
}

func (fs *crashFS) Lock(name string) (c io.Closer, err error) {
	fs.do(func() { c, err = fs.MemFS.Lock(name) })
	return
}

func (fs *crashFS) MkdirAll(name string, perm os.FileMode) (err error) {
	fs.do(func() { err = fs.MemFS.MkdirAll(name, perm) })
	return
}

type crashFile struct {
	vfs.File
	fs *crashFS
}

func (f crashFile) Write(p []byte) (n int, err error) {
	f.fs.do(func() { n, err = f.File.Write(p) })
	return
}

func (f crashFile) WriteAt(p []byte, at int64) (n int, err error) {
	f.fs.do(func() { n, err = f.File.WriteAt(p, at) })
	return
}

func (f crashFile) Sync() (err error) {
	f.fs.do(func() { err = f.File.Sync() })
	return
}

func (f crashFile) SyncData() (err error) {
	f.fs.do(func() { err = f.File.SyncData() })
	return
}

func (f crashFile) SyncTo(n int64) (full bool, err error) {
	f.fs.do(func() { full, err = f.File.SyncTo(n) })
	return
}
