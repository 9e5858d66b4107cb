package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Read returns up to limit messages of a queue whose offsets are at least from and below to: the
// first of them, and then as many as have maxBytes of bodies together. offsets has the offset of
// each. It ends before corrupt messages. If the first message is corrupt, the error is a *Damaged.
func (s *Store) Read(topic uint32, queue uint16, from, to int64, limit int, maxBytes int64) (ms []Message, offsets []int64, err error) {
	if ms, offsets = s.tail.read(topic, queue, from, to, limit, maxBytes); len(ms) > 0 {
		return ms, offsets, nil
	}
	ms, offsets, err = s.readQueue(topic, queue, from, to, limit, maxBytes)
	if !IsDamage(err) {
		return ms, offsets, err
	}
	if len(ms) > 0 {
		return ms, offsets, nil // the next call begins with the corrupt message
	}
	if m, ok, gerr := s.Get(Place{Topic: topic, Queue: queue, Offset: from}); ok && gerr == nil {
		return []Message{m}, []int64{from}, nil // something else on the way is damaged
	}
	return nil, nil, s.damagedFrom(topic, queue, from, to, err)
}

func (s *Store) readQueue(topic uint32, queue uint16, from, to int64, limit int, maxBytes int64) (ms []Message, offsets []int64, err error) {
	lower := appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: from})
	upper := appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: to})
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, nil, fmt.Errorf("reading messages: %w", err)
	}
	defer it.Close()
	most := min(int64(limit), to-from)
	ms, offsets = make([]Message, 0, most), make([]int64, 0, most)
	for ok := it.First(); ok && len(ms) < limit && (len(ms) == 0 || maxBytes > 0); ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return ms, offsets, fmt.Errorf("reading messages: %w", err)
		}
		ms = append(ms, Message{}) // decoded in place: a copy has twenty words
		m := &ms[len(ms)-1]
		if err := decodeMessage(v, m); err != nil {
			return ms[:len(ms)-1], offsets, fmt.Errorf("reading the message at offset %d: %w", messageOffset(it.Key()), err)
		}
		maxBytes -= int64(len(m.Body))
		offsets = append(offsets, messageOffset(it.Key()))
	}
	if err := it.Error(); err != nil {
		return ms, offsets, fmt.Errorf("reading messages: %w", err)
	}
	return ms, offsets, nil
}

// Get returns one message, and false if there is none at that place.
func (s *Store) Get(p Place) (Message, bool, error) { return s.message(p, decodeMessage) }

// Header is Get without the body.
func (s *Store) Header(p Place) (Message, bool, error) {
	return s.message(p, func(v []byte, m *Message) error {
		_, err := decodeHeader(v, m)
		return err
	})
}

func (s *Store) message(p Place, decode func([]byte, *Message) error) (Message, bool, error) {
	var m Message
	v, closer, err := s.messages.Get(appendMessageKey(nil, p))
	if errors.Is(err, pebble.ErrNotFound) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("reading the message at offset %d: %w", p.Offset, err)
	}
	defer closer.Close()
	if err := decode(v, &m); err != nil {
		return m, false, fmt.Errorf("reading the message at offset %d: %w", p.Offset, err)
	}
	return m, true, nil
}

// A Reader is Get for several messages of a topic that consumers may see. It looks among the newest
// messages in memory first. In the database it costs less for ascending offsets of a queue, because
// it continues at the message before. It sees the messages that were stored when its second read
// began. It must be closed, and not be used by several goroutines at once.
type Reader struct {
	store *Store
	topic uint32
	reads int              // of the database
	it    *pebble.Iterator // nil before the second read
	key   []byte
}

// Reader returns a reader of a topic's messages. It holds nothing before the second read of the
// database.
func (s *Store) Reader(topic uint32) Reader { return Reader{store: s, topic: topic} }

// Get is [Store.Get]. The place is one of the reader's topic.
func (r *Reader) Get(p Place) (m Message, ok bool, err error) {
	if ms, _ := r.store.tail.read(p.Topic, p.Queue, p.Offset, p.Offset+1, 1, 1); len(ms) == 1 {
		return ms[0], true, nil
	}
	if r.reads++; r.reads == 1 {
		return r.store.Get(p)
	}
	if r.it == nil {
		lower := appendTopicKey(nil, r.topic)
		if r.it, err = r.store.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(lower)}); err != nil {
			return m, false, fmt.Errorf("reading messages: %w", err)
		}
	}
	r.key = appendMessageKey(r.key[:0], p)
	if r.it.SeekGE(r.key) && bytes.Equal(r.it.Key(), r.key) {
		if v, verr := r.it.ValueAndErr(); verr == nil && decodeMessage(v, &m) == nil {
			return m, true, nil
		}
	}
	// Damage at one message can end the iterator at others, without an error: only Get knows.
	return r.store.Get(p)
}

// Close ends the reader. It may be used again afterwards.
func (r *Reader) Close() {
	if r.it != nil {
		_ = r.it.Close() // its errors were those of Get
		r.it, r.reads = nil, 0
	}
}

// QueueState is the state of a queue according to its stored messages.
type QueueState struct {
	First     Mark             // where it begins
	End       Mark             // after its last message; First if it is empty
	Newest    time.Time        // when its last message was stored; zero if it is empty
	Leftovers map[int64]Stored // remaining messages before First, by offset
	Removed   Removed          // of those from First on
}

// Queue returns the state of a queue.
func (s *Store) Queue(topic uint32, queue uint16) (QueueState, error) {
	var q QueueState
	var err error
	if q.First, err = s.mark(topic, queue); err != nil {
		return q, fmt.Errorf("reading the first offset of queue %d: %w", queue, err)
	}
	q.End = q.First
	lower := appendQueueKey(nil, topic, queue)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(lower)})
	if err != nil {
		return q, err
	}
	defer it.Close()
	read := func() (int64, Stored, error) {
		offset := messageOffset(it.Key())
		v, err := it.ValueAndErr()
		var m Stored
		if err == nil {
			m, err = decodeStored(v)
		}
		if err != nil {
			return 0, m, fmt.Errorf("reading the message at offset %d of queue %d: %w", offset, queue, err)
		}
		return offset, m, nil
	}
	for ok := it.First(); ok && messageOffset(it.Key()) < q.First.Offset; ok = it.Next() {
		offset, m, err := read()
		if err != nil {
			return q, err
		}
		if q.Leftovers == nil {
			q.Leftovers = map[int64]Stored{}
		}
		q.Leftovers[offset] = m
	}
	if it.Last() {
		offset, m, err := read()
		if err != nil {
			return q, err
		}
		if offset >= q.First.Offset {
			q.End = Mark{Offset: offset + 1, Bytes: m.Cumulative}
		}
		q.Newest = m.At
	}
	if err := it.Error(); err != nil {
		return q, err
	}
	err = s.readRemoved(topic, queue, &q)
	return q, err
}

// readRemoved adds to q the messages that were removed from its middle and its end.
func (s *Store) readRemoved(topic uint32, queue uint16, q *QueueState) error {
	k := appendQueueKey(nil, topic, queue)
	k[0] = prefixRemoved
	v, closer, err := s.messages.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the removed messages of queue %d: %w", queue, err)
	}
	defer closer.Close()
	if q.Removed, err = decodeRemoved(v); err != nil {
		return err
	}
	if q.Removed.End >= q.End.Offset { // the last ones are among them
		q.End = Mark{Offset: q.Removed.End, Bytes: max(q.End.Bytes, q.Removed.Sum)}
	}
	return nil
}

// NewestIDs calls f with the IDs of the messages of a range, and when they were
// stored, the last one first, until f returns false.
func (s *Store) NewestIDs(r Range, f func(id string, offset int64, at time.Time) bool) error {
	it, err := s.messageIter(r.Topic, r.Queue, r.From, r.To)
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		offset := messageOffset(it.Key())
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("reading messages: %w", err)
		}
		id, at, err := decodeID(v)
		if err != nil {
			return fmt.Errorf("reading the message at offset %d of queue %d: %w", offset, r.Queue, err)
		}
		if !f(id, offset, at) {
			break
		}
	}
	return it.Error()
}

// IsDeadLetter reports whether the message was made a dead letter of the group
// since it was rewound to before it.
func (s *Store) IsDeadLetter(group uint32, p Place, rewound int64) (bool, error) {
	v, closer, err := s.messages.Get(appendLeaseKey(nil, prefixDeadLetter, group, p))
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the mark of a dead letter: %w", err)
	}
	defer closer.Close()
	if len(v) != 8 {
		return false, fmt.Errorf("%w: the mark of a dead letter has %d bytes, not 8", errCorrupt, len(v))
	}
	return int64(binary.BigEndian.Uint64(v)) >= rewound, nil
}

// Topics calls f with the name and settings of each topic.
func (s *Store) Topics(f func(name string, v []byte) error) error {
	return s.settings(prefixTopic, f)
}

// AllGroups calls f with the name and settings of each group.
func (s *Store) AllGroups(f func(name string, v []byte) error) error {
	return s.settings(prefixGroup, f)
}

// AddressSettings calls f with each pattern and its address settings.
func (s *Store) AddressSettings(f func(match string, v []byte) error) error {
	return s.settings(prefixAddress, f)
}

func (s *Store) settings(prefix byte, f func(name string, v []byte) error) error {
	return scan(s.messages, prefix, func(k, v []byte) error { return f(string(k[1:]), v) })
}

// LastNumber returns the last number given to a topic or group.
func (s *Store) LastNumber() (uint32, error) {
	v, closer, err := s.messages.Get([]byte{prefixNumber})
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	if len(v) != 4 {
		return 0, fmt.Errorf("%w: the last number has %d bytes", errCorrupt, len(v))
	}
	return binary.BigEndian.Uint32(v), nil
}

// Limits returns the value of PutLimits, and nil if there is none.
func (s *Store) Limits() ([]byte, error) {
	v, closer, err := s.messages.Get([]byte{prefixLimits})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return slices.Clone(v), nil
}

// Cursors calls f with every cursor.
func (s *Store) Cursors(f func(group, topic uint32, queue uint16, c Cursor) error) error {
	return scan(s.groups, prefixCursor, func(k, v []byte) error {
		g, t, q, ok := splitCursorKey(k)
		if !ok || len(k) != cursorKeyLen {
			return fmt.Errorf("%w: the key of a cursor", errCorrupt)
		}
		c, err := decodeCursor(v)
		if err != nil {
			return err
		}
		return f(g, t, q, c)
	})
}

// Leases calls f with every lease, by queue and offset.
func (s *Store) Leases(f func(group uint32, p Place, l Lease) error) error {
	return scan(s.groups, prefixLease, func(k, v []byte) error {
		g, p, ok := splitLeaseKey(k)
		if !ok {
			return fmt.Errorf("%w: the key of a lease", errCorrupt)
		}
		var l Lease
		if err := decodeLease(v, &l); err != nil {
			return fmt.Errorf("the lease of offset %d: %w", p.Offset, err)
		}
		return f(g, p, l)
	})
}

func scan(db *pebble.DB, prefix byte, f func(k, v []byte) error) error {
	return scanRange(db, []byte{prefix}, []byte{prefix + 1}, f)
}

// scanRange is scan for the keys from one on and before another one.
func scanRange(db *pebble.DB, from, to []byte, f func(k, v []byte) error) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := f(it.Key(), v); err != nil {
			return err
		}
	}
	return it.Error()
}

// BytesBefore returns the size of the bodies of a queue before an offset, from its beginning on. It
// returns false if there is no message from the offset on; then all messages that the queue ever
// had are before it.
func (s *Store) BytesBefore(topic uint32, queue uint16, offset int64) (int64, bool, error) {
	lower := appendQueueKey(nil, topic, queue)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(lower)})
	if err != nil {
		return 0, false, fmt.Errorf("reading messages: %w", err)
	}
	defer it.Close()
	key := appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: offset})
	if it.SeekGE(key) {
		m, size, at, err := headerAt(it)
		if IsDamage(err) {
			near, err := s.likeNeighbours(Place{Topic: topic, Queue: queue, Offset: at}, err)
			return near.Cumulative, err == nil, err
		}
		return m.Cumulative - size, err == nil, err
	}
	if err := it.Error(); err != nil {
		return 0, false, fmt.Errorf("reading messages: %w", err)
	}
	return 0, false, nil
}

func (s *Store) messageIter(topic uint32, queue uint16, from, to int64) (*pebble.Iterator, error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{
		LowerBound: appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: from}), UpperBound: appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: to}),
	})
	if err != nil {
		return nil, fmt.Errorf("reading messages: %w", err)
	}
	return it, nil
}

// headerAt decodes the message at the position of an iterator without its body, and returns the
// size of the body.
func headerAt(it *pebble.Iterator) (m Message, size, offset int64, err error) {
	offset = messageOffset(it.Key())
	v, err := it.ValueAndErr()
	if err == nil {
		var body []byte
		body, err = decodeHeader(v, &m)
		size = int64(len(body))
	}
	if err != nil {
		return m, 0, offset, fmt.Errorf("reading the message at offset %d: %w", offset, err)
	}
	return m, size, offset, nil
}

// PutRemoved writes that. It goes with every DeleteMessage.
func (b *Batch) PutRemoved(topic uint32, queue uint16, r Removed) {
	k := appendQueueKey(nil, topic, queue)
	k[0] = prefixRemoved
	v := make([]byte, 0, 32)
	for _, n := range [...]int64{r.Messages, r.Bytes, r.End, r.Sum} {
		v = binary.BigEndian.AppendUint64(v, uint64(n))
	}
	must(b.pebble().Set(k, v, nil))
}

// A Header is a stored message without its body.
type Header struct {
	Message
	Offset int64
	Size   int64 // of the body, in bytes
}

// Headers returns up to limit messages of a range without their bodies: the first ones, or with
// backward the last ones, the last one first. It ends after maxBytes of bodies, but not before the
// first message. It skips corrupt messages and returns their number; if it cannot find the next
// message because of damage, it returns an error.
func (s *Store) Headers(r Range, backward bool, limit int, maxBytes int64) (hs []Header, damaged int64, err error) {
	it, err := s.messageIter(r.Topic, r.Queue, r.From, r.To)
	if err != nil {
		return nil, 0, err
	}
	defer it.Close()
	first, next := (*pebble.Iterator).First, (*pebble.Iterator).Next
	if backward {
		first, next = (*pebble.Iterator).Last, (*pebble.Iterator).Prev
	}
	for ok := first(it); ok && len(hs) < limit && (len(hs) == 0 || maxBytes > 0); ok = next(it) {
		m, size, offset, err := headerAt(it)
		if IsDamage(err) {
			damaged++
			continue
		}
		if err != nil {
			return hs, damaged, err
		}
		hs = append(hs, Header{Message: m, Offset: offset, Size: size})
		maxBytes -= size
	}
	if err := it.Error(); err != nil {
		return hs, damaged, fmt.Errorf("reading messages: %w", err)
	}
	return hs, damaged, nil
}

// PutWaiting writes the counts of waiting messages. Each change writes them, so that opening the
// store needs no count.
func (b *Batch) PutWaiting(topic uint32, n Waiting) {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 16), uint64(n.Messages))
	must(b.pebble().Set(binary.BigEndian.AppendUint32([]byte{prefixWaiting}, topic), binary.BigEndian.AppendUint64(v, uint64(n.Bytes)), nil))
}

// Waiting calls f with the counts of waiting messages of every topic.
func (s *Store) Waiting(f func(topic uint32, n Waiting) error) error {
	return scan(s.messages, prefixWaiting, func(k, v []byte) error {
		topic, n, err := decodeWaiting(k, v)
		if err != nil {
			return err
		}
		return f(topic, n)
	})
}

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
