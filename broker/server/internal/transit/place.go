package transit

import (
	"context"
	"sync/atomic"
)

// A Place is the part of a budget that one request over gRPC has from its begin until its response
// is written. gRPC keeps a response that its client does not read after the request's handler has
// returned, so a Place outlives the handler: it counts the messages that gRPC still has.
// Goroutines may share it.
type Place struct {
	peer Peer // nil: it is not known
	own  Hold
	body Hold         // the hold that TakeOver took
	refs atomic.Int64 // the handler, and each message that gRPC has
}

// A Peer is the connection of a Place.
type Peer interface {
	Conn
	Ended() bool // from then on gRPC may drop messages without a word
}

// Take takes a place of so many bytes for a request of a connection, nil if it is not known. It
// returns an error with code 42900 if there is no room. The caller has to call End if err is nil.
func (b *Budget) Take(peer Peer, bytes int64) (*Place, error) {
	p := &Place{peer: peer}
	if peer == nil {
		p.own = b.Hold(p, nil)
	} else {
		p.own = b.Hold(peer, peer)
	}
	p.refs.Store(1)
	return p, p.own.Resize(bytes, true)
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
	p.own.Release()
	if p.body.budget != nil {
		p.body.Release()
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
