package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrCorrupt is wrapped by every failure to read a stored record.
var ErrCorrupt = errors.New("corrupt record")

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func stringLen(s string) int { return uvarintLen(uint64(len(s))) + len(s) }

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// A reader decodes a record. After a failure all reads return zero, and err has the position of the
// failure.
type reader struct {
	b   []byte
	s   string // the same bytes; substrings of it cost no allocation
	off int
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s at byte %d of %d", ErrCorrupt, what, r.off, len(r.b))
	}
	r.off = len(r.b)
}

func (r *reader) byte() byte {
	if r.off >= len(r.b) {
		r.fail("it ends early")
		return 0
	}
	r.off++
	return r.b[r.off-1]
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b[r.off:])
	if n <= 0 {
		r.fail("unreadable number")
		return 0
	}
	r.off += n
	return v
}

// count reads a number of things that take at least one byte each.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)-r.off) {
		r.fail("a count exceeds the record")
		return 0
	}
	return int(n)
}

func (r *reader) string() string {
	n := r.count()
	r.off += n
	if r.err != nil {
		return ""
	}
	return r.s[r.off-n : r.off]
}

// span reads a duration that is not negative.
func (r *reader) span() time.Duration {
	n := r.uvarint()
	if n > math.MaxInt64 {
		r.fail("a duration is too long")
		return 0
	}
	return time.Duration(n)
}

// Nanos returns the form in which a time is stored: nanoseconds since 1970, 0 for the zero time.
func Nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// fromNanos decodes the result of Nanos.
func fromNanos(n uint64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(n))
}

// keyNanos is Nanos within a key. Keys sort like the times from 1970 on. An earlier time, for
// example the bound of a search, sorts first.
func keyNanos(t time.Time) uint64 { return uint64(max(0, Nanos(t))) }

// keyTime decodes the result of keyNanos within a key. Other values are corruption.
func keyTime(b []byte) (time.Time, error) {
	n := binary.BigEndian.Uint64(b)
	if n > math.MaxInt64 {
		return time.Time{}, fmt.Errorf("%w: a key has a time before 1970", ErrCorrupt)
	}
	return fromNanos(n), nil
}
