package interop

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
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

// permit returns the properties that permit everything to a role, and only sends to another.
func permit(all, sends string) map[string]string {
	p := map[string]string{}
	for _, permission := range artemis.Permissions {
		p[`securityRoles."#".`+all+"."+permission] = "true"
	}
	p[`securityRoles."#".`+sends+".send"] = "true"
	p[`addressSettings."#".autoCreateAddresses`] = "true"
	return p
}

func code(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

func TestUsersAndPermissions(t *testing.T) {
	p := permit("all", "sends")
	p[`addressSettings."*.DLQ".autoCreateAddresses`] = "false"
	s := start(t, artemis.Options{
		Properties: p,
		Users: map[string]artemis.User{
			"admin": {Password: "a", Roles: []string{"all"}}, "sender": {Password: "s", Roles: []string{"sends"}}, "reader": {Password: "r", Roles: []string{"readers"}},
		},
	})
	as := func(user, password string) *amqp.Client {
		return client(t, s.Address(), amqp.Options{Credentials: tidegate.Credentials{AccessKey: user, SecretKey: password}, RequestTimeout: requestTimeout})
	}
	admin, sender := as("admin", "a"), as("sender", "s")
	assert.NoError(t, send(t.Context(), admin, message("orders", 1)), "a user with permission")
	assert.NoError(t, send(t.Context(), sender, message("orders", 1)), "a user with permission to send")
	r := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute}
	// A receive fails if the dead letters of its group would be lost.
	if _, err := admin.Receive(t.Context(), r); code(err) != tidegate.CodeNotFound || tidegate.Classify(err) != tidegate.ClassPermanent {
		t.Errorf("a receive without a queue for dead letters: %v, want 40400", err)
	}
	a := assert.Value(connectAs(t.Context(), s.Address(), goamqp.SASLTypePlain("admin", "a")))(t)
	assert.Must(t, a.createQueue(t.Context(), "billing.DLQ", "billing.DLQ", "ANYCAST"))
	assert.NoError(t, assert.Err(admin.Receive(t.Context(), r)), "after the queue was created")
	assert.Is(t, "a receive without permission", assert.Err(sender.Receive(t.Context(), r)), tidegate.ErrForbidden)
	err := send(t.Context(), as("reader", "r"), message("orders", 1))
	assert.That(t, errors.Is(err, tidegate.ErrForbidden), "a send without permission: %v, want ErrForbidden", err)
	for name, c := range map[string]*amqp.Client{"a wrong password": as("admin", "wrong"), "an unknown user": as("nobody", "x"), "no credentials": clientOf(t, s.Address())} {
		err := send(t.Context(), c, message("orders", 1))
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || !errors.Is(err, tidegate.ErrUnauthorized) || e.MaybeStored || e.NotConnected {
			t.Errorf("%s: %v, want ErrUnauthorized and nothing stored", name, err)
		}
	}
}

func TestTLS(t *testing.T) {
	a := servertest.NewAuthority(t)
	s := start(t, artemis.Options{
		Certificate: a.File("server"), ClientAuthority: a.RootFile(),
		Properties: permit("all", "sends"),
		Users:      map[string]artemis.User{"orders": {DN: "CN=orders", Roles: []string{"all"}}, "p": {Password: "p", Roles: []string{"all"}}},
	})
	address := "amqps://" + s.Address()
	external := client(t, address, amqp.Options{TLS: a.Config("orders"), External: true, RequestTimeout: requestTimeout})
	assert.NoError(t, send(t.Context(), external, message("orders", 1)), "with a client certificate")
	plain := client(t, address, amqp.Options{TLS: a.Config("orders"), Credentials: tidegate.Credentials{AccessKey: "p", SecretKey: "p"}, RequestTimeout: requestTimeout})
	assert.NoError(t, send(t.Context(), plain, message("orders", 1)), "with a password")
	for name, c := range map[string]struct {
		o    amqp.Options
		code tidegate.Code
	}{
		"an unknown authority":         {amqp.Options{TLS: servertest.NewAuthority(t).Config("orders"), External: true}, tidegate.CodeIllegalAccessPoint},
		"no certificate":               {amqp.Options{TLS: a.Config(""), External: true}, tidegate.CodeIllegalAccessPoint},
		"a certificate without a user": {amqp.Options{TLS: a.Config("stranger"), External: true}, tidegate.CodeUnauthorized},
	} {
		c.o.RequestTimeout = requestTimeout
		err := send(t.Context(), client(t, address, c.o), message("orders", 1))
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || code(err) != c.code || e.NotConnected || e.MaybeStored {
			t.Errorf("%s: %v, want %d and NotConnected false", name, err, int(c.code))
		}
	}
}
