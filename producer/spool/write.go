package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// A write is the operations of one call, which become records of the log together.
type write struct {
	ops  []*op
	err  error
	done chan struct{}
}

// An op is one record. Its kind selects the meaning of the fields:
//
//	kindPending  a message of queue name; it replaces entry, a rejected one, if that is set
//	kindRejected entry becomes a rejected one
//	kindRemoved  entry is removed
type op struct {
	kind  kind
	name  string
	value []byte
	entry *entry

	skipped bool // entry has changed meanwhile, so there is no record
	marked  bool // the record of entry is marked as removed in place
	seg     *segment
	off     int64
	size    int
	seq     uint64
}

// maxWrite bounds the bytes of writes that share an fsync, except for those of one call.
const maxWrite = 8 << 20

// write returns when the records are on disk and in the index. After an error they are in neither.
func (s *Spool) write(ops ...*op) error {
	if len(ops) == 0 {
		return nil
	}
	w := &write{ops: ops, done: make(chan struct{})}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return os.ErrClosed
	}
	s.queue = append(s.queue, w)
	if !s.writing {
		s.writing = true
		s.writers.Go(s.writeQueue)
	}
	s.mu.Unlock()
	<-w.done
	return w.err
}

// writeQueue writes until nothing waits.
func (s *Spool) writeQueue() {
	for {
		s.mu.Lock()
		list := s.take()
		s.writing = len(list) > 0
		s.mu.Unlock()
		if len(list) == 0 {
			return
		}
		err := s.commit(list)
		for _, w := range list {
			if err != nil && slices.ContainsFunc(w.ops, func(o *op) bool { return !o.marked }) {
				w.err = err
			}
			close(w.done)
		}
		s.signal()
		if err == nil {
			s.clean()
		}
	}
}

// commit writes records and applies them to the index. If they cannot be appended, because the disk
// is full, it marks the removals among them in place, removes segments without entries, and tries
// the rest again.
func (s *Spool) commit(list []*write) error {
	err := s.append(list)
	if err == nil {
		return nil
	}
	if merr := s.mark(list); merr != nil {
		return errors.Join(err, merr)
	}
	if s.removeEmpty() {
		err = s.append(list)
	}
	return err
}

// mark executes the removals in list without new records.
func (s *Spool) mark(list []*write) error {
	var ops []*op
	changed := map[*entry]bool{}
	for _, w := range list {
		for _, o := range w.ops {
			if s.valid(o, changed) && o.kind == kindRemoved {
				ops = append(ops, o)
			}
		}
	}
	marked := map[*segment]bool{}
	for _, o := range ops {
		if err := o.entry.seg.mark(o.entry.off); err != nil {
			return err
		}
		marked[o.entry.seg] = true
	}
	for seg := range marked {
		if err := seg.file.Sync(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range ops {
		o.marked, o.skipped = true, false
		s.apply(o)
	}
	return nil
}

// removeEmpty removes the oldest segments without entries, and the records of the other segments
// without entries. It needs no space on the disk, and reports whether it has freed any. A failure
// is logged; the next failed write tries again.
func (s *Spool) removeEmpty() (freed bool) {
	for len(s.records.segments) > 1 && s.isEmpty(s.records.segments[0]) {
		if !s.removeFirst() {
			return freed
		}
		freed = true
	}
	var before []*segment // with entries; they may have messages that later records removed
	for _, seg := range s.records.segments {
		switch {
		case seg.damaged:
			return freed // it keeps its bytes
		case !s.isEmpty(seg):
			before = append(before, seg)
		case seg.head > 0 && seg.size > seg.head:
			err := s.markRemoved(before)
			if before = nil; err == nil {
				err = s.records.empty(seg)
			}
			if err != nil {
				s.log.Warn("the spool could not empty a file; trying again later", "file", s.records.disk.where(segmentName(seg.number)), "error", err)
				return freed
			}
			freed = true
		}
	}
	return freed
}

func (s *Spool) isEmpty(seg *segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return seg.live == 0
}

// markRemoved marks the removed messages of segments in place.
func (s *Spool) markRemoved(list []*segment) error {
	for _, seg := range list {
		live := func(seq uint64, off int64) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			e := s.index.find(seq)
			return e != nil && e.seg == seg && e.off == off
		}
		if err := seg.markRemoved(live); err != nil {
			return fmt.Errorf("%s: %w", s.records.disk.where(segmentName(seg.number)), err)
		}
	}
	return nil
}

// removeFirst removes the oldest segment, or logs why not.
func (s *Spool) removeFirst() bool {
	first := s.records.segments[0]
	if err := s.records.removeFirst(); err != nil {
		s.log.Warn("the spool could not remove its oldest file; trying again later", "error", err)
		return false
	}
	s.retire(first)
	return true
}

// take removes the writes that share the next fsync from the queue. The lock is held.
func (s *Spool) take() []*write {
	n, bytes := 0, 0
	for n < len(s.queue) && (n == 0 || bytes < maxWrite) {
		for _, o := range s.queue[n].ops {
			bytes += len(o.value)
		}
		n++
	}
	list := s.queue[:n:n]
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil
	}
	return list
}

// append appends records of operations that are not marked, and applies them to the index.
func (s *Spool) append(list []*write) error {
	if err := s.records.reserve(); err != nil {
		return err
	}
	seg := s.records.active()
	var b []byte
	next := s.index.next // only this goroutine changes it
	changed := map[*entry]bool{}
	for _, w := range list {
		for _, o := range w.ops {
			if o.marked {
				continue
			}
			if o.skipped = !s.valid(o, changed); o.skipped {
				continue
			}
			off := seg.size + int64(len(b))
			o.seg, o.off = seg, off
			var payload []byte
			switch o.kind {
			case kindPending:
				o.seq = next
				next++
				replaced := uint64(0)
				if o.entry != nil {
					replaced = o.entry.seq
				}
				payload = binary.AppendUvarint(binary.AppendUvarint(nil, o.seq), replaced)
			case kindRejected:
				payload = binary.AppendUvarint(binary.AppendUvarint(nil, o.entry.seq), 0)
			default:
				payload = binary.AppendUvarint(nil, o.entry.seq)
			}
			b = appendRecord(b, seg.number, off, o.kind, payload, o.value)
			o.size = int(seg.size + int64(len(b)) - off)
		}
	}
	if len(b) == 0 {
		return nil
	}
	if err := s.records.write(b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range list {
		for _, o := range w.ops {
			if !o.skipped && !o.marked {
				s.apply(o)
			}
		}
	}
	return nil
}

// valid reports whether the entry of an operation has not changed since the operation was planned.
func (s *Spool) valid(o *op, changed map[*entry]bool) bool {
	if o.entry == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := !o.entry.gone && !changed[o.entry] && (o.kind != kindRejected || !o.entry.rejected)
	changed[o.entry] = true
	return ok
}

// apply changes the index. The lock is held.
func (s *Spool) apply(o *op) {
	switch o.kind {
	case kindPending:
		if o.entry != nil {
			s.index.remove(o.entry)
		}
		s.index.add(o.name, &entry{seq: o.seq, seg: o.seg, off: o.off, size: o.size})
	case kindRejected:
		s.index.move(o.entry, o.seg, o.off, o.size)
		s.index.reject(o.entry)
	default:
		s.index.remove(o.entry)
	}
}

// clean removes the oldest segments without entries. If more than half of the log is removed
// entries, it moves the entries of the oldest segment behind the newest one. A failure is logged;
// the next write tries again.
func (s *Spool) clean() {
	for len(s.records.segments) > 1 {
		first := s.records.segments[0]
		s.mu.Lock()
		all, live := s.records.size()
		empty := first.live == 0
		s.mu.Unlock()
		if !empty {
			if all <= 2*live+3*s.records.most {
				return
			}
			if err := s.moveEntries(first); err != nil {
				s.log.Warn("the spool could not move its oldest entries; trying again later", "error", err)
				return
			}
		}
		if !s.removeFirst() {
			return
		}
	}
}

// moveEntries copies the records of the entries in a segment behind the newest segment.
func (s *Spool) moveEntries(from *segment) error {
	s.mu.Lock()
	var list []*entry
	for _, e := range s.index.all {
		if !e.gone && e.seg == from {
			list = append(list, e)
		}
	}
	s.mu.Unlock()
	for len(list) > 0 {
		if err := s.records.reserve(); err != nil {
			return err
		}
		to := s.records.active()
		var b []byte
		type moved struct {
			entry   *entry
			off     int64
			size    int
			corrupt bool
		}
		var done []moved
		for len(list) > 0 && len(b) < maxWrite/2 {
			e := list[0]
			list = list[1:]
			k, payload, err := s.readEntry(e)
			if err != nil {
				s.reportDamage(err)
				from.damaged = true
				k, payload = kindRejected, s.corrupt(e, err)
			}
			off := to.size + int64(len(b))
			b = appendRecord(b, to.number, off, k, payload)
			done = append(done, moved{e, off, int(to.size + int64(len(b)) - off), err != nil})
		}
		if err := s.records.write(b); err != nil {
			return err
		}
		s.mu.Lock()
		for _, m := range done {
			s.index.move(m.entry, to, m.off, m.size)
			if m.corrupt && !m.entry.rejected {
				s.index.reject(m.entry)
			}
		}
		s.mu.Unlock()
	}
	return nil
}

// corrupt returns the payload of the record of an entry that cannot be read.
func (s *Spool) corrupt(e *entry, err error) []byte {
	payload := binary.AppendUvarint(binary.AppendUvarint(nil, e.seq), 0)
	value, _ := encode(header{Reason: err.Error(), Rejected: time.Now(), Corrupt: true}, nil) // of plain fields
	return append(payload, value...)
}

// errGone is the error of an entry that has left the spool, and its file too.
var errGone = errors.New("the message has left the spool")

// readEntry reads the record of an entry.
func (s *Spool) readEntry(e *entry) (kind, []byte, error) {
	s.mu.Lock()
	seg, off, size := e.seg, e.off, e.size
	if seg.removed {
		s.mu.Unlock()
		return 0, nil, errGone
	}
	seg.readers++
	s.mu.Unlock()
	b := make([]byte, size)
	_, err := seg.file.ReadAt(b, off)
	s.mu.Lock()
	seg.readers--
	last, gone := seg.removed && seg.readers == 0, e.gone
	s.mu.Unlock()
	if last {
		_ = seg.file.Close() // it is removed
	}
	if gone {
		return 0, nil, errGone // its bytes may be removed too
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s: read %d bytes at %d: %w", s.records.disk.where(segmentName(seg.number)), size, off, err)
	}
	k, payload, n, ok := readRecord(b, seg.number, off)
	if !ok || n != size {
		return 0, nil, damage{s.records.disk.where(segmentName(seg.number)),
			fmt.Sprintf("the message in bytes %d to %d is damaged; check the disk", off, off+int64(size))}
	}
	return k, payload, nil
}

// retire closes the file of a removed segment when nothing reads it any more.
func (s *Spool) retire(seg *segment) {
	s.mu.Lock()
	seg.removed = true
	last := seg.readers == 0
	s.mu.Unlock()
	if last {
		_ = seg.file.Close() // it is removed
	}
}

// message reads the header and the body of an entry.
func (s *Spool) message(e *entry) (header, error) {
	_, payload, err := s.readEntry(e)
	if err != nil {
		return header{}, err
	}
	_, _, value, ok := placed(payload)
	if !ok {
		return header{}, errFormat
	}
	return decode(value)
}
