package history

import (
	"encoding/binary"
	"slices"
)

// Counts are increments of counters, by the constants In to Dead.
type Counts [5]int64

// The counters.
const (
	In          = iota // messages that were stored
	Delivered          // deliveries
	Acked              // acknowledged messages
	Redelivered        // deliveries with attempt 2 and above
	Dead               // dead letters
)

// Gauges are amounts at one moment, by the constants Backlog and Retrying.
type Gauges [2]int64

// The gauges.
const (
	Backlog  = iota // messages that are not consumed
	Retrying        // messages that wait for a retry
)

// Add adds the increments of others.
func (c *Counts) Add(o Counts) {
	for i, n := range o {
		c[i] += n
	}
}

// Add adds the amounts of others.
func (g *Gauges) Add(o Gauges) {
	for i, n := range o {
		g[i] += n
	}
}

// An entry is a slot in which something changed.
type entry struct {
	level
	counts Counts
}

// A level has the gauges at the end of a slot.
type level struct {
	slot   int64 // number of the slot since the start of the broker
	gauges Gauges
}

// A ring has the entries of a window of slots: the entries of slots without a change are missing.
// All entries except the newest are encoded, each relative to the one before, in 3 to 20 bytes. The
// zero value is empty.
type ring struct {
	newest  entry  // used if count > 0
	last    level  // of the last encoded entry, or before
	before  level  // before the first encoded entry
	encoded []byte // the oldest first
	count   int    // entries, with the newest
}

// add adds the changes of a slot, which is that of the newest entry or a later one. If encoded
// needs a larger capacity, add calls grow with the present and the new one, and fails if grow
// returns false.
func (r *ring) add(e entry, grow func(from, to int) bool) bool {
	if r.count > 0 && e.slot <= r.newest.slot {
		r.newest.counts.Add(e.counts)
		r.newest.gauges = e.gauges
		return true
	}
	if r.count > 0 {
		var buffer [maxEntry]byte
		b := r.newest.encode(buffer[:0], &r.last)
		if n := len(r.encoded) + len(b); n > cap(r.encoded) {
			grown := slices.Grow([]byte(nil), n+n/4+16)
			if !grow(cap(r.encoded), cap(grown)) {
				return false
			}
			r.encoded = append(grown, r.encoded...)
		}
		r.encoded = append(r.encoded, b...)
		r.last = r.newest.level
	}
	r.newest = e
	r.count++
	return true
}

// begin sets the gauges before the first entry.
func (r *ring) begin(g Gauges) { r.before.gauges, r.last.gauges = g, g }

// drop removes the entries of slots before first.
func (r *ring) drop(first int64) {
	n, e := 0, r.before
	for n < len(r.encoded) {
		next, size := decode(r.encoded[n:], &e)
		if next.slot >= first {
			break
		}
		n, e = n+size, next.level
		r.count--
	}
	if n > 0 {
		r.before = e
		r.encoded = r.encoded[:copy(r.encoded, r.encoded[n:])]
	}
	if r.count == 1 && r.newest.slot < first {
		r.before, r.last, r.count = r.newest.level, r.newest.level, 0
	}
}

// read adds the values of all slots from first on to counts and gauges, which have an element for
// each slot.
func (r *ring) read(first int64, counts []Counts, gauges []Gauges) {
	at, e := 0, r.before
	put := func(next entry) {
		for ; at < len(gauges) && first+int64(at) < next.slot; at++ {
			gauges[at].Add(e.gauges)
		}
		if i := next.slot - first; i >= 0 && i < int64(len(counts)) {
			counts[i].Add(next.counts)
		}
		e = next.level
	}
	for b := r.encoded; len(b) > 0; {
		next, size := decode(b, &e)
		put(next)
		b = b[size:]
	}
	if r.count > 0 {
		put(r.newest)
	}
	for ; at < len(gauges); at++ {
		gauges[at].Add(e.gauges)
	}
}

// maxEntry is the maximum size of an encoded entry: the slot, the mask, and seven values.
const maxEntry = (2 + len(Counts{}) + len(Gauges{})) * binary.MaxVarintLen64

// encode appends the slot relative to the entry before, a mask of the values that are not zero, and
// these values. A gauge is relative to the entry before.
func (e *entry) encode(b []byte, before *level) []byte {
	b = binary.AppendUvarint(b, uint64(e.slot-before.slot)) //nolint:gosec // slots grow
	mask := len(b)
	b = append(b, 0)
	bit := byte(1)
	put := func(v int64) {
		if v != 0 {
			b[mask] |= bit
			b = binary.AppendVarint(b, v)
		}
		bit <<= 1
	}
	for _, n := range e.counts {
		put(n)
	}
	for i, n := range e.gauges {
		put(n - before.gauges[i])
	}
	return b
}

// decode reads what encode has appended.
func decode(b []byte, before *level) (e entry, size int) {
	gap, n := binary.Uvarint(b)
	e.slot, e.gauges = before.slot+int64(gap), before.gauges //nolint:gosec // it was positive
	mask := b[n]
	n++
	get := func() (v int64) {
		if mask&1 != 0 {
			var size int
			v, size = binary.Varint(b[n:])
			n += size
		}
		mask >>= 1
		return v
	}
	for i := range e.counts {
		e.counts[i] = get()
	}
	for i := range e.gauges {
		e.gauges[i] += get()
	}
	return e, n
}
