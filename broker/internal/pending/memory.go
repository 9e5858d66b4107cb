package pending

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Duplicates remembers the message IDs of one topic. Call its methods only within Add of the
// message log, or during the start, before other goroutines use the topic. Hash and HashID may be
// called at any time.
type Duplicates struct {
	topic  uint32
	key    store.IDKey    // of the hashes
	expiry *maintain.Task // calls Expire

	ids     ids
	index   index
	runs    []run // by queue: the hashes that no record of the index has yet
	expires bool  // a call of Expire is scheduled
}

// NewDuplicates returns the empty memory of a topic. key is the key of the hashes. The step of
// expiry must call Expire.
func NewDuplicates(topic uint32, key store.IDKey, expiry *maintain.Task) *Duplicates {
	return &Duplicates{topic: topic, key: key, expiry: expiry}
}

// Hash returns the hash of an ID, as in the index. It is not 0.
func (m *Duplicates) Hash(id string) uint64 { return m.key.Hash(id) }

// HashID sets the IDHash of a message if it is not set.
func (m *Duplicates) HashID(msg *store.Message) {
	if msg.IDHash == 0 {
		msg.IDHash = m.Hash(msg.ID)
	}
}

// Find returns the probable location of the message whose ID has a hash; false if the hash is not
// remembered. next returns the offset after the last message of a queue, or 0 if the queue does not
// exist.
func (m *Duplicates) Find(hash uint64, next func(queue uint16) int64) (Location, bool) {
	return m.ids.Find(hash, next)
}

// Put remembers a message that is written to a queue by w. It adds the message to the index too, so
// that the message is remembered after a restart.
func (m *Duplicates) Put(w *store.Batch, msg *store.Message, queue uint16, offset int64, window time.Duration, now time.Time) {
	m.Remember(msg, Location{Queue: queue, Offset: offset}, window, now)
	if window > 0 {
		m.addToIndex(w, queue, offset, msg.IDHash, now.UnixNano(), window)
	}
}

// Remember remembers the location of a message for the window. With a window of 0 it remembers
// nothing, and forgets the location that a delayed or half message has left.
func (m *Duplicates) Remember(msg *store.Message, l Location, window time.Duration, now time.Time) {
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

func (m *Duplicates) expireLater(window time.Duration, now time.Time) {
	if !m.expires {
		m.expires = true
		m.expiry.Wake(now.Add(window))
	}
}

// Forget forgets the location of a delayed or half message, by the hash of its ID.
func (m *Duplicates) Forget(hash uint64) { m.ids.Forget(hash) }

// ForgetAll forgets all IDs, and deletes the index.
func (m *Duplicates) ForgetAll(w *store.Batch) {
	m.ids = ids{}
	m.dropIndex(w)
}

// Expire forgets the IDs that are older than the window, also in the index. It returns when to call
// it again; zero if no IDs are remembered.
func (m *Duplicates) Expire(w *store.Batch, window time.Duration, now time.Time) time.Time {
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

// run returns the hashes of a queue that no record of the index has yet.
func (m *Duplicates) run(queue uint16) *run {
	for int(queue) >= len(m.runs) {
		m.runs = append(m.runs, run{})
	}
	return &m.runs[queue]
}

// addToIndex adds the ID of a message to the run of its queue. It writes the run to the index when
// the run is full or older than the window.
func (m *Duplicates) addToIndex(w *store.Batch, queue uint16, offset int64, hash uint64, at int64, window time.Duration) {
	run := m.run(queue)
	if run.Over(offset, at, window) {
		m.writeIndex(w, queue)
	}
	if run.Add(offset, hash, at) {
		m.writeIndex(w, queue)
	}
	m.index.Last = at
}

func (m *Duplicates) writeIndex(w *store.Batch, queue uint16) {
	ids := m.runs[queue].Take(queue)
	w.PutRecentIDs(m.topic, ids)
	m.index.Wrote(ids)
}

// WriteRest writes the hashes that no record of the index has yet, for a regular end of the broker.
// It leaves out queues whose last message is older than the window.
func (m *Duplicates) WriteRest(w *store.Batch, window time.Duration, now time.Time) {
	for queue := range m.runs {
		if m.runs[queue].Fresh(window, now) {
			m.writeIndex(w, uint16(queue))
		}
	}
}

func (m *Duplicates) dropIndex(w *store.Batch) {
	if m.index.From != 0 {
		w.DeleteAllRecentIDs(m.topic)
	}
	m.index, m.runs = index{}, nil
}

// A State is the size and state of a memory.
type State struct {
	IDs       int   // number of remembered IDs
	Unindexed int   // number of IDs that no record of the index has yet
	From      int64 // see index.From
	Expires   bool  // a call of Expire is scheduled
}

// State returns the current state.
func (m *Duplicates) State() State {
	s := State{IDs: m.ids.Len(), From: m.index.From, Expires: m.expires}
	for i := range m.runs {
		s.Unindexed += m.runs[i].Len()
	}
	return s
}
