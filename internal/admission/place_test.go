package admission

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// A fakePeer is a connection that a test ends.
type fakePeer struct{ ended bool }

func (p *fakePeer) End()        { p.ended = true }
func (p *fakePeer) Ended() bool { return p.ended }

// A place is held until its handler has returned and each message is written, in any order.
func TestPlaceOutlivesItsHandler(t *testing.T) {
	for name, steps := range map[string][]func(p *Place){
		"the messages first": {func(p *Place) { p.Put(nil) }, func(p *Place) { p.Put(nil) }, (*Place).End},
		"the handler first":  {(*Place).End, func(p *Place) { p.Put(nil) }, func(p *Place) { p.Put(nil) }},
		"in between":         {func(p *Place) { p.Put(nil) }, (*Place).End, func(p *Place) { p.Put(nil) }},
	} {
		places, bodies := NewBudget("places", 100, 0), NewBudget("bodies", 100, 0)
		conn := &fakePeer{}
		p := assert.Value(places.Take(conn, 10))(t)
		h := bodies.Hold(conn, conn)
		assert.Must(t, h.Resize(40, false))
		p.TakeOver(&h, 30)
		h.Release() // it is empty
		p.Begin()
		p.Begin()
		for i, step := range steps {
			if places.Held() != 10 || bodies.Held() != 30 {
				t.Errorf("%s: before step %d, %d and %d bytes are held, want 10 and 30", name, i, places.Held(), bodies.Held())
			}
			step(p)
		}
		if places.Held() != 0 || bodies.Held() != 0 {
			t.Errorf("%s: at the end, %d and %d bytes are held", name, places.Held(), bodies.Held())
		}
	}
}

// gRPC may never report the data that it drops with a connection, before the handler returns or
// after it.
func TestPlacesEndWithTheirConnection(t *testing.T) {
	places := NewBudget("places", 100, 0)
	conn := &fakePeer{}
	var all []*Place
	for range 3 {
		p := assert.Value(places.Take(conn, 10))(t)
		p.Begin()
		all = append(all, p)
	}
	all[0].End()
	conn.End()
	places.Ended(conn)
	assert.Equal(t, "when the connection has ended, bytes are held", places.Held(), 0)
	bodies := NewBudget("bodies", 100, 0)
	h := bodies.Hold(conn, conn)
	assert.Must(t, h.Resize(20, false))
	all[1].TakeOver(&h, 20)
	all[1].End()
	assert.Equal(t, "a handler that returns later leaves bytes held", bodies.Held(), 0)
	all[2].Put(nil)
	all[2].End()
	if n := places.Held(); n != 0 || len(places.shares) != 0 {
		t.Errorf("%d bytes are held, by %d connections", n, len(places.shares))
	}
}

// The memory of a connection that is being closed counts until it has ended, whether or not its
// requests release it.
func TestEndedConnectionsDoNotCount(t *testing.T) {
	b := NewBudget("places", 100, 0)
	greedy := &fakePeer{}
	first := assert.Value(b.Take(greedy, 40))(t)
	assert.Must(t, assert.Err(b.Take(greedy, 5)))
	late := b.Hold("late", nil)
	if err := late.Resize(30, false); err != nil || !greedy.ended || b.ending != 45 {
		t.Fatalf("%v, ended %t, %d bytes end", err, greedy.ended, b.ending)
	}
	first.End()
	assert.Equal(t, "bytes end", b.ending, 5)
	b.Ended(greedy)
	if b.ending != 0 || b.Held() != 30 {
		t.Errorf("%d bytes end and %d are held, want 0 and 30", b.ending, b.Held())
	}
}

func TestPlacesAreRejected(t *testing.T) {
	b := NewBudget("places", 100, 0)
	if _, err := b.Take(nil, 51); err == nil || b.Refused() != 1 {
		t.Errorf("more than half of all: %v, %d refused", err, b.Refused())
	}
	var none *Place
	h := b.Hold(1, nil)
	assert.Must(t, h.Resize(10, false))
	if none.TakeOver(&h, 10); b.Held() != 0 {
		t.Errorf("without a place, %d bytes stay held", b.Held())
	}
}
