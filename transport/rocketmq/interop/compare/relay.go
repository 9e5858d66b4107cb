package main

// This file is a gRPC relay in front of a RocketMQ proxy that injects faults. It forwards each
// request without decoding its messages, and can drop, delay or replace the response of a single
// one. It holds or resets whole connections of clients at the level of TCP. A relay serves
// plain-text connections only.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate/backoff"
)

// A fault is the behaviour of a relay. The zero value forwards everything.
type fault struct {
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

// A relay accepts connections for a server. Close ends it. Several goroutines may use it.
type relay struct {
	listener net.Listener
	lose     func() float64 // a random number from 0 to 1
	front    *grpc.Server   // for the clients
	back     *grpc.ClientConn
	ended    chan struct{} // closed by Close
	close    func()
	all      sync.WaitGroup

	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed by the next Set
	conns   map[*conn]struct{}
}

// listenRelay returns a relay on a free port of 127.0.0.1 that forwards to target, a host:port.
// lose returns the random numbers from 0 to 1 that select the lost responses.
func listenRelay(target string, lose func() float64) (*relay, error) {
	back, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, back.Close())
	}
	r := &relay{listener: listener, lose: lose, back: back, ended: make(chan struct{}), changed: make(chan struct{}), conns: map[*conn]struct{}{}}
	r.front = grpc.NewServer(grpc.UnknownServiceHandler(r.forward), grpc.ForceServerCodec(bytesCodec{}), grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Nanosecond, PermitWithoutStream: true}))
	r.close = sync.OnceFunc(func() {
		close(r.ended)
		r.front.Stop()
		r.all.Wait()
		back.Close()
	})
	r.all.Go(func() { _ = r.front.Serve(accepting{listener, r}) }) // until Close
	return r, nil
}

// maxMessage bounds the messages that the relay forwards.
const maxMessage = 64 << 20

// Address returns the relay's host:port.
func (r *relay) Address() string { return r.listener.Addr().String() }

// Set replaces the fault in effect. It returns at once. Responses that are being delayed keep
// their delay.
func (r *relay) Set(f fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
	close(r.changed)
	r.changed = make(chan struct{})
	for c := range r.conns {
		if f.Reset {
			c.reset()
		}
	}
}

// Close closes the listener and all connections, and returns when all goroutines have ended.
// It can be called more than once.
func (r *relay) Close() { r.close() }

// current returns the fault in effect, and a channel that the next Set closes.
func (r *relay) current() (fault, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault, r.changed
}

// audible waits while the relay is silent.
func (r *relay) audible() error {
	for {
		f, changed := r.current()
		if !f.Silent {
			return nil
		}
		select {
		case <-changed:
		case <-r.ended:
			return net.ErrClosed
		}
	}
}

// An accepting listener returns connections with the faults of a relay.
type accepting struct {
	net.Listener
	relay *relay
}

func (l accepting) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{raw, l.relay}
		l.relay.mu.Lock()
		reset := l.relay.fault.Reset
		if !reset {
			l.relay.conns[c] = struct{}{}
		}
		l.relay.mu.Unlock()
		if !reset {
			return c, nil
		}
		c.reset()
	}
}

// A conn is a connection of a client.
type conn struct {
	net.Conn
	relay *relay
}

// reset closes the connection with a RST.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it fails on a closed connection
	}
	c.Conn.Close()
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if herr := c.relay.audible(); herr != nil {
		return 0, herr
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.relay.audible(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.relay.mu.Lock()
	delete(c.relay.conns, c)
	c.relay.mu.Unlock()
	return c.Conn.Close()
}

// forward forwards a request and its response.
func (r *relay) forward(_ any, client grpc.ServerStream) error {
	path, _ := grpc.MethodFromServerStream(client)
	f, _ := r.current()
	late := func() error { return nil }
	if oneResponse(path) {
		late = func() error { return backoff.Sleep(client.Context(), f.Delay) }
	}
	var request []byte
	if isSend(path) && f.Throttle != nil && f.Throttle() {
		return errors.Join(client.RecvMsg(&request), late(), client.SendMsg(throttledMessage))
	}
	headers, _ := metadata.FromIncomingContext(client.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), headers))
	defer cancel()
	server, err := r.back.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path)
	if err != nil {
		return err
	}
	r.all.Go(func() { // it ends with the handler
		if errors.Is(pass(client, server), io.EOF) {
			_ = server.CloseSend() // its error is that of the response
		}
	})
	var response []byte
	err = server.RecvMsg(&response)
	if now, _ := r.current(); oneResponse(path) && r.lose() < now.LoseResponses {
		<-client.Context().Done()
		return client.Context().Err()
	}
	if lerr := late(); lerr != nil {
		return lerr
	}
	if err == nil {
		if err = client.SendMsg(response); err == nil {
			err = pass(server, client)
		}
	}
	client.SetTrailer(server.Trailer())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// A stream is one direction of a request.
type stream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

// pass passes messages on until one of the streams ends; io.EOF is the ordinary end of from.
func pass(from, to stream) (err error) {
	for err == nil {
		var message []byte
		if err = from.RecvMsg(&message); err == nil {
			err = to.SendMsg(message)
		}
	}
	return err
}

// The methods of RocketMQ's MessagingService that the relay knows.
const service = "/apache.rocketmq.v2.MessagingService/"

func oneResponse(path string) bool {
	return path != service+"Telemetry" && path != service+"ReceiveMessage"
}

func isSend(path string) bool { return strings.HasSuffix(path, "/SendMessage") }

// A bytesCodec passes messages on as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("a message is %T, not bytes", v)
	}
	return b, nil
}

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

// throttledMessage is a SendMessageResponse as RocketMQ 5.2 sends it if its broker throttles: field
// 1 is the status with the code (1) and the message (2).
var throttledMessage = func() []byte {
	const code, text = 42900, "[OVERLOAD]system busy, start flow control for a while"
	status := binary.AppendUvarint([]byte{1 << 3}, code)
	status = append(append(status, 2<<3|2, byte(len(text))), text...)
	return append([]byte{1<<3 | 2, byte(len(status))}, status...)
}()
