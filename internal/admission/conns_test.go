package admission

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
