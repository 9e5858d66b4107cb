// Package duplicates remembers the message IDs of a topic for its duplicate window: in memory by
// package recent, and in the store as an index, from which they come back after a restart.
package duplicates

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/recent"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Memory remembers the message IDs of one topic. Its methods are only called within the message
// log's Add, except Hash and HashID, and before anything else runs.
type Memory struct {
	topic uint32
	key   func() store.IDKey // of the hashes
	later func(time.Time)    // has Expire called at that time or earlier

	ids     recent.IDs
	index   recent.Index
	runs    []recent.Run // by queue: what no record of the index has yet
	expires bool         // later was called, and Expire not yet
}

// NewMemory returns the empty memory of a topic. later has Expire called at a time, or earlier.
func NewMemory(topic uint32, key func() store.IDKey, later func(time.Time)) *Memory {
	return &Memory{topic: topic, key: key, later: later}
}

// Hash returns the hash by which an ID is remembered, as the index keeps it; it is not 0.
func (m *Memory) Hash(id string) uint64 { return m.key().Hash(id) }

// HashID sets the hash of a message's ID.
func (m *Memory) HashID(msg *store.Message) {
	if msg.IDHash == 0 {
		msg.IDHash = m.Hash(msg.ID)
	}
}

// Find returns where a message whose ID has that hash probably is. next returns the offset that
// follows the last one of a queue, 0 if there is no such queue.
func (m *Memory) Find(hash uint64, next func(queue uint16) int64) (recent.Location, bool) {
	return m.ids.Find(hash, next)
}

// Put remembers a message that was written to a queue, now and by the index after a restart.
func (m *Memory) Put(w *store.Batch, msg *store.Message, queue uint16, offset int64, window time.Duration, now time.Time) {
	m.Remember(msg, recent.Location{Queue: queue, Offset: offset}, window, now)
	if window > 0 {
		m.addToIndex(w, queue, offset, msg.IDHash, now.UnixNano(), window)
	}
}

// Remember remembers a message for the window. With 0 it forgets where a message was that has
// moved.
func (m *Memory) Remember(msg *store.Message, l recent.Location, window time.Duration, now time.Time) {
	if window == 0 {
		if !m.ids.Forgotten() {
			m.ids.Forget(m.Hash(msg.ID))
		}
		return
	}
	m.HashID(msg)
	m.ids.Add(msg.IDHash, l, window, now)
	m.expireLater(window, now)
}

func (m *Memory) expireLater(window time.Duration, now time.Time) {
	if !m.expires {
		m.expires = true
		m.later(now.Add(window))
	}
}

// Forget forgets an ID whose place was one that a message can leave.
func (m *Memory) Forget(hash uint64) { m.ids.Forget(hash) }

// ForgetAll forgets every ID.
func (m *Memory) ForgetAll(w *store.Batch) {
	m.ids = recent.IDs{}
	m.dropIndex(w)
}

// Expire forgets what is older than the window, and returns when to do so again; zero if nothing is
// remembered.
func (m *Memory) Expire(w *store.Batch, window time.Duration, now time.Time) time.Time {
	next := m.ids.Expire(window, now)
	outdated := m.index.Expire(window, now)
	switch {
	case outdated.All:
		m.dropIndex(w)
	case !outdated.To.IsZero():
		w.DeleteRecentIDs(m.topic, outdated.From, outdated.To)
	}
	if next.IsZero() {
		next = outdated.Next
	}
	m.expires = !next.IsZero()
	return next
}

// run returns what the index lacks of a queue.
func (m *Memory) run(queue uint16) *recent.Run {
	for int(queue) >= len(m.runs) {
		m.runs = append(m.runs, recent.Run{})
	}
	return &m.runs[queue]
}

// addToIndex notes the ID of a message for the index, and writes a record that is full.
func (m *Memory) addToIndex(w *store.Batch, queue uint16, offset int64, hash uint64, at int64, window time.Duration) {
	run := m.run(queue)
	if run.Over(offset, at, window) {
		m.writeIndex(w, queue)
	}
	if run.Add(offset, hash, at) {
		m.writeIndex(w, queue)
	}
	m.index.Last = at
}

func (m *Memory) writeIndex(w *store.Batch, queue uint16) {
	ids := m.runs[queue].Take(queue)
	w.PutRecentIDs(m.topic, ids)
	m.index.Wrote(ids)
}

// WriteRest writes what no record of the index has yet.
func (m *Memory) WriteRest(w *store.Batch, window time.Duration, now time.Time) {
	for queue := range m.runs {
		if m.runs[queue].Fresh(window, now) {
			m.writeIndex(w, uint16(queue))
		}
	}
}

func (m *Memory) dropIndex(w *store.Batch) {
	if m.index.From != 0 {
		w.DeleteAllRecentIDs(m.topic)
	}
	m.index, m.runs = recent.Index{}, nil
}

// A State is what a memory has.
type State struct {
	IDs       int   // remembered
	Unindexed int   // in no record of the index yet
	From      int64 // no record of the index is of before, in nanoseconds since 1970; 0 if there is none
	Expires   bool  // Expire is due at a time
}

// State returns what the memory has.
func (m *Memory) State() State {
	s := State{IDs: m.ids.Len(), From: m.index.From, Expires: m.expires}
	for i := range m.runs {
		s.Unindexed += m.runs[i].Len()
	}
	return s
}
