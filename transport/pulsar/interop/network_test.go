package interop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// A network connects clients to a server. It can break and slow down.
type network struct {
	listener net.Listener
	server   string

	mu     sync.Mutex
	down   bool
	silent bool
	delay  time.Duration // of each direction
	rate   int           // bytes per second of each direction of a connection; 0: no limit
	wires  map[*wire]struct{}
	work   sync.WaitGroup
}

// A wire is a connection of a client, and that to the server.
type wire struct {
	client, server net.Conn
	lost           bool // bytes of it have vanished: it never works again
}

func (w *wire) close() { _ = errors.Join(w.client.Close(), w.server.Close()) }

// behind starts a server with a network in front of it: the broker has a second port, whose clients
// get the address of the network from a lookup.
func behind(t *testing.T) (*standalone.Server, *network) {
	t.Helper()
	n := &network{wires: map[*wire]struct{}{}}
	var err error
	n.listener, err = net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	first, second := port(t), port(t)
	n.server = net.JoinHostPort("127.0.0.1", strconv.Itoa(second))
	s := start(t, standalone.Options{Port: first, Properties: map[string]string{
		"advertisedAddress":    "", // advertisedListeners replace it
		"advertisedListeners":  fmt.Sprintf("internal:pulsar://127.0.0.1:%d,network:pulsar://%s", first, n.listener.Addr()),
		"internalListenerName": "internal",
		"bindAddresses":        "network:pulsar://" + n.server,
	}})
	n.work.Go(n.accept)
	t.Cleanup(func() {
		assert.NoError(t, n.listener.Close())
		n.cut()
		n.work.Wait()
	})
	return s, n
}

// port returns a port that is free.
func port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	assert.Must(t, l.Close())
	return l.Addr().(*net.TCPAddr).Port
}

// over returns a transport over the network, which ends with the test.
func over(t *testing.T, n *network, o pulsar.Options) *pulsar.Client {
	t.Helper()
	return connectTo(t, "pulsar://"+n.listener.Addr().String(), o)
}

func (n *network) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return // the test has ended
		}
		server, err := net.Dial("tcp", n.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		w := &wire{client: client, server: server}
		n.mu.Lock()
		if n.down {
			w.close()
		} else {
			w.lost = n.silent
			n.wires[w] = struct{}{}
			n.work.Go(func() { n.pass(w, client, server) })
			n.work.Go(func() { n.pass(w, server, client) })
		}
		n.mu.Unlock()
	}
}

// A packet is what was read at once, and when it arrives.
type packet struct {
	bytes []byte
	at    time.Time
}

// pass passes the bytes of one direction on until the connection ends.
func (n *network) pass(w *wire, from io.Reader, to io.Writer) {
	packets := make(chan packet, 10_000)
	n.work.Go(func() {
		defer w.close()
		for p := range packets {
			<-time.After(time.Until(p.at))
			n.mu.Lock()
			lost, rate := w.lost, n.rate
			n.mu.Unlock()
			if rate > 0 {
				<-time.After(time.Duration(len(p.bytes)) * time.Second / time.Duration(rate))
			}
			if lost {
				continue
			}
			if _, err := to.Write(p.bytes); err != nil {
				break
			}
		}
	})
	defer close(packets)
	for {
		b := make([]byte, 4096)
		size, err := from.Read(b)
		n.mu.Lock()
		delay := n.delay
		if err != nil {
			delete(n.wires, w)
		}
		n.mu.Unlock()
		if size > 0 {
			packets <- packet{b[:size], time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}

// with changes how the network works.
func (n *network) with(change func(*network)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// cut closes all connections.
func (n *network) cut() {
	n.with(func(n *network) {
		for w := range n.wires {
			w.close()
		}
	})
}

// silence lets the bytes of all connections vanish, also those of new ones until speak. The bytes
// that TCP would send again are lost, so a connection that was silent stays so.
func (n *network) silence() {
	n.with(func(n *network) {
		n.silent = true
		for w := range n.wires {
			w.lost = true
		}
	})
}

func (n *network) speak() { n.with(func(n *network) { n.silent = false }) }
