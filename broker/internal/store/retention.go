package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// PutMark writes where a queue begins.
func (b *Batch) PutMark(topic uint32, queue uint16, m Mark) {
	v := binary.BigEndian.AppendUint64(nil, uint64(m.Offset))
	v = binary.BigEndian.AppendUint64(v, uint64(m.Bytes))
	must(b.pebble().Set(appendMarkKey(nil, topic, queue), v, nil))
}

// PutLite writes the name of the lite topic that a queue has from now on; empty means none.
func (b *Batch) PutLite(topic uint32, queue uint16, name string) {
	must(b.pebble().Set(binary.BigEndian.AppendUint16(appendLitePrefix(topic), queue), []byte(name), nil))
}

func appendLitePrefix(topic uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{prefixLite}, topic)
}

// LiteTopics calls f with each queue of a topic that ever had a lite topic, in order, and with the
// name of that which it has now; empty means none.
func (s *Store) LiteTopics(topic uint32, f func(queue uint16, name string) error) error {
	p := appendLitePrefix(topic)
	return scanRange(s.messages, p, prefixEnd(p), func(k, v []byte) error {
		if len(k) != 1+4+2 {
			return fmt.Errorf("%w: the key of a lite topic", errCorrupt)
		}
		return f(binary.BigEndian.Uint16(k[5:]), string(v))
	})
}

// DeleteMessages removes messages.
func (b *Batch) DeleteMessages(r Range) {
	must(b.pebble().DeleteRange(appendMessageKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.From}), appendMessageKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.To}), nil))
}

// DeleteMessage removes one message.
func (b *Batch) DeleteMessage(p Place) { must(b.pebble().Delete(appendMessageKey(nil, p), nil)) }

// DeleteDeadLetterMarks removes the marks of MarkDeadLetter for messages.
func (b *Batch) DeleteDeadLetterMarks(group uint32, r Range) {
	must(b.pebble().DeleteRange(appendLeaseKey(nil, prefixDeadLetter, group, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.From}),
		appendLeaseKey(nil, prefixDeadLetter, group, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.To}), nil))
}

// PutSubscription notes that a group receives from a topic.
func (b *Batch) PutSubscription(group, topic uint32) {
	must(b.pebble().Set(appendGroupTopic(nil, prefixSubscription, group, topic), nil, nil))
}

// DeleteSubscriptionOfTopic removes the records of a group in a topic from the message log: its
// subscription, and the marks of its dead letters.
func (b *Batch) DeleteSubscriptionOfTopic(group, topic uint32) {
	must(b.pebble().Delete(appendGroupTopic(nil, prefixSubscription, group, topic), nil))
	p := appendGroupTopic(nil, prefixDeadLetter, group, topic)
	must(b.pebble().DeleteRange(p, prefixEnd(p), nil))
}

// Subscriptions calls f with every group and topic of PutSubscription.
func (s *Store) Subscriptions(f func(group, topic uint32) error) error {
	return scan(s.messages, prefixSubscription, func(k, _ []byte) error {
		if len(k) != 1+4+4 {
			return fmt.Errorf("%w: the key of a subscription", errCorrupt)
		}
		return f(binary.BigEndian.Uint32(k[1:]), binary.BigEndian.Uint32(k[5:]))
	})
}

// HasDeadLetterMarks reports whether a message of the topic was ever made a
// dead letter of the group, as far as that is still known.
func (s *Store) HasDeadLetterMarks(group, topic uint32) (bool, error) {
	p := appendGroupTopic(nil, prefixDeadLetter, group, topic)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: p, UpperBound: prefixEnd(p)})
	if err != nil {
		return false, fmt.Errorf("reading the marks of dead letters: %w", err)
	}
	defer it.Close()
	return it.First(), it.Error()
}

func (s *Store) mark(topic uint32, queue uint16) (Mark, error) {
	v, closer, err := s.messages.Get(appendMarkKey(nil, topic, queue))
	if errors.Is(err, pebble.ErrNotFound) {
		return Mark{}, nil
	}
	if err != nil {
		return Mark{}, err
	}
	defer closer.Close()
	return decodeMark(v)
}

// maxNeighbours is how far around a damaged message to look, on each side.
const maxNeighbours = 4096

// likeNeighbours returns a substitute for the fields of a corrupt message: those of the next
// readable message, or of the one before it, without a size. Times and Cumulative still grow along
// the queue then.
func (s *Store) likeNeighbours(p Place, damage error) (Stored, error) {
	for _, step := range []int64{1, -1} {
		for at := p.Offset + step; at >= 0 && (at-p.Offset)*step <= maxNeighbours; at += step {
			m, err := s.storedAt(Place{Topic: p.Topic, Queue: p.Queue, Offset: at})
			if err != nil {
				continue // damaged too, or not there
			}
			if step > 0 {
				m.Cumulative -= m.Size
			}
			m.Size = 0
			return m, nil
		}
	}
	return Stored{}, damage
}

func (s *Store) storedAt(p Place) (Stored, error) {
	v, closer, err := s.messages.Get(appendMessageKey(nil, p))
	if err != nil {
		return Stored{}, err
	}
	defer closer.Close()
	return decodeStored(v)
}

// FirstIn returns the fields of the first message in a range, and false if there is none.
func (s *Store) FirstIn(r Range) (m Stored, ok bool, err error) {
	return s.stored(r, (*pebble.Iterator).First)
}

// LastIn is FirstIn for the last message.
func (s *Store) LastIn(r Range) (m Stored, ok bool, err error) {
	return s.stored(r, (*pebble.Iterator).Last)
}

func (s *Store) stored(r Range, seek func(*pebble.Iterator) bool) (m Stored, ok bool, err error) {
	it, err := s.messageIter(r.Topic, r.Queue, r.From, r.To)
	if err != nil {
		return m, false, err
	}
	defer it.Close()
	if !seek(it) {
		return m, false, it.Error()
	}
	v, err := it.ValueAndErr()
	if err == nil {
		m, err = decodeStored(v)
	}
	if IsDamage(err) {
		m, err = s.likeNeighbours(Place{Topic: r.Topic, Queue: r.Queue, Offset: messageOffset(it.Key())}, err)
	}
	if err != nil {
		return m, false, fmt.Errorf("reading the message at offset %d of queue %d: %w", messageOffset(it.Key()), r.Queue, err)
	}
	return m, true, nil
}

// Gaps returns how many messages of a range were removed from between the
// others, and the bytes of their bodies, of bytes that all of the range had.
func (s *Store) Gaps(r Range, bytes int64) (Removed, error) {
	it, err := s.messageIter(r.Topic, r.Queue, r.From, r.To)
	if err != nil {
		return Removed{}, err
	}
	defer it.Close()
	gaps := Removed{Messages: r.To - r.From, Bytes: bytes}
	for ok := it.First(); ok; ok = it.Next() {
		_, size, _, err := headerAt(it)
		if err != nil && !IsDamage(err) {
			return Removed{}, err
		}
		gaps.Messages--
		gaps.Bytes -= size
	}
	return gaps, it.Error()
}

// Live sums the bytes of the bodies that a range still has, from its first message on, until that
// is enough. It returns the sum, and the offset after the last message that is in it.
func (s *Store) Live(r Range, enough int64) (bytes, next int64, err error) {
	it, err := s.messageIter(r.Topic, r.Queue, r.From, r.To)
	if err != nil {
		return 0, r.From, err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		_, size, offset, err := headerAt(it)
		if err != nil && !IsDamage(err) {
			return 0, r.From, err
		}
		if bytes += size; bytes >= enough {
			return bytes, offset + 1, nil
		}
	}
	return bytes, r.To, it.Error()
}

// FirstThat returns the offset of the first message in r for which f is true, or r.To. f must be
// false before some message and true from there on. It reads few messages, near r.From first. The
// next message replaces a removed one.
func (s *Store) FirstThat(r Range, f func(Stored) bool) (int64, error) {
	var failure error
	is := func(offset int64) bool {
		if failure != nil {
			return true
		}
		st, ok, err := s.FirstIn(Range{Topic: r.Topic, Queue: r.Queue, From: offset, To: r.To})
		failure = err
		return !ok || f(st)
	}
	step := int64(1)
	for r.From < r.To {
		at := min(r.From+step, r.To) - 1
		if is(at) {
			r.To = at
			break
		}
		r.From = at + 1
		step *= 2
	}
	n := sort.Search(int(r.To-r.From), func(i int) bool { return is(r.From + int64(i)) })
	return r.From + int64(n), failure
}

// A PendingKind is a kind of messages that are in no queue yet. The zero value is none.
type PendingKind uint8

// Messages that wait for their delivery time, or for the end of their transaction.
const (
	DelayedMessages PendingKind = 1 << iota
	HalfMessages
)

// Reclaim frees the disk space of messages that were removed: in the ranges of queues, in the
// queues of whole topics, and of those in no queue. It takes as long as rewriting the remaining
// data in the same files. The end of ctx stops it.
func (s *Store) Reclaim(ctx context.Context, ranges []Range, topics []uint32, pending PendingKind) error {
	for kind, prefix := range map[PendingKind]byte{DelayedMessages: prefixDelayed, HalfMessages: prefixHalf} {
		if pending&kind == 0 {
			continue
		}
		if err := s.messages.Compact(ctx, []byte{prefix}, []byte{prefix + 1}, false); err != nil {
			return fmt.Errorf("freeing disk space: %w", err)
		}
	}
	for _, r := range ranges {
		from, to := appendMessageKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.From}), appendMessageKey(nil, Place{Topic: r.Topic, Queue: r.Queue, Offset: r.To})
		if err := s.messages.Compact(ctx, from, to, false); err != nil {
			return fmt.Errorf("freeing disk space: %w", err)
		}
	}
	for _, t := range topics {
		p := binary.BigEndian.AppendUint32([]byte{prefixMessage}, t)
		if err := s.messages.Compact(ctx, p, prefixEnd(p), false); err != nil {
			return fmt.Errorf("freeing disk space: %w", err)
		}
	}
	return nil
}

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
