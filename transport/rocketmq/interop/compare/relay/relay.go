// Package relay is a TCP relay in front of a RocketMQ proxy that injects faults. It forwards
// HTTP/2 frame by frame, so that the client and the server see each other's own frames, and can
// drop, delay or replace the response of a single request.
//
// A relay serves plain-text connections only.
package relay

import (
	"net"
	"strings"
	"sync"
	"time"
)

// A Fault is the behaviour of a relay. The zero value forwards everything.
type Fault struct {
	// Reset resets all connections with a TCP RST: those that exist, and new ones at once.
	Reset bool

	// Silent is a black hole: the relay holds all bytes in both directions and accepts connections
	// that get no byte. At its end the held bytes arrive late, as those that TCP sends again.
	Silent bool

	// LoseResponses is the share, 0 to 1, of the responses that never reach the client. The server
	// has processed their requests. It concerns requests with one response; the streams Telemetry
	// and ReceiveMessage are forwarded.
	LoseResponses float64

	// Delay postpones each response, also those of a Throttle. It concerns the same requests as
	// LoseResponses.
	Delay time.Duration

	// Throttle is called for each SendMessage. If it returns true, the relay responds with status
	// 42900 in place of the server, as RocketMQ's proxy does: gRPC status OK, no entries, no
	// push-back. Nil means that the server responds. Several goroutines call it at the same time.
	Throttle func() bool
}

// A Relay accepts connections for a server. Close ends it. Several goroutines may use it.
type Relay struct {
	listener net.Listener
	target   string
	lose     func() float64 // a random number from 0 to 1
	ended    chan struct{}  // closed by Close
	all      sync.WaitGroup

	mu      sync.Mutex
	fault   Fault
	closed  bool
	changed chan struct{} // closed by the next Set
	links   map[*link]struct{}
}

// Listen returns a relay on a free port of 127.0.0.1 that forwards to target, a host:port. lose
// returns the random numbers from 0 to 1 that select the lost responses.
func Listen(target string, lose func() float64) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{
		listener: listener, target: target, lose: lose,
		ended: make(chan struct{}), changed: make(chan struct{}), links: map[*link]struct{}{},
	}
	r.all.Go(r.accept)
	return r, nil
}

// Address returns the relay's host:port.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Set replaces the fault in effect. It returns at once. Responses that are being delayed keep
// their delay.
func (r *Relay) Set(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
	close(r.changed)
	r.changed = make(chan struct{})
	if f.Reset {
		for l := range r.links {
			l.reset()
		}
	}
}

// Close closes the listener and all connections, and returns when all goroutines have ended.
// It can be called more than once.
func (r *Relay) Close() {
	r.listener.Close()
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.ended)
	}
	for l := range r.links {
		l.reset()
	}
	r.mu.Unlock()
	r.all.Wait()
}

func (r *Relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		l := &link{relay: r, client: side{conn: c}, streams: map[uint32]*stream{}}
		if !r.admit(l) {
			l.reset()
			continue
		}
		r.all.Go(func() {
			defer r.forget(l)
			l.serve()
		})
	}
}

// admit reports whether the relay serves a new connection. One that it serves is reset by the next
// Reset or Close.
func (r *Relay) admit(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault.Reset || r.closed {
		return false
	}
	r.links[l] = struct{}{}
	return true
}

func (r *Relay) forget(l *link) {
	l.reset()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

// current returns the fault in effect. It waits while the relay is silent.
func (r *Relay) current() (Fault, error) {
	for {
		r.mu.Lock()
		f, changed := r.fault, r.changed
		r.mu.Unlock()
		if !f.Silent {
			return f, nil
		}
		select {
		case <-changed:
		case <-r.ended:
			return Fault{}, net.ErrClosed
		}
	}
}

// The methods of RocketMQ's MessagingService that the relay knows.
const service = "/apache.rocketmq.v2.MessagingService/"

func oneResponse(path string) bool {
	return path != service+"Telemetry" && path != service+"ReceiveMessage"
}

func isSend(path string) bool { return strings.HasSuffix(path, "/SendMessage") }
