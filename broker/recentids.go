package broker

import "time"

const (
	// maxRecentIDs bounds how many IDs a topic remembers at least, where many are
	// sent within the window: twice as many take about 8 MB.
	maxRecentIDs = 1 << 18

	// The parts of a slot, in bits. The offset's are its lowest: more than twice as
	// many as are remembered tell which one is meant.
	tagBits, queueBits, offsetBits = 34, 10, 20

	shardBits  = 6
	firstSlots = 8 // of a shard
)

// recentIDs knows where the messages of the last while are, by a hash of
// their ID. What it says has to be verified. It has two generations: the older
// one is forgotten when the newer one is full or as old as the window. Its zero
// value is empty.
type recentIDs struct {
	newer, older *generation // nil: empty
	since        time.Time   // of newer
}

// A location is a message's place within its topic: in a queue, or, if due is
// not zero, among the delayed messages, or, if half is set, among the half
// messages, offset then being its number there.
type location struct {
	queue  uint16
	half   bool
	offset int64
	due    int64 // in nanoseconds since 1970: no pointer, so the collector passes over all locations
}

// moves reports whether a message can leave the place.
func (l location) moves() bool { return l.half || l.due != 0 }

// find returns where a message whose ID has that hash probably is. queues are the topic's.
func (r *recentIDs) find(h uint64, queues []*queue) (location, bool) {
	for _, g := range [...]*generation{r.newer, r.older} {
		if g != nil && len(g.aside) > 0 {
			if l, ok := g.aside[h]; ok {
				return l, true
			}
		}
	}
	slot := r.newer.slot(h)
	if slot == 0 {
		slot = r.older.slot(h)
	}
	if slot == 0 {
		return location{}, false
	}
	q := uint16(slot >> offsetBits & (1<<queueBits - 1))
	if int(q) >= len(queues) {
		return location{}, false
	}
	return location{queue: q, offset: lastWith(slot, queues[q].nextOffset)}, true
}

// lastWith returns the last offset before next with the offset's bits of a slot.
func lastWith(slot uint64, next int64) int64 {
	return next - 1 - (next-1-int64(slot))&(1<<offsetBits-1)
}

// add remembers an ID, instead of what it was before.
func (r *recentIDs) add(h uint64, l location, window time.Duration, now time.Time) {
	if now.Sub(r.since) >= window || r.newer.len() >= maxRecentIDs {
		r.turn(now)
	}
	r.put(h, l)
}

// put is add to the newer generation, whatever it has.
func (r *recentIDs) put(h uint64, l location) {
	if r.newer == nil {
		r.newer = &generation{}
	}
	r.forget(h)
	if l.moves() || r.newer.slot(h) != 0 || r.older.slot(h) != 0 {
		r.newer.setAside(h, l)
		return
	}
	r.newer.put(h, uint64(l.queue)<<offsetBits|uint64(l.offset)&(1<<offsetBits-1))
}

// turn forgets the older generation and begins a new one.
func (r *recentIDs) turn(now time.Time) { r.newer, r.older, r.since = nil, r.newer, now }

// forget forgets an ID whose place was one that a message can leave.
func (r *recentIDs) forget(h uint64) {
	for _, g := range [...]*generation{r.newer, r.older} {
		if g != nil {
			delete(g.aside, h)
		}
	}
}

// forgotten reports whether nothing is remembered.
func (r *recentIDs) forgotten() bool { return r.newer == nil && r.older == nil }

// expire forgets what is older than the window, though nothing is added, and
// returns when to do so again; zero if nothing is remembered.
func (r *recentIDs) expire(window time.Duration, now time.Time) (next time.Time) {
	if window == 0 {
		*r = recentIDs{}
	} else if now.Sub(r.since) >= window {
		r.turn(now)
	}
	if r.forgotten() {
		return next
	}
	return r.since.Add(window)
}

// A generation is a hash table with open addressing, of 8 bytes a slot, in
// shards so that none takes long to grow. A slot has the queue, the
// end of the offset, and as a tag a part of the ID's hash; 0 is a free one.
type generation struct {
	count  int // in shards
	shards [1 << shardBits]shard
	// aside has, by the whole hash, what is not in a queue, or has the shard and tag of another ID.
	aside map[uint64]location
}

type shard struct {
	slots []uint64
	used  int
}

// generationOf returns an empty generation with room for n IDs.
func generationOf(n int) *generation {
	g := &generation{}
	for i := range g.shards {
		if each := n * 3 / 2 >> shardBits; each > firstSlots { // not all shards get as many
			g.shards[i].slots = make([]uint64, each)
		}
	}
	return g
}

// tag returns the part of a hash that a slot has, which is not 0. The shard has shardBits more.
func tag(hash uint64) uint64 { return max(hash<<shardBits>>(64-tagBits), 1) }

// search returns the slot of a tag, or the free one where it would be.
func (s *shard) search(tag uint64) *uint64 {
	n := uint64(len(s.slots))
	for i := tag * n >> tagBits; ; i++ {
		if i == n {
			i = 0
		}
		if p := &s.slots[i]; *p == 0 || *p>>(queueBits+offsetBits) == tag {
			return p
		}
	}
}

// slot returns the slot with the shard and tag of a hash; 0 if there is none.
func (g *generation) slot(hash uint64) uint64 {
	if g == nil {
		return 0
	}
	s := &g.shards[hash>>(64-shardBits)]
	if s.used == 0 {
		return 0
	}
	return *s.search(tag(hash))
}

// put adds a place whose tag its shard does not have.
func (g *generation) put(hash, place uint64) {
	s := &g.shards[hash>>(64-shardBits)]
	if (s.used+1)*4 > len(s.slots)*3 {
		s.grow()
	}
	t := tag(hash)
	*s.search(t) = t<<(queueBits+offsetBits) | place
	s.used++
	g.count++
}

func (s *shard) grow() {
	before := s.slots
	s.slots = make([]uint64, max(firstSlots, len(before)*3/2))
	for _, slot := range before {
		if slot != 0 {
			*s.search(slot >> (queueBits + offsetBits)) = slot
		}
	}
}

func (g *generation) setAside(hash uint64, l location) {
	if g.aside == nil {
		g.aside = map[uint64]location{}
	}
	g.aside[hash] = l
}

func (g *generation) len() int {
	if g == nil {
		return 0
	}
	return g.count + len(g.aside)
}
