package store

import (
	"fmt"
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
