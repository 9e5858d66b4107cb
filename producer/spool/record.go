package spool

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

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
