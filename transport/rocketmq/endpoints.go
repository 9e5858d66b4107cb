package rocketmq

import (
	"context"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/combine"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

// oldConnection is the time that calls have to finish on a connection after the server asked for a
// new one.
const oldConnection = time.Minute

// endpoint returns the server at the addresses of pb, and creates it if there is none. It does not
// connect. The error matches ErrClosed, or states that pb has no usable address.
func (c *Client) endpoint(pb *rmqpb.Endpoints) (*remote.Server, error) {
	addrs, ok := remote.AddressesOf(pb)
	if !ok {
		return nil, remote.BadAddress(pb.String(), "the server sent no usable address")
	}
	key := strings.Join(addrs, ";")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if e := c.endpoints[key]; e != nil {
		e.Unused = 0
		return e, nil
	}
	l, err := c.dialing.Dial(addrs)
	if err != nil {
		return nil, &tidegate.Error{Op: "connect", Endpoint: key, Err: err}
	}
	e := remote.New(key, pb, l, c.opts.ConnectBackoff.Initial, &c.trips)
	e.Combiner = combine.New(c.opts.RequestTimeout, func(ctx context.Context, req *wire.Sendings) combine.Result {
		return c.sendTogether(ctx, e, req)
	})
	c.endpoints[key] = e
	return e, nil
}

// reconnect replaces the connection old of e with a new one. It closes old after the calls under
// way have had time to finish. If another session has replaced old already, reconnect does nothing.
func (c *Client) reconnect(e *remote.Server, old *remote.Link) {
	if e.Link.Load() != old {
		return
	}
	addrs, _ := remote.AddressesOf(e.PB)
	l, err := c.dialing.Dial(addrs)
	if err != nil {
		return // cannot happen: the same call succeeded before
	}
	if !e.Replace(old, l) {
		l.Close()
		return
	}
	ok := c.spawn(func() {
		defer old.Close()
		_ = backoff.Sleep(c.ctx, oldConnection)
	})
	if !ok {
		old.Close()
	}
}
