package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// partSuffix ends the name of a snapshot that is not complete.
const partSuffix = ".part"

// Snapshot writes a copy of the store to a new directory, which Open opens like one that was closed
// in order. Both databases are copied as they are at one moment, with all writes that were
// acknowledged before the call. The directory must be on the file system of the store, because the
// copy has links to its tables. Writes wait while the logs are copied. One call at a time is
// allowed.
func (s *Store) Snapshot(ctx context.Context, dir string) error {
	if s.room == nil {
		return errors.New("the store is in memory; a snapshot needs a data directory")
	}
	if d := s.room.Full(); d != nil {
		return fmt.Errorf("the disk is full; free %d bytes", d.Missing)
	}
	if _, err := s.fs.Stat(dir); err == nil {
		return fmt.Errorf("%s exists; give a new directory", dir)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := dir + partSuffix
	if err := s.fs.RemoveAll(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.writeSnapshot(ctx, part); err != nil {
		return errors.Join(explain(err), s.fs.RemoveAll(part))
	}
	if err := s.fs.Rename(part, dir); err != nil {
		return errors.Join(explain(err), s.fs.RemoveAll(part))
	}
	return syncDir(s.fs, s.fs.PathDir(dir))
}

// writeSnapshot writes all files of a snapshot.
func (s *Store) writeSnapshot(ctx context.Context, dir string) error {
	c := &Store{fs: s.fs, dir: dir}
	if err := c.makeDir(); err != nil {
		return err
	}
	format := s.fs.PathJoin(s.dir, formatFile)
	if err := s.fs.Link(format, s.fs.PathJoin(dir, formatFile)); err != nil {
		return fmt.Errorf("a file of %s cannot be linked; a snapshot must be in a directory of the same file system: %w", s.dir, err)
	}
	// Without them the logs are short, and writes wait for a short time.
	for _, db := range []*pebble.DB{s.messages, s.groups} {
		if err := db.Flush(); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := s.copyDatabases(dir); err != nil {
		return err
	}
	return s.completeSnapshot(c)
}

// copyDatabases copies both databases as they are at one moment. Messages are paused first: a write
// to the groups follows the messages that it depends on.
func (s *Store) copyDatabases(dir string) error {
	s.Messages.pause()
	defer s.Messages.resume()
	s.Groups.pause()
	defer s.Groups.resume()
	if err := s.Broken(); err != nil {
		return err
	}
	return errors.Join(
		s.messages.Checkpoint(s.fs.PathJoin(dir, messagesDir), pebble.WithFlushedWAL()),
		s.groups.Checkpoint(s.fs.PathJoin(dir, groupsDir), pebble.WithFlushedWAL()))
}

// completeSnapshot adds the store's own files to a snapshot.
func (s *Store) completeSnapshot(c *Store) error {
	id, err := s.readIdentity(identityFile)
	if err != nil {
		return err
	}
	if err := c.writeIdentity(id); err != nil {
		return err
	}
	for _, db := range []string{messagesDir, groupsDir} {
		if err := c.writeKnown(db); err != nil {
			return err
		}
	}
	if _, _, err := readValues(c.fs, c.fs.PathJoin(c.dir, valuesFile), c.fs.PathJoin(c.dir, messagesDir)); err != nil {
		return err
	}
	damaged, err := readFile(s.fs, s.fs.PathJoin(s.dir, damagedFile))
	if err == nil {
		err = c.writeFile(damagedFile, damaged)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, c.writeClean())
}

// writeKnown records the manifest of a database that nothing writes to.
func (s *Store) writeKnown(db string) error {
	names, err := s.fs.List(s.fs.PathJoin(s.dir, db))
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(name, manifestPrefix) {
			n, sum, err := s.checksum(s.fs.PathJoin(s.dir, db, name))
			if err != nil {
				return err
			}
			sums[name] = sumLine(n, sum)
		}
	}
	return s.writeFile(knownPrefix+db, formatSums(sums))
}
