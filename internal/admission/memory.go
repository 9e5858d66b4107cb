package admission

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
)

const (
	// retryAfter is the delay for a client whose request was rejected for lack of memory.
	retryAfter = time.Second

	// endingPart is which part of the budget connections that are being closed may hold besides:
	// their memory is promised to others at once, and free a moment later.
	endingPart = 8
)

// A Budget is a number of bytes that connections share. Goroutines may share it.
//
// A connection may hold as much as it leaves for others: half of the budget if it is alone. That
// alone would let many greedy connections take everything, one after the other, and keep it. So
// when there is no space, the budget closes a connection that waits for its client: one that holds
// more than the one that asks, or has waited for longer than the budget's patience.
type Budget struct {
	name     string
	limit    int64
	patience time.Duration

	refused, closed, slow atomic.Int64

	mu     sync.Mutex
	held   int64          // guarded by mu: by all connections
	ending int64          // guarded by mu: taken from connections whose requests have not ended
	shares map[any]*share // guarded by mu: of the connections that hold anything
}

// A share is the memory of one connection. The mu of the budget guards it.
type share struct {
	held    int64
	waiting int64     // the part of held whose requests wait for the client
	since   time.Time // when the first of them began to
	conn    Ender     // nil if it cannot be ended
	epoch   int       // how many times the waiting part was taken away
	ending  int64     // its part of Budget.ending
	ended   bool      // the connection has ended
}

// An Ender is a connection that can be ended, from any goroutine and without waiting.
type Ender interface{ End() }

// NewBudget returns a budget of limit bytes. The name is the subject of its rejections. patience is
// how long a connection that waits for its client is preferred to others that hold no less. Zero
// means no limit.
func NewBudget(name string, limit int64, patience time.Duration) *Budget {
	return &Budget{name: name, limit: limit, patience: patience, shares: map[any]*share{}}
}

// fits reports whether a connection that holds own bytes may hold more besides, where all
// connections together hold held bytes. Switches share their buffers by this rule (Choudhury and
// Hahne: Dynamic Queue Length Thresholds for Shared-Memory Packet Switches, 1998).
func fits(limit, held, own, more int64) bool {
	return own+more <= limit-held-more
}

// yields reports whether a connection that waits for its client with so many bytes, for so long,
// is closed in favour of one that would hold own bytes. Requests that have only begun are spared:
// most of them are there in a moment.
func yields(waiting int64, long, patience time.Duration, own int64) bool {
	return waiting > own && long >= patience/10 || waiting > 0 && patience > 0 && long >= patience
}

// Hold returns an empty hold of a connection. by identifies the connection and must be comparable;
// conn is nil if the connection cannot be ended.
func (b *Budget) Hold(by any, conn Ender) Hold { return Hold{budget: b, by: by, conn: conn} }

// Limit returns the size of the budget in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Largest returns the most bytes that one connection can hold.
func (b *Budget) Largest() int64 { return b.limit / 2 }

// Held returns how many bytes are held.
func (b *Budget) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// Refused returns how many times a hold could not grow.
func (b *Budget) Refused() int64 { return b.refused.Load() }

// Closed returns how many connections were closed in favour of others.
func (b *Budget) Closed() int64 { return b.closed.Load() }

// Slow returns how many connections were closed because their clients were too slow.
func (b *Budget) Slow() int64 { return b.slow.Load() }

// A Hold is the part of a budget that one request has. One goroutine at a time uses it, and the
// last one must call Release.
type Hold struct {
	budget *Budget
	by     any
	conn   Ender

	share   *share // nil: it holds nothing
	bytes   int64
	waiting bool // for the client
	epoch   int  // of the share when that began
}

// Limit returns the size of the budget that the hold belongs to, in bytes.
func (h *Hold) Limit() int64 { return h.budget.limit }

// Largest returns the most bytes that the connection of the hold can have.
func (h *Hold) Largest() int64 { return h.budget.Largest() }

// Bytes returns the size of the hold.
func (h *Hold) Bytes() int64 { return h.bytes }

// Watch closes the connection of the hold unless the timer is stopped within the time that n bytes
// may take (Pace).
func (h *Hold) Watch(n int64) *time.Timer {
	b, conn := h.budget, h.conn // the hold is another goroutine's
	return time.AfterFunc(Pace(n), func() {
		b.slow.Add(1)
		if conn != nil {
			conn.End()
		}
	})
}

// Resize changes the size of the hold to bytes. While it waits for its client, to send or to read,
// the connection may be closed in favour of others, which leaves the hold empty. Resize returns an
// error with code 42900, and leaves the hold as it was, if the budget has no room. Shrinking never
// fails.
func (h *Hold) Resize(bytes int64, waits bool) error {
	b := h.budget
	b.mu.Lock()
	h.settleLocked()
	more := bytes - h.bytes
	var victim Ender
	if more > 0 && !fits(b.limit, b.held, h.own(), more) {
		if victim = b.reclaimLocked(h, more); victim == nil {
			held, own := b.held, h.own()
			b.mu.Unlock()
			return b.full(held, own, more)
		}
	}
	h.waitLocked(false)
	h.addLocked(more)
	h.waitLocked(waits)
	b.mu.Unlock()
	if victim != nil {
		victim.End()
	}
	return nil
}

// Release makes the hold empty. Calling it again does no harm.
func (h *Hold) Release() {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.settleLocked()
	h.waitLocked(false)
	h.addLocked(-h.bytes)
}

// own returns how many bytes the hold's connection has.
func (h *Hold) own() int64 {
	if h.share != nil {
		return h.share.held
	}
	if s := h.budget.shares[h.by]; s != nil {
		return s.held
	}
	return 0
}

// settleLocked records that memory was taken away.
func (h *Hold) settleLocked() {
	s := h.share
	if !h.waiting || h.epoch == s.epoch {
		return
	}
	if !s.ended {
		h.budget.ending -= h.bytes
		s.ending -= h.bytes
		h.budget.tidyLocked(h.by, s)
	}
	h.waiting, h.bytes, h.share = false, 0, nil
}

// waitLocked notes whether the request waits for its client.
func (h *Hold) waitLocked(waits bool) {
	if h.waiting == waits || h.share == nil {
		return
	}
	s := h.share
	h.waiting, h.epoch = waits, s.epoch
	if !waits {
		s.waiting -= h.bytes
		return
	}
	if s.waiting == 0 {
		s.since = time.Now()
	}
	s.waiting += h.bytes
}

// addLocked changes the memory of the hold, of its connection and of the budget. It does not wait.
func (h *Hold) addLocked(more int64) {
	if more == 0 {
		return
	}
	b := h.budget
	if h.share == nil {
		if h.share = b.shares[h.by]; h.share == nil {
			h.share = &share{conn: h.conn}
			b.shares[h.by] = h.share
		}
	}
	s := h.share
	s.held += more
	b.held += more
	if h.bytes += more; h.bytes == 0 {
		h.share = nil
	}
	b.tidyLocked(h.by, s)
}

// tidyLocked forgets a share that holds nothing.
func (b *Budget) tidyLocked(by any, s *share) {
	if s.held == 0 && s.ending == 0 && b.shares[by] == s {
		delete(b.shares, by)
	}
}

// Ended records the end of a connection. It releases the memory of responses that wait for its
// client, because gRPC does not report the responses that it drops.
func (b *Budget) Ended(by any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shares[by]
	if s == nil {
		return
	}
	b.takeLocked(s)
	b.ending -= s.ending
	s.ending, s.ended = 0, true
	delete(b.shares, by)
}

// takeLocked empties the holds of a connection that wait for its client.
func (b *Budget) takeLocked(s *share) {
	b.held -= s.waiting
	s.held -= s.waiting
	s.waiting = 0
	s.epoch++
}

// reclaimLocked takes memory from the connection with the most bytes that wait for its client, and
// returns the connection, which the caller ends. It returns nil if no connection has a lower
// priority than the hold, or if its memory would not suffice.
func (b *Budget) reclaimLocked(h *Hold, more int64) Ender {
	own, now := h.own()+more, time.Now()
	var most *share
	for key, s := range b.shares {
		if key == h.by || s.conn == nil || !yields(s.waiting, now.Sub(s.since), b.patience, own) {
			continue
		}
		if most == nil || s.waiting > most.waiting || s.waiting == most.waiting && s.since.Before(most.since) {
			most = s
		}
	}
	if most == nil || !fits(b.limit, b.held-most.waiting, own-more, more) || b.ending > 0 && b.ending+most.waiting > b.limit/endingPart {
		return nil
	}
	b.ending += most.waiting
	most.ending += most.waiting
	b.takeLocked(most)
	b.closed.Add(1)
	return most.conn
}

// full returns why a hold that has own bytes with its connection finds no room for more, where held
// are held.
func (b *Budget) full(held, own, more int64) error {
	b.refused.Add(1)
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, Subject: b.name, RetryAfter: retryAfter,
		Message: fmt.Sprintf("%v: %s: %d more bytes exceed the limit: %d of %d are in use, %d of them by this connection; retry when other requests have ended",
			tidegate.ErrThrottled, b.name, more, held, b.limit, own),
	}
}

// A Place is the part of a budget that one request over gRPC has from its begin until its response
// is written. gRPC keeps a response that its client does not read after the request's handler has
// returned, so a Place outlives the handler: it counts the messages that gRPC still has.
// Goroutines may share it.
type Place struct {
	peer PlaceOwner // nil: it is not known
	own  Hold
	body Hold         // the hold that TakeOver took
	refs atomic.Int64 // the handler, and each message that gRPC has
}

// A PlaceOwner is the connection of a Place.
type PlaceOwner interface {
	Ender
	Ended() bool // from then on gRPC may drop messages without a word
}

// Take takes a place of so many bytes for a request of a connection, nil if it is not known. It
// returns an error with code 42900 if there is no room. The caller has to call End if err is nil.
func (b *Budget) Take(peer PlaceOwner, bytes int64) (*Place, error) {
	p := &Place{peer: peer}
	if peer == nil {
		p.own = b.Hold(p, nil)
	} else {
		p.own = b.Hold(peer, peer)
	}
	p.refs.Store(1)
	return p, p.own.Resize(bytes, true)
}

// Part returns a place for a part of the response, without bytes of its own: it is for TakeOver. The
// caller has to call End when gRPC has the messages of the part.
func (p *Place) Part() *Place {
	part := &Place{peer: p.peer}
	part.refs.Store(1)
	return part
}

// TakeOver takes over h until the response is written, with so many bytes, and empties h. It must
// not grow. The handler calls it, once at most. A nil Place releases h.
func (p *Place) TakeOver(h *Hold, bytes int64) {
	if p == nil || h.Bytes() == 0 {
		h.Release()
		return
	}
	_ = h.Resize(bytes, true) // shrinking does not fail
	p.body = *h
	*h = h.budget.Hold(h.by, h.conn)
}

// Begin notes that gRPC gets one more message. Put has to follow.
func (p *Place) Begin() { p.refs.Add(1) }

// Put notes that gRPC has written or dropped a message. With Get, it implements gRPC's
// mem.BufferPool, by which gRPC reports that.
func (p *Place) Put(*[]byte) { p.unref() }

// Get implements mem.BufferPool. gRPC does not call it.
func (p *Place) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// End notes that the handler has returned.
func (p *Place) End() {
	p.unref()
	if p.peer != nil && p.peer.Ended() {
		p.release()
	}
}

func (p *Place) unref() {
	if p.refs.Add(-1) == 0 {
		p.release()
	}
}

func (p *Place) release() {
	for _, h := range []*Hold{&p.own, &p.body} {
		if h.budget != nil {
			h.Release()
		}
	}
}

type placeKey struct{}

// WithPlace returns a context that carries the place of a request.
func WithPlace(ctx context.Context, p *Place) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// PlaceOf returns the place of the request that a context belongs to, or nil.
func PlaceOf(ctx context.Context) *Place {
	p, _ := ctx.Value(placeKey{}).(*Place)
	return p
}

const (
	// besideBody is the approximate memory of a delivery in a response except for its body, in
	// bytes.
	besideBody = 1 << 10

	// mostReceived is the most messages in one receive (RocketMQ: 32).
	mostReceived = 32
)

// Bodies are the bodies of a response, in the memory of a Hold.
type Bodies struct {
	hold           *Hold
	beside, factor int64 // bytes beside the bodies, and for each byte of a body
}

// BodiesIn returns the bodies of a response of at most so many messages. Each byte of a body takes
// factor bytes.
func BodiesIn(h *Hold, most int, factor int64) *Bodies {
	return &Bodies{h, int64(max(most, mostReceived)) * besideBody, factor}
}

// Admit holds memory for bodies of so many bytes in all. The engine calls it before it stores them.
func (b *Bodies) Admit(bytes int64) error { return b.hold.Resize(b.beside+b.factor*bytes, false) }

type holdKey struct{}

// WithHold returns a context that carries the hold of a request.
func WithHold(ctx context.Context, h *Hold) context.Context {
	return context.WithValue(ctx, holdKey{}, h)
}

// HoldOf returns the hold of the request that a context belongs to, or one of an endless budget.
func HoldOf(ctx context.Context) *Hold {
	if h, ok := ctx.Value(holdKey{}).(*Hold); ok {
		return h
	}
	h := endless.Hold(nil, nil)
	return &h
}

var endless = NewBudget("memory", 1<<62, 0)

const (
	// grace is how long a request or response may take in any case.
	grace = 10 * time.Second

	// leastPace is how many bytes a second must arrive or be read beyond that.
	leastPace = 64 << 10
)

// Pace returns how long a client may take to send a request or to read a response of that many
// bytes: 10 s, and 1 s more for each 64 KiB.
func Pace(bytes int64) time.Duration {
	return grace + time.Duration(bytes)*time.Second/leastPace
}
