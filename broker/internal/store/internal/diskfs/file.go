package diskfs

import (
	"errors"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

func isValues(name string) bool { return strings.HasSuffix(name, ".blob") }

// ReadFile returns the whole of a small file.
func ReadFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(struct{ io.Reader }{f})
	return text, errors.Join(err, f.Close())
}

// WriteFile writes a small file whole, or not at all.
func WriteFile(fs vfs.FS, path string, text []byte) error {
	f, err := fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(path+".new", path); err != nil {
		return err
	}
	return SyncDir(fs, fs.PathDir(path))
}

// SyncDir syncs a directory, so that a power failure does not take back its entries.
func SyncDir(fs vfs.FS, name string) error {
	d, err := fs.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// IsTable reports whether a file is a table or a file of values, by its name.
func IsTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || isValues(name)
}

// IsDamage reports whether an error is that of a damaged file or record, which no
// second reading will cure.
func IsDamage(err error) bool {
	return pebble.IsCorruptionError(err) || errors.Is(err, record.ErrCorrupt)
}
