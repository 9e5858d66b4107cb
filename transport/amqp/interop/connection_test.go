package interop

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/amqp/internal/artemis"
)

// A network makes connections that it can break.
type network struct {
	mu    sync.Mutex
	down  bool
	conns []*wire
}

// A wire is a connection that can lose the bytes written to it.
type wire struct {
	net.Conn
	mu   sync.Mutex
	lost bool
}

func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the network is down")}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: c}
	n.conns = append(n.conns, w)
	return w, nil
}

// cut closes the connections. If down is set, new ones fail.
func (n *network) cut(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for _, c := range n.conns {
		c.Close()
	}
	n.conns = nil
}

// silence loses all bytes that the client writes from now on.
func (n *network) silence() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.mu.Lock()
		c.lost = true
		c.mu.Unlock()
	}
}

func receive(t *testing.T, c *amqp.Client, r transport.ReceiveRequest) *tidegate.Delivery {
	t.Helper()
	for start := time.Now(); time.Since(start) < soon; {
		ds, err := c.Receive(t.Context(), r)
		if err == nil && len(ds) == 1 {
			return ds[0]
		}
		assert.MustThat(t, err == nil || tidegate.Classify(err) == tidegate.ClassTransient, "%v", err)
	}
	t.Fatalf("received nothing for %v", soon)
	return nil
}

// After the loss of a connection calls work again. Artemis delivers unsettled messages again and
// counts an attempt, except if the client has closed its connection.
func TestReconnect(t *testing.T) {
	s, a := server(t)
	topic := "reconnect-" + run
	assert.Must(t, errors.Join(a.createTopic(t.Context(), topic), a.createGroup(t.Context(), topic, "billing")))
	var n network
	c := client(t, s.Address(), amqp.Options{Dialer: n.dial, RequestTimeout: requestTimeout})
	r := transport.ReceiveRequest{Group: "billing", Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Second}
	assert.Must(t, send(t.Context(), c, message(topic, 1)))
	first := receive(t, c, r)
	for attempt := 2; attempt <= 4; attempt++ {
		n.cut(true)
		ctx, cancel := context.WithCancel(transport.AwaitConnection(t.Context()))
		sent := make(chan error, 1)
		go func() {
			err := send(ctx, c, message(topic+"-none", 1))
			for tidegate.Classify(err) == tidegate.ClassTransient { // on the connection that is cut
				err = send(ctx, c, message(topic+"-none", 1))
			}
			sent <- err
		}()
		n.cut(false)
		assert.Is(t, "a send that awaits the connection", <-sent, tidegate.ErrTopicNotFound)
		cancel()
		errs := c.Ack(t.Context(), []*tidegate.Delivery{first})
		assert.That(t, errs[0] != nil, "an acknowledgement after the loss of its connection succeeded")
		if first = receive(t, c, r); first.Attempt != attempt {
			t.Errorf("attempt %d after the loss of the connection, want %d", first.Attempt, attempt)
		}
	}
	assert.NoError(t, c.Close())
	c = clientOf(t, s.Address())
	if first = receive(t, c, r); first.Attempt != 4 {
		t.Errorf("attempt %d after the client was closed, want 4 as before", first.Attempt)
	}
	if errs := c.Ack(t.Context(), []*tidegate.Delivery{first}); errs[0] != nil {
		t.Error(errs[0])
	}
}

// The server ends the connection of a client that is silent, and gives its messages to others.
// Heartbeats keep the connection of an idle client.
func TestConnectionTTL(t *testing.T) {
	s := start(t, artemis.Options{
		Properties: map[string]string{`addressSettings."#".autoCreateAddresses`: "true"},
		Acceptor:   map[string]string{"amqpIdleTimeout": "2000"},
	})
	var n network
	silent := client(t, s.Address(), amqp.Options{Dialer: n.dial, RequestTimeout: requestTimeout})
	idle := client(t, s.Address(), amqp.Options{RequestTimeout: requestTimeout, IdleTimeout: 2 * time.Second})
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Hour, Wait: time.Millisecond}
	if _, err := silent.Receive(t.Context(), r); err != nil { // creates the queue
		t.Fatal(err)
	}
	assert.Must(t, send(t.Context(), idle, message("orders", 1)))
	held := receive(t, silent, r)
	n.silence()
	r.Wait = 20 * time.Second // the invisible duration is an hour, so only the end of the connection releases the message
	got := receive(t, idle, r)
	assert.That(t, got.ID == held.ID && got.Attempt == 2,
		"received attempt %d of %q, want attempt 2 of %q", got.Attempt, got.ID, held.ID)
	if errs := idle.Ack(t.Context(), []*tidegate.Delivery{got}); errs[0] != nil {
		t.Errorf("the idle client has lost its connection: %v", errs[0])
	}
}
