package producer_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/mock/gomock"
	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/mocks"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

func TestContractResults(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := each(nil)
		p := newProducer(t, f, producer.Options{})
		msgs := []*tidegate.Message{message(), named("mine"), message()}
		before := []tidegate.Message{*msgs[0], *msgs[1], *msgs[2]}
		ids, offsets := map[string]bool{}, map[int64]bool{}
		for i, r := range sendBy(t.Context(), p, entry, msgs...) {
			assert.That(t, r.Err == nil && r.Receipt.Attempts == 1 && r.Receipt.Topic == "orders" && r.Receipt.Endpoint == "a:1",
				"message %d: %+v", i, r)
			assert.That(t, i != 1 || r.Receipt.MessageID == "mine", "the caller's ID became %q", r.Receipt.MessageID)
			ids[r.Receipt.MessageID], offsets[r.Receipt.Offset] = true, true
			if !reflect.DeepEqual(*msgs[i], before[i]) {
				t.Errorf("the caller's message was changed to %+v", *msgs[i])
			}
		}
		assert.Equal(t, "accepted sends requested the settings times", len(f.Calls("ProducerSettings")), 0)
		assert.That(t, len(ids) == 3 && !ids[""] && len(offsets) == 3, "IDs %v, offsets %v", ids, offsets)
	})
}

// The retry options hold for every way to send. Retries after transient failures can wait too
// (Options.Pacing).
func TestContractRetries(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		for name, tt := range map[string]struct {
			errs     []error
			opts     producer.Options
			attempts int
			took     time.Duration
			reason   producer.StopReason
		}{
			"throttled":       {errs: []error{throttled(0), throttled(0)}, opts: producer.Options{Backoff: ladder}, attempts: 3, took: 3 * time.Second},
			"push-back":       {errs: []error{throttled(7 * time.Second)}, opts: producer.Options{Backoff: ladder}, attempts: 2, took: 7 * time.Second},
			"throttled out":   {errs: []error{throttled(0), throttled(0)}, opts: producer.Options{Backoff: ladder, MaxThrottles: 1}, attempts: 2, took: time.Second, reason: producer.StopThrottled},
			"until ctx ends":  {errs: slices.Repeat([]error{throttled(0)}, 9), opts: producer.Options{Backoff: ladder, MaxThrottles: producer.UntilContextEnds}, attempts: 10, took: 31 * time.Second},
			"throttle time":   {errs: slices.Repeat([]error{throttled(0)}, 9), opts: producer.Options{Backoff: ladder, MaxThrottleTime: 10 * time.Second}, attempts: 4, took: 7 * time.Second, reason: producer.StopThrottled},
			"transient":       {errs: []error{codeError(protocol.CodeProxyTimeout), errors.New("reset")}, attempts: 3},
			"paced":           {errs: slices.Repeat([]error{errors.New("reset")}, 4), opts: producer.Options{MaxAttempts: 5, Pacing: ladder}, attempts: 5, took: 7 * time.Second},
			"exhausted":       {errs: slices.Repeat([]error{errors.New("reset")}, 3), attempts: 3, reason: producer.StopExhausted},
			"permanent":       {errs: []error{codeError(tidegate.CodeForbidden)}, attempts: 1, reason: producer.StopPermanent},
			"asked to stop":   {errs: []error{throttled(-1)}, attempts: 1, reason: producer.StopPushedBack},
			"transport ended": {errs: []error{tidegate.ErrClosed}, attempts: 1, reason: producer.StopClosed},
		} {
			f := script(tt.errs...)
			p := newProducer(t, f, tt.opts)
			start := time.Now()
			r := sendBy(t.Context(), p, entry, message())[0]
			if took := time.Since(start); took != tt.took || len(f.Calls("Send")) != tt.attempts {
				t.Errorf("%s: %d attempts in %v, want %d in %v", name, len(f.Calls("Send")), took, tt.attempts, tt.took)
			}
			if tt.reason == producer.NotStopped {
				assert.That(t, r.Err == nil && r.Receipt.Attempts == tt.attempts, "%s: %+v", name, r)
				continue
			}
			e := sendError(t, r.Err)
			assert.That(t, e.Reason == tt.reason && e.Attempts == tt.attempts && e.MessageID != "", "%s: %+v", name, e)
		}
	})
}

func TestContractRejectsBadInput(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := each(nil)
		p := newProducer(t, f, producer.Options{MaxBodySize: 4})
		for name, tt := range map[string]struct {
			msg   *tidegate.Message
			wants string // field, value and limit
		}{
			"nil":        {nil, `"message": 40000 BAD_REQUEST: it is nil`},
			"empty":      {&tidegate.Message{}, `"topic"`},
			"no body":    {&tidegate.Message{Topic: "orders"}, `"body"`},
			"oversized":  {&tidegate.Message{Topic: "orders", Body: []byte("12345")}, `5 bytes; the limit is 4`},
			"bad topic":  {&tidegate.Message{Topic: "a b", Body: []byte("1")}, `"a b"`},
			"bad tag":    {&tidegate.Message{Topic: "orders", Tag: "a|b", Body: []byte("1")}, `"a|b"`},
			"late":       {&tidegate.Message{Topic: "orders", DeliverAt: time.Now().Add(24*time.Hour + time.Minute), Body: []byte("1")}, `24h`},
			"long ID":    {&tidegate.Message{Topic: "orders", ID: strings.Repeat("i", 300), Body: []byte("1")}, `300 bytes; the limit is`},
			"long trace": {&tidegate.Message{Topic: "orders", TraceContext: strings.Repeat("t", 5000), Body: []byte("1")}, `5000 bytes; the limit is 4096`},
			"far group":  {&tidegate.Message{Topic: "orders", MessageGroup: strings.Repeat("g", 64), Body: []byte("1")}, `64 bytes; the limit is 63`},
		} {
			r := sendBy(t.Context(), p, entry, tt.msg, &tidegate.Message{Topic: "orders", Body: []byte("1")})
			if e := sendError(t, r[0].Err); e.Reason != producer.StopInvalid || !errors.Is(e, tidegate.ErrInvalid) || e.Fault() != producer.MessageFault || !strings.Contains(e.Error(), tt.wants) {
				t.Errorf("%s: %v", name, e)
			}
			if r[1].Err != nil {
				t.Errorf("%s: the message beside it: %v", name, r[1].Err)
			}
		}
		assert.Equal(t, "requests", len(f.Calls("Send")), 10)
	})
}

func TestContractEnds(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		cause := errors.New("the user has left")
		waits := func(name string, f *transporttest.Fake, attempts int, maybe bool, prepare func(p *producer.Producer)) {
			p := newProducer(t, f, producer.Options{MaxThrottles: producer.UntilContextEnds, AttemptTimeout: time.Hour})
			if prepare != nil {
				prepare(p)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			start := time.Now()
			time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
			m := message()
			m.MessageGroup = "g"
			r := sendBy(ctx, p, entry, m)[0]
			took := time.Since(start)
			assert.That(t, took == 300*time.Millisecond, "%s: returned after %v, want 300ms", name, took)
			if e := sendError(t, r.Err); e.Reason != producer.StopContext || e.Attempts != attempts || e.MaybeStored != maybe ||
				!errors.Is(e, cause) || !errors.Is(e, context.Canceled) || e.Throttles > 0 && !errors.Is(e, tidegate.ErrThrottled) {
				t.Errorf("%s: %+v", name, e)
			}
			p.Close()
			if a, err := p.Shutdown(t.Context()); err != nil || len(a.Undelivered) > 0 && prepare == nil || len(a.Undelivered) > 1 {
				t.Errorf("%s: %+v, %v; the message still had a place", name, a, err)
			}
		}
		silent := func() *transporttest.Fake {
			return each(func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) })
		}
		waits("during the backoff", always(throttled(0)), 1, false, nil)
		waits("during the attempt", silent(), 1, true, nil)
		waits("behind its message group", silent(), 0, false, func(p *producer.Producer) {
			m := message()
			m.MessageGroup = "g"
			assert.NoError(t, p.SendAsync(t.Context(), m, func(tidegate.Receipt, error) {}))
		})

		f := each(nil)
		p := newProducer(t, f, producer.Options{})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		e := sendError(t, sendBy(ctx, p, entry, message())[0].Err)
		assert.That(t, e.Reason == producer.StopContext && errors.Is(e, cause), "cancelled before the start: %+v", e)
		p.Close()
		e = sendError(t, sendBy(t.Context(), p, entry, message())[0].Err)
		assert.That(t, e.Reason == producer.StopClosed && errors.Is(e, tidegate.ErrClosed), "after Close: %+v", e)
		assert.Equal(t, "attempts of messages that were not accepted", len(f.Calls("Send")), 0)
	})
}

// Close ends every message at once: in an attempt, in the wait for a retry, and behind its message
// group. A second Close does nothing.
func TestContractClose(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := each(func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n%2 == 0 {
				return throttled(0)
			}
			return blackHole(ctx)
		})
		p := newProducer(t, f, producer.Options{AttemptTimeout: time.Hour})
		msgs := numbered(10)
		for i, m := range msgs {
			m.MessageGroup = []string{"", "g"}[i%2]
		}
		time.AfterFunc(300*time.Millisecond, func() { _ = p.Close(); _ = p.Close() })
		start := time.Now()
		for i, r := range sendBy(t.Context(), p, entry, msgs...) {
			if e := sendError(t, r.Err); e.Reason != producer.StopClosed || !errors.Is(e, tidegate.ErrClosed) || errors.Is(e, context.Canceled) {
				t.Errorf("message %d: %v", i, e)
			}
		}
		assert.Equal(t, "the sends ended after, Close was after 300ms", time.Since(start), 300*time.Millisecond)
	})
}

// A send ends by its deadline in each state of the message: in an attempt, in a wait for the
// connection, behind its message group, before the limiter, or outside a full producer. The server
// is down all the time.
//
// A send ends by its deadline while the broker is down.
func TestContractDeadline(t *testing.T) {
	const timeout = 3 * time.Second
	gone := func(ctx context.Context, _ int, _ *tidegate.Message) error {
		if transport.AwaitsConnection(ctx) {
			return blackHole(ctx)
		}
		return &tidegate.Error{Op: "SendMessage", Subject: "orders", Endpoint: "a:1", Err: tidegate.ErrUnavailable}
	}
	silent := func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }
	never := func() *rate.Limiter {
		l := rate.NewLimiter(rate.Every(time.Hour), 1)
		l.Allow()
		return l
	}
	everyEntry(t, func(t *testing.T, entry string) {
		for name, tt := range map[string]struct {
			send   func(context.Context, int, *tidegate.Message) error
			opts   producer.Options
			before bool // another message of the group is under way
		}{
			"connection refused":                {send: gone},
			"connection refused, many attempts": {send: gone, opts: producer.Options{MaxAttempts: 1000}},
			"no response":                       {send: silent},
			"no response, long attempts":        {send: silent, opts: producer.Options{AttemptTimeout: time.Hour, MaxAttempts: 1}},
			"behind its message group":          {send: silent, opts: producer.Options{AttemptTimeout: time.Hour}, before: true},
			"full":                              {send: silent, opts: producer.Options{AttemptTimeout: time.Hour, MaxPending: 1}, before: true},
			"before the limiter":                {send: silent, opts: producer.Options{Limiter: never()}},
		} {
			p := newProducer(t, each(tt.send), tt.opts)
			if tt.before {
				assert.Must(t, p.SendAsync(t.Context(), inGroup("before", "g"), func(tidegate.Receipt, error) {}))
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			start := time.Now()
			r := sendBy(ctx, p, entry, inGroup("m", "g"))[0]
			took := time.Since(start)
			assert.That(t, took <= timeout, "%s: the send ended after %v, its deadline was %v", name, took, timeout)
			if e := sendError(t, r.Err); e.Fault() != producer.PassingFault || !errors.Is(e, tidegate.ErrUnavailable) && !errors.Is(e, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, e)
			}
			cancel()
			p.Close()
		}
	})
}

// A full producer rejects or waits, bounded in messages and in bytes.
func TestContractFull(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		for name, opts := range map[string]producer.Options{
			"messages": {MaxPending: 2},
			"bytes":    {MaxPendingBytes: 3000},
		} {
			f := each(func(ctx context.Context, _ int, _ *tidegate.Message) error {
				sleepFor(ctx, time.Second)
				return ctx.Err()
			})
			msgs := numbered(4)
			for _, m := range msgs {
				m.Body = make([]byte, 900)
			}
			opts.WhenFull = producer.RejectWhenFull
			p := newProducer(t, f, opts)
			refused := 0
			for _, r := range sendBy(t.Context(), p, entry, msgs...) {
				if r.Err != nil {
					refused++
					if e := sendError(t, r.Err); e.Reason != producer.StopFull || !errors.Is(r.Err, producer.ErrFull) || e.Fault() != producer.PassingFault || !strings.Contains(e.Error(), "MaxPending") {
						t.Errorf("%s: %+v", name, e)
					}
				}
			}
			assert.That(t, refused == 2 && len(f.Calls("Send")) == 2,
				"%s: %d refused, %d sent; want 2 and 2", name, refused, len(f.Calls("Send")))
			p.Close()

			opts.WhenFull = producer.WaitWhenFull
			p = newProducer(t, f, opts)
			start := time.Now()
			for i, r := range sendBy(t.Context(), p, entry, msgs...) {
				assert.That(t, r.Err == nil, "%s: message %d: %v", name, i, r.Err)
			}
			took := time.Since(start)
			assert.That(t, took == 2*time.Second, "%s: 4 messages with 2 places took %v, want 2s", name, took)

			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			start = time.Now()
			results := sendBy(ctx, p, entry, msgs...)
			took = time.Since(start)
			assert.That(t, took == 500*time.Millisecond, "%s: the callers left after 500ms, the sends ended after %v", name, took)
			for i, r := range results {
				if e := sendError(t, r.Err); e.Reason != producer.StopContext || e.MaybeStored != (e.Attempts > 0) {
					t.Errorf("%s: message %d: %+v", name, i, e)
				}
			}
			p.Close()
			a, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && len(a.Undelivered) == 0, "%s: left behind %d messages, %v", name, len(a.Undelivered), err)
		}
	})
}

// The three entry points keep one order of a message group or lite topic, and a message that
// fails is no obstacle to those behind it.
//
// Later messages of a message group or lite topic wait behind the one that fails.
func TestContractOrder(t *testing.T) {
	for name, ordered := range map[string]func(m *tidegate.Message){
		"message group": func(m *tidegate.Message) { m.MessageGroup = "g" },
		"lite topic":    func(m *tidegate.Message) { m.LiteTopic = "l" },
	} {
		assert.Bubble(t, name, func(t *testing.T) { contractOrder(t, ordered) })
	}
}

func contractOrder(t *testing.T, ordered func(m *tidegate.Message)) {
	t.Helper()
	var stored []string
	f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
		sleepFor(ctx, time.Millisecond)
		errs := make([]error, len(msgs))
		for i, m := range msgs {
			switch {
			case n%3 == 1:
				errs[i] = codeError(protocol.CodeProxyTimeout)
			case m.ID == "0004" && n%3 == 2:
				errs[i] = codeError(protocol.CodeIllegalMessageTag)
			default:
				stored = append(stored, m.ID)
			}
		}
		return errs
	}}
	p := newProducer(t, f, producer.Options{})
	msgs := numbered(12)
	for _, m := range msgs {
		ordered(m)
	}
	var wg sync.WaitGroup
	for i := 0; i < 12; i += 3 {
		wg.Go(func() { p.Send(t.Context(), msgs[i]) })
		synctest.Wait()
		wg.Add(1)
		p.SendAsync(t.Context(), msgs[i+1], func(tidegate.Receipt, error) { wg.Done() })
		wg.Go(func() { p.SendBatch(t.Context(), msgs[i+2:i+3]) })
		synctest.Wait()
	}
	wg.Wait()
	assert.That(t, slices.IsSorted(stored) && len(stored) >= 11, "stored as %v", stored)
}

// A dead broker and 200 000 asynchronous sends: the messages that are held are bounded
// by the options, and goroutines by the lanes.
//
// SendAsync does not spawn unbounded goroutines.
func TestContractGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		most, now := 0, 0
		f := each(func(ctx context.Context, _ int, _ *tidegate.Message) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			err := blackHole(ctx)
			mu.Lock()
			now--
			mu.Unlock()
			return err
		})
		p := newProducer(t, f, producer.Options{MaxPending: 5000, WhenFull: producer.RejectWhenFull})
		taken := 0
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := named("of a dead broker")
		goroutines := bubbled()
		for range model.Rounds(200_000) {
			if p.SendAsync(t.Context(), m, func(tidegate.Receipt, error) {}) == nil {
				taken++
			}
		}
		synctest.Wait()
		// One for each request, and the settings request.
		n := bubbled() - goroutines
		assert.That(t, n <= plan.FirstWindow+1, "%d goroutines hold %d messages, want at most %d", n, taken, plan.FirstWindow+1)
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		assert.That(t, grown <= 64<<20, "the heap grew by %d bytes, MaxPendingBytes is 64 MiB", grown)
		assert.That(t, taken == 5000 && most <= plan.FirstWindow,
			"%d messages were accepted, %d requests at once; want 5000 and at most %d", taken, most, plan.FirstWindow)
		p.Close()
	})
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		reason producer.StopReason
		last   error
		want   producer.Fault
	}{
		{producer.StopInvalid, nil, producer.MessageFault},
		{producer.StopPermanent, codeError(tidegate.CodeMessageBodyTooLarge), producer.MessageFault},
		{producer.StopPermanent, fmt.Errorf("around: %w", codeError(protocol.CodeIllegalMessageTag)), producer.MessageFault},
		{producer.StopPermanent, tidegate.ErrInvalid, producer.MessageFault},
		{producer.StopPermanent, codeError(tidegate.CodeTopicNotFound), producer.SetupFault},
		{producer.StopPermanent, codeError(tidegate.CodeForbidden), producer.SetupFault},
		{producer.StopPermanent, context.Canceled, producer.PassingFault},
		{producer.StopPermanent, throttled(0), producer.PassingFault},
		{producer.StopPermanent, tidegate.ErrUnavailable, producer.PassingFault},
		{producer.StopPermanent, codeError(protocol.CodeUnsupported), producer.SetupFault},
		{producer.StopExhausted, codeError(tidegate.CodeInternalServerError), producer.PassingFault},
		{producer.StopExhausted, throttled(0), producer.PassingFault},
		{producer.StopThrottled, throttled(0), producer.PassingFault},
		{producer.StopDeadline, throttled(0), producer.PassingFault},
		{producer.StopContext, nil, producer.PassingFault},
		{producer.StopClosed, nil, producer.PassingFault},
		{producer.StopFull, nil, producer.PassingFault},
	} {
		got := (&producer.SendError{Reason: tt.reason, Last: tt.last}).Fault()
		assert.That(t, got == tt.want, "%v, %v: %v, want %v", tt.reason, tt.last, got, tt.want)
	}
}

// Every code of the protocol, with the number of attempts, of at most three, that a send makes if
// each response has the code.
//
// Hopeless errors are not retried.
//
// RocketMQ: sending retry and throttling: "The broker returns an error code"
// RocketMQ: sending retry and throttling: "Logic error: an error caused by incorrect running logic"
// RocketMQ: sending retry and throttling: "Throttling: throttling triggered by excessive traffic"
func TestAttemptsByCode(t *testing.T) {
	attempts := map[tidegate.Code]int{
		0:                                3, // no response
		protocol.CodeRequestTimeout:      3,
		tidegate.CodeTooManyRequests:     3,
		protocol.CodeInternalError:       3,
		tidegate.CodeInternalServerError: 3, protocol.CodeHANotAvailable: 3,
		protocol.CodeProxyTimeout: 3, protocol.CodeMasterPersistenceTimeout: 3, protocol.CodeSlavePersistenceTimeout: 3,
		protocol.CodeFailedToConsumeMessage: 3, protocol.CodeMultipleResults: 3,
		tidegate.CodeNotImplemented: 1, protocol.CodeUnsupported: 1, protocol.CodeVersionUnsupported: 1,
		protocol.CodeVerifyFIFOMessageUnsupported: 1,
	}
	for c := tidegate.CodeBadRequest; c < 50000; c++ {
		if _, ok := attempts[c]; !ok && c.String()[0] >= 'A' { // it has a name
			attempts[c] = 1
		}
	}
	assert.MustThat(t, len(attempts) >= 45, "only %d codes", len(attempts))
	for code, want := range attempts {
		assert.Bubble(t, code.String(), func(t *testing.T) {
			m := mocks.NewMockTransport(gomock.NewController(t))
			answer := &tidegate.Error{Op: "SendMessage", Subject: "orders", Code: code}
			m.EXPECT().Send(gomock.Any(), gomock.Len(1)).Return([]transport.SendResult{{Err: answer}}).Times(want)
			m.EXPECT().ProducerSettings(gomock.Any(), "orders").Return(transport.ProducerSettings{}, nil).MaxTimes(min(1, want-1))
			p, err := producer.New(m, producer.Options{})
			assert.Must(t, err)
			_, err = p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("b")})
			e, ok := errors.AsType[*producer.SendError](err)
			assert.That(t, ok && e.Attempts == want && errors.Is(err, answer), "got %+v, want %d attempts", err, want)
		})
	}
}

// A transport that breaks the contract is an error like another, not a panic.
func TestTransportWithoutResults(t *testing.T) {
	m := mocks.NewMockTransport(gomock.NewController(t))
	m.EXPECT().Send(gomock.Any(), gomock.Any()).Return(nil).Times(2)
	m.EXPECT().ProducerSettings(gomock.Any(), "orders").Return(transport.ProducerSettings{MaxAttempts: 2}, nil)
	p, err := producer.New(m, producer.Options{})
	assert.Must(t, err)
	assert.Must(t, assert.Err(p.Effective(t.Context(), "orders")))
	_, err = p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("b")})
	e, ok := errors.AsType[*producer.SendError](err)
	assert.That(t, ok && e.MaybeStored && e.Attempts == 2, "got %v", err)
}
