package producer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A call is one request that a laneFake got.
type call struct {
	at   time.Time
	lane transport.Lane
	ids  []string
}

// laneFake is a transport with lanes. Its functions may be nil: then all goes
// well at one server that takes 100 messages a request.
type laneFake struct {
	fake
	lane func(ctx context.Context, r transport.LaneRequest) (transport.Lane, error)
	do   func(ctx context.Context, n int, lane transport.Lane, msgs []*tidegate.Message) []error

	mu    sync.Mutex
	sent  []call
	asked int
}

func (f *laneFake) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	f.mu.Lock()
	f.asked++
	f.mu.Unlock()
	if f.lane != nil {
		return f.lane(ctx, r)
	}
	return transport.Lane{Endpoint: "a:1", MaxMessages: 100, MaxBytes: 1 << 20}, nil
}

func (f *laneFake) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	f.mu.Lock()
	c := call{at: time.Now(), lane: lane}
	for _, m := range msgs {
		c.ids = append(c.ids, m.ID)
	}
	f.sent = append(f.sent, c)
	n := len(f.sent)
	f.mu.Unlock()
	var errs []error
	if f.do != nil {
		errs = f.do(ctx, n, lane, msgs)
	}
	results := make([]transport.SendResult, len(msgs))
	for i, m := range msgs {
		if i < len(errs) && errs[i] != nil {
			results[i].Err = errs[i]
			continue
		}
		results[i].Receipt = tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Endpoint: lane.Endpoint}
	}
	return results
}

// requests returns the IDs of each request.
func (f *laneFake) requests() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var r [][]string
	for _, c := range f.sent {
		r = append(r, c.ids)
	}
	return r
}

func all(n int, err error) []error { return slices.Repeat([]error{err}, n) }

func named(id string) *tidegate.Message {
	m := message()
	m.ID = id
	return m
}

// sizes returns the number of messages in each request.
func (f *laneFake) sizes() []int {
	var s []int
	for _, ids := range f.requests() {
		s = append(s, len(ids))
	}
	return s
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// sendAll sends messages at the same time and returns their errors in order.
func sendAll(ctx context.Context, p *Producer, msgs []*tidegate.Message) []error {
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

// While two requests are under way, calls queue; the next request takes them all.
func TestCallsShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, _ []*tidegate.Message) []error {
			sleepFor(ctx, 10*time.Millisecond)
			return nil
		}}
		p := newProducer(t, f, Options{})
		start := time.Now()
		for i, err := range sendAll(t.Context(), p, numbered(64)) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if took := time.Since(start); took > 20*time.Millisecond {
			t.Errorf("64 sends took %v, want at most two round trips of 10ms", took)
		}
		if sizes := f.sizes(); len(sizes) > 4 {
			t.Errorf("requests of %v messages, want at most 4", sizes)
		}
	})
}

// A lone call does not need another goroutine.
func TestIdleLaneSendsOnTheCallersGoroutine(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "mine")
	f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
		if ctx.Value(key{}) != "mine" {
			t.Error("the request has not the caller's ctx")
		}
		return nil
	}}
	p := newProducer(t, f, Options{})
	for range 3 {
		if _, err := p.Send(ctx, message()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRequestsKeepTheBoundsOfTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{
			lane: func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
				return transport.Lane{Endpoint: "a:1", MaxMessages: 5, MaxBytes: 10_000}, nil
			},
			do: func(ctx context.Context, _ int, lane transport.Lane, msgs []*tidegate.Message) []error {
				sleepFor(ctx, 10*time.Millisecond)
				size := 0
				for _, m := range msgs {
					size += len(m.Body)
				}
				if len(msgs) > lane.MaxMessages || len(msgs) > 1 && size > lane.MaxBytes {
					t.Errorf("a request of %d messages with %d bytes", len(msgs), size)
				}
				return nil
			},
		}
		p := newProducer(t, f, Options{})
		msgs := numbered(40)
		for i, m := range msgs {
			m.Body = make([]byte, 1+i%4*4000) // 12001 bytes travel alone
		}
		for i, r := range p.SendBatch(t.Context(), msgs) {
			if r.Err != nil || r.Receipt.MessageID != msgs[i].ID {
				t.Errorf("message %d: %+v", i, r)
			}
		}
		sizes := f.sizes()
		if n := len(slices.Compact(slices.Sorted(slices.Values(sizes)))); n < 2 || len(sizes) == len(msgs) {
			t.Errorf("requests of %v messages", sizes)
		}
	})
}

// The server rejects a whole request for the fault of one message. The
// others are stored, and were not charged an attempt for it.
//
// One bad message does not fail its neighbours.
func TestOneBadMessageFailsAlone(t *testing.T) {
	for _, entry := range entryPoints {
		t.Run(entry, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
					sleepFor(ctx, 10*time.Millisecond)
					for _, m := range msgs {
						if m.ID == "0017" {
							return all(len(msgs), codeError(tidegate.CodeIllegalDeliveryTime))
						}
					}
					return nil
				}}
				p := newProducer(t, f, Options{})
				for i, r := range sendBy(t.Context(), p, entry, numbered(50)...) {
					if i != 17 && (r.Err != nil || r.Receipt.Attempts != 1) {
						t.Errorf("message %d: %+v", i, r)
					}
					if i == 17 {
						if e := sendError(t, r.Err); e.Reason != StopPermanent || e.Attempts != 1 || e.Fault() != MessageFault {
							t.Errorf("the bad message: %+v", e)
						}
					}
				}
				if n := len(f.requests()); n > 16 {
					t.Errorf("%d requests to isolate one of 50 messages", n)
				}
			})
		})
	}
}

// A fault of the set-up is that of every message: nothing is gained by sending them again.
//
// An unknown topic is an error, and nothing is buffered.
func TestSetupFaultFailsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return all(len(msgs), codeError(tidegate.CodeTopicNotFound))
		}}
		p := newProducer(t, f, Options{})
		for _, r := range p.SendBatch(t.Context(), numbered(50)) {
			if e := sendError(t, r.Err); e.Reason != StopPermanent || e.Fault() != SetupFault {
				t.Errorf("got %+v", e)
			}
		}
		if n := f.sizes(); len(n) != 1 {
			t.Errorf("requests of %v messages, want one", n)
		}
	})
}

// A retry avoids the server that failed, and a server that does not respond holds
// up no more than the requests that it has.
//
// A retry goes to another server.
func TestRetryAvoidsTheFailedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{}
		calls := 0
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for range 2 {
				calls++
				if ep := []string{"a:1", "b:2"}[calls%2]; !slices.Contains(r.Avoid, ep) {
					return transport.Lane{Endpoint: ep, MaxMessages: 10}, nil
				}
			}
			return transport.Lane{Endpoint: "a:1", MaxMessages: 10}, nil
		}
		f.do = func(ctx context.Context, _ int, lane transport.Lane, msgs []*tidegate.Message) []error {
			if lane.Endpoint == "a:1" {
				return all(len(msgs), fmt.Errorf("send: %w", blackHole(ctx)))
			}
			sleepFor(ctx, time.Millisecond)
			return nil
		}
		p := newProducer(t, f, Options{})
		start := time.Now()
		slow := 0
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				began := time.Now()
				r, err := p.Send(t.Context(), message())
				if err != nil || r.Endpoint != "b:2" {
					t.Errorf("%+v, %v", r, err)
				}
				if time.Since(began) > 100*time.Millisecond {
					f.mu.Lock()
					slow++
					f.mu.Unlock()
				}
			})
		}
		wg.Wait()
		if slow > 5 || time.Since(start) > 5*time.Second {
			t.Errorf("%d of 200 sends were held up, %v in all", slow, time.Since(start))
		}
	})
}

// A lane that changed is no attempt; a transport that reports nothing else is a fault.
func TestLaneChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, n int, lane transport.Lane, msgs []*tidegate.Message) []error {
			if len(msgs) > 1 {
				return all(len(msgs), fmt.Errorf("lane: %w", transport.ErrLaneChanged))
			}
			return nil
		}}
		f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			most := 100
			if len(f.sent) > 0 {
				most = 1
			}
			return transport.Lane{Endpoint: "a:1", MaxMessages: most}, nil
		}
		p := newProducer(t, f, Options{})
		for _, r := range p.SendBatch(t.Context(), numbered(20)) {
			if r.Err != nil || r.Receipt.Attempts != 1 {
				t.Errorf("got %+v", r)
			}
		}
		f.do = func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return all(len(msgs), transport.ErrLaneChanged)
		}
		for _, r := range p.SendBatch(t.Context(), numbered(2)) {
			if e := sendError(t, r.Err); e.Reason != StopExhausted || e.Attempts != 3 {
				t.Errorf("got %+v", e)
			}
		}
	})
}

// From the second attempt on a send waits for the connection.
func TestRetriesAwaitTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := time.Now().Add(2 * time.Second)
		f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			down := &tidegate.Error{Op: "SendMessage", Err: tidegate.ErrUnavailable}
			if time.Now().Before(up) {
				if !transport.AwaitsConnection(ctx) {
					return all(len(msgs), down)
				}
				sleepFor(ctx, time.Until(up))
				if ctx.Err() != nil {
					return all(len(msgs), fmt.Errorf("waiting: %w", context.Cause(ctx)))
				}
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		start := time.Now()
		for i, err := range sendAll(ctx, p, numbered(100)) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v, the server was back after 2s", took)
		}
	})
}

// If the transport has no lane, an attempt of every message that waits ends.
func TestNoLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{lane: func(ctx context.Context, _ transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{}, fmt.Errorf("route: %w", blackHole(ctx))
		}}
		p := newProducer(t, f, Options{})
		start := time.Now()
		msgs := numbered(200)
		for i, m := range msgs {
			m.MessageGroup = []string{"", "a", "b"}[i%3]
		}
		for i, err := range sendAll(t.Context(), p, msgs) {
			if e := sendError(t, err); e.Reason != StopExhausted || e.Attempts != 3 {
				t.Errorf("message %d: %+v", i, e)
			}
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("200 messages failed after %v, one alone needs 9s", took)
		}
	})
}

// The only message that waits for a lane leaves, and then the lane is not available: no message is
// left to fail, and the next one is sent.
func TestNoLaneForAMessageThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		broken := true
		f := &laneFake{lane: func(context.Context, transport.LaneRequest) (transport.Lane, error) {
			<-asked
			if broken {
				broken = false
				return transport.Lane{}, &tidegate.Error{Code: tidegate.CodeInternalServerError}
			}
			return transport.Lane{Endpoint: "a:1", MaxMessages: 100}, nil
		}}
		p := newProducer(t, f, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		if err := p.SendAsync(ctx, numbered(1)[0], func(_ tidegate.Receipt, err error) { left <- err }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if e := sendError(t, <-left); e.Reason != StopContext || e.Attempts != 0 {
			t.Errorf("the message that left: %+v, want StopContext without an attempt", e)
		}
		close(asked)
		synctest.Wait()
		if _, err := p.Send(t.Context(), numbered(1)[0]); err != nil {
			t.Error(err)
		}
	})
}
