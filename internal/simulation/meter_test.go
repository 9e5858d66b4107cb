package simulation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// maxCallsAtOnce is the number of calls of one method of one transport in one instant from which
// the test reports a spin.
const maxCallsAtOnce = 20_000

// A meter counts the calls of a transport.
type meter struct {
	w    *world
	name string

	mu        sync.Mutex // guards the following fields
	calls     map[string]int
	throttled map[int64]bool // the seconds in which a send was throttled
	instant   time.Time
	atOnce    map[string]int // calls in this instant
	spun      bool
}

// add counts a call. A spin, which takes no time, would last forever in virtual time. The call
// therefore takes a second once its method has been called too often in one instant.
func (m *meter) add(op string) {
	m.mu.Lock()
	if m.calls == nil {
		m.calls = map[string]int{}
	}
	m.calls[op]++
	if now := time.Now(); now != m.instant {
		m.instant, m.atOnce = now, map[string]int{}
	}
	m.atOnce[op]++
	spins := m.atOnce[op] > maxCallsAtOnce
	first := spins && !m.spun
	m.spun = m.spun || spins
	calls := m.calls[op]
	m.mu.Unlock()
	if calls%1000 == 0 {
		m.w.book.note("%s: %d calls of %s", m.name, calls, op)
	}
	if first {
		m.w.book.fail("%s: %d calls of %s in one instant: a goroutine spins", m.name, maxCallsAtOnce, op)
	}
	if spins {
		<-time.After(time.Second)
	}
}

// total returns the number of calls of a method.
func (m *meter) total(op string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// throttle notes that a send was throttled now.
func (m *meter) throttle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.throttled == nil {
		m.throttled = map[int64]bool{}
	}
	m.throttled[time.Now().Unix()] = true
}

// throttledSeconds returns the number of seconds in which a send was throttled.
func (m *meter) throttledSeconds() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.throttled)
}

func (m *meter) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for op, n := range m.calls {
		list = append(list, fmt.Sprintf("%d %s", n, op))
	}
	slices.Sort(list)
	return m.name + ": " + strings.Join(list, ", ")
}

// A fullTransport has the common methods of all transports of the simulation.
type fullTransport interface {
	transport.Transport
	transport.Pinger
	transport.Recaller
}

// A laneTransport also has lanes, transactions, watches, parts and lite topics.
type laneTransport interface {
	fullTransport
	transport.LaneSender
	transport.Transactor
	transport.Watcher
	transport.Streamer
	transport.LiteSubscriber
}

// count returns t with a count of its calls.
func (m *meter) count(t transport.Transport) transport.Transport {
	full := counted{t.(fullTransport), m}
	if lanes, ok := t.(laneTransport); ok {
		return countedLanes{full, lanes}
	}
	return full
}

type counted struct {
	fullTransport
	m *meter
}

func (c counted) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	c.m.add("Send")
	results := c.fullTransport.Send(ctx, msgs)
	for _, r := range results {
		if tidegate.Classify(r.Err) == tidegate.ClassThrottled {
			c.m.throttle()
		}
	}
	return results
}

func (c counted) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	c.m.add("Receive")
	return c.fullTransport.Receive(ctx, r)
}

func (c counted) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	c.m.add("Ack")
	return c.fullTransport.Ack(ctx, ds)
}

func (c counted) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	c.m.add("Settle")
	return c.fullTransport.Settle(ctx, d, v)
}

func (c counted) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	c.m.add("Extend")
	return c.fullTransport.Extend(ctx, d, dur, repeat)
}

func (c counted) Recall(ctx context.Context, topic, handle string) (string, error) {
	c.m.add("Recall")
	return c.fullTransport.Recall(ctx, topic, handle)
}

func (c counted) Ping(ctx context.Context, topics ...string) error {
	c.m.add("Ping")
	return c.fullTransport.Ping(ctx, topics...)
}

func (c counted) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	c.m.add("ProducerSettings")
	return c.fullTransport.ProducerSettings(ctx, topic)
}

func (c counted) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	c.m.add("ConsumerSettings")
	return c.fullTransport.ConsumerSettings(ctx, group, topic)
}

// EndpointSettings is not counted: it sends no request.
func (c counted) EndpointSettings(endpoint, group, topic string) (s transport.ConsumerSettings, ok bool) {
	if several, has := c.fullTransport.(transport.EndpointConfigurer); has {
		return several.EndpointSettings(endpoint, group, topic)
	}
	return s, false
}

func (c counted) Queues(ctx context.Context, group, topic string) ([]int, error) {
	c.m.add("Queues")
	return c.fullTransport.Queues(ctx, group, topic)
}

type countedLanes struct {
	counted
	lanes laneTransport
}

func (c countedLanes) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	c.m.add("ReceiveOrWatch")
	return c.lanes.ReceiveOrWatch(ctx, r)
}

func (c countedLanes) ReceiveParts(ctx context.Context, r transport.ReceiveRequest, deliver func([]*tidegate.Delivery, time.Time)) ([]*tidegate.Delivery, error) {
	c.m.add("ReceiveParts")
	return c.lanes.ReceiveParts(ctx, r, deliver)
}

func (c countedLanes) SyncLite(ctx context.Context, s transport.LiteSync) error {
	c.m.add("SyncLite")
	return c.lanes.SyncLite(ctx, s)
}

func (c countedLanes) ServeLite(ctx context.Context, consumer transport.LiteConsumer, ended func(string)) error {
	c.m.add("ServeLite")
	return c.lanes.ServeLite(ctx, consumer, ended)
}

func (c countedLanes) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	c.m.add("Lane")
	return c.lanes.Lane(ctx, r)
}

func (c countedLanes) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	c.m.add("SendLane")
	return c.lanes.SendLane(ctx, lane, msgs)
}

func (c countedLanes) SendHalf(ctx context.Context, msg *tidegate.Message) transport.SendResult {
	c.m.add("SendHalf")
	return c.lanes.SendHalf(ctx, msg)
}

func (c countedLanes) EndTransaction(ctx context.Context, tx transport.Transaction, r transport.Resolution) error {
	c.m.add("EndTransaction")
	return c.lanes.EndTransaction(ctx, tx, r)
}

func (c countedLanes) ServeChecks(ctx context.Context, topics []string, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	c.m.add("ServeChecks")
	return c.lanes.ServeChecks(ctx, topics, check)
}
