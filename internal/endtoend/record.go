package endtoend

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/consumer"
)

// outcomes records the outcomes of a consumer's deliveries. The zero value is empty. Its methods
// may be called by several goroutines.
type outcomes struct {
	mu   sync.Mutex
	list []consumer.Outcome
}

// Add records an outcome. It has the form of consumer.PushOptions.OnDelivery.
func (o *outcomes) Add(out consumer.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, out)
}

// All returns the outcomes so far, in their order.
func (o *outcomes) All() []consumer.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.list)
}

// A ledger records which messages handlers have worked on, by their bodies. Its methods may be
// called by several goroutines.
type ledger struct {
	mu      sync.Mutex
	handled map[string]int
	working map[string]bool
	overlap int
}

// newLedger returns an empty ledger.
func newLedger() *ledger { return &ledger{handled: map[string]int{}, working: map[string]bool{}} }

// Begin records that a handler has begun with the message. The handler calls done at its end.
func (l *ledger) Begin(body []byte) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := string(body)
	if l.working[key] {
		l.overlap++
	}
	l.working[key] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.working[key] = false
		l.handled[key]++
	}
}

// Counts returns how many messages were handled, and how many further times handlers ended.
func (l *ledger) Counts() (messages, extra int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.handled {
		extra += n - 1
	}
	return len(l.handled), extra
}

// Overlap returns how many handlers began while another one had the same message.
func (l *ledger) Overlap() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.overlap
}

// A cable connects a client with Broker until it is cut, as a machine that loses power. Its methods
// may be called by several goroutines.
type cable struct {
	Broker *brokertest.Broker

	mu      sync.Mutex
	severed bool
	conns   []net.Conn
}

// Dial connects to the broker. It has the form of rocketmq.Options.Dialer.
func (c *cable) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := c.Broker.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	cut := c.severed
	c.conns = append(c.conns, conn)
	c.mu.Unlock()
	if cut {
		conn.Close()
		return nil, errors.New("the cable is cut")
	}
	return conn, nil
}

// Cut closes the connections permanently. New ones are refused.
func (c *cable) Cut() {
	c.mu.Lock()
	conns := c.conns
	c.severed = true
	c.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
	}
}
