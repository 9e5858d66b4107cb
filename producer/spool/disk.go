package spool

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// A disk is the directory of a spool. Names have no path.
type disk interface {
	// open opens a file for reading and writing. With create it creates the file, or empties it.
	open(name string, create bool) (file, error)
	remove(name string) error
	rename(from, to string) error
	list() (names []string, err error)
	// sync makes the names of new files survive a power failure.
	sync() error
	// where returns the path of a file, for errors.
	where(name string) string
}

// A file is an open file.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
	size() (int64, error)
}

// osDisk is a directory of the operating system.
type osDisk struct{ path string }

func (d osDisk) where(name string) string { return filepath.Join(d.path, name) }

func (d osDisk) open(name string, create bool) (file, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(d.where(name), flags, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d osDisk) remove(name string) error     { return os.Remove(d.where(name)) }
func (d osDisk) rename(from, to string) error { return os.Rename(d.where(from), d.where(to)) }
func (d osDisk) sync() error                  { return syncDir(d.path) }

func (d osDisk) list() (names []string, err error) {
	entries, err := os.ReadDir(d.path)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

type osFile struct{ *os.File }

func (f osFile) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// syncDir makes the names in a directory survive a power failure. Windows has no such call.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
