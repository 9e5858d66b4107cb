package recent

const (
	// The parts of a slot, in bits. The offset's are its lowest: more than twice as
	// many as are remembered tell which one is meant.
	tagBits, queueBits, offsetBits = 34, 10, 20

	shardBits  = 6
	firstSlots = 8 // of a shard
)

// MaxQueues is how many queues a topic may have.
const MaxQueues = 1 << queueBits

// A slot has the queue of a message, the end of its offset, and as a tag a part
// of the hash of its ID; 0 is a free one.
type slot uint64

func slotOf(tag uint64, l Location) slot {
	return slot(tag<<(queueBits+offsetBits) | uint64(l.Queue)<<offsetBits | uint64(l.Offset)&(1<<offsetBits-1))
}

func (s slot) tag() uint64   { return uint64(s >> (queueBits + offsetBits)) }
func (s slot) queue() uint16 { return uint16(s >> offsetBits & (1<<queueBits - 1)) }

// lastBefore returns the last offset before next that ends as the slot's.
func (s slot) lastBefore(next int64) int64 {
	return next - 1 - (next-1-int64(s))&(1<<offsetBits-1)
}

// A generation is a hash table with open addressing, of 8 bytes a slot, in
// shards so that none takes long to grow. Nil is an empty one that is only read.
type generation struct {
	count  int // in shards
	shards [1 << shardBits]shard
	// aside has, by the whole hash, what is not in a queue, or has the shard and tag of another ID.
	aside map[uint64]Location
}

type shard struct {
	slots []slot
	used  int
}

// generationOf returns an empty generation with room for n IDs.
func generationOf(n int) *generation {
	g := &generation{}
	for i := range g.shards {
		if each := n * 3 / 2 >> shardBits; each > firstSlots { // not all shards get as many
			g.shards[i].slots = make([]slot, each)
		}
	}
	return g
}

// tagOf returns the part of a hash that a slot has, which is not 0. The shard has shardBits more.
func tagOf(hash uint64) uint64 { return max(hash<<shardBits>>(64-tagBits), 1) }

// search returns the slot of a tag, or the free one where it would be.
func (s *shard) search(tag uint64) *slot {
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

// find returns the slot with the shard and tag of a hash; 0 if there is none.
func (g *generation) find(hash uint64) slot {
	if g == nil {
		return 0
	}
	s := &g.shards[hash>>(64-shardBits)]
	if s.used == 0 {
		return 0
	}
	return *s.search(tagOf(hash))
}

// put adds a place in a queue, of a hash whose tag its shard does not have.
func (g *generation) put(hash uint64, l Location) {
	s := &g.shards[hash>>(64-shardBits)]
	if (s.used+1)*4 > len(s.slots)*3 {
		s.grow()
	}
	t := tagOf(hash)
	*s.search(t) = slotOf(t, l)
	s.used++
	g.count++
}

func (s *shard) grow() {
	before := s.slots
	s.slots = make([]slot, max(firstSlots, len(before)*3/2))
	for _, taken := range before {
		if taken != 0 {
			*s.search(taken.tag()) = taken
		}
	}
}

func (g *generation) setAside(hash uint64, l Location) {
	if g.aside == nil {
		g.aside = map[uint64]Location{}
	}
	g.aside[hash] = l
}

func (g *generation) len() int {
	if g == nil {
		return 0
	}
	return g.count + len(g.aside)
}
