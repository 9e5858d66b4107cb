package transporttest

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Fake is a transport without a server, for the tests of a program: they decide its responses and
// read the calls that it got. The zero value accepts every message and knows no settings. It works
// in a bubble of package synctest.
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
// A Fake has every optional interface of package transport. To hide them, embed it as a
// [transport.Transport] or a producer.Transport in a struct. For a real server in the test's
// process, see package broker/brokertest.
type Fake struct {
	transport.Base

	// OnLane chooses the lane of a message. Nil chooses one lane for all messages, with 100
	// messages and 1 MiB a request.
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

	mu       sync.Mutex
	calls    map[string][]FakeCall
	accepted int64
}

// A FakeCall is a call that a [Fake] got. It has the arguments of the method; others are zero.
type FakeCall struct {
	At         time.Time
	Topic      string
	Lane       transport.Lane
	Messages   []*tidegate.Message // copies
	Resolution transport.Resolution
}

// Calls returns the calls of a method, in their order, for example of "ProducerSettings". Those of
// "Send" include the calls of SendLane.
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
	return transport.Lane{Endpoint: fakeEndpoint, MaxMessages: 100, MaxBytes: 1 << 20}, nil
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

var (
	_ transport.LaneSender = (*Fake)(nil)
	_ transport.Transactor = (*Fake)(nil)
	_ transport.Recaller   = (*Fake)(nil)
)
