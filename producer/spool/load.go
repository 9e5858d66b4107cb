package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// A damage is a part of the log that cannot be read.
type damage struct {
	path string
	text string
}

func (d damage) Error() string { return d.path + ": " + d.text }

// A loader reads the log into an index.
type loader struct {
	log     *segmentLog
	entries map[uint64]*loaded
	next    uint64
	used    bool // there is a record besides those that begin a segment
	damages []error
}

// A loaded is the last record of a sequence.
type loaded struct {
	entry
	name string // of the queue
}

func (l *loader) damaged(name, format string, args ...any) {
	l.damages = append(l.damages, damage{l.log.disk.where(name), fmt.Sprintf(format, args...)})
}

// load opens the log on a disk, or creates it. It returns the damages that it found; the error is
// that of the disk, or of a log of another version.
func load(d disk, most int64) (*segmentLog, *index, []error, error) {
	x := newIndex()
	log := &segmentLog{disk: d, most: most, next: func() uint64 { return x.next }}
	l := &loader{log: log, entries: map[uint64]*loaded{}, next: 1}
	err := l.segments()
	if err == nil {
		l.index(x)
		if len(log.segments) == 0 {
			err = log.create()
		} else if s := log.active(); !s.damaged && !s.sealed || log.reserve() != nil {
			log.note() // without space for a new segment the next write tries again
		}
	}
	if err == nil {
		err = log.file.Sync() // so that it is missing only if a fault of the disk removed it
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, log.close())
	}
	return log, x, l.damages, nil
}

// segments opens and reads the segments.
func (l *loader) segments() error {
	names, err := l.log.disk.list()
	if err != nil {
		return err
	}
	var numbers []uint64
	for _, name := range names {
		if n, ok := numberOf(name); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	known, err := l.readSynced()
	if err != nil {
		return err
	}
	if known {
		for n := l.log.synced.first; n <= l.log.synced.last; n++ {
			if _, ok := slices.BinarySearch(numbers, n); !ok {
				l.damaged(segmentName(n), "the file is missing; its messages are lost, and messages that it records as sent may be sent again. "+
					"Restore it, or remove the directory of the spool to start without its messages")
			}
			if n-l.log.synced.first > 1<<20 {
				break
			}
		}
	}
	for i, n := range numbers {
		f, err := l.log.disk.open(segmentName(n), false)
		if err != nil {
			return err
		}
		s := &segment{number: n, file: f}
		l.log.segments = append(l.log.segments, s)
		certain := int64(-1) // bytes that are certainly on disk; negative for all
		if last := i == len(numbers)-1; last && known && n == l.log.synced.last {
			certain = l.log.synced.length
		} else if last && known && n > l.log.synced.last {
			certain = 0
		}
		if err := l.segment(s, certain, i == len(numbers)-1); err != nil {
			return err
		}
	}
	if !known && l.used {
		l.damaged(syncedName, "the file is damaged or missing, so it is not known whether messages were cut off from the end of the log. "+
			"Check the disk; the spool has written the file again")
	}
	return nil
}

// readSynced reads the note of the synced bytes. It returns false if there is none.
func (l *loader) readSynced() (known bool, err error) {
	f, err := l.log.disk.open(syncedName, false)
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		f, err = l.log.disk.open(syncedName, true)
	}
	if err != nil {
		return false, err
	}
	l.log.file = f
	b, err := readAll(f)
	if err != nil {
		return false, err
	}
	l.log.synced, known = decodeSynced(b)
	return known, nil
}

// segment reads a segment. certain is the number of its first bytes that are certainly on disk;
// negative means all of them. Damaged bytes behind them are the rest of a write that the end of the
// process or of the machine interrupted.
func (l *loader) segment(s *segment, certain int64, last bool) error {
	name := segmentName(s.number)
	b, err := readAll(s.file)
	if err != nil {
		return err
	}
	s.size = int64(len(b))
	for off := 0; off < len(b); {
		k, payload, size, ok := readRecord(b[off:], s.number, int64(off))
		if ok {
			if err := l.record(s, int64(off), size, k, payload); err != nil {
				return fmt.Errorf("%s: %w", l.log.disk.where(name), err)
			}
			off += size
			if s.sealed && off == size { // a marked begin record
				s.size = s.head
				break
			}
			continue
		}
		if certain >= 0 && int64(off) >= certain {
			s.size = int64(off)
			if err := s.file.Truncate(s.size); err != nil {
				return err
			}
			break
		}
		end := off + 1 + nextRecord(b[off+1:], s.number, int64(off+1))
		s.damaged = true
		l.damaged(name, "bytes %d to %d are damaged; messages in them are lost, and messages that they record as sent may be sent again. "+
			"The rest is kept. Check the disk, and restore the file to have these messages", off, end)
		off = end
	}
	switch {
	case s.size < certain:
		s.damaged = true
		l.damaged(name, "the file has %d bytes and had %d; messages at its end are lost. "+
			"The rest is kept. Check the disk, and restore the file to have these messages", s.size, certain)
	case !last && !s.sealed && !s.damaged:
		s.damaged = true
		l.damaged(name, "the end of the file is missing after byte %d; messages in it are lost. "+
			"The rest is kept. Check the disk, and restore the file to have these messages", s.size)
	}
	return nil
}

var errVersion = errors.New("the spool is from a later version; open it with that version, or use another directory")

// record applies a record. An undamaged record with contents that this version does not know is
// from a later one.
func (l *loader) record(s *segment, off int64, size int, k kind, payload []byte) error {
	l.used = l.used || k != kindBegin
	switch k, marked := k.unmarked(); k {
	case kindBegin:
		if off == 0 {
			s.head, s.sealed = int64(size), marked
		}
		v, rest, ok := uvarint(payload)
		next, _, ok2 := uvarint(rest)
		if !ok || !ok2 || v != version {
			return errVersion
		}
		l.next = max(l.next, next)
	case kindPending, kindRejected:
		seq, replaces, value, ok := placed(payload)
		if !ok {
			return errVersion
		}
		delete(l.entries, replaces)
		l.next = max(l.next, seq+1)
		if marked {
			delete(l.entries, seq) // an older copy of the record
			return nil
		}
		e := &loaded{entry: entry{seq: seq, seg: s, off: off, size: size, rejected: k == kindRejected}}
		h, err := decode(value)
		if err == nil {
			e.name = string(queueOf(h.Message.Topic, h.Message.OrderKey()))
		}
		e.rejected = e.rejected || err != nil
		l.entries[seq] = e
	case kindRemoved:
		for len(payload) > 0 {
			seq, rest, ok := uvarint(payload)
			if !ok {
				return errVersion
			}
			delete(l.entries, seq)
			l.next = max(l.next, seq+1)
			payload = rest
		}
	case kindEnd:
		s.sealed = true
	default:
		return errVersion
	}
	return nil
}

// index adds the entries in the order of their sequences.
func (l *loader) index(x *index) {
	list := make([]*loaded, 0, len(l.entries))
	for _, e := range l.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *loaded) int { return cmp.Compare(a.seq, b.seq) })
	for _, e := range list {
		c := e.entry // without the name
		x.add(e.name, &c)
	}
	x.next = max(x.next, l.next)
}
