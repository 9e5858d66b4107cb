package brokertest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// Chaos has the probabilities of the disturbances of a [ChaosClient]. Every disturbance is
// permitted by at-least-once delivery, so a correct handler withstands it. The zero value disturbs
// nothing.
type Chaos struct {
	// Seed chooses the disturbances. They depend on the seed, the consumer group, and the topic,
	// queue and offset of the message, so a run with the same messages repeats them. Zero is a
	// valid seed.
	Seed uint64

	// Duplicate is the probability, from 0 to 1, that the acknowledgement of a message is lost: the
	// acknowledgement returns no error, and the broker delivers the message again. This happens at
	// most once for each message. Zero means never.
	Duplicate float64

	// Late is the probability, from 0 to 1, that a delivery is postponed by up to Lateness, without
	// counting an attempt. Its message group waits for it. Zero means never.
	Late float64

	// Lateness is the maximum delay of a late delivery. Default: 1 minute.
	Lateness time.Duration

	// Reorder is the probability, from 0 to 1, that the messages of one receive arrive in random
	// order. Messages of one message group keep their order. Zero means never.
	Reorder float64
}

// A ChaosClient is a transport that disturbs deliveries, to show that a handler withstands
// duplicates, late messages and changes of order. Create one with [Broker.ChaosClient]. Its methods
// may be called by several goroutines.
type ChaosClient struct {
	*rocketmq.Client
	chaos Chaos

	mu    sync.Mutex
	draws map[string]uint64 // guarded by mu; how often chance decided about each message
}

// ChaosClient returns a transport to the broker that disturbs deliveries. It ends with the test. It
// fails the test if c has a probability outside of 0 to 1 or a negative Lateness.
func (b *Broker) ChaosClient(c Chaos) *ChaosClient {
	b.tb.Helper()
	for _, p := range []struct {
		name  string
		value float64
	}{{"Duplicate", c.Duplicate}, {"Late", c.Late}, {"Reorder", c.Reorder}} {
		if !(p.value >= 0 && p.value <= 1) {
			b.tb.Fatalf("brokertest: Chaos.%s is %v; give a probability of 0 to 1", p.name, p.value)
		}
	}
	if c.Lateness < 0 {
		b.tb.Fatalf("brokertest: Chaos.Lateness is %v; it must not be negative", c.Lateness)
	}
	if c.Lateness == 0 {
		c.Lateness = time.Minute
	}
	return &ChaosClient{Client: b.Client(), chaos: c, draws: map[string]uint64{}}
}

// Receive receives as the embedded client does, and then postpones and reorders some of the
// deliveries.
func (c *ChaosClient) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	if err == nil && !r.Repeat {
		ds = c.postpone(ctx, ds)
	}
	return ds, err
}

// ReceiveOrWatch disturbs deliveries as Receive does.
func (c *ChaosClient) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	ds, ready, err = c.Client.ReceiveOrWatch(ctx, r)
	if err == nil && !r.Repeat {
		ds = c.postpone(ctx, ds)
	}
	return ds, ready, err
}

// ReceiveParts disturbs deliveries as Receive does.
func (c *ChaosClient) ReceiveParts(ctx context.Context, r transport.ReceiveRequest, deliver func(part []*tidegate.Delivery, since time.Time)) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.ReceiveParts(ctx, r, func(part []*tidegate.Delivery, since time.Time) {
		deliver(c.postpone(ctx, part), since)
	})
	if err == nil && !r.Repeat {
		ds = c.postpone(ctx, ds)
	}
	return ds, err
}

// postpone postpones and reorders some of the deliveries, and returns the others.
func (c *ChaosClient) postpone(ctx context.Context, ds []*tidegate.Delivery) []*tidegate.Delivery {
	delays, shuffled := c.disturb(ds)
	var undelayed []*tidegate.Delivery
	for i, d := range shuffled {
		if delays[i] == 0 {
			undelayed = append(undelayed, d)
		} else if _, err := c.Client.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: delays[i]}); err != nil {
			undelayed = append(undelayed, d) // it stays on time
		}
	}
	return undelayed
}

// disturb returns the deliveries in their new order, and the delay of each; 0 for none.
func (c *ChaosClient) disturb(ds []*tidegate.Delivery) ([]time.Duration, []*tidegate.Delivery) {
	if len(ds) > 1 {
		if r, _ := c.draw("reorder", ds[0]); r.Float64() < c.chaos.Reorder {
			ds = reorder(ds, r)
		}
	}
	delays := make([]time.Duration, len(ds))
	for i, d := range ds {
		if r, _ := c.draw("late", d); r.Float64() < c.chaos.Late {
			delays[i] = 1 + time.Duration(r.Int64N(int64(c.chaos.Lateness)))
		}
	}
	return delays, ds
}

// draw returns the random numbers for a decision about the message of d, and the
// number of such decisions before.
func (c *ChaosClient) draw(about string, d *tidegate.Delivery) (r *rand.Rand, before uint64) {
	key := fmt.Sprintf("%s %q %q %d %d", about, d.ConsumerGroup, d.Topic, d.Queue, d.Offset)
	c.mu.Lock()
	before = c.draws[key]
	c.draws[key]++
	c.mu.Unlock()
	h := fnv.New64a()
	h.Write([]byte(key))
	return rand.New(rand.NewPCG(c.chaos.Seed, h.Sum64()+before)), before
}

// reorder returns ds in random order, in which the messages of a message group keep theirs.
func reorder(ds []*tidegate.Delivery, r *rand.Rand) []*tidegate.Delivery {
	groups := map[string][]*tidegate.Delivery{}
	key := func(d *tidegate.Delivery) string {
		if d.MessageGroup == "" {
			return fmt.Sprintf("%p", d)
		}
		return "group " + d.MessageGroup
	}
	for _, d := range ds {
		groups[key(d)] = append(groups[key(d)], d)
	}
	out := make([]*tidegate.Delivery, 0, len(ds))
	for _, i := range r.Perm(len(ds)) {
		k := key(ds[i])
		out = append(out, groups[k][0])
		groups[k] = groups[k][1:]
	}
	return out
}

// Ack acknowledges as the embedded client does, except for the messages to be duplicated: it
// releases these and returns no error for them.
func (c *ChaosClient) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	var rest []*tidegate.Delivery
	var at []int
	for i, d := range ds {
		if c.duplicate(d) {
			_, errs[i] = c.Client.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		} else {
			rest, at = append(rest, d), append(at, i)
		}
	}
	if len(rest) > 0 {
		for j, err := range c.Client.Ack(ctx, rest) {
			errs[at[j]] = err
		}
	}
	return errs
}

// duplicate decides whether the message of d is to be delivered once more.
func (c *ChaosClient) duplicate(d *tidegate.Delivery) bool {
	r, before := c.draw("duplicate", d)
	return before == 0 && r.Float64() < c.chaos.Duplicate
}

// networkBuffer is the buffer of one direction of a connection, in bytes.
const networkBuffer = 256 << 10

// errRefused is the error of Dial while the network is cut.
var errRefused = errors.New("connection refused: the test has cut the network (brokertest)")

// wires are the connections of clients to a broker in memory, over gRPC and HTTP.
type wires struct {
	mu    sync.Mutex // guards the following fields
	cut   bool
	last  error // of the last connection that failed; nil after one that succeeded
	conns map[*wire]struct{}
}

// A wire is the client's end of a connection.
type wire struct {
	net.Conn
	among *wires
}

func (c *wire) Close() error {
	c.among.mu.Lock()
	delete(c.among.conns, c)
	c.among.mu.Unlock()
	return c.Conn.Close()
}

// add returns a connection that disconnect breaks. It closes c and returns errRefused while the
// network is cut.
func (w *wires) add(c net.Conn) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		w.last = errRefused
		return nil, errors.Join(errRefused, c.Close())
	}
	w.last = nil
	end := &wire{c, w}
	w.conns[end] = struct{}{}
	return end, nil
}

func (w *wires) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		w.last = errRefused
	}
	return w.cut
}

// fault returns the error of the last connection; nil if it succeeded.
func (w *wires) fault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

func (w *wires) disconnect() {
	w.mu.Lock()
	w.cut = true
	conns := w.conns
	w.conns = map[*wire]struct{}{}
	w.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
}

func (w *wires) reconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// A network connects clients with the broker's gRPC, in memory.
type network struct {
	wires *wires
	lis   atomic.Pointer[bufconn.Listener]
}

func newNetwork() *network {
	n := &network{wires: &wires{conns: map[*wire]struct{}{}}}
	n.renew()
	return n
}

// renew gives the network a new listener, for a broker that starts again.
func (n *network) renew() { n.lis.Store(bufconn.Listen(networkBuffer)) }

func (n *network) dial(ctx context.Context) (net.Conn, error) {
	if n.wires.isCut() {
		return nil, errRefused
	}
	c, err := n.lis.Load().DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return n.wires.add(c)
}

// Disconnect cuts the network: connections break, and new ones fail until Reconnect. Requests in
// progress get no response, although the broker may execute them. Deliveries of disconnected
// consumers stay in flight until their invisible time ends. It does not block. A second call has no
// effect.
func (b *Broker) Disconnect() { b.network.wires.disconnect() }

// Reconnect ends Disconnect. Clients connect again after their own backoff.
func (b *Broker) Reconnect() { b.network.wires.reconnect() }

// Restart ends the broker like a crash of its process and starts it again with its data:
// connections break, requests in progress get no response, and new connections fail in between.
// Afterwards the embedded engine is another one. No other method may run at the same time.
func (b *Broker) Restart() {
	b.tb.Helper()
	b.Disconnect()
	if err := b.stop(); err != nil {
		b.tb.Fatalf("brokertest: restart: %v", err)
	}
	b.network.renew()
	if err := b.start(); err != nil {
		b.tb.Fatalf("brokertest: restart: %v", err)
	}
	b.Reconnect()
}

// SetAccess replaces the permissions of clients, for example to revoke a key, like a reload of the
// broker's configuration. They apply to the next request, and after a Restart. An invalid
// configuration fails the test.
func (b *Broker) SetAccess(c server.AccessConfig) {
	b.tb.Helper()
	if err := b.server.SetAccess(c); err != nil {
		b.tb.Fatalf("brokertest: access: %v", err)
	}
	b.opts.Access = c
}

// Dial connects to the broker. It has the form of rocketmq.Options.Dialer and serves any gRPC
// client. It ignores addr: each network has one broker.
func (b *Broker) Dial(ctx context.Context, _ string) (net.Conn, error) { return b.network.dial(ctx) }

// slowHandler is the real time after which a running handler is reported.
const slowHandler = 30 * time.Second

// A handling is one call of a handler.
type handling struct {
	broker, group, topic, id string
	attempt                  int
	began                    time.Time     // by the clock of the test, which is virtual in a bubble
	watched                  time.Duration // real time, in steps of watch.step
}

func (h *handling) String() string {
	return fmt.Sprintf("message %s of topic %s (group %s, attempt %d)", h.id, h.topic, h.group, h.attempt)
}

// A watch reports handlers that run for long in real time. A handler in a bubble that waits for
// something outside of it, such as a mutex or a socket, stops the bubble's clock. No timer of the
// test fires then, and the test ends with the time limit of go test, which names no handler.
//
// Its goroutine runs while there are callers of start, which are outside of all bubbles. begin
// wakes the goroutine, which ends a round of ticks when no handler runs. Without the goroutine, the
// watch only lists the handlers that run.
type watch struct {
	step, limit time.Duration
	out         io.Writer
	wake        chan struct{} // has a signal after the first handler began

	mu      sync.Mutex // guards the following fields
	running map[*handling]struct{}
	users   int           // callers of start that have not called its result
	quit    chan struct{} // closed to end the goroutine of these users
	ended   chan struct{} // closed when it has ended
}

// handlers watches the handlers of all brokers of the program. Its channel is created here, because
// a channel that is created in a bubble cannot be used outside of it.
var handlers = newWatch(time.Second, slowHandler, os.Stderr)

func newWatch(step, limit time.Duration, out io.Writer) *watch {
	return &watch{step: step, limit: limit, out: out, wake: make(chan struct{}, 1), running: map[*handling]struct{}{}}
}

// start starts the goroutine of the watch, unless it runs already. stop ends the goroutine, and
// waits for its end, if no other caller of start needs it.
func (w *watch) start() (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users++; w.users == 1 {
		w.quit, w.ended = make(chan struct{}), make(chan struct{})
		go w.run(w.quit, w.ended)
	}
	return func() {
		w.mu.Lock()
		w.users--
		last, quit, ended := w.users == 0, w.quit, w.ended
		w.mu.Unlock()
		if last {
			close(quit)
			<-ended
		}
	}
}

// run ticks while handlers run, until quit is closed.
func (w *watch) run(quit, ended chan struct{}) {
	defer close(ended)
	for {
		for w.tick() {
			select {
			case <-time.After(w.step):
			case <-quit:
				return
			}
		}
		select {
		case <-w.wake:
		case <-quit:
			return
		}
	}
}

// begin notes the call of a handler. end has to be called after it.
func (w *watch) begin(broker, group string, d *tidegate.Delivery) (end func()) {
	h := &handling{broker: broker, group: group, topic: d.Topic, id: d.ID, attempt: d.Attempt, began: time.Now()}
	w.mu.Lock()
	w.running[h] = struct{}{}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // the goroutine sees it anyway
	}
	return func() {
		w.mu.Lock()
		delete(w.running, h)
		w.mu.Unlock()
	}
}

// tick reports the handlers that have reached the limit now. It returns whether handlers run.
func (w *watch) tick() (running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h := range w.running {
		if h.watched += w.step; h.watched-w.step < w.limit && h.watched >= w.limit {
			_, _ = fmt.Fprintf(w.out, "brokertest: the handler has not returned for %v of real time: %v\n", w.limit, h)
		}
	}
	return len(w.running) > 0
}

// of returns a text about the running handlers of a broker's group, the longest first. It is empty
// if there are none.
func (w *watch) of(broker, group string) string {
	w.mu.Lock()
	var hs []*handling
	for h := range w.running {
		if h.broker == broker && h.group == group {
			hs = append(hs, h)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(hs, func(a, b *handling) int { return a.began.Compare(b.began) })
	var text strings.Builder
	for i, h := range hs {
		if i == 3 {
			fmt.Fprintf(&text, "; and %d more handlers", len(hs)-i)
			break
		}
		fmt.Fprintf(&text, "; the handler has not returned for %v: %v", time.Since(h.began), h)
	}
	return text.String()
}
