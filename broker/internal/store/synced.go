package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncedPrefix and the name of a database are the name of the file with the lengths of the
// database's logs and manifests on disk.
const syncedPrefix = "SYNCED."

// acceptable is the remedy in errors about missing data that Options.AcceptLoss accepts.
const acceptable = "restore the whole data directory from a backup, give another directory, or accept the loss: start the broker once with --accept-data-loss"

// A Lost is the error of a directory in which data is missing that was on disk, while the rest can
// be opened.
type Lost struct{ Err error }

// Error implements error.
func (l *Lost) Error() string { return fmt.Sprintf("%v; %s", l.Err, acceptable) }

// Unwrap returns the cause.
func (l *Lost) Unwrap() error { return l.Err }

// accept returns err, or logs it and returns nil if it is a *Lost that the options accept.
func (s *Store) accept(o Options, err error) error {
	lost, ok := errors.AsType[*Lost](err)
	if !ok || !o.AcceptLoss {
		return err
	}
	s.logger.Error("the data directory is opened although data is missing", "directory", s.dir, "error", lost.Err)
	return nil
}

// A syncedFiles has the synced bytes of a database, by their record.
type syncedFiles struct {
	files  []syncedFile
	number uint64
}

// checkSynced compares the logs of both databases, and the files of values, with their records,
// before anything is changed.
func (s *Store) checkSynced(o Options) (map[string]syncedFiles, error) {
	known := map[string]syncedFiles{}
	var lost []error
	for _, db := range []string{messagesDir, groupsDir} {
		files, number, err := readSynced(s.fs, s.fs.PathJoin(s.dir, syncedPrefix+db))
		if err != nil {
			return nil, err
		}
		shortened, err := checkSynced(s.fs, s.fs.PathJoin(s.dir, db), files)
		if err != nil {
			return nil, err
		}
		for _, f := range shortened {
			lost = append(lost, f)
			files = slices.DeleteFunc(files, func(k syncedFile) bool { return k.Name == s.fs.PathBase(f.Path) })
		}
		known[db] = syncedFiles{files, number}
	}
	notes, values, err := readValues(s.fs, s.fs.PathJoin(s.dir, valuesFile), s.fs.PathJoin(s.dir, messagesDir))
	if err != nil {
		return nil, err
	}
	s.values = notes
	for _, f := range values {
		lost = append(lost, f)
	}
	if lost == nil {
		return known, nil
	}
	if err := s.accept(o, &Lost{errors.Join(lost...)}); err != nil {
		return nil, err
	}
	for _, f := range values {
		if err := s.replaceValues(f); err != nil {
			return nil, err
		}
	}
	return known, nil
}

// replaceValues lets the store be opened without a file of values. An empty file has its place:
// Pebble reports a file without a footer as corrupt, and panics if there is none.
func (s *Store) replaceValues(f *shortened) error {
	s.damage.Found(f.Path, f)
	if err := writeFile(s.fs, f.Path, nil); err != nil {
		return err
	}
	return s.values.Lose(f.Path)
}

// databaseFS returns the file system of a database.
func (s *Store) databaseFS(db string, known syncedFiles) (vfs.FS, error) {
	if s.room == nil {
		return logSyncFS{FS: s.fs}, nil
	}
	notes, err := openSynced(s.fs, s.fs.PathJoin(s.dir, syncedPrefix+db), known.files, known.number, s.logger)
	if err != nil {
		return nil, err
	}
	s.synced = append(s.synced, notes)
	dir := s.fs.PathJoin(s.dir, db)
	fs := newKnownFS(s.fs, dir, s.fs.PathJoin(s.dir, knownPrefix+db), s.noted[db])
	return logSyncFS{FS: syncedFS{FS: fs, Dir: dir, Notes: notes}}, nil
}

// checkPositions compares each database with the position that the other one has of it, and has
// each log record the position of the other. A database that ends before that position is an older
// copy.
func (s *Store) checkPositions(o Options) error {
	if s.room == nil {
		return nil
	}
	for _, pair := range [][2]*Log{{s.Messages, s.Groups}, {s.Groups, s.Messages}} {
		l, other := pair[0], pair[1]
		known, err := other.otherPosition()
		if err != nil {
			return err
		}
		end, err := l.end()
		if err != nil {
			return err
		}
		if end >= known {
			continue
		}
		err = s.accept(o, &Lost{fmt.Errorf("%s ends at position %d, but %s was written when it had reached %d: it is an older copy, or a copy of a directory in use, "+
			"and its last %d writes are missing", l.name, end, other.name, known, known-end)})
		if err != nil {
			return err
		}
		if err := other.Add(func(b *Batch) { b.putOtherPosition(end) }, nil).Wait(); err != nil {
			return err
		}
	}
	s.Messages.other.Store(s.Groups)
	s.Groups.other.Store(s.Messages)
	return nil
}

// otherPosition returns the position of the other database that this one has.
func (l *Log) otherPosition() (uint64, error) {
	v, closer, err := l.db.Get([]byte{prefixOther})
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: the position of the other database has %d bytes, not 8", errCorrupt, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

// putOtherPosition writes the position of the other database.
func (b *Batch) putOtherPosition(n uint64) {
	must(b.pebble().Set([]byte{prefixOther}, binary.BigEndian.AppendUint64(nil, n), nil))
}

// end returns the position after the last write of the database.
func (l *Log) end() (uint64, error) {
	b := l.db.NewBatch()
	defer b.Close()
	must(b.LogData(nil, nil)) // takes no position
	if err := l.db.Apply(b, pebble.NoSync); err != nil {
		return 0, fmt.Errorf("writing to %s: %w", l.name, err)
	}
	return uint64(b.SeqNum()), nil
}

// noteOther adds the position of the other database to a batch, if it has changed. Only run calls
// it.
func (l *Log) noteOther(b *pebble.Batch) {
	other := l.other.Load()
	if other == nil || b.Empty() {
		return
	}
	if p := other.position.Load(); p > l.noted {
		(*Batch)(b).putOtherPosition(p)
		l.noted = p
	}
}
