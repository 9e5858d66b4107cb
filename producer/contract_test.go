package producer

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer/internal/plan"
	"github.com/tidegate/tidegate/transport"
)

// One contract holds for Send, SendAsync and SendBatch.
var entryPoints = []string{"Send", "SendAsync", "SendBatch"}

// sendBy sends the messages through an entry point and returns the results in
// order. Send is called by a goroutine for each message.
func sendBy(ctx context.Context, p *Producer, entry string, msgs ...*tidegate.Message) []transport.SendResult {
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
		t.Run(entry, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, entry) })
		})
	}
}

func TestContractResults(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := &fake{}
		p := newProducer(t, f, Options{})
		msgs := []*tidegate.Message{message(), named("mine"), message()}
		before := []tidegate.Message{*msgs[0], *msgs[1], *msgs[2]}
		ids := map[string]bool{}
		for i, r := range sendBy(t.Context(), p, entry, msgs...) {
			if r.Err != nil || r.Receipt.Attempts != 1 || r.Receipt.Topic != "orders" || r.Receipt.Endpoint != "b:2" || r.Receipt.Offset != 7 {
				t.Errorf("message %d: %+v", i, r)
			}
			if i == 1 && r.Receipt.MessageID != "mine" {
				t.Errorf("the caller's ID became %q", r.Receipt.MessageID)
			}
			ids[r.Receipt.MessageID] = true
			if !reflect.DeepEqual(*msgs[i], before[i]) {
				t.Errorf("the caller's message was changed to %+v", *msgs[i])
			}
		}
		if len(ids) != 3 || ids[""] {
			t.Errorf("IDs %v", ids)
		}
	})
}

// The retry options hold for every way to send. Retries after transient failures can wait too
// (Options.Pacing).
func TestContractRetries(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		for name, tt := range map[string]struct {
			errs     []error
			opts     Options
			attempts int
			took     time.Duration
			reason   StopReason
		}{
			"throttled":       {errs: []error{throttled(0), throttled(0)}, opts: Options{Backoff: ladder}, attempts: 3, took: 3 * time.Second},
			"push-back":       {errs: []error{throttled(7 * time.Second)}, opts: Options{Backoff: ladder}, attempts: 2, took: 7 * time.Second},
			"throttled out":   {errs: []error{throttled(0), throttled(0)}, opts: Options{Backoff: ladder, MaxThrottles: 1}, attempts: 2, took: time.Second, reason: StopThrottled},
			"until ctx ends":  {errs: slices.Repeat([]error{throttled(0)}, 9), opts: Options{Backoff: ladder, MaxThrottles: UntilContextEnds}, attempts: 10, took: 31 * time.Second},
			"throttle time":   {errs: slices.Repeat([]error{throttled(0)}, 9), opts: Options{Backoff: ladder, MaxThrottleTime: 10 * time.Second}, attempts: 4, took: 7 * time.Second, reason: StopThrottled},
			"transient":       {errs: []error{codeError(protocol.CodeProxyTimeout), errors.New("reset")}, attempts: 3},
			"paced":           {errs: slices.Repeat([]error{errors.New("reset")}, 4), opts: Options{MaxAttempts: 5, Pacing: ladder}, attempts: 5, took: 7 * time.Second},
			"exhausted":       {errs: slices.Repeat([]error{errors.New("reset")}, 3), attempts: 3, reason: StopExhausted},
			"permanent":       {errs: []error{codeError(tidegate.CodeForbidden)}, attempts: 1, reason: StopPermanent},
			"asked to stop":   {errs: []error{throttled(-1)}, attempts: 1, reason: StopPushedBack},
			"transport ended": {errs: []error{tidegate.ErrClosed}, attempts: 1, reason: StopClosed},
		} {
			f := script(tt.errs...)
			p := newProducer(t, f, tt.opts)
			start := time.Now()
			r := sendBy(t.Context(), p, entry, message())[0]
			if took := time.Since(start); took != tt.took || len(f.calls) != tt.attempts {
				t.Errorf("%s: %d attempts in %v, want %d in %v", name, len(f.calls), took, tt.attempts, tt.took)
			}
			if tt.reason == NotStopped {
				if r.Err != nil || r.Receipt.Attempts != tt.attempts {
					t.Errorf("%s: %+v", name, r)
				}
				continue
			}
			if e := sendError(t, r.Err); e.Reason != tt.reason || e.Attempts != tt.attempts || e.MessageID == "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
	})
}

func TestContractRejectsBadInput(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := &fake{}
		p := newProducer(t, f, Options{MaxBodySize: 4})
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
			if e := sendError(t, r[0].Err); e.Reason != StopInvalid || !errors.Is(e, tidegate.ErrInvalid) || e.Fault() != MessageFault || !strings.Contains(e.Error(), tt.wants) {
				t.Errorf("%s: %v", name, e)
			}
			if r[1].Err != nil {
				t.Errorf("%s: the message beside it: %v", name, r[1].Err)
			}
		}
		if len(f.calls) != 10 || len(p.topics) != 1 {
			t.Errorf("%d requests and %d topics, want 10 and 1", len(f.calls), len(p.topics))
		}
	})
}

func TestContractEnds(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		cause := errors.New("the user has left")
		waits := func(name string, f *fake, attempts int, maybe bool, prepare func(p *Producer)) {
			p := newProducer(t, f, Options{MaxThrottles: UntilContextEnds, AttemptTimeout: time.Hour})
			if prepare != nil {
				prepare(p)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			start := time.Now()
			time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
			m := message()
			m.MessageGroup = "g"
			r := sendBy(ctx, p, entry, m)[0]
			if took := time.Since(start); took != 300*time.Millisecond {
				t.Errorf("%s: returned after %v, want 300ms", name, took)
			}
			if e := sendError(t, r.Err); e.Reason != StopContext || e.Attempts != attempts || e.MaybeStored != maybe ||
				!errors.Is(e, cause) || !errors.Is(e, context.Canceled) {
				t.Errorf("%s: %+v", name, e)
			}
			if n := len(p.ledger.Pending()); n > 1 || n > 0 && prepare == nil {
				t.Errorf("%s: %d messages still have a place", name, n)
			}
			p.Close()
		}
		silent := func() *fake {
			return &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }}
		}
		waits("during the backoff", always(throttled(0)), 1, false, nil)
		waits("during the attempt", silent(), 1, true, nil)
		waits("behind its message group", silent(), 0, false, func(p *Producer) {
			m := message()
			m.MessageGroup = "g"
			if err := p.SendAsync(t.Context(), m, func(tidegate.Receipt, error) {}); err != nil {
				t.Error(err)
			}
		})

		f := &fake{}
		p := newProducer(t, f, Options{})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if e := sendError(t, sendBy(ctx, p, entry, message())[0].Err); e.Reason != StopContext || !errors.Is(e, cause) {
			t.Errorf("cancelled before the start: %+v", e)
		}
		p.Close()
		if e := sendError(t, sendBy(t.Context(), p, entry, message())[0].Err); e.Reason != StopClosed || !errors.Is(e, tidegate.ErrClosed) {
			t.Errorf("after Close: %+v", e)
		}
		if len(f.calls) != 0 {
			t.Errorf("%d attempts of messages that were not accepted", len(f.calls))
		}
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
			opts   Options
			before bool // another message of the group is under way
		}{
			"connection refused":                {send: gone},
			"connection refused, many attempts": {send: gone, opts: Options{MaxAttempts: 1000}},
			"no response":                       {send: silent},
			"no response, long attempts":        {send: silent, opts: Options{AttemptTimeout: time.Hour, MaxAttempts: 1}},
			"behind its message group":          {send: silent, opts: Options{AttemptTimeout: time.Hour}, before: true},
			"full":                              {send: silent, opts: Options{AttemptTimeout: time.Hour, MaxPending: 1}, before: true},
			"before the limiter":                {send: silent, opts: Options{Limiter: never()}},
		} {
			p := newProducer(t, &fake{send: tt.send}, tt.opts)
			if tt.before {
				if err := p.SendAsync(t.Context(), inGroup("before", "g"), func(tidegate.Receipt, error) {}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			start := time.Now()
			r := sendBy(ctx, p, entry, inGroup("m", "g"))[0]
			if took := time.Since(start); took > timeout {
				t.Errorf("%s: the send ended after %v, its deadline was %v", name, took, timeout)
			}
			if e := sendError(t, r.Err); e.Fault() != PassingFault || !errors.Is(e, tidegate.ErrUnavailable) && !errors.Is(e, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, e)
			}
			cancel()
			p.Close()
		}
	})
}

// A request whose callers have all left is cancelled.
func TestContractAbandonedRequest(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		var ended atomic.Int64
		start := time.Now()
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			<-ctx.Done()
			ended.Store(int64(time.Since(start)))
			return all(len(msgs), context.Cause(ctx))
		}}
		p := newProducer(t, f, Options{AttemptTimeout: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Second, cancel)
		sendBy(ctx, p, entry, message(), message())
		synctest.Wait()
		if d := time.Duration(ended.Load()); d != time.Second {
			t.Errorf("the request ended after %v, its callers after 1s", d)
		}
	})
}

// A full producer rejects or waits, bounded in messages and in bytes.
func TestContractFull(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		for name, opts := range map[string]Options{
			"messages": {MaxPending: 2},
			"bytes":    {MaxPendingBytes: 3000},
		} {
			f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error {
				sleepFor(ctx, time.Second)
				return ctx.Err()
			}}
			msgs := numbered(4)
			for _, m := range msgs {
				m.Body = make([]byte, 900)
			}
			opts.WhenFull = RejectWhenFull
			p := newProducer(t, f, opts)
			refused := 0
			for _, r := range sendBy(t.Context(), p, entry, msgs...) {
				if r.Err != nil {
					refused++
					if e := sendError(t, r.Err); e.Reason != StopFull || !errors.Is(r.Err, ErrFull) || e.Fault() != PassingFault || !strings.Contains(e.Error(), "MaxPending") {
						t.Errorf("%s: %+v", name, e)
					}
				}
			}
			if refused != 2 || len(f.calls) != 2 {
				t.Errorf("%s: %d refused, %d sent; want 2 and 2", name, refused, len(f.calls))
			}
			p.Close()

			opts.WhenFull = WaitWhenFull
			f.calls = nil
			p = newProducer(t, f, opts)
			start := time.Now()
			for i, r := range sendBy(t.Context(), p, entry, msgs...) {
				if r.Err != nil {
					t.Errorf("%s: message %d: %v", name, i, r.Err)
				}
			}
			if took := time.Since(start); took != 2*time.Second {
				t.Errorf("%s: 4 messages with 2 places took %v, want 2s", name, took)
			}

			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			start = time.Now()
			results := sendBy(ctx, p, entry, msgs...)
			if took := time.Since(start); took != 500*time.Millisecond {
				t.Errorf("%s: the callers left after 500ms, the sends ended after %v", name, took)
			}
			for i, r := range results {
				if e := sendError(t, r.Err); e.Reason != StopContext || e.MaybeStored != (e.Attempts > 0) {
					t.Errorf("%s: message %d: %+v", name, i, e)
				}
			}
			if n := len(p.ledger.Pending()); n != 0 {
				t.Errorf("%s: left behind %d messages", name, n)
			}
		}
	})
}

// A message larger than MaxPendingBytes is accepted when it is the only one.
func TestContractOversized(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		p := newProducer(t, &fake{}, Options{MaxPendingBytes: 1000})
		big := message()
		big.Body = make([]byte, 5000)
		for i, r := range sendBy(t.Context(), p, entry, big, message(), big) {
			if r.Err != nil {
				t.Errorf("message %d: %v", i, r.Err)
			}
		}
	})
}

// The three entry points keep one order of a message group, and a message that
// fails is no obstacle to those behind it.
//
// Later messages of a message group wait behind the one that fails.
func TestContractOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stored []string
		f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
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
		p := newProducer(t, f, Options{})
		msgs := numbered(12)
		for _, m := range msgs {
			m.MessageGroup = "g"
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
		if !slices.IsSorted(stored) || len(stored) < 11 {
			t.Errorf("stored as %v", stored)
		}
	})
}

// A dead broker and a million asynchronous sends: the messages that are held are bounded
// by the options, and goroutines by the lanes.
//
// SendAsync does not spawn unbounded goroutines.
func TestContractGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		most, now := 0, 0
		f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			err := blackHole(ctx)
			mu.Lock()
			now--
			mu.Unlock()
			return err
		}}
		p := newProducer(t, f, Options{MaxPending: 5000, WhenFull: RejectWhenFull})
		taken := 0
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := named("of a dead broker")
		goroutines := runtime.NumGoroutine()
		for range model.Rounds(1_000_000) {
			if p.SendAsync(t.Context(), m, func(tidegate.Receipt, error) {}) == nil {
				taken++
			}
		}
		synctest.Wait()
		// One for each request, and the settings request.
		if n := runtime.NumGoroutine() - goroutines; n > plan.FirstWindow+1 {
			t.Errorf("%d goroutines hold %d messages, want at most %d", n, taken, plan.FirstWindow+1)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > defaultMaxPendingBytes {
			t.Errorf("the heap grew by %d bytes, MaxPendingBytes is %d", grown, defaultMaxPendingBytes)
		}
		if taken != 5000 || most > plan.FirstWindow {
			t.Errorf("%d messages were accepted, %d requests at once; want 5000 and at most %d", taken, most, plan.FirstWindow)
		}
		p.Close()
	})
}
