package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// protectedFile marks a data directory that was served with access keys.
const protectedFile = "PROTECTED"

// protect compares the configuration with the data directory. Without keys, every client has all
// permissions. A directory that was served with keys is therefore served without keys only if
// no_keys is set: a configuration that lost its keys, or the wrong configuration, must not open the
// broker to everyone. If dir is empty, the messages are in memory, and there is nothing to compare.
func protect(dir string, keys, noKeys bool) error {
	if dir == "" {
		return nil
	}
	file := filepath.Join(dir, protectedFile)
	_, err := os.Stat(file)
	switch marked := err == nil; {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check whether %s was served with access keys: %w", dir, err)
	case keys && !marked:
		return mark(file)
	case keys || !marked:
		return nil
	case noKeys:
		return os.Remove(file)
	}
	return fmt.Errorf("%s was served with access keys, and the configuration has none, so every client would have all permissions; "+
		"give access.keys, or add --no-keys (in a file no_keys: true) if that is intended", dir)
}

// mark writes the file so that it survives a power failure.
func mark(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record that the data directory is served with access keys: %w", err)
	}
	_, err = f.WriteString("This data directory was served with access keys. tidegate serve needs --no-keys to serve it without.\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if dir, derr := os.Open(filepath.Dir(file)); derr != nil {
		err = errors.Join(err, derr)
	} else {
		err = errors.Join(err, dir.Sync(), dir.Close()) // or the file's name is lost
	}
	if err != nil {
		return fmt.Errorf("record that the data directory is served with access keys: %w", err)
	}
	return nil
}
