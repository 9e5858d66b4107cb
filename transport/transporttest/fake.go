package transporttest

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Fake is a transport without a server, for the tests of a program: they decide its responses and
// read the calls that it got. The zero value accepts every message and every settlement, and
// delivers the messages of Deliver. It works in a bubble of package synctest.
//
//	fake := &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, _ []*tidegate.Message) []error {
//		if n == 1 {
//			return []error{tidegate.ErrUnavailable} // the first request fails
//		}
//		return nil
//	}}
//	p, err := producer.New(fake, producer.Options{})
//
// A function of the Fake responds to the calls of one method. It gets the number of the call among
// those of its method, from 1, and may block until its ctx ends. Set the functions before the first
// call. Several goroutines may call them at the same time.
//
// A Fake has every optional interface of package transport except
// [transport.EndpointConfigurer]. To hide them, embed it as a [transport.Transport] in a struct.
//
// Package mocks is for tests that list the expected calls. Package broker/brokertest has a real
// server in the test's process, for example with redeliveries and dead letters.
type Fake struct {
	transport.Base

	// OnLane chooses the lane of a message. Nil chooses one lane for all messages, with 100
	// messages of any topics and 1 MiB a request.
	OnLane func(ctx context.Context, n int, r transport.LaneRequest) (transport.Lane, error)

	// OnSend responds to a request, of Send or of SendLane, with an error for each message, in
	// their order. Messages beyond the end of the list are accepted. The lane of Send is zero.
	OnSend func(ctx context.Context, n int, lane transport.Lane, msgs []*tidegate.Message) []error

	// OnProducerSettings responds to ProducerSettings. Nil responds with none.
	OnProducerSettings func(ctx context.Context, n int, topic string) (transport.ProducerSettings, error)

	// OnSendHalf responds to SendHalf. Nil accepts every half message.
	OnSendHalf func(ctx context.Context, n int, msg *tidegate.Message) error

	// OnEndTransaction responds to EndTransaction. Nil ends every transaction.
	OnEndTransaction func(ctx context.Context, n int, t transport.Transaction, r transport.Resolution) error

	// OnServeChecks serves the checks of half messages. Nil has none, and waits for the end of ctx.
	OnServeChecks func(ctx context.Context, n int, check func(context.Context, transport.TransactionCheck) transport.Resolution) error

	// OnRecall responds to Recall with the ID of the message. Nil recalls the message whose receipt
	// had the handle.
	OnRecall func(ctx context.Context, n int, topic, handle string) (messageID string, err error)

	// OnReceive responds to Receive and ReceiveOrWatch. Nil returns the deliveries of Deliver, each
	// once.
	OnReceive func(ctx context.Context, n int, r transport.ReceiveRequest) ([]*tidegate.Delivery, error)

	// OnAck responds to Ack with an error for each delivery, in their order. Deliveries beyond the
	// end of the list are acknowledged.
	OnAck func(ctx context.Context, n int, ds []*tidegate.Delivery) []error

	// OnSettle responds to Settle. Nil takes every verdict and reports no fate. The Fake does not
	// deliver the message again: a program's test calls Deliver.
	OnSettle func(ctx context.Context, n int, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error)

	// OnExtend responds to Extend. Nil returns a new handle.
	OnExtend func(ctx context.Context, n int, d *tidegate.Delivery, dur time.Duration) (handle string, err error)

	// OnConsumerSettings responds to ConsumerSettings. Nil responds with none.
	OnConsumerSettings func(ctx context.Context, n int, group, topic string) (transport.ConsumerSettings, error)

	// OnSyncLite responds to SyncLite. Nil, or a nil error, accepts the change: receives of the
	// consumer return the deliveries of its lite topics.
	OnSyncLite func(ctx context.Context, n int, s transport.LiteSync) error

	// OnServeLite serves the ends of lite topics. Nil has none, and waits for the end of ctx.
	OnServeLite func(ctx context.Context, n int, c transport.LiteConsumer, ended func(liteTopic string)) error

	// OnPing responds to Ping. Nil finds the server and all topics.
	OnPing func(ctx context.Context, n int, topics []string) error

	// Announces has the capabilities of all servers.
	Announces transport.Capabilities

	mu       sync.Mutex
	calls    map[string][]FakeCall
	accepted int64
	queued   []*tidegate.Delivery
	handles  int
	lite     map[transport.LiteConsumer]map[string]bool
	changed  chan struct{} // closed by Deliver and Close; nil before the first wait
	closed   bool
}

// A FakeCall is a call that a [Fake] got. It has the arguments of the method; others are zero.
type FakeCall struct {
	At         time.Time
	Topic      string
	Lane       transport.Lane
	Messages   []*tidegate.Message // copies
	Resolution transport.Resolution

	Group      string
	Request    transport.ReceiveRequest
	Deliveries []*tidegate.Delivery
	Verdict    transport.Verdict
	Extension  time.Duration      // of Extend
	Lite       transport.LiteSync // of SyncLite, and the consumer of ServeLite
}

// Calls returns the calls of a method, in their order, for example of "ProducerSettings". Those of
// "Send" include the calls of SendLane, and those of "Receive" the calls of ReceiveOrWatch.
func (f *Fake) Calls(method string) []FakeCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]FakeCall(nil), f.calls[method]...)
}

// record returns the number of a call.
func (f *Fake) record(method string, c FakeCall) int {
	c.At = time.Now()
	for i, m := range c.Messages {
		c.Messages[i] = m.Clone() // the caller uses it again
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[string][]FakeCall{}
	}
	f.calls[method] = append(f.calls[method], c)
	return len(f.calls[method])
}

// Send implements [transport.Sender].
func (f *Fake) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	return f.SendLane(ctx, transport.Lane{}, msgs)
}

// Lane implements [transport.LaneSender].
func (f *Fake) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	n := f.record("Lane", FakeCall{Topic: r.Topic})
	if f.OnLane != nil {
		return f.OnLane(ctx, n, r)
	}
	return transport.Lane{Endpoint: fakeEndpoint, MaxMessages: 100, MaxBytes: 1 << 20, Topics: true}, nil
}

const fakeEndpoint = "fake:8081"

// SendLane implements [transport.LaneSender].
func (f *Fake) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	c := FakeCall{Lane: lane, Messages: append([]*tidegate.Message(nil), msgs...)}
	if len(msgs) > 0 {
		c.Topic = msgs[0].Topic
	}
	n := f.record("Send", c)
	var errs []error
	if f.OnSend != nil {
		errs = f.OnSend(ctx, n, lane, msgs)
	}
	results := make([]transport.SendResult, len(msgs))
	for i, m := range msgs {
		if i < len(errs) && errs[i] != nil {
			results[i].Err = errs[i]
			continue
		}
		results[i].Receipt = f.accept(m, lane.Endpoint)
	}
	return results
}

// accept returns the receipt of a message. The accepted messages have the offsets 0, 1, 2 and so
// on.
func (f *Fake) accept(m *tidegate.Message, endpoint string) tidegate.Receipt {
	r := tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Endpoint: cmp.Or(endpoint, fakeEndpoint)}
	if !m.DeliverAt.IsZero() {
		r.RecallHandle = m.ID
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Offset = f.accepted
	f.accepted++
	return r
}

// ProducerSettings implements [transport.Configurer].
func (f *Fake) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	n := f.record("ProducerSettings", FakeCall{Topic: topic})
	if f.OnProducerSettings == nil {
		return transport.ProducerSettings{}, nil
	}
	return f.OnProducerSettings(ctx, n, topic)
}

// SendHalf implements [transport.Transactor].
func (f *Fake) SendHalf(ctx context.Context, msg *tidegate.Message) transport.SendResult {
	n := f.record("SendHalf", FakeCall{Topic: msg.Topic, Messages: []*tidegate.Message{msg}})
	if f.OnSendHalf != nil {
		if err := f.OnSendHalf(ctx, n, msg); err != nil {
			return transport.SendResult{Err: err}
		}
	}
	r := f.accept(msg, "")
	r.TransactionID = "tx-" + msg.ID
	return transport.SendResult{Receipt: r}
}

// EndTransaction implements [transport.Transactor].
func (f *Fake) EndTransaction(ctx context.Context, t transport.Transaction, r transport.Resolution) error {
	n := f.record("EndTransaction", FakeCall{Topic: t.Topic, Resolution: r})
	if f.OnEndTransaction == nil {
		return nil
	}
	return f.OnEndTransaction(ctx, n, t, r)
}

// ServeChecks implements [transport.Transactor].
func (f *Fake) ServeChecks(ctx context.Context, topics []string, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	n := f.record("ServeChecks", FakeCall{})
	if f.OnServeChecks == nil {
		<-ctx.Done()
		return nil
	}
	return f.OnServeChecks(ctx, n, check)
}

// Recall implements [transport.Recaller].
func (f *Fake) Recall(ctx context.Context, topic, handle string) (messageID string, err error) {
	n := f.record("Recall", FakeCall{Topic: topic})
	if f.OnRecall == nil {
		return handle, nil
	}
	return f.OnRecall(ctx, n, topic, handle)
}

// Deliver adds copies of deliveries for receives of their topics, by any consumer group. The Fake
// sets their ConsumerGroup, Endpoint, Handle and InvisibleUntil, and Attempt if that is 0.
func (f *Fake) Deliver(ds ...*tidegate.Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range ds {
		queued := *d
		f.queued = append(f.queued, &queued)
	}
	f.notify()
}

// notify ends the waits of receives and watches. The lock is held.
func (f *Fake) notify() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Receive implements [transport.Receiver].
func (f *Fake) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	n := f.record("Receive", FakeCall{Topic: r.Topic, Group: r.Group, Request: r})
	if f.OnReceive != nil {
		return f.OnReceive(ctx, n, r)
	}
	timeout := time.NewTimer(r.Wait)
	defer timeout.Stop()
	for {
		ds, changed, err := f.take(r)
		if len(ds) > 0 || err != nil || r.Wait <= 0 || r.Repeat {
			return ds, err
		}
		select {
		case <-changed:
		case <-timeout.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ReceiveOrWatch implements [transport.Watcher]. A watch ends with the next Deliver.
func (f *Fake) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	n := f.record("Receive", FakeCall{Topic: r.Topic, Group: r.Group, Request: r})
	if f.OnReceive != nil {
		ds, err = f.OnReceive(ctx, n, r)
		return ds, nil, err
	}
	ds, changed, err := f.take(r)
	if err == nil && f.Announces.Watch && len(ds) < max(r.Max, 1) {
		ready = changed
	}
	return ds, ready, err
}

// take returns the deliveries for a receive, and a channel that is closed when there may be others.
func (f *Fake) take(r transport.ReceiveRequest) (ds []*tidegate.Delivery, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, &tidegate.Error{Op: "ReceiveMessage", Subject: r.Topic, Err: tidegate.ErrClosed}
	}
	var rest []*tidegate.Delivery
	lite := f.lite[transport.LiteConsumer{Group: r.Group, Topic: r.Topic, ID: r.LiteConsumer}]
	for _, d := range f.queued {
		if r.Repeat || r.LiteConsumer != "" && !lite[d.LiteTopic] || d.Topic != r.Topic || len(ds) == max(r.Max, 1) {
			rest = append(rest, d)
			continue
		}
		d.ConsumerGroup, d.Endpoint, d.Handle = r.Group, fakeEndpoint, f.newHandle()
		d.Attempt, d.InvisibleUntil = max(d.Attempt, 1), time.Now().Add(r.InvisibleDuration)
		ds = append(ds, d)
	}
	f.queued = rest
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return ds, f.changed, nil
}

// newHandle returns a handle of its own. The lock is held.
func (f *Fake) newHandle() string {
	f.handles++
	return "handle-" + strconv.Itoa(f.handles)
}

// Ack implements [transport.Settler].
func (f *Fake) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	c := FakeCall{Deliveries: slices.Clone(ds)}
	if len(ds) > 0 {
		c.Topic, c.Group = ds[0].Topic, ds[0].ConsumerGroup
	}
	n := f.record("Ack", c)
	errs := make([]error, len(ds))
	if f.OnAck != nil {
		copy(errs, f.OnAck(ctx, n, ds))
	}
	return errs
}

// Settle implements [transport.Settler].
func (f *Fake) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	n := f.record("Settle", FakeCall{Topic: d.Topic, Group: d.ConsumerGroup, Deliveries: []*tidegate.Delivery{d}, Verdict: v})
	if f.OnSettle == nil {
		return transport.RetryResult{}, nil
	}
	return f.OnSettle(ctx, n, d, v)
}

// Extend implements [transport.Settler].
func (f *Fake) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (handle string, err error) {
	n := f.record("Extend", FakeCall{Topic: d.Topic, Group: d.ConsumerGroup, Deliveries: []*tidegate.Delivery{d}, Extension: dur})
	if f.OnExtend != nil {
		return f.OnExtend(ctx, n, d, dur)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newHandle(), nil
}

// ConsumerSettings implements [transport.Configurer].
func (f *Fake) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	n := f.record("ConsumerSettings", FakeCall{Topic: topic, Group: group})
	if f.OnConsumerSettings == nil {
		return transport.ConsumerSettings{}, nil
	}
	return f.OnConsumerSettings(ctx, n, group, topic)
}

// Capabilities implements [transport.Configurer].
func (f *Fake) Capabilities(string) transport.Capabilities { return f.Announces }

// SyncLite implements [transport.LiteSubscriber].
func (f *Fake) SyncLite(ctx context.Context, s transport.LiteSync) error {
	s.Topics = slices.Clone(s.Topics)
	n := f.record("SyncLite", FakeCall{Topic: s.Topic, Group: s.Group, Lite: s})
	if f.OnSyncLite != nil {
		if err := f.OnSyncLite(ctx, n, s); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	set := f.lite[s.LiteConsumer]
	if set == nil || s.Action == transport.LiteSet {
		set = map[string]bool{}
	}
	for _, name := range s.Topics {
		set[name] = s.Action != transport.LiteRemove
	}
	if f.lite == nil {
		f.lite = map[transport.LiteConsumer]map[string]bool{}
	}
	f.lite[s.LiteConsumer] = set
	f.notify()
	return nil
}

// ServeLite implements [transport.LiteSubscriber].
func (f *Fake) ServeLite(ctx context.Context, c transport.LiteConsumer, ended func(liteTopic string)) error {
	n := f.record("ServeLite", FakeCall{Topic: c.Topic, Group: c.Group, Lite: transport.LiteSync{LiteConsumer: c}})
	if f.OnServeLite == nil {
		<-ctx.Done()
		return nil
	}
	return f.OnServeLite(ctx, n, c, ended)
}

// Ping implements [transport.Pinger].
func (f *Fake) Ping(ctx context.Context, topics ...string) error {
	n := f.record("Ping", FakeCall{})
	if f.OnPing == nil {
		return nil
	}
	return f.OnPing(ctx, n, topics)
}

// Close ends the waits of receives. Later receives fail.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.notify()
	return nil
}

var (
	_ transport.Transport  = (*Fake)(nil)
	_ transport.LaneSender = (*Fake)(nil)
	_ transport.Transactor = (*Fake)(nil)
	_ transport.Recaller   = (*Fake)(nil)
	_ transport.Watcher    = (*Fake)(nil)
	_ transport.Pinger     = (*Fake)(nil)

	_ transport.LiteSubscriber = (*Fake)(nil)
)
