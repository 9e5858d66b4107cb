package recent

const (
	// The parts of a slot, in bits. A slot has only the lowest offsetBits of an offset. These have
	// more than twice as many values as a topic remembers IDs, so they identify the offset.
	tagBits, queueBits, offsetBits = 34, 10, 20

	shardBits  = 6
	firstSlots = 8 // initial number of slots of a shard
)

// MaxQueues is the largest number of queues of a topic.
const MaxQueues = 1 << queueBits

// A slot is an entry of the hash table. It has a tag, the queue of the message and the lowest bits
// of its offset. The tag is a part of the hash of the message ID. A slot of 0 is free.
type slot uint64

func slotOf(tag uint64, l Location) slot {
	return slot(tag<<(queueBits+offsetBits) | uint64(l.Queue)<<offsetBits | uint64(l.Offset)&(1<<offsetBits-1))
}

func (s slot) tag() uint64   { return uint64(s >> (queueBits + offsetBits)) }
func (s slot) queue() uint16 { return uint16(s >> offsetBits & (1<<queueBits - 1)) }

// lastBefore returns the last offset before next that has the lowest bits of the slot.
func (s slot) lastBefore(next int64) int64 {
	return next - 1 - (next-1-int64(s))&(1<<offsetBits-1)
}

// A generation is a hash table with open addressing and 8 bytes per slot. It is divided into shards
// so that growing a shard is fast. A nil generation is empty and read-only.
type generation struct {
	count  int // of the shards
	shards [1 << shardBits]shard
	// overflow has the locations that the shards cannot have, by the whole hash: messages in no
	// queue, and messages whose hash has the shard and tag of another ID.
	overflow map[uint64]Location
}

type shard struct {
	slots []slot
	used  int
}

// generationOf returns an empty generation with slots for n IDs.
func generationOf(n int) *generation {
	g := &generation{}
	for i := range g.shards {
		if each := n * 3 / 2 >> shardBits; each > firstSlots { // 3/2, as the IDs are not spread evenly
			g.shards[i].slots = make([]slot, each)
		}
	}
	return g
}

// tagOf returns the part of a hash that is the tag of a slot. The result is not 0. The shardBits
// bits before it select the shard.
func tagOf(hash uint64) uint64 { return max(hash<<shardBits>>(64-tagBits), 1) }

// search returns the slot with a tag. If there is none, it returns the free slot for the tag.
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

// find returns the slot with the shard and tag of a hash; 0 if there is no such slot.
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

// put adds a location in a queue. The shard of hash must not have its tag yet.
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

func (g *generation) addOverflow(hash uint64, l Location) {
	if g.overflow == nil {
		g.overflow = map[uint64]Location{}
	}
	g.overflow[hash] = l
}

func (g *generation) len() int {
	if g == nil {
		return 0
	}
	return g.count + len(g.overflow)
}
