package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// closeTimeout bounds the time in which Close sends terminations to the servers.
const closeTimeout = time.Second

var _ transport.Transport = (*Client)(nil)

// A Client is a connection to RocketMQ 5 or a tidegate broker. Several goroutines may share it; one
// is enough for any number of producers and consumer groups. Create one with [New] and call Close
// at the end.
type Client struct {
	opts    Options
	host    string // of this machine, for the settings
	encoder wire.Encoder
	dialing conn.Dialing
	headers *conn.Signer
	id      conn.Identity // of requests outside consumer sessions
	access  *conn.Server

	ctx    context.Context //nolint:containedctx // ends with Close; for goroutines, not for requests
	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when Close has finished
	trips  atomic.Int64  // trips of all breakers, which orders them

	unread, excess, rejected, unchecked, unresolved sampler // of the lines that servers cause

	mu        sync.Mutex // never held across a wait
	closed    bool
	endpoints map[string]*conn.Server
	sessions  map[sessionKey]*session
	topics    map[string]*topic
	checkers  []*checker
	lites     map[role]*liteConsumer
}

// New returns a client of the server at endpoints. endpoints is host:port, or several of these
// joined by ";" if the server has several addresses, for example the proxies of a cluster. The
// client tries them in a random order, so that clients with the same list share the proxies, and
// keeps to an address while it works. Options.KeepOrder keeps the order of the list.
//
// New does not connect. The first call does, and each call after a lost connection. The error joins
// all faults of endpoints and opts. Each fault is a tidegate.Error, or an error of package backoff.
func New(endpoints string, opts Options) (*Client, error) {
	access, err := conn.ParseAddresses(endpoints)
	opts, optErr := opts.withDefaults()
	if err := errors.Join(err, optErr); err != nil {
		return nil, err
	}
	c := &Client{
		opts:      opts,
		host:      hostname(),
		encoder:   wire.Encoder{Namespace: opts.Namespace, Host: hostname(), Compression: opts.Compression},
		headers:   conn.NewSigner(opts.Credentials.AccessKey, opts.Credentials.SecretKey),
		id:        conn.NewIdentity(opts.ClientID, opts.Namespace, opts.Credentials.SessionToken),
		done:      make(chan struct{}),
		endpoints: map[string]*conn.Server{},
		sessions:  map[sessionKey]*session{},
		topics:    map[string]*topic{},
		lites:     map[role]*liteConsumer{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background()) // the client's lifetime, independent of any request
	c.dialing = conn.Dialing{TLS: opts.TLS, Dialer: guard.Dial("Options.Dialer", opts.Dialer, func(f string, v any, stack []byte) {
		opts.Logger.Error("rocketmq: "+f+" panicked", "panic", v, "stack", string(stack))
	}), Backoff: opts.ConnectBackoff, MaxReceiveSize: opts.MaxReceiveSize, KeepOrder: opts.KeepOrder, Life: c.ctx}
	if c.access, err = c.endpoint(access); err != nil {
		c.cancel()
		return nil, err
	}
	c.spawn(c.refreshRoutes)
	return c, nil
}

// spawn runs f in a goroutine that Close waits for, unless the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// Capabilities returns the capabilities that the server at endpoint announced on the current
// connection, or without an endpoint those of the client's own endpoints. Before the first response
// on a new connection it returns those of the previous one, without Batch.
func (c *Client) Capabilities(endpoint string) transport.Capabilities {
	if endpoint == "" {
		return c.access.Capabilities()
	}
	c.mu.Lock()
	e := c.endpoints[endpoint]
	c.mu.Unlock()
	if e == nil {
		return transport.Capabilities{}
	}
	return e.Capabilities()
}

// ResetConnectBackoff ends the current waits between attempts to connect: the client connects at
// once, and the backoff begins with the first delay again. Use it after an outage that the program
// knows to be over.
func (c *Client) ResetConnectBackoff() {
	for _, e := range c.allEndpoints() {
		e.Link.Load().ResetConnectBackoff()
	}
}

func (c *Client) allEndpoints() []*conn.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*conn.Server, 0, len(c.endpoints))
	for _, e := range c.endpoints {
		list = append(list, e)
	}
	return list
}

// Close ends all receives, sends terminations to the servers for at most a second, and closes the
// connections, which aborts all other calls. It returns nil when all goroutines of the client have
// ended. Later calls return an error that matches tidegate.ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.done
		return nil
	}
	c.closed = true
	sessions := make([]*session, 0, len(c.sessions))
	for _, s := range c.sessions {
		sessions = append(sessions, s)
	}
	c.mu.Unlock()

	var alive []*session // read before cancel, which ends their streams
	for _, s := range sessions {
		if s.isReady() {
			alive = append(alive, s)
		}
	}
	c.cancel()
	c.sayGoodbye(alive)
	c.closeConnections()
	c.wg.Wait()
	c.closeConnections() // a connection may have been replaced in the meantime
	close(c.done)
	return nil
}

func (c *Client) sayGoodbye(sessions []*session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), closeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range sessions {
		wg.Go(func() {
			req := &rmqpb.NotifyClientTerminationRequest{Group: s.groupResource()}
			// A failed termination has no consequence.
			_, _ = s.ep.API().NotifyClientTermination(c.headers.Outgoing(ctx, s.id), req)
		})
	}
	wg.Wait()
}

func (c *Client) closeConnections() {
	for _, e := range c.allEndpoints() {
		e.Link.Load().Close()
	}
}

func (c *Client) isClosed() bool { return c.ctx.Err() != nil }

// resource returns the name of a topic or group in the client's namespace.
func (c *Client) resource(name string) *rmqpb.Resource {
	return &rmqpb.Resource{ResourceNamespace: c.opts.Namespace, Name: name}
}

// fail returns the error of a call that sent no request.
func fail(op, subject string, code tidegate.Code, text string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Code: code, Message: text}
}

// closedError returns the error of all calls on a closed client.
func closedError(op, subject string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Err: errClosed}
}

var errClosed = fmt.Errorf("transport %w", tidegate.ErrClosed)

// oldConnection is the time that calls have to finish on a connection after the server asked for a
// new one.
const oldConnection = time.Minute

// endpoint returns the server at the addresses of pb, and creates it if there is none. It does not
// connect. The error matches ErrClosed, or states that pb has no usable address.
func (c *Client) endpoint(pb *rmqpb.Endpoints) (*conn.Server, error) {
	addrs, ok := conn.AddressesOf(pb)
	if !ok {
		return nil, conn.BadAddress(pb.String(), "the server sent no usable address")
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
	e := conn.NewServer(key, pb, l, c.opts.ConnectBackoff.Initial, &c.trips)
	c.endpoints[key] = e
	return e, nil
}

// serverAt returns the server with a key, which is that of a known server or the addresses of
// another one. A server can have addresses of several kinds, which only it can name.
func (c *Client) serverAt(key string) (*conn.Server, error) {
	c.mu.Lock()
	e := c.endpoints[key]
	c.mu.Unlock()
	if e != nil {
		return e, nil
	}
	pb, err := conn.ParseAddresses(key)
	if err != nil {
		return nil, err
	}
	return c.endpoint(pb)
}

// reconnect replaces the connection old of e with a new one. It closes old after the calls under
// way have had time to finish. If another session has replaced old already, reconnect does nothing.
func (c *Client) reconnect(e *conn.Server, old *conn.Link) {
	if e.Link.Load() != old {
		return
	}
	addrs, _ := conn.AddressesOf(e.PB)
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
