package store

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/diskfs"
)

// prepare makes the directory, locks it and checks its format.
func (s *Store) prepare() (err error) {
	if err := s.checkOurs(); err != nil {
		return err
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	if s.lock, err = pebble.LockDirectory(s.dir, s.fs); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()
	if s.room != nil {
		if err := s.room.Prepare(s.startRecord()); err != nil {
			return err
		}
	}
	version, err := s.readFormat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.writeFormat()
	case err != nil:
		return err
	case version > formatVersion:
		return fmt.Errorf("it has format %d, and this program reads up to %d; use a newer version of tidegate", version, formatVersion)
	case version < 1:
		return fmt.Errorf("%s contains format %d: the file is corrupt, or this is not a tidegate data directory", formatFile, version)
	}
	return nil
}

// checkOurs returns an error if the directory has files of other programs, before anything is
// written: a wrong --data would mix them with ours. Files of a broker that ended while it created
// its directory, and system files of a mounted disk, are accepted.
func (s *Store) checkOurs() error {
	names, _ := s.fs.List(s.dir) // none if it does not exist, or is no directory, which its creation reports
	if slices.Contains(names, formatFile) {
		return nil
	}
	if slices.Contains(names, identityFile) {
		return fmt.Errorf("%s is missing; %s", s.fs.PathJoin(s.dir, formatFile), restore)
	}
	slices.Sort(names)
	for _, name := range names {
		switch base, _, _ := strings.Cut(name, "."); base {
		case "", "LOCK", formatFile, diskfs.BallastFile, diskfs.ReserveFile, diskfs.StartFile, cleanFile, "messages", "groups", "lost+found":
		default:
			return fmt.Errorf("it has no file %s, but other files such as %s; give an empty directory, or one that does not exist", formatFile, name)
		}
	}
	return nil
}

func (s *Store) readFormat() (int, error) {
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, formatFile))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 64)
	n, _ := f.Read(buf)
	word, ok := strings.CutPrefix(strings.TrimSpace(string(buf[:n])), "tidegate ")
	v, err := strconv.Atoi(word)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s contains %q: the file is corrupt, or this is not a tidegate data directory", formatFile, buf[:n])
	}
	return v, nil
}

func (s *Store) writeFormat() error {
	return s.writeFile(formatFile, fmt.Appendf(nil, "tidegate %d\n", formatVersion))
}

// makeDir makes the directory and those above it, so that a power failure
// does not take them back.
func (s *Store) makeDir() error {
	var parents []string
	for d := s.dir; ; {
		if _, err := s.fs.Stat(d); err == nil {
			break
		}
		up := s.fs.PathDir(d)
		parents = append(parents, up)
		if up == d {
			break
		}
		d = up
	}
	if err := s.fs.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	for _, d := range parents {
		if err := diskfs.SyncDir(s.fs, d); err != nil {
			return err
		}
	}
	return nil
}
