package spool

import (
	"container/heap"
	"container/list"
	"slices"
	"sort"
	"time"

	"github.com/tidegate/tidegate"
)

// An entry is a message in the spool.
type entry struct {
	seq      uint64
	queue    *queue
	seg      *segment // the record with the message is in its file, at off, with size bytes
	off      int64
	size     int
	rejected bool
	gone     bool
	sent     bool // a server has the message, but its removal is not on the disk
}

// A queue has the pending messages of a topic and message group, or those of a topic without a
// group.
type queue struct {
	name    string
	entries []*entry // by sequence; some are not pending any more
	pending int      // of entries

	failures int       // consecutive batches without a finished message
	until    time.Time // end of the pause; zero if there is none
	place    *list.Element
	paused   int // index in index.paused; -1 if it is in index.ready
}

// An index is the state of the spool in memory, without the messages. It has no lock and no I/O.
type index struct {
	queues map[string]*queue // with pending messages
	ready  list.List         // queues to take messages from, in the order of their turns
	paused pauses
	all    []*entry // by sequence; some are gone
	gone   int      // of all
	next   uint64   // the next sequence
	stats  Stats
}

func newIndex() *index { return &index{queues: map[string]*queue{}, next: 1} }

// add adds an entry with the highest sequence so far.
func (x *index) add(name string, e *entry) {
	x.all = append(x.all, e)
	x.next = max(x.next, e.seq+1)
	e.seg.live += int64(e.size)
	x.stats.Bytes += int64(e.size)
	if e.rejected {
		x.stats.Rejected++
		return
	}
	x.stats.Pending++
	q := x.queues[name]
	if q == nil {
		q = &queue{name: name, paused: -1}
		q.place = x.ready.PushBack(q)
		x.queues[name] = q
	}
	e.queue = q
	q.entries = append(q.entries, e)
	q.pending++
}

// leaveQueue removes a pending entry from its queue.
func (x *index) leaveQueue(e *entry) {
	q := e.queue
	e.queue = nil
	x.stats.Pending--
	if q.pending--; q.pending == 0 {
		delete(x.queues, q.name)
		if q.paused >= 0 {
			heap.Remove(&x.paused, q.paused)
		} else {
			x.ready.Remove(q.place)
		}
		return
	}
	if len(q.entries) > 2*q.pending+16 {
		q.entries = slices.DeleteFunc(q.entries, func(e *entry) bool { return e.queue != q })
	}
}

// remove removes an entry.
func (x *index) remove(e *entry) {
	if e.rejected {
		x.stats.Rejected--
	} else {
		x.leaveQueue(e)
	}
	x.stats.Bytes -= int64(e.size)
	e.seg.live -= int64(e.size)
	e.gone = true
	if x.gone++; x.gone > len(x.all)/2+16 {
		x.all = slices.DeleteFunc(x.all, func(e *entry) bool { return e.gone })
		x.gone = 0
	}
}

// reject makes a pending entry a rejected one.
func (x *index) reject(e *entry) {
	x.leaveQueue(e)
	e.rejected = true
	x.stats.Rejected++
}

// move notes a new record of an entry.
func (x *index) move(e *entry, seg *segment, off int64, size int) {
	x.stats.Bytes += int64(size - e.size)
	e.seg.live -= int64(e.size)
	e.seg, e.off, e.size = seg, off, size
	seg.live += int64(size)
}

// from returns the position in all of the first entry with a sequence above after.
func (x *index) from(after uint64) int {
	return sort.Search(len(x.all), func(i int) bool { return x.all[i].seq > after })
}

// find returns the entry with a sequence, or nil.
func (x *index) find(seq uint64) *entry {
	if i := x.from(seq - 1); seq > 0 && i < len(x.all) && x.all[i].seq == seq && !x.all[i].gone {
		return x.all[i]
	}
	return nil
}

// list returns up to limit entries with a sequence above after: the pending or the rejected ones.
func (x *index) list(rejected bool, after uint64, limit int) []*entry {
	var list []*entry
	for _, e := range x.all[x.from(after):] {
		if len(list) >= limit {
			break
		}
		if !e.gone && e.rejected == rejected {
			list = append(list, e)
		}
	}
	return list
}

// batch returns the next messages to send: the first of each message group, and the first ones of
// each topic without a group. The queues take turns, and queues in a pause are skipped.
func (x *index) batch(now time.Time) []*entry {
	for len(x.paused) > 0 && !now.Before(x.paused[0].until) {
		q := heap.Pop(&x.paused).(*queue)
		q.place = x.ready.PushBack(q)
	}
	var batch []*entry
	bytes := 0
	for range x.ready.Len() {
		q := x.ready.Front().Value.(*queue)
		x.ready.MoveToBack(q.place)
		limit := 1
		if !grouped(q.name) {
			limit = batchMessages / 2 // the other half is for other queues
		}
		for _, e := range q.entries {
			if e.queue != q {
				continue
			}
			if limit == 0 {
				break
			}
			batch = append(batch, e)
			bytes += e.size
			if limit--; len(batch) >= batchMessages || bytes >= batchBytes {
				return batch
			}
		}
	}
	return batch
}

// note updates the pauses after a batch: a queue with a finished message has none, and the others
// wait.
func (x *index) note(queues []*queue, results []error, now time.Time) {
	asked, progress := map[*queue]time.Duration{}, map[*queue]bool{}
	for i, q := range queues {
		if finished(results[i]) {
			progress[q] = true
			continue
		}
		asked[q] = max(asked[q], tidegate.RetryAfter(results[i]))
	}
	for q := range progress {
		q.failures = 0
	}
	for q, wait := range asked {
		if progress[q] || q.pending == 0 || q.paused >= 0 {
			continue
		}
		q.until = now.Add(max(wait, drainBackoff.Delay(q.failures)))
		q.failures++
		x.ready.Remove(q.place)
		heap.Push(&x.paused, q)
	}
}

// wakeAt returns the end of the first pause; zero if there is none.
func (x *index) wakeAt() time.Time {
	if len(x.paused) == 0 {
		return time.Time{}
	}
	return x.paused[0].until
}

// pauses are the queues in a pause, a heap by its end.
type pauses []*queue

func (p pauses) Len() int           { return len(p) }
func (p pauses) Less(i, j int) bool { return p[i].until.Before(p[j].until) }
func (p pauses) Swap(i, j int)      { p[i], p[j] = p[j], p[i]; p[i].paused, p[j].paused = i, j }
func (p *pauses) Push(q any)        { q.(*queue).paused = len(*p); *p = append(*p, q.(*queue)) }
func (p *pauses) Pop() any {
	old := *p
	q := old[len(old)-1]
	*p = old[:len(old)-1]
	q.paused = -1
	return q
}
