package rocketmq

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// closeTimeout bounds how long Close tells servers that the client ends.
const closeTimeout = time.Second

var _ transport.Transport = (*Client)(nil)

// A Client talks to RocketMQ 5 or a tidegate broker. Goroutines may share it;
// one is enough for any number of producers and consumer groups. Make it with
// [New], end it with Close.
type Client struct {
	opts    Options
	host    string // of this machine, as born host
	headers *headerer
	id      identity // of everything but consumers
	ids     sync.Map // of consumers: role → identity
	access  *endpoint

	ctx    context.Context //nolint:containedctx // ends with Close; of goroutines, not of requests
	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when Close has done its work
	trips  atomic.Int64  // of breakers, to know which were first

	mu        sync.Mutex // never held across a wait
	closed    bool
	endpoints map[string]*endpoint
	sessions  map[sessionKey]*session
	topics    map[string]*topic
	checkers  []*checker
}

// New returns a client of the server at endpoints: host:port, or several of
// those joined by ";" if the server has several addresses, the first of which
// is tried first. It does not connect: that happens with the first call, and
// again whenever a connection was lost. The error joins all faults of
// endpoints and opts, each a [tidegate.Error] or one of package backoff.
func New(endpoints string, opts Options) (*Client, error) {
	access, err := parseEndpoints(endpoints)
	opts, optErr := opts.withDefaults()
	if err := errors.Join(err, optErr); err != nil {
		return nil, err
	}
	c := &Client{
		opts:      opts,
		host:      hostname(),
		headers:   newHeaderer(opts.Credentials),
		id:        newIdentity(&opts, opts.ClientID),
		done:      make(chan struct{}),
		endpoints: map[string]*endpoint{},
		sessions:  map[sessionKey]*session{},
		topics:    map[string]*topic{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background()) // the client's own life, not a request's
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

// Capabilities is EndpointCapabilities of the client's own endpoints.
func (c *Client) Capabilities() transport.Capabilities { return c.access.capabilities() }

// ResetConnectBackoff ends the waiting between attempts to connect: they are
// made at once, and start from the first delay again. For those who know that
// a server has come back, or want to find out.
func (c *Client) ResetConnectBackoff() {
	for _, e := range c.allEndpoints() {
		e.link.Load().conn.ResetConnectBackoff()
	}
}

func (c *Client) allEndpoints() []*endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*endpoint, 0, len(c.endpoints))
	for _, e := range c.endpoints {
		list = append(list, e)
	}
	return list
}

// Close ends all receives, says good-bye to the servers, for a second at most,
// then closes the connections, which ends everything else that is under way.
// It returns when all goroutines of the client have ended, always nil. After
// it every call returns an error that matches tidegate.ErrClosed.
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

	var alive []*session // asked before cancel, which makes them lose their streams
	for _, s := range sessions {
		if s.isReady() {
			alive = append(alive, s)
		}
	}
	c.cancel()
	c.sayGoodbye(alive)
	c.closeConnections()
	c.wg.Wait()
	c.closeConnections() // one may have been replaced meanwhile
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
			// What the server says to it changes nothing.
			_, _ = s.ep.api().NotifyClientTermination(c.headers.outgoing(ctx, s.id), req)
		})
	}
	wg.Wait()
}

func (c *Client) closeConnections() {
	for _, e := range c.allEndpoints() {
		e.link.Load().conn.Close()
	}
}

func (c *Client) isClosed() bool { return c.ctx.Err() != nil }

// resource returns the name of a topic or group in the client's namespace.
func (c *Client) resource(name string) *rmqpb.Resource {
	return &rmqpb.Resource{ResourceNamespace: c.opts.Namespace, Name: name}
}

// fail makes an error of a call that was not sent.
func fail(op, subject string, code tidegate.Code, text string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Code: code, Message: text}
}

// closedError is what every call on a closed client returns.
func closedError(op, subject string) *tidegate.Error {
	return &tidegate.Error{Op: op, Subject: subject, Err: tidegate.ErrClosed}
}
