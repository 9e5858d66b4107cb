package brokertest

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// networkBuffer is what one direction of a connection holds, in bytes.
const networkBuffer = 256 << 10

// errRefused is the error of Dial while the network is cut.
var errRefused = errors.New("connection refused: the test has cut the network (brokertest)")

// A network connects clients with the broker, in memory.
type network struct {
	mu    sync.Mutex // guards what follows; connecting in memory does not wait
	lis   *bufconn.Listener
	cut   bool
	conns map[*conn]struct{}
}

func newNetwork() *network {
	return &network{lis: bufconn.Listen(networkBuffer), conns: map[*conn]struct{}{}}
}

// A conn is the client's end of a connection.
type conn struct {
	net.Conn
	network *network
}

func (c *conn) Close() error {
	c.network.mu.Lock()
	delete(c.network.conns, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

func (n *network) listener() *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lis
}

// renew gives the network a new listener, for a broker that starts again.
func (n *network) renew() *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lis = bufconn.Listen(networkBuffer)
	return n.lis
}

func (n *network) dial(ctx context.Context) (net.Conn, error) {
	n.mu.Lock()
	cut, lis := n.cut, n.lis
	n.mu.Unlock()
	if cut {
		return nil, errRefused
	}
	nc, err := lis.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{nc, n}
	n.mu.Lock()
	cut = n.cut
	if !cut {
		n.conns[c] = struct{}{}
	}
	n.mu.Unlock()
	if cut {
		nc.Close()
		return nil, errRefused
	}
	return c, nil
}

func (n *network) disconnect() {
	n.mu.Lock()
	n.cut = true
	conns := n.conns
	n.conns = map[*conn]struct{}{}
	n.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
}

func (n *network) reconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = false
}

// Disconnect cuts the network: connections break, and new ones are refused until
// Reconnect. Requests under way get no response, although the broker may carry
// them out. Deliveries whose consumers are gone stay in flight until their
// invisible time ends. It does not block, and does nothing a second time.
func (b *Broker) Disconnect() {
	b.network.disconnect()
	b.http.disconnect()
}

// Reconnect ends Disconnect. Clients connect again as their own backoff has it.
func (b *Broker) Reconnect() {
	b.network.reconnect()
	b.http.reconnect()
}

// Restart ends the broker as a crash of its process would and starts it again
// with its data: connections break, requests under way get no response, and the
// network refuses connections in between. The embedded engine is a new one
// afterwards. No other method may run at the same time.
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

// Dial connects to the broker. It has the form of rocketmq.Options.Dialer and
// serves any gRPC client. It ignores addr: each network has one broker.
func (b *Broker) Dial(ctx context.Context, _ string) (net.Conn, error) { return b.network.dial(ctx) }
