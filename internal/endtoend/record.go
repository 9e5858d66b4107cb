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
