package deadletter

import (
	"container/heap"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// maxBytes bounds the memory of all failures of a broker.
const maxBytes = 8 << 20

// besideTexts is the size of a failure without its texts, in bytes.
const besideTexts = 192

// Timeout is the Cause of a delivery whose invisible duration ended without a settlement.
const Timeout = "timeout"

// A Failure is a delivery that failed, with the engine's action on its message.
type Failure struct {
	At      time.Time
	Topic   string
	Place   store.Place
	Attempt int
	Client  string        // whose heartbeats kept the lease; empty for none
	Reason  string        // from the consumer; empty for a timeout
	Cause   string        // see status.Failure
	Fate    string        // see status.Failure
	Delay   time.Duration // until the next delivery

	Number uint64 // in the order of all failures of the broker, from 1 on
}

func (f *Failure) size() int { return besideTexts + len(f.Client) + len(f.Reason) }

// A FailureLog has the latest failures of each group. If it has more than MaxBytes, it drops the
// oldest failures of the group with the most bytes, so that one group does not displace the
// failures of others. Its zero value is empty. Several goroutines can call its methods at the same
// time.
type FailureLog struct {
	mu     sync.Mutex
	last   uint64            // guarded by mu: the number of the last failure
	bytes  int               // guarded by mu: of all failures
	groups map[string]*group // guarded by mu
	sizes  groupHeap         // guarded by mu: the groups, the largest first
}

// A group has the failures of one group, the oldest first.
type group struct {
	name    string
	list    []Failure // from first on
	first   int
	bytes   int
	dropped int64
	index   int // in Log.sizes
}

// Add adds a failure, and sets its number.
func (l *FailureLog) Add(name string, f Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[name]
	if g == nil {
		if l.groups == nil {
			l.groups = map[string]*group{}
		}
		g = &group{name: name}
		l.groups[name] = g
		heap.Push(&l.sizes, g)
	}
	l.last++
	f.Number = l.last
	g.list = append(g.list, f)
	l.resize(g, f.size())
	for l.bytes > maxBytes {
		l.drop(l.sizes[0])
	}
}

// resize changes the size of a group. mu is held.
func (l *FailureLog) resize(g *group, by int) {
	g.bytes += by
	l.bytes += by
	heap.Fix(&l.sizes, g.index)
}

// drop drops the oldest failure of a group. mu is held.
func (l *FailureLog) drop(g *group) {
	size := g.list[g.first].size()
	g.list[g.first] = Failure{}
	g.first++
	g.dropped++
	if g.first > len(g.list)/2 { // each failure is copied about once
		g.list, g.first = append([]Failure(nil), g.list[g.first:]...), 0
	}
	l.resize(g, -size)
}

// Forget drops all failures of a group.
func (l *FailureLog) Forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[name]; g != nil {
		delete(l.groups, name)
		l.bytes -= g.bytes
		heap.Remove(&l.sizes, g.index)
	}
}

// Page returns up to limit failures of a group with numbers below before, the newest first, and the
// number of failures that were dropped. topic selects the failures in one topic; empty means all. A
// before of 0 means the newest. more reports whether there are further ones.
func (l *FailureLog) Page(name, topic string, before uint64, limit int) (page []Failure, dropped int64, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[name]
	if g == nil {
		return nil, 0, false
	}
	for i := len(g.list) - 1; i >= g.first; i-- {
		f := &g.list[i]
		if before > 0 && f.Number >= before || topic != "" && f.Topic != topic {
			continue
		}
		if len(page) == limit {
			return page, g.dropped, true
		}
		page = append(page, *f)
	}
	return page, g.dropped, false
}

// Latest sets the last failure of each message of last in a group. It leaves out messages without
// one.
func (l *FailureLog) Latest(name string, last map[store.Place]*Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[name]; g != nil {
		for i := g.first; i < len(g.list); i++ {
			if _, ok := last[g.list[i].Place]; ok {
				last[g.list[i].Place] = new(g.list[i])
			}
		}
	}
}

// Of returns the failures of a message in a group, the oldest first.
func (l *FailureLog) Of(name string, p store.Place) (list []Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.groups[name]; g != nil {
		for i := g.first; i < len(g.list); i++ {
			if g.list[i].Place == p {
				list = append(list, g.list[i])
			}
		}
	}
	return list
}

// A groupHeap has the group with the most bytes in front.
type groupHeap []*group

func (h groupHeap) Len() int           { return len(h) }
func (h groupHeap) Less(i, j int) bool { return h[i].bytes > h[j].bytes }
func (h groupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *groupHeap) Push(x any) {
	g := x.(*group)
	g.index = len(*h)
	*h = append(*h, g)
}

// Pop implements heap.Interface.
func (h *groupHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return g
}
