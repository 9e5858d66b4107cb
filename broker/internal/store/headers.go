package store

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

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
