package store

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// DiskFull returns the state of the disk if it is full, and nil otherwise. While it is full,
// callers should reject writes that can wait, so that the remaining space is available for the
// progress of groups. The state ends when space is free again.
func (s *Store) DiskFull() *DiskFull {
	if s.room == nil {
		return nil
	}
	return s.room.Full()
}

// StopWaiting ends all waits for space on a full disk, for example before Close. A write that finds
// neither space nor the ballast then breaks the store and returns the error.
func (s *Store) StopWaiting() {
	if s.room != nil {
		s.room.StopWaiting()
	}
}

// A full disk and the next start: opening a database writes the content of its logs to tables, and
// removes the logs at its end. If the process is killed in between, each further start would write
// these tables again, beside those of the start before it, until the reserve is used up. So a start
// that needs the ballast or the reserve records the state of the directory before it, and the next
// start removes the tables that no manifest names.

// startRecord returns the content of StartFile: for each database its manifest, the size of the
// manifest, and the highest number of a file. It is nil if a manifest cannot be read.
func (s *Store) startRecord() []byte {
	lines := map[string]string{}
	for _, db := range []string{messagesDir, groupsDir} {
		line, _, err := s.manifestState(db)
		if err != nil {
			return nil
		}
		lines[db] = line
	}
	return formatSums(lines)
}

const startFormat = "%s %d %d"

// manifestState returns the line of a database in StartFile, and its files.
func (s *Store) manifestState(db string) (line string, names []string, err error) {
	dir := s.fs.PathJoin(s.dir, db)
	names, err = s.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	manifest := currentManifest(names)
	if manifest == "" {
		return "", names, nil
	}
	info, err := s.fs.Stat(s.fs.PathJoin(dir, manifest))
	if err != nil {
		return "", nil, err
	}
	last := int64(0)
	for _, name := range names {
		last = max(last, fileNumber(name))
	}
	return fmt.Sprintf(startFormat, manifest, info.Size(), last), names, nil
}

// fileNumber returns the number of a file of a database, 0 if it has none. All files of a database
// have numbers from one sequence.
func fileNumber(name string) int64 {
	name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, manifestPrefix), "OPTIONS-"), ".")
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// removeUnfinished removes the tables that an interrupted start has written and no manifest names:
// the manifest is the one that the start found, and the tables are newer than all files then.
func (s *Store) removeUnfinished() error {
	path := s.fs.PathJoin(s.dir, startFile)
	text, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lines, ok := parseSums(text)
	if !ok {
		return nil // it was not written whole
	}
	for _, db := range []string{messagesDir, groupsDir} {
		var manifest, current string
		var size, now, last int64
		if _, err := fmt.Sscanf(lines[db], startFormat, &manifest, &size, &last); err != nil {
			continue // the database was new
		}
		line, names, err := s.manifestState(db)
		if err != nil {
			return err
		}
		if _, err := fmt.Sscanf(line, startFormat, &current, &now, new(int64)); err != nil || current != manifest || now != size {
			continue
		}
		var files vfs.FS = s.fs
		if db == messagesDir {
			files = blobFS{FS: s.fs, Damage: s.damage, Notes: s.values}
		}
		for _, name := range names {
			if isTable(name) && fileNumber(name) > last {
				if err := files.Remove(s.fs.PathJoin(s.dir, db, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// explainFull adds the state of the disk and the remedy to an error of a start without space.
func (s *Store) explainFull(err error) error {
	need := int64(1 << 20)
	for _, db := range []string{messagesDir, groupsDir} {
		names, _ := s.fs.List(s.fs.PathJoin(s.dir, db))
		for _, name := range names {
			if info, err := s.fs.Stat(s.fs.PathJoin(s.dir, db, name)); err == nil && strings.HasSuffix(name, ".log") {
				need += info.Size()
			}
		}
	}
	state := ""
	if _, free, known := s.room.Space(); known {
		state = fmt.Sprintf(": %d bytes are free, and this start needs at most %d", free, need)
	}
	return fmt.Errorf("the disk of the directory is full%s; remove other files from the disk, or enlarge it, then start the broker again; "+
		"remove no file of the directory, because it has the stored messages: %w", state, err)
}

// A scheduler admits Pebble's compactions when Pebble asks for one and when one ends. Pebble's
// own scheduler also looks every 100 ms, which in virtual time would be all that a test
// does. Pebble asks after each flush, so a store in memory or on the files of a test needs no more.
//
// Pebble calls TrySchedule with its mutex held, and the methods of db take that mutex. So no
// method holds mu while it calls db, except for GetAllowedWithoutPermission, which takes none.
type scheduler struct {
	db pebble.DBForCompaction // set by Register, before all other calls

	mu      sync.Mutex
	running int  // guarded by mu: compactions admitted that have not ended
	closed  bool // guarded by mu

	grants sync.WaitGroup // calls of grant; none is added once closed is true
}

// Register notes the database. Pebble calls it once.
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) { s.db = db }

// Unregister ends admission and waits for the calls of the database's methods.
func (s *scheduler) Unregister() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.grants.Wait()
}

// TrySchedule admits a compaction unless as many run as the database allows.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !s.admit() {
		return false, nil
	}
	return true, s
}

// UpdateGetAllowedWithoutPermission does nothing: Pebble asks again after a flush.
func (s *scheduler) UpdateGetAllowedWithoutPermission() {}

// Done ends an admitted compaction, and admits the next ones.
func (s *scheduler) Done() {
	s.mu.Lock()
	s.running--
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.grants.Add(1)
	s.mu.Unlock()
	defer s.grants.Done()
	for s.admit() {
		if waiting, _ := s.db.GetWaitingCompaction(); waiting && s.db.Schedule(s) {
			continue
		}
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
		return
	}
}

// admit counts a compaction as running if there may be one more.
func (s *scheduler) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= s.db.GetAllowedWithoutPermission() {
		return false
	}
	s.running++
	return true
}

// Started, MeasureCPU and CumulativeStats report the use of a grant, which changes nothing here.
func (s *scheduler) Started() {}

// MeasureCPU does nothing, see Started.
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats does nothing, see Started.
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
