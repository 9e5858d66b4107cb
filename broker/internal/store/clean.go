package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// cleanFile is there while the store is closed, and was closed in order. It
// has the size and checksum of every file whose end Pebble takes as it finds
// it: after a crash logs and manifests may end anywhere, so a damaged end cannot be told
// from one that was never written. After an orderly end it can.
const cleanFile = "CLEAN"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksummed reports whether Pebble finds damage anywhere in the file by
// itself: it keeps checksums of all that is in tables.
func checksummed(name string) bool { return isTable(name) || name == "LOCK" }

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
			out[dir+"/"+name] = sumLine(n, sum)
		}
	}
	return out, nil
}

func (s *Store) checksum(name string) (n int64, sum uint32, err error) {
	f, err := s.fs.Open(name)
	if err != nil {
		return 0, 0, err
	}
	h := crc32.New(castagnoli)
	n, err = io.Copy(h, struct{ io.Reader }{f})
	return n, h.Sum32(), errors.Join(err, f.Close())
}

// writeClean says that the store was closed in order.
func (s *Store) writeClean() error {
	files, err := s.fingerprint()
	if err != nil {
		return err
	}
	return s.writeFile(cleanFile, formatSums(files))
}

// sumFormat is the form of a file's size and checksum.
const sumFormat = "%d %08x"

func sumLine(size int64, sum uint32) string { return fmt.Sprintf(sumFormat, size, sum) }

// formatSums returns a text of lines by file, with a checksum of its own at the end.
func formatSums(lines map[string]string) []byte {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%s %s\n", name, lines[name])
	}
	fmt.Fprintf(&text, "%08x\n", crc32.Checksum(text.Bytes(), castagnoli))
	return text.Bytes()
}

// checkClean compares the files with what they were when the store was
// closed in order, if it was.
func (s *Store) checkClean() error {
	path := s.fs.PathJoin(s.dir, cleanFile)
	text, err := readFile(s.fs, path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // new, or not closed in order
	}
	if err != nil {
		return err
	}
	before, ok := parseSums(text)
	if !ok {
		return fmt.Errorf("%s is damaged; restore the directory from a copy, or remove that file to open without comparing the others with what they were", path)
	}
	now, err := s.fingerprint()
	if err != nil {
		return err
	}
	for name, line := range before {
		if now[name] != line {
			return fmt.Errorf("%s is not as the broker left it: it is damaged, cut off, or not of this directory; restore it from a copy, "+
				"or remove %s to go on with what can still be read: what was sent last may be gone then", s.fs.PathJoin(s.dir, name), path)
		}
	}
	return nil
}

// removeClean makes sure that cleanFile does not outlive what it says.
func (s *Store) removeClean() error {
	err := s.fs.Remove(s.fs.PathJoin(s.dir, cleanFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(s.fs, s.dir))
}

// parseSums reads what formatSums returned; ok is false if it is damaged.
func parseSums(text []byte) (files map[string]string, ok bool) {
	end := bytes.LastIndexByte(bytes.TrimSuffix(text, []byte("\n")), '\n') + 1
	if string(text[end:]) != fmt.Sprintf("%08x\n", crc32.Checksum(text[:end], castagnoli)) {
		return nil, false
	}
	files = map[string]string{}
	for line := range strings.Lines(string(text[:end])) {
		name, rest, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !found {
			return nil, false
		}
		files[name] = rest
	}
	return files, true
}

// writeFile writes a file of the store's own whole, or not at all.
func (s *Store) writeFile(name string, text []byte) error {
	return writeFile(s.fs, s.fs.PathJoin(s.dir, name), text)
}
