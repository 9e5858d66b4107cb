package admission

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

func TestLongestIdle(t *testing.T) {
	for _, c := range []struct {
		name string
		all  []candidate
		want []time.Duration
	}{
		{"none", nil, nil},
		{"the longest idle first", []candidate{{since: 3}, {since: 1}, {since: 2}}, []time.Duration{1, 2, 3}},
		{"not one with a request under way", []candidate{{since: 1, state: 1}, {since: 2}, {since: 3, state: 2}}, []time.Duration{2}},
		{"not one that is authenticated", []candidate{{since: 1, state: authenticated}, {since: 2}}, []time.Duration{2}},
		{"not one that is both", []candidate{{since: 1, state: authenticated + 1}, {since: 2}}, []time.Duration{2}},
		{"not one that is closing", []candidate{{since: 1, state: closing}, {since: 2}}, []time.Duration{2}},
		{"all in use", []candidate{{since: 1, state: 1}, {since: 2, state: authenticated}}, nil},
	} {
		var got []time.Duration
		for _, i := range longestIdle(c.all) {
			got = append(got, i.since)
		}
		assert.That(t, slices.Equal(got, c.want), "%s: %v, want %v", c.name, got, c.want)
	}
}

// A network is a listener whose connections are pipes.
type network struct {
	conns chan net.Conn
	done  chan struct{}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	close(n.done)
	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{} }

// A limited is a listener under test.
type limited struct {
	t *testing.T
	*Listener
	net      *network
	accepted chan *Conn
	reports  []bool // the arguments of the calls of full
}

func newLimited(t *testing.T, most int) *limited {
	x := &limited{t: t, net: &network{make(chan net.Conn, 100), make(chan struct{})}, accepted: make(chan *Conn, 100)}
	x.Listener = LimitConns(x.net, most, func(waits bool) { x.reports = append(x.reports, waits) })
	go func() {
		for {
			c, err := x.Accept()
			if err != nil {
				close(x.accepted)
				return
			}
			x.accepted <- c.(*Conn)
		}
	}()
	return x
}

// dial returns both ends of a new connection, and nil for the server's end if it has to wait.
func (x *limited) dial() (client net.Conn, server *Conn) {
	x.t.Helper()
	client, other := net.Pipe()
	x.net.conns <- other
	synctest.Wait()
	return client, x.waiting()
}

// waiting returns the connection that was accepted, or nil.
func (x *limited) waiting() *Conn {
	select {
	case c := <-x.accepted:
		return c
	default:
		return nil
	}
}

// endedConn reports whether the server has closed the connection.
func endedConn(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now())
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

func inBubble(t *testing.T, most int, f func(x *limited)) {
	synctest.Test(t, func(t *testing.T) {
		x := newLimited(t, most)
		f(x)
		assert.NoError(t, x.Close())
		synctest.Wait()
	})
}

// At the limit, a new connection takes the place of the one that has been idle longest.
func TestNewConnectionsGetIn(t *testing.T) {
	inBubble(t, 4, func(x *limited) {
		var clients []net.Conn
		var servers []*Conn
		for i := range 4 {
			c, s := x.dial()
			assert.MustThat(t, s != nil, "connection %d of 4 has to wait", i)
			clients, servers = append(clients, c), append(servers, s)
			time.Sleep(time.Millisecond)
		}
		assert.That(t, len(x.reports) == 0, "below the limit: reports %v", x.reports)
		servers[0].Begin() // under way
		servers[1].Begin()
		servers[1].Authenticated(true)
		servers[1].End()
		servers[2].Begin()
		servers[2].End() // its request makes it the youngest
		time.Sleep(time.Minute)
		for i, want := range []int{3, 2} {
			c, s := x.dial()
			assert.MustThat(t, s != nil, "new connection %d has to wait", i)
			defer c.Close()
			s.Begin()
			assert.That(t, endedConn(clients[want]), "for new connection %d, connection %d was not closed", i, want)
		}
		if endedConn(clients[0]) || endedConn(clients[1]) {
			t.Error("a connection with a request under way or an authenticated client was closed")
		}
		assert.Slices(t, "reports", x.reports, []bool{false, false})
		assert.Equal(t, "connections are open", len(x.open), 4)
	})
}

// While no connection may be closed, a new one waits until one may be, or ends.
func TestNewConnectionsWait(t *testing.T) {
	for name, free := range map[string]struct {
		do    func(client net.Conn, server *Conn)
		after time.Duration
	}{
		"it ends":                         {func(_ net.Conn, s *Conn) { s.Close() }, 0},
		"it has been idle for the grace":  {func(_ net.Conn, s *Conn) { s.End() }, idleGrace},
		"it is not authenticated anymore": {func(_ net.Conn, s *Conn) { s.Begin(); s.Authenticated(false); s.End(); s.End() }, idleGrace},
	} {
		inBubble(t, 1, func(x *limited) {
			client, server := x.dial()
			server.Begin()
			server.Authenticated(name == "it is not authenticated anymore")
			_, late := x.dial()
			time.Sleep(time.Hour)
			assert.MustThat(t, late == nil && x.waiting() == nil, "%s: accepted beside a request under way", name)
			free.do(client, server)
			time.Sleep(free.after - 1)
			synctest.Wait()
			if c := x.waiting(); c != nil && free.after > 0 {
				t.Errorf("%s: accepted before %v", name, free.after)
			} else if free.after == 0 {
				assert.That(t, c != nil, "%s: not accepted at once", name)
				return
			}
			time.Sleep(1)
			synctest.Wait()
			assert.That(t, x.waiting() != nil && endedConn(client), "%s: not accepted after %v", name, free.after)
			assert.That(t, slices.Equal(x.reports, []bool{true}), "%s: reports %v, want one of a connection that waits", name, x.reports)
		})
	}
}

// A request that begins while its connection is being closed is not carried out.
func TestBeginOnAClosingConnection(t *testing.T) {
	inBubble(t, 1, func(x *limited) {
		_, server := x.dial()
		assert.That(t, server.Begin(), "a request may not begin on an open connection")
		server.End()
		time.Sleep(idleGrace)
		if _, s := x.dial(); s == nil {
			t.Fatal("a new connection has to wait")
		}
		assert.That(t, !server.Begin(), "a request began on a connection that was closed for another one")
		server.End()
	})
}

// The end of the listener ends Accept, even while a connection waits.
func TestCloseWhileWaiting(t *testing.T) {
	inBubble(t, 1, func(x *limited) {
		_, server := x.dial()
		server.Begin()
		late, _ := x.dial()
		x.t.Cleanup(func() {
			assert.That(t, endedConn(late), "the connection that waited is open")
			if _, more := <-x.accepted; more {
				t.Error("Accept returned a connection")
			}
		})
	})
}

// Without a limit, nothing is counted.
func TestNoLimit(t *testing.T) {
	a, _ := net.Pipe()
	c := ConnOf(a)
	assert.That(t, c == nil && c.Begin(), "a connection of another listener has a limit")
	c.Authenticated(true)
	c.End()
}

// Reading pauses while too many handlers have not begun. It continues when they begin, when their
// connection ends, or after a while.
func TestCrowd(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(l *Link)
		paused time.Duration
	}{
		{"handlers do not begin", func(*Link) {}, pause},
		{"one begins", func(l *Link) { l.Begun() }, 10 * time.Millisecond},
		{"the connection ends", func(l *Link) { l.close() }, 10 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			var all crowd
			a, b := &Link{crowd: &all}, &Link{crowd: &all}
			for range mostOpened {
				a.Opened()
			}
			began := time.Now()
			if all.wait(); time.Since(began) != 0 {
				t.Errorf("%s: with %d streams, reading pauses", c.name, mostOpened)
			}
			b.Opened()
			time.AfterFunc(10*time.Millisecond-1, func() { c.change(b) })
			if all.wait(); time.Since(began) != c.paused {
				t.Errorf("%s: reading pauses for %v, want %v", c.name, time.Since(began), c.paused)
			}
			b.close()
			b.Opened() // after its end, nothing counts
			b.Begun()
			for range mostOpened {
				a.Begun()
			}
			if n := all.opened.Load(); n != 0 {
				t.Errorf("%s: at the end %d streams are counted", c.name, n)
			}
		})
	}
}

// Reading from a connection whose client cancels streams all the time pauses: beyond 500 it reads
// on only as fast as 250 a second. Other connections are not held up.
func TestResetsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all crowd
		a, b := &Link{crowd: &all}, &Link{crowd: &all}
		paused := func(l *Link) time.Duration {
			began := time.Now()
			l.wait()
			return time.Since(began)
		}
		for range 500 {
			a.Reset()
		}
		assert.Equal(t, "after 500 resets, reading pauses for", paused(a), 0)
		for range 50 {
			a.Reset()
		}
		assert.Equal(t, "reading from another connection pauses for", paused(b), 0)
		assert.Equal(t, "after 50 resets more, reading pauses for", paused(a), 200*time.Millisecond)
		for range 100_000 {
			a.Reset()
		}
		assert.Equal(t, "after any number, one pause takes", paused(a), time.Second)
		var none *Link
		none.Reset()
	})
}

// A flood of streams on one connection holds up that connection alone.
func TestCrowdHoldsUpItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all crowd
		a, b := &Link{crowd: &all}, &Link{crowd: &all}
		for range mostOpened + 1 {
			a.Opened()
		}
		began := time.Now()
		if b.wait(); time.Since(began) != 0 {
			t.Errorf("a connection without streams pauses for %v", time.Since(began))
		}
		if a.wait(); time.Since(began) != pause {
			t.Errorf("the connection with the streams pauses for %v, want %v", time.Since(began), pause)
		}
	})
}

func TestEndedLink(t *testing.T) {
	l := &Link{crowd: &crowd{}}
	assert.That(t, !l.Ended(), "a new connection has ended")
	assert.That(t, l.close() && !l.close() && l.Ended(), "a connection ends once")
	var none *Link
	none.Opened()
	none.Begun()
	assert.That(t, none.Limit() == nil, "an unknown connection has a limit")
}

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

type noHost struct{}

func (noHost) RefusedPlainText(net.Addr) {}
func (noHost) Ended(*Link)               {}

// Silent connections are bounded: the oldest makes room.
func TestPendingIsBounded(t *testing.T) {
	const most = 8
	p := &silentConns{most: most}
	first, other := net.Pipe()
	defer other.Close()
	assert.Must(t, assert.Err(p.add(first)))
	var last silent
	for range most {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		var err error
		if last, err = p.add(a); err != nil {
			t.Fatal(err)
		}
	}
	assert.Equal(t, "pending", p.len(), most)
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest is not closed: %v", err)
	}
	last.settle()
	last.settle()
	assert.Equal(t, "pending after one settled", p.len(), most-1)
	p.close()
	last.settle()
	assert.Is(t, "add after close", assert.Err(p.add(first)), tidegate.ErrClosed)
	assert.Equal(t, "pending after close", p.len(), 0)
}

// With any first bytes of a connection, the handshake ends and returns them again.
func FuzzSniff(f *testing.F) {
	for _, s := range []string{"", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00", "\x16", "\x16\x03\x01\x00\x05hello", "\x00"} {
		f.Add([]byte(s))
	}
	c := assert.Value(SelfSigned())(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewCredentials(c, 1, false, noHost{})
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			client.Write(b)
			client.Close()
		}()
		go io.Copy(io.Discard, client) // the response of TLS
		conn, _, err := s.ServerHandshake(server)
		if err == nil {
			got, _ := io.ReadAll(conn)
			assert.That(t, string(got) == string(b), "read %q; want %q", got, b)
			conn.Close()
		}
		<-done
		assert.Equal(t, "are still pending", s.Pending(), 0)
	})
}
