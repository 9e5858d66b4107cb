package flow

import "slices"

// A Key identifies a message group: two topics can have message groups of the same name.
type Key struct {
	Topic int // its number in the consumer
	Group string
}

// Lines are the lines of all message groups. The deliveries of one message group stand in one line,
// and only the first of a line may be handled.
//
// When it fails, all deliveries behind it are released, and the server delivers the failed one
// first. Later deliveries are not behind it: while a message of a message group is in flight, the
// server delivers a later one only in the same receive. Later deliveries therefore start a line of
// their own.
type Lines[T comparable] map[Key]*Line[T]

// A Line is the deliveries of one message group, the first in front.
type Line[T comparable] struct {
	key   Key
	items []T
}

// Join puts a delivery at the end of its line, which it returns, and reports whether it is the
// first there. A delivery without a message group has no line.
func (l Lines[T]) Join(key Key, x T) (ln *Line[T], first bool) {
	if key.Group == "" {
		return nil, true
	}
	if ln = l[key]; ln == nil {
		ln = &Line[T]{key: key}
		l[key] = ln
	}
	ln.items = append(ln.items, x)
	return ln, len(ln.items) == 1
}

// Close has deliveries that come later start another line than ln, which may be nil. It is called
// before the server learns that a delivery of ln was not consumed: from then on it may deliver the
// message again.
func (l Lines[T]) Close(ln *Line[T]) {
	if ln != nil && l[ln.key] == ln {
		delete(l, ln.key)
	}
}

// Leave takes a delivery out of its line, which may be nil. If it was consumed, next is the
// delivery that may be handled now, the zero value for none. Otherwise behind are those that were
// received behind it, which leave the line too.
func (l Lines[T]) Leave(ln *Line[T], x T, consumed bool) (next T, behind []T) {
	if ln == nil {
		return next, nil
	}
	i := slices.Index(ln.items, x)
	if !consumed {
		behind = slices.Clone(ln.items[i+1:])
		clear(ln.items[i:])
		ln.items = ln.items[:i]
		l.Close(ln)
		return next, behind
	}
	ln.items = slices.Delete(ln.items, i, i+1)
	if len(ln.items) == 0 {
		l.Close(ln)
		return next, nil
	}
	if i == 0 {
		next = ln.items[0]
	}
	return next, nil
}
