package spool

import (
	"container/heap"
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

const (
	batchMessages = 256
	batchBytes    = 4 << 20
)

// drainBackoff paces a queue with failing messages.
var drainBackoff = backoff.Exponential{Max: 5 * time.Second}

// errDraining is the error of a concurrent second Drain.
var errDraining = errors.New("spool: another Drain is running")

// Drain sends the messages until ctx ends, and then returns nil. It sleeps while there are none.
// Each call of send gets at most one message of each message group. send returns an error for each
// message:
//
//   - nil removes the message;
//   - a fault of the message (tidegate.IsMessageFault) moves it to the rejected messages;
//   - after any other error, for example a missing topic or rejected credentials, the message
//     stays at the head of its group.
//
// After a failed message, Drain pauses its message group: for about 1 s after the first failure, up
// to about 5 s after further ones, or for the RetryAfter of the error if that is longer. If all
// messages without a group of a topic failed in one call of send, Drain pauses these messages
// likewise. It continues with the other message groups and topics.
//
// A removal needs no space on the disk, also if the disk is full. After a crash between send and
// the removal, Drain sends the message again, with the same ID. Drain returns an error if it cannot
// read or write the files, and if another Drain is under way. If the disk rejects the record of a
// removal, the next Drain of this Spool writes that without a second send; the later messages of
// the message group wait for it. A rejection needs space for the message and its reason. Without
// space, the message stays at the head of its message group, and Drain returns an error.
func (s *Spool) Drain(ctx context.Context, send func(ctx context.Context, msgs []*tidegate.Message) []error) error {
	s.mu.Lock()
	busy := s.draining
	s.draining = true
	s.mu.Unlock()
	if busy {
		return errDraining
	}
	defer func() {
		s.mu.Lock()
		s.draining = false
		s.mu.Unlock()
	}()
	for ctx.Err() == nil {
		batch, wakeAt, err := s.next()
		if err != nil {
			return fmt.Errorf("spool: read: %w", err)
		}
		if len(batch) == 0 {
			wait, cancel := ctx, context.CancelFunc(func() {})
			if !wakeAt.IsZero() {
				wait, cancel = context.WithDeadline(ctx, wakeAt)
			}
			select {
			case <-s.wake:
			case <-wait.Done():
			}
			cancel()
			continue
		}
		if err := s.sendBatch(ctx, batch, send); err != nil {
			return err
		}
	}
	return nil
}

// An item is a pending entry with its message.
type item struct {
	entry   *entry
	queue   *queue
	sent    bool // its removal is still to be written
	header  header
	corrupt error
}

// next returns the next batch. If there is none, it returns the end of the first pause.
func (s *Spool) next() (batch []item, wakeAt time.Time, err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, time.Time{}, os.ErrClosed
	}
	list := s.index.batch(time.Now())
	wakeAt = s.index.wakeAt()
	for _, e := range list {
		batch = append(batch, item{entry: e, queue: e.queue, sent: e.sent})
	}
	s.mu.Unlock()
	for i := range batch {
		b := &batch[i]
		if b.header, b.corrupt = s.message(b.entry); errors.Is(b.corrupt, os.ErrClosed) {
			return nil, time.Time{}, os.ErrClosed
		}
	}
	return batch, wakeAt, nil
}

// sendBatch sends a batch and records the results.
func (s *Spool) sendBatch(ctx context.Context, batch []item, send func(context.Context, []*tidegate.Message) []error) error {
	clock := s.clock.Look()
	results := make([]error, len(batch))
	var msgs []*tidegate.Message
	var sent []int
	for i := range batch {
		switch b := &batch[i]; {
		case b.sent:
		case b.corrupt != nil:
			results[i] = rejection(b.corrupt.Error())
		case s.opts.MaxAge > 0 && clock.Now.Sub(b.header.Accepted) > s.opts.MaxAge && clock.Distrusted:
			results[i] = distrusted(clock.Until.Sub(clock.Now))
		case s.opts.MaxAge > 0 && clock.Now.Sub(b.header.Accepted) > s.opts.MaxAge:
			results[i] = rejection(fmt.Sprintf("it waited longer than MaxAge (%v)", s.opts.MaxAge))
		default:
			msgs, sent = append(msgs, &b.header.Message), append(sent, i)
		}
	}
	if len(msgs) > 0 {
		errs := send(ctx, msgs)
		if len(errs) != len(msgs) {
			return fmt.Errorf("spool: send returned %d errors for %d messages", len(errs), len(msgs))
		}
		s.mu.Lock()
		for n, i := range sent {
			results[i] = errs[n]
			batch[i].entry.sent = errs[n] == nil
		}
		s.mu.Unlock()
	}
	queues := make([]*queue, len(batch))
	for i, b := range batch {
		queues[i] = b.queue
	}
	s.mu.Lock()
	s.index.note(queues, results, time.Now())
	s.mu.Unlock()
	if slices.ContainsFunc(results, finished) {
		return s.record(batch, results)
	}
	s.log.Debug("no message of the spool sent", "messages", len(batch), "error", results[0])
	return nil
}

// finished reports whether a result removes a message from its queue.
func finished(err error) bool { return err == nil || tidegate.IsMessageFault(err) }

func rejection(text string) error {
	return &tidegate.Error{Op: "spool.Drain", Code: tidegate.CodeBadRequest, Message: text}
}

// distrustPause is the longest pause of a queue while the wall clock is not trusted: it may be
// corrected earlier.
const distrustPause = 5 * time.Second

// distrusted is the result of a message that is too old by a wall clock that is not trusted.
func distrusted(left time.Duration) error {
	return &tidegate.Error{Op: "spool.Drain", Code: tidegate.CodeTooManyRequests, RetryAfter: min(max(left, 0), distrustPause),
		Message: "the message is older than MaxAge by a wall clock that was set; it waits until the time is accepted"}
}

// record removes the sent entries and marks the rejected ones.
func (s *Spool) record(batch []item, results []error) error {
	var removed, rejected []*op
	var queues []*queue // of rejected
	for i, b := range batch {
		switch err := results[i]; {
		case !finished(err):
		case err == nil:
			removed = append(removed, &op{kind: kindRemoved, entry: b.entry})
		default:
			h := b.header
			h.Reason, h.Rejected, h.Corrupt = err.Error(), time.Now(), b.corrupt != nil
			value, err := encode(h, h.Message.Body)
			if err != nil {
				return fmt.Errorf("spool: reject message %s: %w", h.Message.ID, err)
			}
			rejected, queues = append(rejected, &op{kind: kindRejected, entry: b.entry, value: value}), append(queues, b.queue)
		}
	}
	if err := s.write(removed...); err != nil {
		return fmt.Errorf("spool: record the messages that were sent: %w: %w; the next attempt does not send them again; check the disk", ErrDisk, err)
	}
	if err := s.write(rejected...); err != nil { // unlike removals, they need space
		s.mu.Lock()
		s.index.note(queues, slices.Repeat([]error{ErrDisk}, len(queues)), time.Now())
		s.mu.Unlock()
		return fmt.Errorf("spool: record the messages that were rejected: %w: %w; they stay, and the later ones of their message groups; check the space on the disk", ErrDisk, err)
	}
	for i, b := range batch {
		if results[i] != nil && finished(results[i]) {
			s.log.Warn("spooled message rejected permanently",
				"topic", b.header.Message.Topic, "message_id", b.header.Message.ID, "error", results[i])
		}
	}
	return nil
}

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
