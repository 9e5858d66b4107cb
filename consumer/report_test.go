package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// This holds for a stop at any time, with any handlers, and with or without a server. The report
// counts each delivery in hand once, by its outcome. Released messages are visible to other
// consumers at once, and their attempts do not count.
func TestStopReportAddsUp(t *testing.T) {
	total := consumer.StopReport{}
	for range model.Rounds(300) {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 4))
			var mu sync.Mutex
			upTo := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(rnd.Int64N(int64(d)))
			}
			s := newServer(t)
			s.caps = ours
			s.settings.FIFO = upTo(4) == 0
			s.settings.MaxAttempts = 1 + int(upTo(3))
			for i := range 200 {
				m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")}
				if s.settings.FIFO {
					m.MessageGroup = fmt.Sprint(i % 20)
				}
				s.add(0, m)
			}
			stopping := make(chan struct{})
			after := map[consumer.Disposition]int{}
			var report consumer.StopReport
			stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
				select {
				case <-time.After(time.Duration(int64(upTo(3)) * int64(upTo(time.Second)))):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				switch upTo(8) {
				case 0:
					return errors.New("failed")
				case 1:
					return consumer.DeadLetterNow(errors.New("hopeless"))
				case 2:
					return consumer.Snooze(time.Minute)
				}
				return nil
			}, consumer.PushOptions{
				Concurrency: 1 + int(upTo(20)), ShutdownTimeout: time.Second, OnStop: func(r consumer.StopReport) { report = r },
				OnDelivery: func(o consumer.Outcome) {
					select {
					case <-stopping:
						mu.Lock()
						defer mu.Unlock()
						after[o.Disposition]++
					default:
					}
				},
			})
			time.Sleep(upTo(5 * time.Second))
			synctest.Wait()
			inHand, released, attempts := s.inHand(), len(s.released), s.attemptsOf()
			if upTo(5) == 0 {
				away := func(*tidegate.Delivery) error { return errors.New("connection lost") }
				s.mu.Lock()
				s.onAck, s.onRetry, s.onChange, s.onDead, s.onSnooze = away, away, away, away, away
				s.mu.Unlock()
			}
			close(stopping)
			begin := time.Now()
			stop()
			took := time.Since(begin)
			want := consumer.StopReport{
				Acked: after[consumer.Acked], Retried: after[consumer.Retried] + after[consumer.DeadLettered] + after[consumer.Snoozed],
				Released: after[consumer.Released] - report.Cancelled, Cancelled: report.Cancelled,
				Unsettled: after[consumer.Unsettled] + after[consumer.LeaseLost] + after[consumer.PerhapsSettled], Took: took,
			}
			sum := report.Acked + report.Retried + report.Released + report.Cancelled + report.Unsettled
			if report != want || sum != inHand || took > time.Second {
				t.Errorf("seed %d: report %+v counts %d of the %d deliveries in hand, outcomes %v; Run took %v", seed, report, sum, inHand, after, took)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, id := range s.released[released:] {
				var i int
				fmt.Sscan(id, &i)
				if e := s.entries[i]; time.Now().Before(e.due) || e.attempt != attempts[i]-1 {
					t.Errorf("seed %d: released message %s has attempt %d after %d, due in %v", seed, id, e.attempt, attempts[i], time.Until(e.due))
				}
			}
			if n := len(s.released) - released; n < report.Released+report.Cancelled {
				t.Errorf("seed %d: the server released %d messages, the report has %d", seed, n, report.Released+report.Cancelled)
			}
			total.Acked += report.Acked
			total.Retried += report.Retried
			total.Released += report.Released
			total.Cancelled += report.Cancelled
			total.Unsettled += report.Unsettled
		})
	}
	assert.That(t, min(total.Acked, total.Retried, total.Released, total.Cancelled, total.Unsettled) >= 20, "all reports together: %+v; the test shows too little", total)
}

// attemptsOf returns the number of attempts of each message.
func (s *server) attemptsOf() (attempts []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		attempts = append(attempts, e.attempt)
	}
	return attempts
}

// While there is a backlog, receives are large: 16 messages at least on average, also with
// handlers that take a millisecond.
func TestReceivesAreLargeWithABacklog(t *testing.T) {
	for _, work := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		withBroker(t, func(t *testing.T, s *server) {
			const messages = 5000
			s.fill(messages)
			received, receives := 0, 0
			s.onHandOut = func(n int) {
				if n > 0 {
					receives++
					received += n
				}
			}
			runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
				if work > 0 {
					time.Sleep(work)
				}
				return nil
			}, consumer.PushOptions{Concurrency: 64})
			assert.That(t, received == messages && received >= 16*receives, "handlers of %v: %d messages in %d receives, want 16 or more in each", work, received, receives)
			t.Logf("handlers of %v: %.1f messages a receive", work, float64(received)/float64(receives))
		})
	}
}

// After 10 000 dead letters within a minute the log has two lines: the first dead letter at once,
// and the number of the others at the end of Run.
func TestDeadLettersAreTallied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const letters = 10_000
		s := newServer(t)
		s.caps = ours
		s.fill(letters)
		var log bytes.Buffer // guarded by the lock of its handler; read after Run
		runFor(t, 30*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			return consumer.DeadLetterNow(errors.New("not an order"))
		}, consumer.PushOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		assert.MustThat(t, len(s.dead) == letters, "%d dead letters, want %d", len(s.dead), letters)
		var lines []string
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "message became a dead letter") {
				lines = append(lines, line)
			}
		}
		assert.MustThat(t, len(lines) == 2 && !strings.Contains(lines[0], "further="), "lines %q, want one for the first dead letter and one for the others", lines)
		for _, line := range lines {
			assert.Contains(t, "a line", line, "level=WARN", "topic=orders", "group=billing", "message_id=m", `error="not an order"`)
		}
		assert.Contains(t, "the last line", lines[1], fmt.Sprint("further=", letters-1))
	})
}

// RocketMQ: consumption retry: "Unexpected exceptions are also captured by the SDK"
// RocketMQ: consumption retry: "A message fails to be consumed. In this case, the consumer returns
// a failure status or the system throws an exception"
func TestPanicsAreFailures(t *testing.T) {
	cause := errors.New("an error as a panic")
	var nothing any
	returns := func(err error) consumer.Handler {
		return func(context.Context, *tidegate.Delivery) error { return err }
	}
	panics := func(v any) consumer.Handler { return func(context.Context, *tidegate.Delivery) error { panic(v) } }
	for name, tt := range map[string]struct {
		handler consumer.Handler
		text    string
	}{
		"panic":  {panics(cause), "handler panicked: an error as a panic"},
		"nil":    {panics(nothing), "handler panicked: panic called with nil argument"},
		"Goexit": {func(context.Context, *tidegate.Delivery) error { runtime.Goexit(); return nil }, "handler panicked: runtime.Goexit was called"},
		"typed nil": {returns((*fs.PathError)(nil)),
			"handler panicked: the error returned, <nil> of type *fs.PathError, has no readable text: runtime error: invalid memory address"},
		"an error that panics": {returns(awkward{"boom"}),
			"handler panicked: the error returned, %!v(PANIC=Error method: boom) of type consumer_test.awkward, has no readable text: boom"},
		"an error that panics with itself": {returns(awkward{}),
			"handler panicked: the error returned, a consumer_test.awkward of type consumer_test.awkward, has no readable text: a consumer_test.awkward"},
		"panic with a typed nil":               {panics((*fs.PathError)(nil)), "handler panicked: <nil>"},
		"panic with an error that panics":      {panics(awkward{"boom"}), "handler panicked: %!v(PANIC=Error method: boom)"},
		"panic with one that panics on itself": {panics(awkward{}), "handler panicked: a consumer_test.awkward"},
		"an error that ends the goroutine": {returns(deadly{}),
			"handler panicked: the error returned, of type consumer_test.deadly, has no readable text: runtime.Goexit was called"},
		"panic with one that ends the goroutine": {panics(deadly{}), "handler panicked: a consumer_test.deadly"},
	} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.fill(1)
			var seen outcomes
			runFor(t, 15*time.Second, s, consumer.Subscription{}, tt.handler, consumer.PushOptions{OnDelivery: seen.add})
			if len(seen.list) != 2 || !reflect.DeepEqual(s.retries[0], retryCall{"m0", 1, 10 * time.Second}) || seen.list[0].Disposition != consumer.Retried || seen.list[0].Delay != 10*time.Second {
				t.Fatalf("outcomes %+v", seen.list)
			}
			e, ok := seen.list[0].Err.(*consumer.PanicError)
			if !ok || !strings.HasPrefix(e.Error(), tt.text) || !strings.Contains(string(e.Stack), "worker.go") {
				t.Errorf("error %v", seen.list[0].Err)
			}
			assert.That(t, name != "panic" || errors.Is(e, cause) && strings.Contains(string(e.Stack), "report_test.go"), "%v does not wrap the panic's error, or has not the handler's stack", e)
		}))
	}
}

// An awkward error panics in its Error method, with itself if it has none.
type awkward struct{ text string }

func (e awkward) Error() string {
	if e.text == "" {
		panic(e)
	}
	panic(e.text)
}

// A deadly error ends the goroutine that asks it for its text, as a mock does
// that calls the FailNow of a test.
type deadly struct{}

func (deadly) Error() string { runtime.Goexit(); return "" }

// The text of an error is needed at the last attempt, and by DeadLetter.
func TestAwkwardErrorsAsDeadLetters(t *testing.T) {
	for _, err := range []error{(*fs.PathError)(nil), awkward{"boom"}, consumer.DeadLetterNow(awkward{"boom"}), consumer.DeadLetterNow((*fs.PathError)(nil))} {
		withServer(t, func(t *testing.T, s *server) {
			s.settings.MaxAttempts = 2
			s.fill(1)
			runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return err }, consumer.PushOptions{})
			if text := s.dead["m0"]; !strings.Contains(text, "has no readable text") || len(s.retries) != 1 {
				t.Errorf("%T: dead letters %q after %d retries, want a failure like any other", err, s.dead, len(s.retries))
			}
		})
	}
}

// The delivery belongs to the handler: its changes, at any time, do not affect decisions,
// settlements or the log.
func TestHandlerMayChangeItsDelivery(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.settings.MaxAttempts = 3
		s.fill(1)
		s.onChange = func(*tidegate.Delivery) error { return errors.New("connection lost") } // which is logged
		var log bytes.Buffer
		var seen outcomes
		runFor(t, 29*time.Second, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			for range 25 {
				*d = tidegate.Delivery{Message: tidegate.Message{ID: "mine", Topic: "mine"}, Attempt: 99}
				time.Sleep(time.Second)
			}
			panic("mine it is")
		}, consumer.PushOptions{OnDelivery: seen.add, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if o := seen.all()[0]; o.Disposition != consumer.Retried || o.Delivery.Attempt != 1 || o.Delivery.ID != "m0" || len(s.dead) != 0 {
			t.Errorf("outcome %+v, dead letters %q", o, s.dead)
		}
		if text := log.String(); !strings.Contains(text, "connection lost") || strings.Contains(text, "<nil>") || strings.Contains(text, "message_id=mine") {
			t.Errorf("logged %s", text)
		}
	})
}

func TestObserverThatPanics(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(30)
		var log bytes.Buffer
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{Concurrency: 1, OnDelivery: func(consumer.Outcome) { panic(awkward{}) }, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		synctest.Wait()
		if err := stop(); err != nil || s.left() != 0 || !strings.Contains(log.String(), `"panic":"a consumer_test.awkward"`) {
			t.Errorf("Run: %v, %d messages left, logged %s", err, s.left(), log.String())
		}
	})
}

// blockHere is a handler that does not return: its name is in the stack.
func blockHere(release <-chan struct{}) { <-release }

// A handler past its deadline is reported with its stack, and
// another one takes its place.
func TestStuckHandlersAreReplaced(t *testing.T) {
	const concurrency = 2
	for name, end := range map[string]func(){
		"they return":      func() {},
		"they call Goexit": runtime.Goexit,
	} {
		t.Run(name, onBroker(func(t *testing.T, s *server) {
			release := make(chan struct{})
			var mu sync.Mutex
			running, most, handled := 0, 0, 0
			var reports []consumer.StuckHandler
			var seen outcomes
			stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				if string(d.Body) == "stuck" && d.Attempt == 1 {
					blockHere(release)
					end()
					return nil
				}
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				handled++
				mu.Unlock()
				return nil
			}, consumer.PushOptions{
				Concurrency: concurrency, StuckAfter: time.Minute, OnDelivery: seen.add, MaxExtension: 24 * time.Hour,
				OnStuck: func(h consumer.StuckHandler) { mu.Lock(); reports = append(reports, h); mu.Unlock() },
			})
			send := func(body string, n int) {
				for range n {
					s.add(0, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte(body)})
				}
			}
			send("stuck", concurrency)
			time.Sleep(time.Second)
			send("quick", 20)
			time.Sleep(58 * time.Second)
			mu.Lock()
			assert.That(t, handled <= 0 && len(reports) == 0, "%d handled, %d reports before the deadline", handled, len(reports))
			mu.Unlock()
			time.Sleep(12 * time.Second)
			mu.Lock()
			assert.That(t, handled == 20 && most == concurrency && len(reports) == concurrency, "%d handled, %d at a time, %d reports", handled, most, len(reports))
			for _, h := range reports {
				if h.Took != time.Minute || string(h.Delivery.Body) != "stuck" || !strings.Contains(h.Stack, "blockHere") || strings.Count(h.Stack, "goroutine ") > 2 {
					t.Errorf("report of %q after %v with the stack %s", h.Delivery.Body, h.Took, h.Stack)
				}
			}
			mu.Unlock()
			close(release) // and no more run at a time than before
			send("quick", 20)
			time.Sleep(12 * time.Second)
			mu.Lock()
			assert.That(t, handled >= 40 && most == concurrency && len(reports) == concurrency, "in the end %d handled, %d at a time, %d reports", handled, most, len(reports))
			mu.Unlock()
			time.Sleep(time.Minute)
			stop()
			assert.That(t, s.left() == 0, "%d messages are left; outcomes %+v", s.left(), seen.all())
		}))
	}
}

// Handlers are replaced once: when as many are stuck as may run, and their replacements are too,
// nothing more is begun until some return.
func TestStuckHandlersAreBounded(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(100)
		release := make(chan struct{})
		var mu sync.Mutex
		begun, reports := 0, 0
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			mu.Lock()
			begun++
			mu.Unlock()
			blockHere(release)
			return nil
		}, consumer.PushOptions{
			Concurrency: 3, StuckAfter: time.Minute, MaxExtension: 24 * time.Hour,
			OnStuck: func(consumer.StuckHandler) { mu.Lock(); reports++; mu.Unlock() },
		})
		time.Sleep(time.Hour)
		mu.Lock()
		assert.That(t, begun == 6 && reports == 6, "%d calls and %d reports, want 6 of both", begun, reports)
		mu.Unlock()
		for range 6 {
			release <- struct{}{}
		}
		time.Sleep(time.Hour)
		mu.Lock()
		assert.That(t, begun == 12 && reports == 12, "%d calls and %d reports after 6 returns, want 12 of both", begun, reports)
		mu.Unlock()
		close(release)
		time.Sleep(time.Minute)
		stop()
		assert.That(t, s.left() == 0, "%d messages are left", s.left())
	})
}

// fillQuick fills the server with messages that have the consumer receive ahead, as their handlers
// are quick.
func (s *server) fillQuick() { s.fillWith("quick", 300) }

// fillSlow adds messages for which slow is true, after the quick ones are handled.
func (s *server) fillSlow(n int) {
	time.Sleep(100 * time.Millisecond)
	s.fillWith("slow", n)
}

func (s *server) fillWith(body string, n int) {
	for i := range n {
		s.add(0, &tidegate.Message{ID: fmt.Sprint(body, i), Topic: "orders", Body: []byte(body)})
	}
}

func slow(d *tidegate.Delivery) bool { return string(d.Body) == "slow" }

// Running handlers finish and their messages are settled; unhandled messages are released.
func TestShutdownIsOrderly(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var seen outcomes
		var report consumer.StopReport
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(5 * time.Second)
			}
			return ctx.Err()
		}, consumer.PushOptions{Concurrency: 2, OnDelivery: seen.add, OnStop: func(r consumer.StopReport) { report = r }})
		s.fillSlow(50)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) != 4*time.Second {
			t.Errorf("Run: %v, after %v; want nil when the handlers were done, after 4s", err, time.Since(begin))
		}
		got := map[consumer.Disposition]int{}
		for _, o := range seen.list {
			got[o.Disposition]++
		}
		if got[consumer.Acked] != 302 || got[consumer.Released] < 20 || len(s.released) != got[consumer.Released] || s.left() != 48 || s.handed != 0 {
			t.Errorf("outcomes %v, %d released, %d left, %d in hand", got, len(s.released), s.left(), s.handed)
		}
		for _, e := range s.entries {
			assert.That(t, e.done || e.attempt == 0, "message %s spent %d attempts", e.msg.ID, e.attempt)
		}
		want := (consumer.StopReport{Acked: 2, Released: got[consumer.Released], Took: 4 * time.Second})
		assert.That(t, report == want, "report %+v, want %+v", report, want)
	})
}

// A server that counts attempts of released messages gets the buffered ones handled instead.
func TestShutdownWithoutSuspend(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fillQuick()
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2})
		s.fillSlow(50)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 5*time.Second || len(s.released) != 0 || s.handed != 0 {
			t.Errorf("Run: %v, after %v; %d released, %d in hand", err, time.Since(begin), len(s.released), s.handed)
		}
	})
}

// The polls under way end without a cancellation on such a server: a cancelled one may take a
// message along.
func TestShutdownLetsPollsEnd(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		var handled atomic.Int64
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { handled.Add(1); return nil }, consumer.PushOptions{})
		time.Sleep(time.Second)
		time.AfterFunc(2*time.Second, func() { s.fill(1) })
		begin := time.Now()
		if err := stop(); err != nil || handled.Load() != 1 || s.left() != 0 || time.Since(begin) > 5*time.Second {
			t.Errorf("Run: %v after %v, %d handled, %d left; want the message handled that the last poll brought", err, time.Since(begin), handled.Load(), s.left())
		}
	})
}

func TestShutdownTimeout(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(1)
		var seen outcomes
		begin := time.Now()
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			<-ctx.Done()
			cause := context.Cause(ctx)
			assert.That(t, cause == consumer.ErrShutdown, "cause %v", cause)
			time.Sleep(time.Second)
			return ctx.Err()
		}, consumer.PushOptions{ShutdownTimeout: 7 * time.Second, OnDelivery: seen.add})
		synctest.Wait()
		if err := stop(); err != nil || time.Since(begin) != 7300*time.Millisecond {
			t.Errorf("Run: %v after %v, want nil after 7.3s: nine tenths of the timeout, and the handler's second", err, time.Since(begin))
		}
		assert.That(t, len(seen.list) == 1 && seen.list[0].Disposition == consumer.Released && len(s.retries) == 0,
			"outcomes %+v, retries %v; want the message released, not failed", seen.list, s.retries)
	})
}

// Run ends within ShutdownTimeout if the handlers return when their contexts end, also if more
// settlements wait than there are requests at the same time and no request gets a response. A
// handler that returns later has one second for its settlement.
func TestShutdownTimeoutIsALimit(t *testing.T) {
	for name, tt := range map[string]struct {
		fail    bool          // the handlers return an error
		hurried bool          // the handlers return when their contexts end
		late    time.Duration // later than that
		want    time.Duration // the longest time until Run ends
	}{
		"failures":                  {fail: true, want: 7 * time.Second},
		"successes":                 {want: 7 * time.Second},
		"released by the shutdown":  {fail: true, hurried: true, want: 7 * time.Second},
		"successes at the last":     {hurried: true, want: 7 * time.Second},
		"successes after the limit": {hurried: true, late: 2 * time.Second, want: 6300*time.Millisecond + 3*time.Second},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t)
			s.caps, s.silent = ours, true
			s.fill(1000)
			stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
				if tt.hurried {
					<-ctx.Done()
					time.Sleep(tt.late)
				}
				if tt.fail {
					return errors.New("failed")
				}
				return nil
			}, consumer.PushOptions{Concurrency: 200, ShutdownTimeout: 7 * time.Second})
			time.Sleep(time.Second)
			begin := time.Now()
			if err := stop(); err != nil || time.Since(begin) > tt.want {
				t.Errorf("Run: %v after %v, want at most %v", err, time.Since(begin), tt.want)
			}
		})
	}
}

// A handler that returns after ShutdownTimeout has one second for the settlement of its message,
// also if the settlements of several messages share a request.
func TestHandlerAfterTheShutdownTimeoutIsSettled(t *testing.T) {
	// Of each handler, after the end of ShutdownTimeout.
	late := []time.Duration{time.Second, time.Second, 1500 * time.Millisecond, 2 * time.Second, 2 * time.Second}
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(len(late))
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			<-ctx.Done()
			time.Sleep(time.Second/10 + late[d.Offset])
			return nil
		}, consumer.PushOptions{Concurrency: len(late), ShutdownTimeout: time.Second, OnDelivery: seen.add})
		synctest.Wait()
		begin := time.Now()
		err := stop()
		assert.That(t, err == nil && time.Since(begin) <= 4*time.Second, "Run: %v after %v, want nil after at most 4s", err, time.Since(begin))
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked, "message %s: %v, %v, want it acked", o.Delivery.ID, o.Disposition, o.SettleErr)
		}
		assert.That(t, s.left() == 0, "%d messages are not consumed", s.left())
	})
}
