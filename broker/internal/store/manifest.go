package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// knownPrefix and the name of a database are the name of the file with the minimum size of the
	// database's manifest on disk.
	knownPrefix = "KNOWN."

	markerPrefix = "marker.manifest."
)

// restore is the remedy in errors about databases that are not whole.
const restore = "restore the whole data directory from a backup, or give another directory; the broker changed nothing in it"

// checkKnown compares the manifest of a database with its record, before Pebble opens the database
// and removes files that the manifest does not name.
func (s *Store) checkKnown(db string, known bool) error {
	dir := s.fs.PathJoin(s.dir, db)
	names, err := s.fs.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	manifest := currentManifest(names)
	switch {
	case manifest == "" && (known || slices.ContainsFunc(names, isTable)):
		return fmt.Errorf("%s has no file %s* that names its manifest: a part of it is missing; %s", dir, markerPrefix, restore)
	case manifest == "": // new
		return nil
	}
	path := s.fs.PathJoin(s.dir, knownPrefix+db)
	text, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) && !known {
		return nil // of a version that noted nothing
	}
	if err != nil {
		return fmt.Errorf("reading the state of %s: %w; %s", dir, err, restore)
	}
	sums, ok := parseSums(text)
	if !ok {
		return fmt.Errorf("%s is corrupt; %s", path, restore)
	}
	if !known && sums[manifest] == "" {
		return nil // the broker ended while it noted the first one
	}
	s.noted[db] = [2]string{manifest, sums[manifest]}
	return s.checkManifest(dir, manifest, sums[manifest])
}

// currentManifest returns the manifest that a marker names, by the files of a database; empty if
// there is no marker.
func currentManifest(names []string) string {
	marker := ""
	for _, name := range names {
		if strings.HasPrefix(name, markerPrefix) && name > marker { // a number of fixed width follows
			marker = name
		}
	}
	_, manifest, _ := strings.Cut(strings.TrimPrefix(marker, markerPrefix), ".")
	return manifest
}

// unknownTable is a part of Pebble's error about a table that the manifest names and the directory
// does not have.
var unknownTable = regexp.MustCompile(`file (\d+) \(type sstable\) unknown`)

// explainMissing returns the error of Pebble's Open. If a file of the database is missing, the
// error names the file and the remedy.
func (s *Store) explainMissing(dir string, err error) error {
	missing := ""
	if m := unknownTable.FindStringSubmatch(err.Error()); m != nil {
		missing = m[1] + ".sst"
	} else if errors.Is(err, pebble.ErrDBNotPristine) {
		missing = "marker.format-version.*"
	}
	if missing == "" {
		return err
	}
	return fmt.Errorf("%s is missing: %w; %s", s.fs.PathJoin(dir, missing), err, restore)
}

// checkManifest compares the beginning of a manifest with the line that was noted of it.
func (s *Store) checkManifest(dir, name, line string) error {
	var size int64
	var sum uint32
	path := s.fs.PathJoin(dir, name)
	if _, err := fmt.Sscanf(line, sumFormat, &size, &sum); err != nil {
		return fmt.Errorf("%s is not the manifest that the broker last used: it is older, or belongs to another directory; %s", path, restore)
	}
	f, err := s.fs.Open(path)
	if err != nil {
		return fmt.Errorf("%w; %s", err, restore)
	}
	h := crc32.New(castagnoli)
	n, err := io.Copy(h, io.LimitReader(struct{ io.Reader }{f}, size))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n != size || h.Sum32() != sum {
		return fmt.Errorf("%s is corrupt or truncated within its first %d bytes, so opening it would lose messages; %s", path, size, restore)
	}
	return nil
}
