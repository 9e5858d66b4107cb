package broker_test

import (
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A quotaFS is a disk of limited size in memory. Writes to a file that was removed meanwhile do not
// count.
type quotaFS struct {
	*vfs.MemFS

	mu    sync.Mutex
	quota int64            // guarded by mu
	sizes map[string]int64 // guarded by mu: the size of each file
}

func newQuotaFS() *quotaFS {
	return &quotaFS{MemFS: vfs.NewMem(), quota: 1 << 40, sizes: map[string]int64{}}
}

// leave sets the quota so that free bytes are left.
func (fs *quotaFS) leave(free int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.quota = fs.used() + free
}

func (fs *quotaFS) used() (n int64) {
	for _, size := range fs.sizes {
		n += size
	}
	return n
}

// take gives a file room up to size, and returns how much of that it has.
func (fs *quotaFS) take(name string, size int64) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if more := size - fs.sizes[name]; more > 0 {
		fs.sizes[name] += min(more, max(0, fs.quota-fs.used()))
	}
	return min(size, fs.sizes[name])
}

func (fs *quotaFS) move(old, name string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if name != "" {
		fs.sizes[name] = fs.sizes[old]
	}
	delete(fs.sizes, old)
}

func (fs *quotaFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	used := fs.used()
	return vfs.DiskUsage{AvailBytes: uint64(max(0, fs.quota-used)), TotalBytes: 1 << 40, UsedBytes: uint64(used)}, nil
}

func (fs *quotaFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.move(name, "")
	f, err := fs.MemFS.Create(name, c)
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.move(old, name)
	f, err := fs.MemFS.ReuseForWrite(old, name, c)
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) Rename(old, name string) error {
	fs.move(old, name)
	return fs.MemFS.Rename(old, name)
}

func (fs *quotaFS) Remove(name string) error {
	fs.move(name, "")
	return fs.MemFS.Remove(name)
}

type quotaFile struct {
	vfs.File
	fs   *quotaFS
	name string
	at   int64
}

func (f *quotaFile) Write(p []byte) (int, error) {
	room := f.fs.take(f.name, f.at+int64(len(p))) - f.at
	n, err := f.File.Write(p[:max(0, room)])
	f.at += int64(n)
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *quotaFile) Preallocate(_, n int64) error {
	if f.fs.take(f.name, n) < n {
		return syscall.ENOSPC
	}
	return nil
}
