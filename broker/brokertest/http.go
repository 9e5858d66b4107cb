package brokertest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// HTTPAddress returns the URL of the broker's HTTP API in its network. Clients need
// [Broker.DialHTTP] as their dialer.
func (b *Broker) HTTPAddress() string { return "http://" + b.http.Addr().String() }

// DialHTTP connects to the broker's HTTP API. It has the form of the Dialer options of
// transport/rest and broker/admin, and ignores addr: each network has one broker.
// [Broker.Disconnect] cuts these connections too. Middlewares of [Broker.Intercept] are called
// around HTTP requests about messages, but not around administrative requests.
func (b *Broker) DialHTTP(ctx context.Context, _ string) (net.Conn, error) {
	b.http.once.Do(func() { b.http.serve(b) })
	return b.http.dial(ctx)
}

// A httpNetwork connects clients with the broker's HTTP API, in memory. Its connections
// keep to deadlines, which net/http sets all the time.
type httpNetwork struct {
	name   string
	once   sync.Once
	server *http.Server
	served chan struct{} // closed when server has ended; nil if it was never started

	accept chan net.Conn
	closed chan struct{}

	wires *wires

	end sync.Once
}

func newHTTPNetwork(name string, w *wires) *httpNetwork {
	return &httpNetwork{name: name, accept: make(chan net.Conn), closed: make(chan struct{}), wires: w}
}

// serve starts the HTTP server. A restarted broker has another handler.
func (n *httpNetwork) serve(b *Broker) {
	n.served = make(chan struct{})
	n.server = &http.Server{ // as the binary has it
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b.requestBegun()
			defer b.requestServed(nil)
			b.server.Handler().ServeHTTP(w, r)
		}),
		ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
	go func() {
		defer close(n.served)
		if err := n.server.Serve(n); !errors.Is(err, http.ErrServerClosed) {
			b.tb.Errorf("brokertest: HTTP: %v", err)
		}
	}()
}

// Accept implements net.Listener.
func (n *httpNetwork) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *httpNetwork) Close() error {
	n.end.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *httpNetwork) Addr() net.Addr { return httpAddr(n.name) }

type httpAddr string

func (httpAddr) Network() string  { return "pipe" }
func (a httpAddr) String() string { return string(a) }

func (n *httpNetwork) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	c, err := n.wires.add(client)
	if err != nil {
		return nil, err
	}
	select {
	case n.accept <- server:
		return c, nil
	case <-n.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, c.Close())
}

// stop ends the HTTP server and waits for it.
func (n *httpNetwork) stop() error {
	var err error
	n.once.Do(func() { err = n.Close() }) // never started, and now it cannot be
	if n.served == nil {
		return err
	}
	err = n.server.Close()
	<-n.served
	return err
}
