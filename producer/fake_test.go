package producer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// each returns a transport that takes one message a request, and responds with send.
func each(send func(ctx context.Context, n int, msg *tidegate.Message) error) *transporttest.Fake {
	f := &transporttest.Fake{OnLane: one}
	if send != nil {
		f.OnSend = func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return []error{send(ctx, n, msgs[0])}
		}
	}
	return f
}

// together returns a transport that gives one response to all messages of a request.
func together(send func(ctx context.Context) error) *transporttest.Fake {
	return &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
		return all(len(msgs), send(ctx))
	}}
}

// other is the lane of a second server if the first one is avoided.
func other(_ context.Context, _ int, r transport.LaneRequest) (transport.Lane, error) {
	for _, ep := range []string{"a:1", "b:2"} {
		if !slices.Contains(r.Avoid, ep) {
			return transport.Lane{Endpoint: ep, MaxMessages: 100}, nil
		}
	}
	return transport.Lane{Endpoint: "a:1", MaxMessages: 100}, nil
}

// one is the lane of a server that takes one message a request.
func one(context.Context, int, transport.LaneRequest) (transport.Lane, error) {
	return transport.Lane{Endpoint: "a:1", MaxMessages: 1}, nil
}

// script fails the attempts with errs, in order, and then accepts.
func script(errs ...error) *transporttest.Fake {
	return each(func(_ context.Context, n int, _ *tidegate.Message) error {
		if n <= len(errs) {
			return errs[n-1]
		}
		return nil
	})
}

func always(err error) *transporttest.Fake {
	return each(func(context.Context, int, *tidegate.Message) error { return err })
}

// gaps returns the times between the requests.
func gaps(f *transporttest.Fake) (gaps []time.Duration) {
	calls := f.Calls("Send")
	for i := 1; i < len(calls); i++ {
		gaps = append(gaps, calls[i].At.Sub(calls[i-1].At))
	}
	return gaps
}

// sizes returns the number of messages in each request.
func sizes(f *transporttest.Fake) (sizes []int) {
	for _, c := range f.Calls("Send") {
		sizes = append(sizes, len(c.Messages))
	}
	return sizes
}

// calledWith returns the first message of each call.
func calledWith(f *transporttest.Fake, method string) (msgs []*tidegate.Message) {
	for _, c := range f.Calls(method) {
		msgs = append(msgs, c.Messages[0])
	}
	return msgs
}

func ids(f *transporttest.Fake) (ids []string) {
	for _, m := range calledWith(f, "Send") {
		ids = append(ids, m.ID)
	}
	return ids
}

func resolutions(f *transporttest.Fake) (rs []transport.Resolution) {
	for _, c := range f.Calls("EndTransaction") {
		rs = append(rs, c.Resolution)
	}
	return rs
}

// blackHole waits for the end of ctx, as with a server that never responds.
func blackHole(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("send at a:1: %w", context.Cause(ctx))
}

func newProducer(t *testing.T, tr producer.Transport, opts producer.Options) *producer.Producer {
	t.Helper()
	p := assert.Value(producer.New(tr, opts))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

// bubbled returns the number of goroutines in the bubble. Unlike runtime.NumGoroutine it does not
// count a goroutine that has ended for synctest.Wait and not yet for the scheduler.
func bubbled() int {
	stacks := make([]byte, 4<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(", synctest bubble "))
}

func message() *tidegate.Message { return &tidegate.Message{Topic: "orders", Body: []byte("hello")} }

func sendError(t *testing.T, err error) *producer.SendError {
	t.Helper()
	e, ok := errors.AsType[*producer.SendError](err)
	assert.MustThat(t, ok, "%v (%T) is not a *SendError", err, err)
	return e
}

func all(n int, err error) []error { return slices.Repeat([]error{err}, n) }

func named(id string) *tidegate.Message {
	m := message()
	m.ID = id
	return m
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// within returns a ctx that ends after d, and with the test.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		assert.NoError(t, err, "message %d", i)
	}
}

// sendAll sends messages at the same time and returns their errors in order.
func sendAll(ctx context.Context, p *producer.Producer, msgs []*tidegate.Message) []error {
	errs := make([]error, len(msgs))
	var wg sync.WaitGroup
	for i, m := range msgs {
		wg.Go(func() { _, errs[i] = p.Send(ctx, m) })
	}
	wg.Wait()
	return errs
}

func numbered(n int) []*tidegate.Message {
	msgs := make([]*tidegate.Message, n)
	for i := range msgs {
		msgs[i] = named(fmt.Sprintf("%04d", i))
	}
	return msgs
}

var ladder = backoff.Steps{1 * time.Second, 2 * time.Second, 4 * time.Second}

func codeError(c tidegate.Code) *tidegate.Error {
	return &tidegate.Error{Op: "SendMessage", Subject: "orders", Endpoint: "a:1", Code: c, Message: "from the server"}
}

func throttled(after time.Duration) error {
	e := codeError(tidegate.CodeTooManyRequests)
	e.RetryAfter = after
	return e
}

func pushedBack(c tidegate.Code, after time.Duration) error {
	e := codeError(c)
	e.RetryAfter = after
	return e
}

// outcomes gathers the results of done, by message ID, in order.
type outcomes struct {
	mu    sync.Mutex
	order []string
	errs  map[string]error
}

func (o *outcomes) done(id string) func(tidegate.Receipt, error) {
	return func(r tidegate.Receipt, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if _, twice := o.errs[id]; twice {
			panic("two results: " + id)
		}
		o.order, o.errs[id] = append(o.order, id), err
	}
}

// One contract holds for Send, SendAsync and SendBatch.
var entryPoints = []string{"Send", "SendAsync", "SendBatch"}

// sendBy sends the messages through an entry point and returns the results in
// order. Send is called by a goroutine for each message.
func sendBy(ctx context.Context, p *producer.Producer, entry string, msgs ...*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	var wg sync.WaitGroup
	switch entry {
	case "Send":
		for i, m := range msgs {
			wg.Go(func() { results[i].Receipt, results[i].Err = p.Send(ctx, m) })
		}
	case "SendAsync":
		for i, m := range msgs {
			wg.Add(1)
			if err := p.SendAsync(ctx, m, func(r tidegate.Receipt, err error) {
				results[i] = transport.SendResult{Receipt: r, Err: err}
				wg.Done()
			}); err != nil {
				results[i].Err = err
				wg.Done()
			}
		}
	case "SendBatch":
		results = p.SendBatch(ctx, msgs)
	}
	wg.Wait()
	return results
}

// everyEntry runs a test for each entry point, in a bubble.
func everyEntry(t *testing.T, test func(t *testing.T, entry string)) {
	t.Helper()
	for _, entry := range entryPoints {
		assert.Bubble(t, entry, func(t *testing.T) { test(t, entry) })
	}
}

func grouped(id string) *tidegate.Message {
	m := named(id)
	m.MessageGroup = "g"
	return m
}

func inGroup(id, group string) *tidegate.Message {
	m := named(id)
	m.MessageGroup = group
	return m
}

func inLite(id, topic string) *tidegate.Message {
	m := named(id)
	m.LiteTopic = topic
	return m
}

// cancelled returns a ctx that has ended.
func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// bare is a transport with empty receipts.
type bare struct{}

func (bare) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	return make([]transport.SendResult, len(msgs))
}

func (bare) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}
