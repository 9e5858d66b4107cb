package brokertest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate/broker/server"
)

// networkBuffer is the buffer of one direction of a connection, in bytes.
const networkBuffer = 256 << 10

// errRefused is the error of Dial while the network is cut.
var errRefused = errors.New("connection refused: the test has cut the network (brokertest)")

// wires are the connections of clients to a broker in memory, over gRPC and HTTP.
type wires struct {
	mu    sync.Mutex // guards the following fields
	cut   bool
	last  error // of the last connection that failed; nil after one that succeeded
	conns map[*wire]struct{}
}

// A wire is the client's end of a connection.
type wire struct {
	net.Conn
	among *wires
}

func (c *wire) Close() error {
	c.among.mu.Lock()
	delete(c.among.conns, c)
	c.among.mu.Unlock()
	return c.Conn.Close()
}

// add returns a connection that disconnect breaks. It closes c and returns errRefused while the
// network is cut.
func (w *wires) add(c net.Conn) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		w.last = errRefused
		return nil, errors.Join(errRefused, c.Close())
	}
	w.last = nil
	end := &wire{c, w}
	w.conns[end] = struct{}{}
	return end, nil
}

func (w *wires) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		w.last = errRefused
	}
	return w.cut
}

// fault returns the error of the last connection; nil if it succeeded.
func (w *wires) fault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

func (w *wires) disconnect() {
	w.mu.Lock()
	w.cut = true
	conns := w.conns
	w.conns = map[*wire]struct{}{}
	w.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
}

func (w *wires) reconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// A network connects clients with the broker's gRPC, in memory.
type network struct {
	wires *wires
	lis   atomic.Pointer[bufconn.Listener]
}

func newNetwork() *network {
	n := &network{wires: &wires{conns: map[*wire]struct{}{}}}
	n.renew()
	return n
}

// renew gives the network a new listener, for a broker that starts again.
func (n *network) renew() { n.lis.Store(bufconn.Listen(networkBuffer)) }

func (n *network) dial(ctx context.Context) (net.Conn, error) {
	if n.wires.isCut() {
		return nil, errRefused
	}
	c, err := n.lis.Load().DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return n.wires.add(c)
}

// Disconnect cuts the network: connections break, and new ones fail until Reconnect. Requests in
// progress get no response, although the broker may execute them. Deliveries of disconnected
// consumers stay in flight until their invisible time ends. It does not block. A second call has no
// effect.
func (b *Broker) Disconnect() { b.network.wires.disconnect() }

// Reconnect ends Disconnect. Clients connect again after their own backoff.
func (b *Broker) Reconnect() { b.network.wires.reconnect() }

// Restart ends the broker like a crash of its process and starts it again with its data:
// connections break, requests in progress get no response, and new connections fail in between.
// Afterwards the embedded engine is another one. No other method may run at the same time.
func (b *Broker) Restart() {
	b.tb.Helper()
	b.Disconnect()
	if err := b.stop(); err != nil {
		b.tb.Fatalf("brokertest: restart: %v", err)
	}
	b.network.renew()
	if err := b.start(); err != nil {
		b.tb.Fatalf("brokertest: restart: %v", err)
	}
	b.Reconnect()
}

// SetAccess replaces the permissions of clients, for example to revoke a key, like a reload of the
// broker's configuration. They apply to the next request, and after a Restart. An invalid
// configuration fails the test.
func (b *Broker) SetAccess(c server.AccessConfig) {
	b.tb.Helper()
	if err := b.server.SetAccess(c); err != nil {
		b.tb.Fatalf("brokertest: access: %v", err)
	}
	b.opts.Access = c
}

// Dial connects to the broker. It has the form of rocketmq.Options.Dialer and serves any gRPC
// client. It ignores addr: each network has one broker.
func (b *Broker) Dial(ctx context.Context, _ string) (net.Conn, error) { return b.network.dial(ctx) }
