package endtoend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func producerOf(t *testing.T, c *rocketmq.Client, o producer.Options) *producer.Producer {
	t.Helper()
	p, err := producer.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// An odd network leads a client to a faulty endpoint until it is cured.
type oddNetwork struct {
	mu    sync.Mutex
	fault func(ctx context.Context) (net.Conn, error) // nil: cured
	well  *brokertest.Broker
	conns []net.Conn
}

func (n *oddNetwork) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	fault := n.fault
	n.mu.Unlock()
	if fault == nil {
		return n.well.Dial(ctx, address)
	}
	c, err := fault(ctx)
	if err == nil {
		n.mu.Lock()
		n.conns = append(n.conns, c)
		n.mu.Unlock()
	}
	return c, err
}

// cure ends the fault as the restart of the endpoint does.
func (n *oddNetwork) cure() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = nil
	for _, c := range n.conns {
		_ = c.Close()
	}
}

// served returns the client's end of a connection to serve.
func served(serve func(c net.Conn)) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		serve(server)
	}()
	return client, nil
}

// A trickle passes one byte a second to the client.
type trickle struct{ net.Conn }

func (t trickle) Read(p []byte) (int, error) {
	<-time.After(time.Second)
	return t.Conn.Read(p[:1])
}

// A cutOff resets the connection in the middle of a response to a send.
type cutOff struct{ net.Conn }

func (c cutOff) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if i := bytes.Index(p[:n], []byte("MESSAGE-OF-THE-TEST")); i >= 0 {
		return i, c.Conn.Close()
	}
	return n, err
}

// twice is a server that responds correctly to routes and twice to every send.
func twice(address string) func(c net.Conn) {
	return func(c net.Conn) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c, preface); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		var out bytes.Buffer
		encoder := hpack.NewEncoder(&out)
		headers := func(stream uint32, end bool, fields ...string) {
			out.Reset()
			for i := 0; i < len(fields); i += 2 {
				_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
			}
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: out.Bytes(), EndHeaders: true, EndStream: end})
		}
		body := func(stream uint32, m proto.Message) {
			text, _ := proto.Marshal(m)
			_ = f.WriteData(stream, false, append([]byte{0, 0, 0, 0, byte(len(text))}, text...))
		}
		_ = f.WriteSettings()
		paths := map[uint32]string{}
		ok := &rmqpb.Status{Code: rmqpb.Code_OK}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = f.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !frame.IsAck() {
					_ = f.WritePing(true, frame.Data)
				}
			case *http2.MetaHeadersFrame:
				paths[frame.StreamID] = frame.PseudoValue("path")
			case *http2.DataFrame:
				id := frame.StreamID
				if !frame.StreamEnded() {
					continue // of a stream of commands, which gets no response
				}
				headers(id, false, ":status", "200", "content-type", "application/grpc")
				switch paths[id] {
				case "/apache.rocketmq.v2.MessagingService/QueryRoute":
					host, _, _ := net.SplitHostPort(address)
					body(id, &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: []*rmqpb.MessageQueue{{
						Permission: rmqpb.Permission_READ_WRITE,
						Broker: &rmqpb.Broker{Name: "b", Endpoints: &rmqpb.Endpoints{
							Scheme: rmqpb.AddressScheme_DOMAIN_NAME, Addresses: []*rmqpb.Address{{Host: host, Port: 8081}}}},
					}}})
				case "/apache.rocketmq.v2.MessagingService/SendMessage":
					for range 2 {
						body(id, &rmqpb.SendMessageResponse{Status: ok, Entries: []*rmqpb.SendResultEntry{{Status: ok, MessageId: "x"}}})
					}
				}
				headers(id, true, "grpc-status", "0")
			}
		}
	}
}

// An endpoint that misbehaves in any way costs a typed error within the deadline, no panic and no
// goroutine, and the producer recovers once the endpoint is well.
func TestOddEndpoints(t *testing.T) {
	type fault = func(ctx context.Context, b *brokertest.Broker) (net.Conn, error)
	garbage := func(first string) fault {
		return func(context.Context, *brokertest.Broker) (net.Conn, error) {
			return served(func(c net.Conn) {
				go io.Copy(io.Discard, c)
				rnd := rand.NewChaCha8([32]byte{})
				if _, err := io.WriteString(c, first); err != nil {
					return
				}
				_, _ = io.CopyN(c, rnd, 1<<16)
			})
		}
	}
	for name, tt := range map[string]struct {
		fault fault
		maybe bool          // the message may have been stored
		wrong bool          // another protocol, which is permanent: the producer does not repeat the send
		after time.Duration // the producer recovers within; zero means 3 s
	}{
		"refuses": {fault: func(context.Context, *brokertest.Broker) (net.Conn, error) {
			return nil, errors.New("connection refused")
		}},
		"does not answer the handshake": {fault: func(context.Context, *brokertest.Broker) (net.Conn, error) {
			return served(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		}},
		"never accepts":                   {after: 20 * time.Second, fault: func(ctx context.Context, _ *brokertest.Broker) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }},
		"closes at once":                  {fault: func(context.Context, *brokertest.Broker) (net.Conn, error) { return served(func(net.Conn) {}) }},
		"answers garbage":                 {fault: garbage("")},
		"answers a page":                  {wrong: true, fault: garbage("HTTP/1.1 200 OK\r\n\r\n")},
		"answers garbage after a setting": {fault: garbage("\x00\x00\x00\x04\x00\x00\x00\x00\x00")},
		"answers twice":                   {maybe: true, fault: func(_ context.Context, b *brokertest.Broker) (net.Conn, error) { return served(twice(b.Address())) }},
		"resets in the response": {maybe: true, fault: func(ctx context.Context, b *brokertest.Broker) (net.Conn, error) {
			c, err := b.Dial(ctx, "")
			return cutOff{c}, err
		}},
		"sends a byte a second": {fault: func(ctx context.Context, b *brokertest.Broker) (net.Conn, error) {
			c, err := b.Dial(ctx, "")
			return trickle{c}, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				b.CreateTopic("orders", settings.Topic{})
				n := &oddNetwork{well: b, fault: func(ctx context.Context) (net.Conn, error) { return tt.fault(ctx, b) }}
				c := b.ClientWith(rocketmq.Options{Dialer: n.dial})
				p := producerOf(t, c, producer.Options{AttemptTimeout: time.Second})
				patient := producerOf(t, c, producer.Options{MaxAttempts: 100})
				for i := range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					start := time.Now()
					_, err := p.Send(ctx, &tidegate.Message{ID: fmt.Sprintf("MESSAGE-OF-THE-TEST-%d", i), Topic: "orders", Body: []byte("x")})
					cancel()
					e, ok := errors.AsType[*producer.SendError](err)
					if !ok || e.Attempts < 1 || e.MaybeStored != tt.maybe || e.Fault() == producer.MessageFault || time.Since(start) > 5*time.Second {
						t.Errorf("message %d after %v: %+v", i, time.Since(start), err)
					}
				}
				n.cure()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				start := time.Now()
				r, err := patient.Send(ctx, &tidegate.Message{ID: "after", Topic: "orders", Body: []byte("x")})
				for tt.wrong && errors.Is(err, tidegate.ErrInvalid) && time.Since(start) < 3*time.Second {
					time.Sleep(100 * time.Millisecond) // until the next connection
					r, err = patient.Send(ctx, &tidegate.Message{ID: "after", Topic: "orders", Body: []byte("x")})
				}
				if took := time.Since(start); err != nil || took > cmp.Or(tt.after, 3*time.Second) {
					t.Errorf("after the cure: %+v, %v after %v", r, err, took)
				}
			})
		})
	}
}

// An endpoint that moves to another machine: the name leads to a new broker, and the
// old one is gone.
func TestEndpointChangesItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := brokertest.New(t), brokertest.New(t)
		for _, b := range []*brokertest.Broker{from, to} {
			b.CreateTopic("orders", settings.Topic{})
		}
		var mu sync.Mutex
		target := from
		dial := func(ctx context.Context, address string) (net.Conn, error) {
			mu.Lock()
			b := target
			mu.Unlock()
			return b.Dial(ctx, address)
		}
		p := producerOf(t, from.ClientWith(rocketmq.Options{Dialer: dial}), producer.Options{})
		for i := range 20 {
			if i == 10 {
				mu.Lock()
				target = to
				mu.Unlock()
				from.Disconnect()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("x")}); err != nil {
				t.Errorf("message %d: %v", i, err)
			}
			cancel()
		}
	})
}
