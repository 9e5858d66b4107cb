// Package copies has the copies of messages that a request reads. A send returns when its ctx ends,
// and its caller may then change the message, while the request continues for the other callers.
package copies

import (
	"maps"
	"slices"
	"sync"

	"github.com/tidegate/tidegate"
)

const (
	maxBytes    = 2 << 20 // bodies in the memory of a Set that is used again
	maxMessages = 1024    // likewise
)

// A Set has copies of the messages of one request. The zero value is empty.
type Set struct {
	Messages []*tidegate.Message // the copies

	structs []tidegate.Message
	bodies  []byte
}

var pool = sync.Pool{New: func() any { return new(Set) }}

// Of copies messages, in order, with the memory of an earlier Set.
func Of(messages []*tidegate.Message) *Set {
	s := pool.Get().(*Set)
	size := 0
	for _, m := range messages {
		size += len(m.Body)
	}
	s.structs = slices.Grow(s.structs, len(messages))
	s.Messages = slices.Grow(s.Messages, len(messages))
	s.bodies = slices.Grow(s.bodies, size) // so that no body moves below
	for _, m := range messages {
		c := *m
		c.Keys, c.Properties = slices.Clone(m.Keys), maps.Clone(m.Properties)
		at := len(s.bodies)
		s.bodies = append(s.bodies, m.Body...)
		c.Body = s.bodies[at:len(s.bodies):len(s.bodies)]
		s.structs = append(s.structs, c)
		s.Messages = append(s.Messages, &s.structs[len(s.structs)-1])
	}
	return s
}

// Free gives the memory back. The copies are not used afterwards. A nil Set has none.
func (s *Set) Free() {
	if s == nil {
		return
	}
	clear(s.structs)
	clear(s.Messages)
	s.structs, s.Messages, s.bodies = s.structs[:0], s.Messages[:0], s.bodies[:0]
	if cap(s.bodies) <= maxBytes && cap(s.structs) <= maxMessages && cap(s.Messages) <= maxMessages {
		pool.Put(s)
	}
}
