package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/tidegate/tidegate/broker/internal/store/internal/diskfs"
)

// cleanFile exists while the store is closed after an orderly close. It has the size and checksum
// of each file whose end Pebble accepts as it is. After a crash, logs and manifests can end
// anywhere, so a damaged end looks like an end that was never written. After an orderly close the
// two differ.
const cleanFile = "CLEAN"

// checksummed reports whether Pebble finds damage anywhere in the file by
// itself: it keeps checksums of all that is in tables.
func checksummed(name string) bool { return diskfs.IsTable(name) || name == "LOCK" }

// fingerprint returns a line for each file of the databases that cleanFile vouches for.
func (s *Store) fingerprint() (map[string]string, error) {
	out := map[string]string{}
	for _, dir := range []string{messagesDir, groupsDir} {
		names, err := s.fs.List(s.fs.PathJoin(s.dir, dir))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if checksummed(name) {
				continue
			}
			n, sum, err := s.checksum(s.fs.PathJoin(s.dir, dir, name))
			if err != nil {
				return nil, err
			}
			out[dir+"/"+name] = diskfs.SumLine(n, sum)
		}
	}
	return out, nil
}

func (s *Store) checksum(name string) (n int64, sum uint32, err error) {
	f, err := s.fs.Open(name)
	if err != nil {
		return 0, 0, err
	}
	h := crc32.New(diskfs.Castagnoli)
	n, err = io.Copy(h, struct{ io.Reader }{f})
	return n, h.Sum32(), errors.Join(err, f.Close())
}

// writeClean records an orderly close.
func (s *Store) writeClean() error {
	files, err := s.fingerprint()
	if err != nil {
		return err
	}
	return s.writeFile(cleanFile, diskfs.FormatSums(files))
}

// checkClean compares the files with their record of the last close, if it was orderly.
func (s *Store) checkClean() error {
	path := s.fs.PathJoin(s.dir, cleanFile)
	text, err := diskfs.ReadFile(s.fs, path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // new, or not closed in order
	}
	if err != nil {
		return err
	}
	before, ok := diskfs.ParseSums(text)
	if !ok {
		return fmt.Errorf("%s is corrupt; restore the directory from a backup, or remove this file to open the directory without comparing its files with their last state", path)
	}
	now, err := s.fingerprint()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if path, line := s.fs.PathJoin(s.dir, name), before[name]; now[name] == "" {
			return &Lost{fmt.Errorf("%s is missing, and the broker had it when it closed the directory", path)}
		} else if now[name] != line {
			return &Lost{fmt.Errorf("%s differs from the file that the broker closed: it is corrupt, truncated, or belongs to another directory", path)}
		}
	}
	return nil
}

// Unclean reports whether the directory is not new and was not closed in order before Open.
func (s *Store) Unclean() bool { return s.unclean }

// removeClean removes cleanFile before the files change.
func (s *Store) removeClean() error {
	err := s.fs.Remove(s.fs.PathJoin(s.dir, cleanFile))
	if errors.Is(err, os.ErrNotExist) {
		s.unclean = true // or new, which writeIdentity finds
		return nil
	}
	return errors.Join(err, diskfs.SyncDir(s.fs, s.dir))
}

// writeFile writes a file of the store's own whole, or not at all.
func (s *Store) writeFile(name string, text []byte) error {
	return diskfs.WriteFile(s.fs, s.fs.PathJoin(s.dir, name), text)
}
