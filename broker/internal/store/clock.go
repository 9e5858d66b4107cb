package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// A Clock is the record of the wall clock.
type Clock struct {
	// At is the newest time that the broker trusted.
	At time.Time

	// Distrusted means that the broker did not trust the wall clock at that moment. Messages that
	// were stored afterwards can have wrong times.
	Distrusted bool
}

const clockVersion = 1

// PutClock writes the record of the wall clock: a version, Distrusted, and At in nanoseconds since
// 1970.
func (b *Batch) PutClock(c Clock) {
	v := []byte{clockVersion, 0}
	if c.Distrusted {
		v[1] = 1
	}
	must(b.pebble().Set([]byte{record.PrefixClock}, binary.BigEndian.AppendUint64(v, uint64(record.Nanos(c.At))), nil))
}

// Clock returns the record of the wall clock; false if there is none.
func (s *Store) Clock() (c Clock, ok bool, err error) {
	ok, err = s.read([]byte{record.PrefixClock}, func(v []byte) error {
		if len(v) != 10 || v[0] != clockVersion || v[1] > 1 {
			return fmt.Errorf("%w: the time of the wall clock has %d bytes, or another version than %d", record.ErrCorrupt, len(v), clockVersion)
		}
		c = Clock{At: time.Unix(0, int64(binary.BigEndian.Uint64(v[2:]))), Distrusted: v[1] == 1}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("reading the time of the wall clock: %w", err)
	}
	return c, ok, err
}
