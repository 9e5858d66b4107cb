package diskfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// BlobFS checks Pebble's reads of blob files. If such a file is corrupt or missing, Pebble 2.1
// panics, in reads and in compactions, because it reports the corruption of a file without
// metadata. It returns an error other than its own corruption error like any other. With BlobFS no
// panic occurs, and the process continues.
type BlobFS struct {
	vfs.FS
	Damage *DamageNotes // gets each corruption
	Notes  *ValueNotes  // nil: a replaced file is not found
}

// Create implements vfs.FS.
func (b BlobFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := b.FS.Create(name, c)
	if err != nil || !b.Notes.has(name) {
		return f, err
	}
	return &newValues{File: f, notes: b.Notes, path: name}, nil
}

// Remove implements vfs.FS.
func (b BlobFS) Remove(name string) error {
	if b.Notes.has(name) {
		if err := b.Notes.remove(name); err != nil {
			return err
		}
	}
	return b.FS.Remove(name)
}

// Open implements vfs.FS.
func (b BlobFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := b.FS.Open(name, opts...)
	switch {
	case !isValues(name):
		return f, err
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: the file %s is missing", record.ErrCorrupt, name)
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
		if IsDamage(err) {
			b.Damage.Found(name, err)
		}
		return nil, errors.Join(fmt.Errorf("the file %s: %w", name, err), f.Close())
	}
	return &blobFile{f, name, size, b.Damage}, nil
}

// Unwrap implements vfs.FS.
func (b BlobFS) Unwrap() vfs.FS { return b.FS }

// checkBlobFooter has Pebble read the footer of a file of values, and returns the file's size.
func checkBlobFooter(f vfs.File) (size int64, err error) {
	r, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return 0, err
	}
	// The reader holds nothing but f, which stays open.
	if _, err := blob.NewFileReader(context.Background(), r, blob.FileReaderOptions{}); IsDamage(err) {
		return 0, foreign(err)
	} else if err != nil {
		return 0, err
	}
	return r.Size(), nil
}

// foreign returns a corruption error of Pebble as one that Pebble does not know.
func foreign(err error) error { return fmt.Errorf("%w: %s", record.ErrCorrupt, err.Error()) }

// A blobFile is a file of values: blocks, and the footer, which is not checked again.
type blobFile struct {
	vfs.File
	name   string
	size   int64
	damage *DamageNotes
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
