package producer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

func openSpool(t *testing.T, path string, o spool.Options) *spool.Spool {
	t.Helper()
	s := assert.Value(spool.Open(path, o))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

func newSpool(t *testing.T, o spool.Options) *spool.Spool {
	t.Helper()
	return openSpool(t, filepath.Join(t.TempDir(), "spool.db"), o)
}

// A store is a server that stores a message ID once, and nothing of a message group
// behind a failure in the same request.
type store struct {
	transporttest.Fake

	mu     sync.Mutex
	fail   func(m *tidegate.Message) error // nil: it accepts everything
	after  bool                            // it stores the message before it fails
	stored []*tidegate.Message
	known  map[string]bool
}

func newStore() *store {
	f := &store{known: map[string]bool{}}
	f.OnSend = func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
		f.mu.Lock()
		defer f.mu.Unlock()
		errs := make([]error, len(msgs))
		blocked := map[string]error{}
		for i, m := range msgs {
			group := m.MessageGroup + m.LiteTopic // a message has one of them
			if errs[i] = blocked[group]; errs[i] == nil && f.fail != nil {
				errs[i] = f.fail(m)
			}
			if errs[i] != nil && group != "" {
				blocked[group] = errs[i]
			}
			if (errs[i] == nil || f.after) && !f.known[m.ID] {
				f.known[m.ID] = true
				kept := *m // the producer uses m again
				f.stored = append(f.stored, &kept)
			}
		}
		return errs
	}
	return f
}

func (f *store) set(fail func(m *tidegate.Message) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *store) ids() (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.stored {
		ids = append(ids, m.ID)
	}
	return ids
}

func down(*tidegate.Message) error { return errors.New("connection refused") }

// empty waits until the spool has no message.
func empty(t *testing.T, s *spool.Spool) {
	t.Helper()
	for start := time.Now(); s.Stats().Pending > 0; time.Sleep(100 * time.Millisecond) {
		assert.MustThat(t, time.Since(start) <= time.Hour, "after an hour the spool has %+v", s.Stats())
	}
}

// An outage moves messages to the disk, and its end sends them.
func TestOutageIsSpooled(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f, s := newStore(), newSpool(t, spool.Options{})
		p := newProducer(t, f, producer.Options{Spool: s})
		f.set(down)
		first := sendBy(t.Context(), p, entry, named("1"))[0]
		if r := first.Receipt; first.Err != nil || !r.Spooled || r.MessageID != "1" || r.Offset != -1 || r.Attempts != 3 || r.Endpoint != "" {
			t.Fatalf("%+v, want a receipt of the spool after 3 attempts", first)
		}
		// A known outage costs later messages no attempt.
		for i, r := range sendBy(t.Context(), p, entry, inGroup("2", "g"), named("3")) {
			assert.That(t, r.Err == nil && r.Receipt.Spooled && r.Receipt.Attempts == 0, "message %d of the outage: %+v", i, r)
		}
		f.set(nil)
		empty(t, s)
		r := sendBy(t.Context(), p, entry, inGroup("4", "g"))[0]
		assert.That(t, r.Err == nil && !r.Receipt.Spooled, "after the outage: %+v", r)
		if ids := f.ids(); len(ids) != 4 || slices.Index(ids, "2") > slices.Index(ids, "4") {
			t.Errorf("stored %v", ids)
		}
		a, err := p.Shutdown(t.Context())
		assert.That(t, err == nil && a.Accepted == 4 && a.Spooled == 3 && a.Delivered == 1 && a.Drained == 3, "%+v, %v", a, err)
	})
}

// The bounds of throttling move a message to the spool, and its drain keeps the
// limiter's pace.
func TestThrottledMessagesAreSpooledAndLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newStore(), newSpool(t, spool.Options{})
		p := newProducer(t, f, producer.Options{Spool: s, Backoff: ladder, MaxThrottleTime: 3 * time.Second, Limiter: rate.NewLimiter(10, 1)})
		f.set(func(*tidegate.Message) error { return throttled(0) })
		var msgs []*tidegate.Message
		for i := range 50 {
			msgs = append(msgs, inGroup(fmt.Sprint(i), fmt.Sprint("g", i%25)))
		}
		for i, r := range p.SendBatch(t.Context(), msgs) {
			assert.MustThat(t, r.Err == nil && r.Receipt.Spooled, "message %d: %+v", i, r)
		}
		f.set(nil)
		start := time.Now()
		empty(t, s)
		if took := time.Since(start); took < 4*time.Second || took > 40*time.Second {
			t.Errorf("50 messages left the spool in %v, want about 5 s at 10 a second and the wait before", took)
		}
		checkOrder(t, f.stored, func(m *tidegate.Message) (string, int) {
			var n int
			fmt.Sscan(m.ID, &n)
			return m.MessageGroup, n
		})
	})
}

func checkOrder(t *testing.T, stored []*tidegate.Message, number func(m *tidegate.Message) (group string, n int)) {
	t.Helper()
	last := map[string]int{}
	for _, m := range stored {
		group, n := number(m)
		before, ok := last[group]
		assert.That(t, group == "" || !ok || before <= n, "message group %s: message %d was stored behind %d", group, n, before)
		last[group] = n
	}
}

// A full spool is a typed error of the send, and its messages are delivered.
func TestFullSpool(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f, s := newStore(), newSpool(t, spool.Options{MaxBytes: 2000})
		p := newProducer(t, f, producer.Options{Spool: s})
		f.set(down)
		var spooled, refused int
		for i := range 20 {
			switch r := sendBy(t.Context(), p, entry, named(fmt.Sprint(i)))[0]; {
			case r.Err == nil:
				spooled++
			default:
				refused++
				if e := sendError(t, r.Err); !errors.Is(e, spool.ErrFull) || e.Reason != producer.StopSpool || e.Fault() != producer.PassingFault ||
					!strings.Contains(e.Error(), "MaxBytes is 2000") {
					t.Fatalf("message %d: %v", i, r.Err)
				}
			}
		}
		assert.That(t, spooled >= 3 && refused >= 3, "%d spooled and %d refused, want several of both", spooled, refused)
		f.set(nil)
		empty(t, s)
		a, err := p.Shutdown(t.Context())
		if err != nil || len(f.ids()) != spooled || a.Accepted != 20 || a.Spooled != spooled || a.Failed != refused || a.Drained != spooled {
			t.Errorf("%d stored; %+v, %v; want %d", len(f.ids()), a, err, spooled)
		}
	})
}

// A full producer uses the spool if it is configured so, and its callers wait for
// the disk.
func TestSpoolWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newStore(), newSpool(t, spool.Options{})
		release := make(chan struct{})
		do := f.OnSend
		f.OnSend = func(ctx context.Context, n int, l transport.Lane, msgs []*tidegate.Message) []error {
			<-release
			return do(ctx, n, l, msgs)
		}
		p := newProducer(t, f, producer.Options{Spool: s, MaxPending: 2, WhenFull: producer.SpoolWhenFull, AttemptTimeout: time.Hour})
		results := make(chan transport.SendResult, 10)
		for i := range 5 {
			assert.Must(t, p.SendAsync(t.Context(), named(fmt.Sprint(i)), func(r tidegate.Receipt, err error) { results <- transport.SendResult{Receipt: r, Err: err} }))
			want := max(0, i-1)
			assert.That(t, s.Stats().Pending == want, "after message %d the spool has %d, want %d", i, s.Stats().Pending, want)
		}
		r, err := p.Send(t.Context(), named("sync"))
		assert.That(t, err == nil && r.Spooled, "%+v, %v", r, err)
		ctx := within(t, time.Second)
		if _, err := p.Send(ctx, inGroup("grouped", "g")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a message of a message group did not wait: %v", err)
		}
		close(release)
		empty(t, s)
		if a, err := p.Shutdown(t.Context()); err != nil || a.Accepted != 6 || a.Spooled != 4 || a.Delivered != 2 {
			t.Errorf("%+v, %v", a, err)
		}
		assert.That(t, len(results) == 5 && len(f.ids()) == 6, "%d results, %v stored", len(results), f.ids())
	})
}

// Messages that Shutdown and Close abort go to the spool, in order, and the next process sends
// them. A third of them is in a lite topic, the others in message groups.
func TestAbortedMessagesAreSpooled(t *testing.T) {
	for _, op := range []string{"Shutdown", "Close"} {
		assert.Bubble(t, op, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "spool.db")
			f, s := newStore(), openSpool(t, path, spool.Options{})
			hole := together(blackHole)
			p := newProducer(t, hole, producer.Options{Spool: s, AttemptTimeout: time.Hour})
			for i := range 9 {
				m := inGroup(fmt.Sprint(i), fmt.Sprint("g", i%3))
				if i%3 == 2 {
					m = inLite(fmt.Sprint(i), "lite")
				}
				assert.Must(t, p.SendAsync(t.Context(), m, func(r tidegate.Receipt, err error) {
					assert.That(t, err == nil && r.Spooled, "%+v, %v", r, err)
				}))
				if i%4 == 0 {
					synctest.Wait()
				}
			}
			if op == "Shutdown" {
				ctx := within(t, time.Second)
				assert.Is(t, "Shutdown returned", assert.Err(p.Shutdown(ctx)), context.DeadlineExceeded)
			}
			p.Close()
			a, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && a.Accepted == 9 && a.Spooled == 9 && len(a.Undelivered) == 0, "%+v, %v", a, err)
			s.Close()
			s = openSpool(t, path, spool.Options{})
			q := newProducer(t, f, producer.Options{Spool: s})
			empty(t, s)
			q.Close()
			assert.That(t, len(f.stored) == 9, "stored %v", f.ids())
			checkOrder(t, f.stored, func(m *tidegate.Message) (string, int) { return m.MessageGroup + m.LiteTopic, int(m.ID[0]) })
		})
	}
}

// During an outage Shutdown does not wait for the messages in the spool, and the spool keeps them.
func TestShutdownDoesNotWaitForTheSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, spool.Options{})
		assert.Must(t, s.Put(t.Context(), named("1")))
		hole := together(blackHole)
		p := newProducer(t, hole, producer.Options{Spool: s, AttemptTimeout: time.Hour})
		synctest.Wait()
		start := time.Now()
		a, err := p.Shutdown(t.Context())
		if took := time.Since(start); err != nil || took != time.Second || a.Accepted != 0 || a.Drained != 0 || len(a.Undelivered) != 0 {
			t.Errorf("%+v, %v after %v, want nothing after a second", a, err, took)
		}
		assert.That(t, s.Stats().Pending == 1, "the spool has %+v", s.Stats())
	})
}

// Across random outages, throttles, deadlines, cancellations and restarts every accepted message is
// stored, each message group in the order of the calls. The counts of the producer add up.
func TestSpoolProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(10) {
		synctest.Test(t, func(t *testing.T) { spoolRound(t, round, rand.New(rand.NewPCG(seed, round))) })
	}
}

func spoolRound(t *testing.T, round uint64, rnd *rand.Rand) {
	path := filepath.Join(t.TempDir(), "spool.db")
	f := newStore()
	f.after = rnd.IntN(3) == 0
	faults := rand.New(rand.NewPCG(rnd.Uint64(), round)) // the store's lock guards it
	chaos := func(m *tidegate.Message) error {
		switch faults.IntN(4) {
		case 0:
			return throttled(time.Duration(faults.IntN(2)) * time.Second)
		case 1:
			return errors.New("reset")
		case 2:
			if m.MessageGroup == "" {
				return codeError(protocol.CodeIllegalMessageTag)
			}
		}
		return nil
	}
	var mu sync.Mutex
	accepted := map[string]bool{}
	for life := range 3 {
		s := openSpool(t, path, spool.Options{})
		p, err := producer.New(f, producer.Options{Spool: s, Backoff: ladder, MaxPending: 30, AttemptTimeout: time.Second})
		assert.Must(t, err)
		var wg sync.WaitGroup
		var failed int
		for g := range 4 {
			group := []string{"", "a", "b", "c"}[g]
			pause, own := time.Duration(rnd.IntN(300))*time.Millisecond, rand.New(rand.NewPCG(rnd.Uint64(), round))
			wg.Go(func() {
				for n := range 20 {
					id := fmt.Sprintf("%s-%d-%02d", group, life, n)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+own.IntN(20))*time.Second)
					if p.SendAsync(ctx, inGroup(id, group), func(_ tidegate.Receipt, err error) {
						cancel()
						mu.Lock()
						defer mu.Unlock()
						if err == nil {
							accepted[id] = true
						} else {
							failed++
						}
					}) != nil {
						cancel()
					}
					time.Sleep(pause)
				}
			})
		}
		for range 6 {
			f.set([]func(*tidegate.Message) error{nil, down, chaos}[rnd.IntN(3)])
			time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
		}
		if rnd.IntN(2) == 0 {
			f.set(nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(3))*time.Second)
		_, _ = p.Shutdown(ctx)
		cancel()
		p.Close()
		wg.Wait()
		a, err := p.Shutdown(t.Context())
		if err != nil || a.Accepted != a.Delivered+a.Failed+a.Spooled+len(a.Undelivered) || a.Failed+len(a.Undelivered) != failed {
			t.Errorf("round %d: %+v with %d errors, %v", round, a, failed, err)
		}
		s.Close()
	}
	f.set(nil)
	s := openSpool(t, path, spool.Options{})
	p := newProducer(t, f, producer.Options{Spool: s})
	empty(t, s)
	p.Close()
	known := f.known
	rejected := assert.Value(s.Entries(true, 0, 1000))(t)
	for _, e := range rejected {
		known[e.Message.ID] = true
	}
	for id := range accepted {
		assert.That(t, known[id], "round %d: message %s was accepted and is lost", round, id)
	}
	checkOrder(t, f.stored, func(m *tidegate.Message) (string, int) {
		var life, n int
		_, number, _ := strings.Cut(m.ID, "-")
		fmt.Sscanf(number, "%d-%d", &life, &n)
		return m.MessageGroup, 100*life + n
	})
}

// A topic whose permission is gone goes to the spool, and no other does. What was never permitted
// fails at once, and so does a send without a spool. The end sends the messages.
func TestLostPermissionIsSpooled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newStore()
		s := newSpool(t, spool.Options{})
		var log logBuffer
		p := newProducer(t, f, producer.Options{Spool: s, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		forbidden := func(topics ...string) func(*tidegate.Message) error {
			return func(m *tidegate.Message) error {
				if slices.Contains(topics, m.Topic) {
					return &tidegate.Error{Op: "SendMessage", Subject: m.Topic, Endpoint: "fake:8081", Code: tidegate.CodeForbidden}
				}
				return nil
			}
		}
		send := func(id, topic string) (tidegate.Receipt, error) {
			return p.Send(t.Context(), &tidegate.Message{ID: id, Topic: topic, Body: []byte("x")})
		}
		for _, topic := range []string{"orders", "bills"} {
			assert.Must(t, assert.Err(send("first of "+topic, topic)))
		}
		f.set(forbidden("orders", "never"))
		for i := range 20 {
			r, err := send(fmt.Sprint(i), "orders")
			assert.MustThat(t, err == nil && r.Spooled, "message %d: %+v, %v; want it in the spool", i, r, err)
		}
		if r, err := send("other", "bills"); err != nil || r.Spooled {
			t.Errorf("another topic: %+v, %v", r, err)
		}
		_, err := send("wrong", "never")
		if e := sendError(t, err); e.Reason != producer.StopPermanent || !errors.Is(err, tidegate.ErrForbidden) || e.Attempts != 1 {
			t.Errorf("a topic without an earlier send: %v (%v)", err, e.Reason)
		}
		lines, events := log.count("the server forbids sends to a topic that it accepted before")
		assert.That(t, events == 1, "the log has %d lines, %d of them about the permission; want one", lines, events)
		f.set(forbidden("never"))
		back := time.Now()
		empty(t, s)
		took := time.Since(back)
		assert.That(t, took <= 7*time.Second, "the spool was empty %v after the permission was back", took)
		assert.Equal(t, "messages are stored", len(f.ids()), 23)
	})
}

// Credentials that lapsed are an outage: with a spool no message fails, and without one a send
// waits for the renewal. Credentials that never worked are an error at once.
func TestLapsedCredentials(t *testing.T) {
	rejected := func(lapsed bool) func(*tidegate.Message) error {
		return func(m *tidegate.Message) error {
			return &tidegate.Error{Op: "SendMessage", Subject: m.Topic, Endpoint: "a:1", Code: tidegate.CodeUnauthorized, Lapsed: lapsed}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		f := newStore()
		s := newSpool(t, spool.Options{})
		p := newProducer(t, f, producer.Options{Spool: s})
		f.set(rejected(false))
		_, err := p.Send(t.Context(), named("never"))
		if e := sendError(t, err); e.Reason != producer.StopPermanent || !errors.Is(err, tidegate.ErrUnauthorized) {
			t.Errorf("credentials that never worked: %v (%v)", err, e.Reason)
		}
		f.set(rejected(true))
		for i := range 20 {
			r, err := p.Send(t.Context(), named(fmt.Sprint(i)))
			assert.MustThat(t, err == nil && r.Spooled, "message %d: %+v, %v; want it in the spool", i, r, err)
		}
		f.set(nil)
		empty(t, s)
		assert.Equal(t, "messages are stored", len(f.ids()), 20)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newStore()
		p := newProducer(t, f, producer.Options{})
		f.set(rejected(true))
		begin := time.Now()
		time.AfterFunc(100*time.Second, func() { f.set(nil) })
		if r, err := p.Send(t.Context(), named("waits")); err != nil || time.Since(begin) > 102*time.Second {
			t.Errorf("%+v, %v after %v, want it stored soon after 100 s", r, err, time.Since(begin))
		}
		f.set(rejected(true))
		_, err := p.Send(t.Context(), named("two minutes"))
		if e := sendError(t, err); e.Reason != producer.StopExhausted || e.MaybeStored || !errors.Is(err, tidegate.ErrUnauthorized) || !strings.Contains(err.Error(), "the credentials are rejected for ") {
			t.Errorf("%v (%v)", err, e.Reason)
		}
	})
}

// A readySpool takes every message at once.
type readySpool struct{}

func (readySpool) PutBatch(_ context.Context, msgs []*tidegate.Message) []error {
	return make([]error, len(msgs))
}
func (readySpool) Holds(string, string) bool { return false }
func (readySpool) Drain(ctx context.Context, _ func(context.Context, []*tidegate.Message) []error) error {
	<-ctx.Done()
	return nil
}

// Close ends sends that a full producer admits for the spool at the same time. Without its result a
// send would never return.
func TestCloseMeetsSendsForTheSpool(t *testing.T) {
	for round := range 600 {
		f := each(func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) })
		p := newProducer(t, f, producer.Options{MaxPending: 1, WhenFull: producer.SpoolWhenFull, Spool: readySpool{}})
		assert.Must(t, p.SendAsync(context.Background(), named("first"), func(tidegate.Receipt, error) {}))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { p.Send(context.Background(), named("second")) })
		}
		for range round % 20 { // Close comes at different times
			runtime.Gosched()
		}
		p.Close()
		wg.Wait()
	}
}
