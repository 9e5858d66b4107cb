package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Damaged is the error of stored messages that cannot be read because the disk returns other data
// than were written.
type Damaged struct {
	From, To int64 // offsets: the first, and after the last
	Err      error
}

// Error implements error.
func (d *Damaged) Error() string {
	return fmt.Sprintf("the messages at offsets %d to %d are corrupt: %v", d.From, d.To-1, d.Err)
}

// Unwrap returns the cause.
func (d *Damaged) Unwrap() error { return d.Err }

// maxDamaged is how many messages one Damaged names at most.
const maxDamaged = 256

// damagedFrom returns the Damaged of a queue with unreadable messages, beginning at offset from and
// ending before to. Nothing shows the content of a damaged block of keys, so it reads each offset.
func (s *Store) damagedFrom(topic uint32, queue uint16, from, to int64, cause error) error {
	damaged := func(offset int64) bool {
		_, _, err := s.Get(Place{Topic: topic, Queue: queue, Offset: offset})
		return IsDamage(err)
	}
	to = min(to, from+maxDamaged)
	d := &Damaged{From: from, To: from + 1, Err: cause}
	for d.From < to && !damaged(d.From) { // messages that were removed before are not damaged
		d.From++
	}
	if d.From == to { // it is not in a message
		d.From = from
		return d
	}
	for d.To = d.From + 1; d.To < to && damaged(d.To); {
		d.To++
	}
	return d
}

// cleanFile exists while the store is closed after an orderly close. It has the size and checksum
// of each file whose end Pebble accepts as it is. After a crash, logs and manifests can end
// anywhere, so a damaged end looks like an end that was never written. After an orderly close the
// two differ.
const cleanFile = "CLEAN"

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

// writeClean records an orderly close.
func (s *Store) writeClean() error {
	files, err := s.fingerprint()
	if err != nil {
		return err
	}
	return s.writeFile(cleanFile, formatSums(files))
}

// checkClean compares the files with their record of the last close, if it was orderly.
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
	return errors.Join(err, syncDir(s.fs, s.dir))
}

// writeFile writes a file of the store's own whole, or not at all.
func (s *Store) writeFile(name string, text []byte) error {
	return writeFile(s.fs, s.fs.PathJoin(s.dir, name), text)
}

// queueTable is how many messages a queue has from the first key of a table on, so that the table
// ends with the queue. With fewer, for example in a flush of 12 MiB with messages of 1 KiB of eight
// queues, the tables would be small.
const queueTable = 4096

// fewQueues is how many queues may receive messages, so that tables end with their queue. With 500
// queues they would be too small.
const fewQueues = 64

// tablePolicy has Pebble end a table at tableEnd.
func (s *Store) tablePolicy(first []byte) (pebble.SpanPolicy, []byte, error) {
	return pebble.SpanPolicy{}, tableEnd(first, s.tail.next), nil
}

// tableEnd returns the key at which a table of the messages database ends at the latest, from its
// first key. The offsets of a queue only grow, so a table with messages of one queue overlaps no
// older table, and a compaction moves it down without rewriting it. Together with tables of their
// own for messages and for other records, this halves the bytes that compactions rewrite while
// messages are sent. Pebble asks again only after the end, so a queue with few messages before the
// others takes this gain away. next returns the offset of the next message of a queue, if messages
// were sent to it and to few others recently. An empty end means no end.
func tableEnd(first []byte, next func(topic uint32, queue uint16) (int64, bool)) []byte {
	switch {
	case len(first) == 0 || first[0] > prefixMessage:
		return nil
	case first[0] < prefixMessage:
		return []byte{prefixMessage}
	case len(first) == messageKeyLen:
		p := splitMessageKey(first)
		if n, ok := next(p.Topic, p.Queue); ok && n-p.Offset >= queueTable {
			return prefixEnd(appendQueueKey(nil, p.Topic, p.Queue))
		}
	}
	return []byte{prefixMessage + 1}
}
