package admission

import "testing"

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
		p, err := places.Take(conn, 10)
		if err != nil {
			t.Fatal(err)
		}
		h := bodies.Hold(conn, conn)
		if err := h.Resize(40, false); err != nil {
			t.Fatal(err)
		}
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
		p, err := places.Take(conn, 10)
		if err != nil {
			t.Fatal(err)
		}
		p.Begin()
		all = append(all, p)
	}
	all[0].End()
	conn.End()
	places.Ended(conn)
	if places.Held() != 0 {
		t.Errorf("when the connection has ended, %d bytes are held", places.Held())
	}
	bodies := NewBudget("bodies", 100, 0)
	h := bodies.Hold(conn, conn)
	if err := h.Resize(20, false); err != nil {
		t.Fatal(err)
	}
	all[1].TakeOver(&h, 20)
	all[1].End()
	if bodies.Held() != 0 {
		t.Errorf("a handler that returns later leaves %d bytes held", bodies.Held())
	}
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
	first, err := b.Take(greedy, 40)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(greedy, 5); err != nil {
		t.Fatal(err)
	}
	late := b.Hold("late", nil)
	if err := late.Resize(30, false); err != nil || !greedy.ended || b.ending != 45 {
		t.Fatalf("%v, ended %t, %d bytes end", err, greedy.ended, b.ending)
	}
	first.End()
	if b.ending != 5 {
		t.Errorf("%d bytes end, want 5", b.ending)
	}
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
	if err := h.Resize(10, false); err != nil {
		t.Fatal(err)
	}
	if none.TakeOver(&h, 10); b.Held() != 0 {
		t.Errorf("without a place, %d bytes stay held", b.Held())
	}
}
