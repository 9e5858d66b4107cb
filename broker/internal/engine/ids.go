package engine

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// idCapacity is the least number of IDs that are remembered if more IDs are added within the
// window. At most twice as many are remembered. They take about 8 MB.
const idCapacity = 1 << 18

// recentIDs remembers the locations of recent messages by the hashes of their IDs. Callers must
// verify a location that Find returns, because another ID can have the same hash. There are two
// generations. When the newer generation is full or as old as the window, the older one is
// forgotten. The zero value is empty and ready for use. Goroutines must not share one.
type recentIDs struct {
	newer, older *idGeneration // nil: empty
	since        time.Time     // when newer began
}

// A PendingLocation is the place of a message in its topic. It is one of:
//   - a message in a queue: Queue and Offset
//   - a delayed message: Due is its delivery time, and Offset its number
//   - a half message: Half is set, and Offset is its number
type PendingLocation struct {
	Queue  uint16
	Half   bool
	Offset int64
	Due    int64 // in nanoseconds since 1970; not a time.Time, which has a pointer to scan
}

// Moves reports whether the message can leave the location: it is a delayed message or a half
// message.
func (l PendingLocation) Moves() bool { return l.Half || l.Due != 0 }

// Find returns the probable location of the message whose ID has a hash; false if the hash is not
// remembered. next returns the offset after the last message of a queue, or 0 if the queue does not
// exist.
func (r *recentIDs) Find(hash uint64, next func(queue uint16) int64) (PendingLocation, bool) {
	for _, g := range [...]*idGeneration{r.newer, r.older} {
		if g != nil && len(g.overflow) > 0 {
			if l, ok := g.overflow[hash]; ok {
				return l, true
			}
		}
	}
	s := r.newer.find(hash)
	if s == 0 {
		s = r.older.find(hash)
	}
	if s == 0 {
		return PendingLocation{}, false
	}
	q := s.queue()
	end := next(q)
	if end == 0 {
		return PendingLocation{}, false
	}
	return PendingLocation{Queue: q, Offset: s.lastBefore(end)}, true
}

// Add remembers the location of the ID with a hash, in place of an earlier location. The first bits
// of hashes must be uniformly distributed. The Queue of l must be below MaxQueues.
func (r *recentIDs) Add(hash uint64, l PendingLocation, window time.Duration, now time.Time) {
	if now.Sub(r.since) >= window || r.newer.len() >= idCapacity {
		r.rotate(now)
	}
	r.Put(hash, l)
}

// Put does the same as Add for IDs that are restored after a start. It never forgets the older
// generation, regardless of the number and age of the IDs.
func (r *recentIDs) Put(hash uint64, l PendingLocation) {
	if r.newer == nil {
		r.newer = &idGeneration{}
	}
	r.Forget(hash)
	if l.Moves() || r.newer.find(hash) != 0 || r.older.find(hash) != 0 {
		r.newer.addOverflow(hash, l)
		return
	}
	r.newer.put(hash, l)
}

// rotate forgets the older generation and begins a new one.
func (r *recentIDs) rotate(now time.Time) { r.newer, r.older, r.since = nil, r.newer, now }

// Forget forgets the location of a delayed or half message, by the hash of its ID. Locations in a
// queue may stay.
func (r *recentIDs) Forget(hash uint64) {
	for _, g := range [...]*idGeneration{r.newer, r.older} {
		if g != nil {
			delete(g.overflow, hash)
		}
	}
}

// Len returns how many IDs are remembered.
func (r *recentIDs) Len() int { return r.newer.len() + r.older.len() }

// Forgotten reports whether no IDs are remembered.
func (r *recentIDs) Forgotten() bool { return r.newer == nil && r.older == nil }

// Expire forgets the IDs that are older than the window. It returns when to call it again; zero if
// no IDs are remembered. A window of 0 forgets all IDs.
func (r *recentIDs) Expire(window time.Duration, now time.Time) (next time.Time) {
	if window == 0 {
		*r = recentIDs{}
	} else if now.Sub(r.since) >= window {
		r.rotate(now)
	}
	if r.Forgotten() {
		return next
	}
	return r.since.Add(window)
}

// A runOfIDs collects the hashes of the IDs of consecutive messages of a queue, for the next record
// of the index. The zero value is empty.
type runOfIDs struct {
	end       int64 // the offset after the last message
	first, at int64 // when the first and the last message were stored, in nanoseconds since 1970
	hashes    []uint64
}

// Len returns the number of hashes.
func (r *runOfIDs) Len() int { return len(r.hashes) }

// Over reports whether the run must be written before the message at offset is added. at is the
// time when that message was stored. The run must be written if its first message is older than the
// window: the run may have the ID of the new message already, and then a later record must have it.
func (r *runOfIDs) Over(offset, at int64, window time.Duration) bool {
	return r.end == offset && len(r.hashes) > 0 && at-r.first >= int64(window)
}

// Add adds the message at offset. It reports whether the run has as many hashes as a record. If the
// message does not directly follow the run, Add first drops the run. After a restart, the IDs
// between two records are read from the messages.
func (r *runOfIDs) Add(offset int64, hash uint64, at int64) (full bool) {
	if r.end != offset {
		r.hashes = r.hashes[:0]
	}
	if len(r.hashes) == 0 {
		r.first = at
	}
	r.hashes = append(r.hashes, hash)
	r.end, r.at = offset+1, at
	return len(r.hashes) == store.MaxRecentIDs
}

// Fresh reports whether the run has messages, and the last one is within the window.
func (r *runOfIDs) Fresh(window time.Duration, now time.Time) bool {
	return len(r.hashes) > 0 && now.UnixNano()-r.at < int64(window)
}

// Take returns the run as a record, and empties the run. The hashes of the record are valid until
// the next Add.
func (r *runOfIDs) Take(queue uint16) store.RecentIDs {
	ids := store.RecentIDs{Queue: queue, End: r.end, At: time.Unix(0, r.at), Hashes: r.hashes}
	r.hashes = r.hashes[:0]
	return ids
}

// An idIndex describes the index of IDs that a topic has in the store. The zero value describes a
// topic without an index. Times are in nanoseconds since 1970.
type idIndex struct {
	Last int64 // when a message was last added, or the broker was started; 0 if no message was added
	From int64 // lower bound of the times of the records; 0 if there are no records
}

// Wrote records that a record was written.
func (x *idIndex) Wrote(ids store.RecentIDs) {
	if at := ids.At.UnixNano(); x.From == 0 || at < x.From {
		x.From = at
	}
}

// An outdatedIDs is the part of an index that is older than the window. The zero value is empty.
type outdatedIDs struct {
	All      bool
	From, To time.Time // if All is false, the times of the records to delete; zero if there are none
	Next     time.Time // when to call Expire again; zero if the index is empty then
}

// Expire returns the part of the index that is older than the window. With a window of 0 this is
// the whole index. If it is not the whole index, Expire advances From as if the records were
// deleted.
func (x *idIndex) Expire(window time.Duration, now time.Time) outdatedIDs {
	old := now.Add(-window)
	switch {
	case x.Last == 0:
		return outdatedIDs{}
	case window == 0 || x.Last <= old.UnixNano():
		return outdatedIDs{All: true}
	}
	out := outdatedIDs{Next: time.Unix(0, x.Last).Add(window)}
	// Delete at least half a window of records at once, because many topics may expire once per
	// window.
	if x.From != 0 && x.From < old.Add(-window/2).UnixNano() {
		out.From, out.To = time.Unix(0, x.From), old
		x.From = old.UnixNano()
	}
	return out
}

const (
	// The parts of a slot, in bits. A slot has only the lowest offsetBits of an offset. These have
	// more than twice as many values as a topic remembers IDs, so they identify the offset.
	tagBits, queueBits, offsetBits = 28, 16, 20

	shardBits  = 6
	firstSlots = 8 // initial number of slots of a shard
)

// maxQueues is the largest number of queues of a topic.
const maxQueues = 1 << queueBits

// An idSlot is an entry of the hash table. It has a tag, the queue of the message and the lowest
// bits of its offset. The tag is a part of the hash of the message ID. A slot of 0 is free.
type idSlot uint64

func slotOf(tag uint64, l PendingLocation) idSlot {
	return idSlot(tag<<(queueBits+offsetBits) | uint64(l.Queue)<<offsetBits | uint64(l.Offset)&(1<<offsetBits-1))
}

func (s idSlot) tag() uint64   { return uint64(s >> (queueBits + offsetBits)) }
func (s idSlot) queue() uint16 { return uint16(s >> offsetBits & (1<<queueBits - 1)) }

// lastBefore returns the last offset before next that has the lowest bits of the slot.
func (s idSlot) lastBefore(next int64) int64 {
	return next - 1 - (next-1-int64(s))&(1<<offsetBits-1)
}

// An idGeneration is a hash table with open addressing and 8 bytes per slot. It is divided into
// shards so that growing a shard is fast. A nil generation is empty and read-only.
type idGeneration struct {
	count  int // of the shards
	shards [1 << shardBits]idShard
	// overflow has the locations that the shards cannot have, by the whole hash: messages in no
	// queue, and messages whose hash has the shard and tag of another ID.
	overflow map[uint64]PendingLocation
}

type idShard struct {
	slots []idSlot
	used  int
}

// generationOf returns an empty generation with slots for n IDs.
func generationOf(n int) *idGeneration {
	g := &idGeneration{}
	for i := range g.shards {
		if each := n * 3 / 2 >> shardBits; each > firstSlots { // 3/2, as the IDs are not spread evenly
			g.shards[i].slots = make([]idSlot, each)
		}
	}
	return g
}

// tagOf returns the part of a hash that is the tag of a slot. The result is not 0. The shardBits
// bits before it select the shard.
func tagOf(hash uint64) uint64 { return max(hash<<shardBits>>(64-tagBits), 1) }

// search returns the slot with a tag. If there is none, it returns the free slot for the tag.
func (s *idShard) search(tag uint64) *idSlot {
	n := uint64(len(s.slots))
	for i := tag * n >> tagBits; ; i++ {
		if i == n {
			i = 0
		}
		if p := &s.slots[i]; *p == 0 || p.tag() == tag {
			return p
		}
	}
}

// find returns the slot with the shard and tag of a hash; 0 if there is no such slot.
func (g *idGeneration) find(hash uint64) idSlot {
	if g == nil {
		return 0
	}
	s := &g.shards[hash>>(64-shardBits)]
	if s.used == 0 {
		return 0
	}
	return *s.search(tagOf(hash))
}

// put adds a location in a queue. The shard of hash must not have its tag yet.
func (g *idGeneration) put(hash uint64, l PendingLocation) {
	s := &g.shards[hash>>(64-shardBits)]
	if (s.used+1)*4 > len(s.slots)*3 {
		s.grow()
	}
	t := tagOf(hash)
	*s.search(t) = slotOf(t, l)
	s.used++
	g.count++
}

func (s *idShard) grow() {
	before := s.slots
	s.slots = make([]idSlot, max(firstSlots, len(before)*3/2))
	for _, taken := range before {
		if taken != 0 {
			*s.search(taken.tag()) = taken
		}
	}
}

func (g *idGeneration) addOverflow(hash uint64, l PendingLocation) {
	if g.overflow == nil {
		g.overflow = map[uint64]PendingLocation{}
	}
	g.overflow[hash] = l
}

func (g *idGeneration) len() int {
	if g == nil {
		return 0
	}
	return g.count + len(g.overflow)
}

// A recentStored is a message whose ID is in no record of the index.
type recentStored struct {
	Queue  uint16
	Offset int64
	Hash   uint64 // of its ID
	At     time.Time
}

// restore returns the IDs of the records of the index, and of the messages that were read because
// no record has them. begun is the start of the newer generation. Restore sorts both slices by
// time, so that the latest location counts if an ID was stored twice.
func restore(begun time.Time, records []store.RecentIDs, read []recentStored) recentIDs {
	slices.SortFunc(records, func(x, y store.RecentIDs) int { return x.At.Compare(y.At) })
	slices.SortFunc(read, func(x, y recentStored) int { return x.At.Compare(y.At) })
	n := len(read)
	for _, ids := range records {
		n += len(ids.Hashes)
	}
	r := recentIDs{since: begun}
	if n > 0 {
		r.newer = generationOf(n)
	}
	readBefore := func(at time.Time) {
		for len(read) > 0 && read[0].At.Before(at) {
			r.Put(read[0].Hash, PendingLocation{Queue: read[0].Queue, Offset: read[0].Offset})
			read = read[1:]
		}
	}
	for _, ids := range records {
		readBefore(ids.At)
		for i, h := range ids.Hashes {
			r.Put(h, PendingLocation{Queue: ids.Queue, Offset: ids.First() + int64(i)})
		}
	}
	for _, m := range read {
		r.Put(m.Hash, PendingLocation{Queue: m.Queue, Offset: m.Offset})
	}
	return r
}

// A Duplicates remembers the message IDs of one topic. Call its methods only within Add of the
// message log, or during the start, before other goroutines use the topic. Hash and HashID may be
// called at any time.
type Duplicates struct {
	topic  uint32
	key    store.IDKey // of the hashes
	expiry *Task       // calls Expire

	ids     recentIDs
	index   idIndex
	runs    []runOfIDs // by queue: the hashes that no record of the index has yet
	expires bool       // a call of Expire is scheduled
}

// newDuplicates returns the empty memory of a topic. key is the key of the hashes. The step of
// expiry must call Expire.
func newDuplicates(topic uint32, key store.IDKey, expiry *Task) *Duplicates {
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
func (m *Duplicates) Find(hash uint64, next func(queue uint16) int64) (PendingLocation, bool) {
	return m.ids.Find(hash, next)
}

// Put remembers a message that is written to a queue by w. It adds the message to the index too, so
// that the message is remembered after a restart.
func (m *Duplicates) Put(w *store.Batch, msg *store.Message, queue uint16, offset int64, window time.Duration, now time.Time) {
	m.Remember(msg, PendingLocation{Queue: queue, Offset: offset}, window, now)
	if window > 0 {
		m.addToIndex(w, queue, offset, msg.IDHash, now.UnixNano(), window)
	}
}

// Remember remembers the location of a message for the window. With a window of 0 it remembers
// nothing, and forgets the location that a delayed or half message has left.
func (m *Duplicates) Remember(msg *store.Message, l PendingLocation, window time.Duration, now time.Time) {
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
	m.ids = recentIDs{}
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
func (m *Duplicates) run(queue uint16) *runOfIDs {
	for int(queue) >= len(m.runs) {
		m.runs = append(m.runs, runOfIDs{})
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
	m.index, m.runs = idIndex{}, nil
}

// A DuplicatesState is the size and state of a memory.
type DuplicatesState struct {
	IDs       int   // number of remembered IDs
	Unindexed int   // number of IDs that no record of the index has yet
	From      int64 // see index.From
	Expires   bool  // a call of Expire is scheduled
}

// State returns the current state.
func (m *Duplicates) State() DuplicatesState {
	s := DuplicatesState{IDs: m.ids.Len(), From: m.index.From, Expires: m.expires}
	for i := range m.runs {
		s.Unindexed += m.runs[i].Len()
	}
	return s
}
