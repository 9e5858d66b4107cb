package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store/internal/diskfs"
	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// identityFile names the data directory, and in each database the directory and
// the database that it is. In the directory it is written last: from then on
// both databases have to be there.
const identityFile = "IDENTITY"

// checkIdentity rejects a directory in which a database is missing, is another one, or
// is not whole. known is false while the directory has no identity.
func (s *Store) checkIdentity() (id string, known bool, err error) {
	root, err := s.readIdentity(identityFile)
	if err != nil {
		return "", false, err
	}
	id, known = root, root != ""
	for _, db := range []string{messagesDir, groupsDir} {
		path := s.fs.PathJoin(db, identityFile)
		text, err := s.readIdentity(path)
		if err != nil {
			return "", false, err
		}
		have, role, _ := strings.Cut(text, " ")
		switch {
		case text == "" && known:
			return "", false, fmt.Errorf("%s is missing: the database was removed or replaced; %s", s.fs.PathJoin(s.dir, path), restore)
		case text == "":
		case role != db:
			return "", false, fmt.Errorf("%s is the database %q of directory %s, not %q: databases were swapped or copied; %s", s.fs.PathJoin(s.dir, db), role, have, db, restore)
		case id != "" && have != id:
			return "", false, fmt.Errorf("%s belongs to the data directory %s, but this directory is %s; %s", s.fs.PathJoin(s.dir, db), have, id, restore)
		default:
			id = have // the broker ended while it made the directory
		}
		if err := s.checkKnown(db, known); err != nil {
			return "", false, err
		}
	}
	return id, known, nil
}

// writeIdentity completes the identities.
func (s *Store) writeIdentity(id string) error {
	if id == "" {
		id, s.unclean = rand.Text(), false
	}
	for _, db := range []string{messagesDir, groupsDir} {
		if err := s.writeFile(s.fs.PathJoin(db, identityFile), fmt.Appendf(nil, "tidegate %s %s\n", id, db)); err != nil {
			return err
		}
	}
	return s.writeFile(identityFile, fmt.Appendf(nil, "tidegate %s\n", id))
}

// readIdentity returns the text after the program's name in a file, or an empty text if there is no
// such file.
func (s *Store) readIdentity(name string) (string, error) {
	path := s.fs.PathJoin(s.dir, name)
	text, err := diskfs.ReadFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	id, ok := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), "tidegate ")
	if !ok || id == "" {
		return "", fmt.Errorf("%s contains %q: it is corrupt; %s", path, text, restore)
	}
	return id, nil
}

// A Clock is the record of the wall clock.
type Clock struct {
	// At is the newest time that the broker trusted.
	At time.Time

	// Distrusted means that the broker did not trust the wall clock at that moment. Messages that
	// were stored afterwards can have wrong times.
	Distrusted bool
}

const clockVersion = 1

// PutClock writes the record of the wall clock: a version, Distrusted, and At in nanoseconds since
// 1970.
func (b *Batch) PutClock(c Clock) {
	v := []byte{clockVersion, 0}
	if c.Distrusted {
		v[1] = 1
	}
	must(b.pebble().Set([]byte{record.PrefixClock}, binary.BigEndian.AppendUint64(v, uint64(record.Nanos(c.At))), nil))
}

// Clock returns the record of the wall clock; false if there is none.
func (s *Store) Clock() (c Clock, ok bool, err error) {
	ok, err = s.read([]byte{record.PrefixClock}, func(v []byte) error {
		if len(v) != 10 || v[0] != clockVersion || v[1] > 1 {
			return fmt.Errorf("%w: the time of the wall clock has %d bytes, or another version than %d", record.ErrCorrupt, len(v), clockVersion)
		}
		c = Clock{At: time.Unix(0, int64(binary.BigEndian.Uint64(v[2:]))), Distrusted: v[1] == 1}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("reading the time of the wall clock: %w", err)
	}
	return c, ok, err
}
