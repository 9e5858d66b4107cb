package spool

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
)

// segmentBytes is the size from which a segment gets a successor. A larger MaxBytes has larger
// segments, so that there are about 64 of them.
const segmentBytes = 16 << 20

// A segment is a file of the log.
type segment struct {
	number  uint64
	file    file
	size    int64
	head    int64 // bytes of its first record, which begins it; 0 if it has none
	live    int64 // bytes of records with an entry; the index counts them
	damaged bool  // it is never removed, only renamed
	sealed  bool  // it has an end record

	readers int  // guarded by Spool.mu, as is removed
	removed bool // the last reader closes the file
}

func segmentName(n uint64) string { return fmt.Sprintf("%016x.log", n) }

// A segmentLog is the log on disk. One goroutine at a time uses it, except for the segments' files.
type segmentLog struct {
	disk     disk
	segments []*segment // by number
	synced   synced
	file     file  // of synced
	most     int64 // size from which a segment gets a successor
	torn     bool  // the last segment has bytes behind its size
	next     func() uint64
}

func (l *segmentLog) active() *segment { return l.segments[len(l.segments)-1] }

// create starts the log. The note of the synced bytes comes first, so that a crash during the
// creation of the first segment does not look like damage.
func (l *segmentLog) create() error {
	if l.synced.turn == 0 {
		l.synced = synced{turn: 1, first: 1}
		_, err := l.file.WriteAt(l.synced.encode(), slotGap)
		if err = syncAfter(l.file, err); err == nil {
			err = l.disk.sync()
		}
		if err != nil {
			return err
		}
	}
	return l.begin(l.synced.last + 1)
}

// begin starts a new segment.
func (l *segmentLog) begin(number uint64) error {
	f, err := l.disk.open(segmentName(number), true)
	if err != nil {
		return err
	}
	b := l.beginning(number, 0)
	_, err = f.WriteAt(b, 0)
	if err = syncAfter(f, err); err == nil {
		err = l.disk.sync()
	}
	if err != nil { // the next one is another file, so that its syncs do not miss what these have failed to write
		return errors.Join(err, f.Close(), l.disk.remove(segmentName(number)))
	}
	l.segments = append(l.segments, &segment{number: number, file: f, size: int64(len(b)), head: int64(len(b))})
	l.note()
	return nil
}

// beginning returns the record that begins a segment.
func (l *segmentLog) beginning(number uint64, off int64) []byte {
	payload := binary.AppendUvarint(nil, version)
	return appendRecord(nil, number, off, kindBegin, binary.AppendUvarint(payload, l.next()))
}

// syncAfter syncs f after a write with the result err.
func syncAfter(f file, err error) error {
	if err == nil {
		err = f.Sync()
	}
	return err
}

// note writes the part of the log that is on disk. It ignores an error: an older note only hides
// that the newest bytes were cut off later.
func (l *segmentLog) note() {
	s := l.active()
	l.synced = synced{turn: l.synced.turn + 1, first: l.segments[0].number, last: s.number, length: s.size}
	_, _ = l.file.WriteAt(l.synced.encode(), int64(l.synced.turn%2)*slotGap)
}

// write writes records behind the last segment and syncs them. After an error nothing of them is in
// the log.
func (l *segmentLog) write(b []byte) error {
	s := l.active()
	if l.torn {
		if err := l.cut(); err != nil {
			return err
		}
	}
	l.torn = true
	_, err := s.file.WriteAt(b, s.size)
	if err = syncAfter(s.file, err); err != nil {
		_ = l.cut() // the next write tries again
		return err
	}
	l.torn = false
	s.size += int64(len(b))
	l.note()
	return nil
}

// cut removes the bytes behind the size of the last segment. Without a sync, whole records of a
// failed write could come back after a power failure.
func (l *segmentLog) cut() error {
	s := l.active()
	l.torn = true
	err := s.file.Truncate(s.size)
	if err = syncAfter(s.file, err); err != nil {
		return err
	}
	l.torn = false
	return nil
}

// mark marks the record at off in place. It needs no space on the disk. The caller syncs the
// segment.
func (s *segment) mark(off int64) error {
	b := make([]byte, 1)
	if _, err := s.file.ReadAt(b, off+kindAt); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if k, marked := kind(b[0]).unmarked(); !marked { // after a failed sync it is marked already
		b[0] = byte(^k)
	}
	_, err := s.file.WriteAt(b, off+kindAt)
	return err
}

// markRemoved marks the records of messages without an entry, so that the log needs none of the
// later records that removed them. live reports whether the entry of a sequence is at off.
func (s *segment) markRemoved(live func(seq uint64, off int64) bool) error {
	b := make([]byte, s.size)
	if _, err := s.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for off := 0; off < len(b); {
		k, payload, size, ok := readRecord(b[off:], s.number, int64(off))
		if !ok {
			return fmt.Errorf("bytes from %d on are damaged", off)
		}
		// One that is marked already is marked again: the sync of its mark may have failed.
		if k, _ := k.unmarked(); k == kindPending || k == kindRejected {
			seq, _, _, ok := placed(payload)
			if !ok {
				return errVersion
			}
			if !live(seq, int64(off)) {
				if err := s.mark(int64(off)); err != nil {
					return err
				}
			}
		}
		off += size
	}
	return s.file.Sync()
}

// empty removes all records of a segment but the first, so that their space is free. None of them
// has an entry, and none is about a message in another segment that is not marked. An older segment
// that was removed must not come back after a power failure, when this one has lost its records.
func (l *segmentLog) empty(s *segment) error {
	if err := l.disk.sync(); err != nil {
		return err
	}
	if s == l.active() {
		return l.emptyActive(s)
	}
	err := s.mark(0)
	if err = syncAfter(s.file, err); err == nil {
		s.size = s.head
		err = s.file.Truncate(s.size)
	}
	return syncAfter(s.file, err)
}

func (l *segmentLog) emptyActive(s *segment) error {
	before := s.size
	s.size = s.head
	l.note()
	if err := l.file.Sync(); err != nil { // otherwise the records would be missed after a crash
		s.size = before
		return err
	}
	s.sealed = false
	if err := l.cut(); err != nil {
		return err // the next write tries again
	}
	return l.write(l.beginning(s.number, s.size)) // with the next sequence
}

// reserve makes the last segment one that can take more records: it begins a new one after an end
// record, and if the last one is large.
func (l *segmentLog) reserve() error {
	s := l.active()
	if !s.sealed && (s.size >= l.most || s.damaged) {
		if !s.damaged {
			if err := l.write(appendRecord(nil, s.number, s.size, kindEnd)); err != nil {
				return err
			}
		}
		s.sealed = true
	}
	if s.sealed {
		return l.begin(s.number + 1)
	}
	return nil
}

// removeFirst removes the oldest segment. Only the oldest one can be removed: its records of
// removed messages are about messages in itself and in older segments.
func (l *segmentLog) removeFirst() error {
	s := l.segments[0]
	l.segments = l.segments[1:]
	l.note()
	err := l.file.Sync() // otherwise the segment would be missed after a power failure
	if err == nil && s.damaged {
		err = l.disk.rename(segmentName(s.number), segmentName(s.number)+".damaged")
	} else if err == nil {
		err = l.disk.remove(segmentName(s.number))
	}
	if err != nil {
		l.segments = append([]*segment{s}, l.segments...)
	}
	return err
}

// size returns the bytes of all segments, and of those with an entry.
func (l *segmentLog) size() (all, live int64) {
	for _, s := range l.segments {
		all += s.size
		live += s.live
	}
	return all, live
}

func (l *segmentLog) close() error {
	var errs []error
	for _, s := range l.segments {
		errs = append(errs, s.file.Close())
	}
	if l.file != nil {
		errs = append(errs, l.file.Sync(), l.file.Close())
	}
	return errors.Join(errs...)
}

// readAll returns the contents of a file.
func readAll(f file) ([]byte, error) {
	n, err := f.size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// numberOf returns the number of the segment with a file name, and false for another file.
func numberOf(name string) (n uint64, ok bool) {
	hex, isLog := strings.CutSuffix(name, ".log")
	if !isLog || len(hex) != 16 {
		return 0, false
	}
	_, err := fmt.Sscanf(hex, "%016x", &n)
	return n, err == nil && segmentName(n) == name
}

// A segment is a sequence of records. A record on disk is
//
//	mark (4 bytes) | kind (1 byte) | length (4 bytes) | checksum (4 bytes) | payload
//
// with little-endian numbers. The checksum is CRC-32C of the number of the segment, the offset of
// the record, kind, length and payload. The number and the offset keep bytes of a message that look
// like a record from being read as one.
//
//	kind     payload
//	begin    version (uvarint) | next sequence (uvarint); the first record of a segment
//	pending  sequence (uvarint) | sequence that it replaces, or 0 (uvarint) | entry
//	rejected likewise
//	removed  sequences (uvarints)
//	end      nothing; the last record of a segment that has a successor
//
// While the disk is full, a removal is marked in the pending or rejected record itself: its kind
// becomes the complement of the byte, which needs no space. The checksum stays that of the kind
// before. A marked begin record, which is at offset 0, means that the segment has a successor, and
// that the rest of the segment is to be ignored.
type kind byte

const (
	kindBegin kind = 1 + iota
	kindPending
	kindRejected
	kindRemoved
	kindEnd
)

// unmarked returns the kind of a record before it was marked as removed, and whether it is marked.
func (k kind) unmarked() (kind, bool) {
	if k > 0x7f {
		return ^k, true
	}
	return k, false
}

// kindAt is the place of the kind in a record.
const kindAt = 4

const (
	headBytes = 13
	version   = 1
)

var (
	recordMark = []byte{0xf7, 't', 'g', 0xfe}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// appendRecord appends a record that begins at off in the segment.
func appendRecord(b []byte, segment uint64, off int64, k kind, payload ...[]byte) []byte {
	start := len(b)
	b = append(b, recordMark...)
	b = append(b, byte(k), 0, 0, 0, 0, 0, 0, 0, 0)
	for _, p := range payload {
		b = append(b, p...)
	}
	r := b[start:]
	binary.LittleEndian.PutUint32(r[5:], uint32(len(r)-headBytes))
	binary.LittleEndian.PutUint32(r[9:], checksum(segment, off, r))
	return b
}

// checksum returns the checksum of the record r.
func checksum(segment uint64, off int64, r []byte) uint32 {
	var place [16]byte
	binary.LittleEndian.PutUint64(place[:], segment)
	binary.LittleEndian.PutUint64(place[8:], uint64(off))
	sum := crc32.Update(0, castagnoli, place[:])
	k, _ := kind(r[4]).unmarked()
	sum = crc32.Update(sum, castagnoli, []byte{byte(k)})
	sum = crc32.Update(sum, castagnoli, r[5:9])
	return crc32.Update(sum, castagnoli, r[headBytes:])
}

// readRecord returns the first record of b, which is at off in the segment, and its size. It
// returns false if b does not begin with an undamaged record.
func readRecord(b []byte, segment uint64, off int64) (k kind, payload []byte, size int, ok bool) {
	if len(b) < headBytes || !bytes.HasPrefix(b, recordMark) {
		return 0, nil, 0, false
	}
	n := int64(binary.LittleEndian.Uint32(b[5:]))
	if n > int64(len(b)-headBytes) {
		return 0, nil, 0, false
	}
	r := b[:headBytes+n]
	if checksum(segment, off, r) != binary.LittleEndian.Uint32(r[9:]) {
		return 0, nil, 0, false
	}
	return kind(r[4]), r[headBytes:], len(r), true
}

// nextRecord returns the offset in b of the first undamaged record, or len(b). b is at off in the
// segment.
func nextRecord(b []byte, segment uint64, off int64) int {
	for at := 0; ; at++ {
		i := bytes.Index(b[at:], recordMark)
		if i < 0 {
			return len(b)
		}
		at += i
		if _, _, _, ok := readRecord(b[at:], segment, off+int64(at)); ok {
			return at
		}
	}
}

// uvarint reads a number and returns the rest.
func uvarint(b []byte) (n uint64, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 {
		return 0, nil, false
	}
	return n, b[w:], true
}

// placed reads the payload of a pending or rejected record.
func placed(payload []byte) (seq, replaces uint64, value []byte, ok bool) {
	seq, rest, ok := uvarint(payload)
	if !ok || seq == 0 {
		return 0, 0, nil, false
	}
	replaces, value, ok = uvarint(rest)
	return seq, replaces, value, ok
}

// A synced is the part of the log that is certainly on disk. It is written without an fsync after
// each fsync of a segment, so it survives the end of the process, and it may be older after a power
// failure. Two slots take turns, so that one is whole at any time.
type synced struct {
	turn   uint64
	first  uint64 // the oldest segment
	last   uint64 // the newest segment
	length int64  // of the newest segment
}

const (
	syncedName = "synced"
	slotBytes  = 40
	slotGap    = 512 // slots are in different sectors
)

func (s synced) encode() []byte {
	b := append([]byte(nil), recordMark...)
	for _, n := range []uint64{s.turn, s.first, s.last, uint64(s.length)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeSynced returns the newer undamaged slot, and false if there is none.
func decodeSynced(b []byte) (newest synced, ok bool) {
	for _, at := range []int{0, slotGap} {
		if len(b) < at+slotBytes {
			continue
		}
		slot := b[at : at+slotBytes]
		if crc32.Checksum(slot[:slotBytes-4], castagnoli) != binary.LittleEndian.Uint32(slot[slotBytes-4:]) {
			continue
		}
		n := func(i int) uint64 { return binary.LittleEndian.Uint64(slot[4+8*i:]) }
		if s := (synced{n(0), n(1), n(2), int64(n(3))}); !ok || s.turn > newest.turn {
			newest, ok = s, true
		}
	}
	return newest, ok
}

// An entry on disk is
//
//	format (1 byte) | length of header (uvarint) | header (JSON) | body
//
// The header is JSON so that a later version can add fields.
const format = 1

// A header is an entry without its body.
type header struct {
	Accepted time.Time        `json:"accepted"`
	Message  tidegate.Message `json:"message"` // without the body

	Reason   string    `json:"reason,omitempty"` // of a rejected entry; empty otherwise
	Rejected time.Time `json:"rejected,omitzero"`
	Corrupt  bool      `json:"corrupt,omitempty"` // the message could not be read; it is empty
}

var errFormat = errors.New("the entry is corrupt, or from a later version")

func encode(h header, body []byte) ([]byte, error) {
	h.Message.Body = nil
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 1, 1+binary.MaxVarintLen64+len(text)+len(body))
	b[0] = format
	b = binary.AppendUvarint(b, uint64(len(text)))
	b = append(b, text...)
	return append(b, body...), nil
}

// decode returns the entry in b. The body shares the memory of b.
func decode(b []byte) (header, error) {
	var h header
	if len(b) == 0 || b[0] != format {
		return h, errFormat
	}
	n, w := binary.Uvarint(b[1:])
	if w <= 0 || n > uint64(len(b)-1-w) {
		return h, errFormat
	}
	text, body := b[1+w:1+w+int(n)], b[1+w+int(n):]
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("%w: %w", errFormat, err)
	}
	h.Message.Body = body
	return h, nil
}

// queueOf returns the name of a message's queue. group is the OrderKey of the message. The messages
// of a topic with the same key share a queue, in order. The messages of a topic without a key share
// another one. Names cannot contain a zero byte.
func queueOf(topic, group string) []byte { return []byte(topic + "\x00" + group) }

// grouped reports whether the queue belongs to a message group or a lite topic.
func grouped(queue string) bool { return !strings.HasSuffix(queue, "\x00") }
