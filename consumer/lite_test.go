package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A liteServer is a server with lite topics.
type liteServer struct {
	*server

	onServe func(n int) error // of the nth ServeLite; an error ends it

	// Guarded by server.mu.
	onSync func(s transport.LiteSync) error // before the request takes effect; an error is the response
	synced func(s transport.LiteSync) error // after it took effect; an error replaces the response
	sets   map[string]map[string]bool       // the ID of a consumer → its lite topics
	syncs  []string
	served []time.Time
	ended  func(string) // of the last ServeLite
}

func newLiteServer(s *server) *liteServer {
	l := &liteServer{server: s, sets: map[string]map[string]bool{}}
	s.selects = func(r transport.ReceiveRequest, m *tidegate.Message) bool {
		return m.LiteTopic == "" || l.sets[r.LiteConsumer][m.LiteTopic]
	}
	return l
}

// withLite runs f in a bubble of package synctest, with a server that has the capabilities of a
// tidegate broker and FIFO groups.
func withLite(t *testing.T, f func(t *testing.T, s *liteServer)) {
	t.Helper()
	withBroker(t, func(t *testing.T, s *server) {
		s.settings = transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps{time.Second}}
		f(t, newLiteServer(s))
	})
}

// SyncLite records the request as "set a b", "add c oldest" and so on.
func (l *liteServer) SyncLite(ctx context.Context, s transport.LiteSync) error {
	text := []string{[...]string{"set", "add", "remove"}[s.Action]}
	text = append(text, s.Topics...)
	switch at := s.Start; {
	case at.Oldest:
		text = append(text, "from the oldest")
	case at.Newest:
		text = append(text, "from the newest")
	case at.Last > 0:
		text = append(text, fmt.Sprintf("from the last %d", at.Last))
	case at.Offset > 0:
		text = append(text, fmt.Sprintf("from %d", at.Offset))
	case !at.Time.IsZero():
		text = append(text, at.Time.Format("from 2006"))
	}
	l.mu.Lock()
	l.syncs = append(l.syncs, strings.Join(text, " "))
	before, after := l.onSync, l.synced
	l.mu.Unlock()
	if before != nil {
		if err := before(s); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.apply(s)
	if after != nil {
		return after(s)
	}
	return nil
}

// hook sets the functions that respond to SyncLite.
func (l *liteServer) hook(onSync, synced func(transport.LiteSync) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onSync, l.synced = onSync, synced
}

// receives returns the number of receives.
func (l *liteServer) receives() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.polls)
}

func unavailable(transport.LiteSync) error { return &tidegate.Error{Err: tidegate.ErrUnavailable} }

func (l *liteServer) apply(s transport.LiteSync) {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := l.sets[s.ID]
	if set == nil || s.Action == transport.LiteSet {
		set = map[string]bool{}
		l.sets[s.ID] = set
	}
	for _, name := range s.Topics {
		set[name] = s.Action != transport.LiteRemove
	}
	l.changed()
}

// has returns the lite topics of all consumers at the server.
func (l *liteServer) has() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, set := range l.sets {
		for name, in := range set {
			if in {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// requests returns the requests of SyncLite since the last call.
func (l *liteServer) requests() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := strings.Join(l.syncs, "; ")
	l.syncs = nil
	return list
}

func (l *liteServer) ServeLite(ctx context.Context, c transport.LiteConsumer, ended func(string)) error {
	l.mu.Lock()
	l.served = append(l.served, time.Now())
	l.ended = ended
	n := len(l.served)
	l.mu.Unlock()
	if l.onServe != nil {
		if err := l.onServe(n); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// addLite adds a message to each of the lite topics.
func (l *liteServer) addLite(names ...string) {
	for _, name := range names {
		l.add(0, &tidegate.Message{ID: fmt.Sprint(name, "/", l.left()), Topic: "orders", LiteTopic: name, Body: []byte("x")})
	}
}

// elapse lets a time pass. What other goroutines have done until then has happened.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var liteSubscription = consumer.Subscription{Group: "billing", Topic: "orders", Lite: true}

// liteConsumer returns a consumer of lite topics whose handler notes the lite topics of its
// messages.
func liteConsumer(t *testing.T, s consumer.Transport, o consumer.PushOptions) (p *consumer.Push, handled func() string) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var mu sync.Mutex
	var list []string
	p = assert.Value(consumer.NewPush(s, liteSubscription, func(_ context.Context, d *tidegate.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, d.LiteTopic)
		return nil
	}, o))(t)
	return p, func() string {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(list)
		text := strings.Join(list, " ")
		list = nil
		return text
	}
}

func subscribe(t *testing.T, p *consumer.Push, start transport.LiteStart, names ...string) {
	t.Helper()
	for _, name := range names {
		assert.NoError(t, p.Subscribe(t.Context(), name, start), "subscribe to "+name)
	}
}

// A Run begins with the whole set, each start in a request of its own. It repeats the set every
// 30 s, and a start never again. The next Run begins with the same set.
func TestLiteSet(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		p, handled := liteConsumer(t, s, consumer.PushOptions{})
		s.addLite("a", "b", "c", "d", "e", "other")
		at := time.Date(2024, 5, 1, 0, 0, 0, 0, time.FixedZone("elsewhere", 3600))
		subscribe(t, p, transport.LiteStart{}, "b", "a", "gone")
		subscribe(t, p, transport.LiteStart{Oldest: true}, "e", "c")
		subscribe(t, p, transport.LiteStart{Time: at}, "d", "g")
		subscribe(t, p, transport.LiteStart{Time: at.UTC()}, "f")
		subscribe(t, p, transport.LiteStart{Last: 3}, "a") // the consumer has it
		assert.Must(t, p.Unsubscribe(t.Context(), "gone"))
		assert.Equal(t, "the requests before Run", s.requests(), "")
		assert.Equal(t, "the set", strings.Join(p.LiteTopics(), " "), "a b c d e f g")
		stop := runPush(t, p)
		synctest.Wait()
		assert.Equal(t, "the requests at the begin", s.requests(), "set a b; add c e from the oldest; add d f g from 2024")
		elapse(time.Second)
		assert.Equal(t, "the handled messages", handled(), "a b c d e")
		elapse(time.Minute)
		assert.Equal(t, "the requests of a minute", s.requests(), "set a b c d e f g; set a b c d e f g")
		assert.NoError(t, stop(), "Run")
		id := s.server.requests[0].LiteConsumer
		for _, r := range s.server.requests {
			assert.MustThat(t, r.LiteConsumer == id && id != "" && s.sets[id] != nil && r.Filter == (tidegate.Filter{}), "request %+v of the consumer %q", r, id)
		}

		subscribe(t, p, transport.LiteStart{Newest: true}, "h")
		runPush(t, p)
		synctest.Wait()
		assert.Equal(t, "the requests of another Run", s.requests(), "set a b c d e f g; add h from the newest")
		assert.Equal(t, "consumers", len(s.sets), 1)
		other, _ := liteConsumer(t, s, consumer.PushOptions{})
		runPush(t, other)
		synctest.Wait()
		assert.Equal(t, "the request of an empty set", s.requests(), "set")
		assert.Equal(t, "consumers", len(s.sets), 2)
	})
}

// While a Run is active, Subscribe and Unsubscribe return when the server has the change.
func TestLiteChanges(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		s.hook(func(transport.LiteSync) error { time.Sleep(2 * time.Second); return nil }, nil)
		p, handled := liteConsumer(t, s, consumer.PushOptions{})
		runPush(t, p)
		elapse(5 * time.Second)
		assert.Equal(t, "the requests at the begin", s.requests(), "set")
		begin := time.Now()
		subscribe(t, p, transport.LiteStart{Last: 5}, "a")
		assert.That(t, time.Since(begin) == 2*time.Second, "Subscribe took %v, want 2 s", time.Since(begin))
		assert.Equal(t, "the request of Subscribe", s.requests(), "add a from the last 5")
		s.addLite("a", "b")
		elapse(time.Second)
		assert.Equal(t, "the handled messages", handled(), "a")
		subscribe(t, p, transport.LiteStart{Oldest: true}, "a")
		assert.Equal(t, "the request of a repeated Subscribe", s.requests(), "")
		subscribe(t, p, transport.LiteStart{}, "b")
		begin = time.Now()
		assert.Must(t, p.Unsubscribe(t.Context(), "a"))
		assert.That(t, time.Since(begin) == 2*time.Second, "Unsubscribe took %v, want 2 s", time.Since(begin))
		assert.Equal(t, "the requests", s.requests(), "add b; remove a")
		s.addLite("a", "b")
		elapse(time.Second)
		assert.Equal(t, "the handled messages", handled(), "b b")
		assert.Equal(t, "the set", strings.Join(p.LiteTopics(), " "), "b")
		assert.Must(t, p.Unsubscribe(t.Context(), "never-there"))
		subscribe(t, p, transport.LiteStart{Offset: 7}, "a")
		assert.Equal(t, "the requests", s.requests(), "remove never-there; add a from 7")
	})
}

// The handler gets the messages that the consumer has received before an Unsubscribe.
func TestLiteMessagesInHand(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		var handled []string
		p := assert.Value(consumer.NewPush(s, liteSubscription, func(_ context.Context, d *tidegate.Delivery) error {
			time.Sleep(10 * time.Second)
			handled = append(handled, d.ID)
			return nil
		}, consumer.PushOptions{Concurrency: 1}))(t)
		subscribe(t, p, transport.LiteStart{}, "a")
		s.addLite("a", "a")
		runPush(t, p)
		elapse(time.Second)
		held := s.inHand()
		assert.Must(t, p.Unsubscribe(t.Context(), "a"))
		elapse(time.Minute)
		assert.That(t, held > 0 && len(handled) == held && s.left() == 2-held, "%d messages were in hand, %v handled, %d left", held, handled, s.left())
	})
}

// A request whose response was lost is repeated after the backoff of receives, until ctx ends.
func TestLiteLostResponses(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		p, handled := liteConsumer(t, s, consumer.PushOptions{ReceiveBackoff: backoff.Steps{time.Second, 3 * time.Second}})
		runPush(t, p)
		synctest.Wait()
		s.requests()
		failures := 2
		s.hook(nil, func(r transport.LiteSync) error {
			if failures--; failures >= 0 {
				return unavailable(r)
			}
			return nil
		})
		begin := time.Now()
		subscribe(t, p, transport.LiteStart{Newest: true}, "a")
		assert.That(t, time.Since(begin) == 4*time.Second, "Subscribe took %v, want 1 s and 3 s", time.Since(begin))
		assert.Equal(t, "the requests", s.requests(), "add a from the newest; add a from the newest; add a from the newest")

		s.hook(nil, unavailable)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("the caller has enough"))
		defer cancel()
		err := p.Subscribe(ctx, "b", transport.LiteStart{})
		assert.That(t, errors.Is(err, context.Cause(ctx)) && errors.Is(err, tidegate.ErrUnavailable) && strings.Contains(err.Error(), `"b" of "orders" for "billing"`), "Subscribe: %v", err)
		assert.Equal(t, "the set after the error", strings.Join(p.LiteTopics(), " "), "a")
		assert.Equal(t, "the set of the server after the error", strings.Join(s.has(), " "), "a b")
		err = p.Unsubscribe(ctx, "a")
		assert.That(t, errors.Is(err, context.Cause(ctx)), "Unsubscribe: %v", err)
		assert.Equal(t, "the set after an Unsubscribe that failed", strings.Join(p.LiteTopics(), " "), "")

		// An Unsubscribe has an effect also if its ctx ends before its turn.
		s.hook(nil, nil)
		subscribe(t, p, transport.LiteStart{}, "d")
		s.hook(func(transport.LiteSync) error { time.Sleep(3 * time.Second); return nil }, nil)
		var done sync.WaitGroup
		done.Go(func() { subscribe(t, p, transport.LiteStart{}, "c") })
		elapse(time.Second)
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		assert.Is(t, "Unsubscribe without its turn", p.Unsubscribe(short, "d"), context.DeadlineExceeded)
		done.Wait()
		assert.Equal(t, "the set", strings.Join(p.LiteTopics(), " "), "c")
		assert.Must(t, p.Unsubscribe(t.Context(), "c"))

		s.hook(nil, nil)
		elapse(time.Minute)
		assert.Equal(t, "the set of the server after a minute", strings.Join(s.has(), " "), "")
		s.addLite("a", "b")
		elapse(time.Minute)
		assert.Equal(t, "the handled messages", handled(), "")
	})
}

// The errors of quotas and names come back from Subscribe, and change nothing.
func TestLiteQuotas(t *testing.T) {
	for _, code := range []tidegate.Code{protocol.CodeLiteTopicQuotaExceeded, protocol.CodeLiteSubscriptionQuotaExceeded, protocol.CodeIllegalLiteTopic} {
		withLite(t, func(t *testing.T, s *liteServer) {
			refused := &tidegate.Error{Op: "SyncLiteSubscription", Code: code}
			s.hook(func(r transport.LiteSync) error {
				if slices.Contains(r.Topics, "b") && r.Action != transport.LiteRemove {
					return refused
				}
				return nil
			}, nil)
			var failures []consumer.ReceiveFailure
			p, handled := liteConsumer(t, s, consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) { failures = append(failures, f) }})
			subscribe(t, p, transport.LiteStart{}, "a")
			stop := runPush(t, p)
			synctest.Wait()
			begin := time.Now()
			err := p.Subscribe(t.Context(), "b", transport.LiteStart{})
			assert.That(t, errors.Is(err, refused) && time.Since(begin) == 0, "Subscribe: %v after %v, want %v at once", err, time.Since(begin), refused)
			assert.Equal(t, "the set", strings.Join(p.LiteTopics(), " "), "a")
			stop()
			s.requests()

			// In the next Run the quota is lower.
			subscribe(t, p, transport.LiteStart{Oldest: true}, "b")
			subscribe(t, p, transport.LiteStart{Last: 1}, "c")
			stop = runPush(t, p)
			synctest.Wait()
			assert.Equal(t, "the requests at the begin", s.requests(), "set a; add b from the oldest; add c from the last 1")
			s.addLite("a", "b", "c")
			elapse(10 * time.Minute)
			assert.Equal(t, "the handled messages", handled(), "a c")
			assert.Equal(t, "the set after ten minutes", strings.Join(p.LiteTopics(), " "), "a b c")
			assert.That(t, len(failures) > 15 && errors.Is(failures[0].Err, refused) && failures[3].Failures == 4 && failures[0].Topic == "orders", "%d failures, the first one %+v", len(failures), failures[0])
			assert.Must(t, p.Unsubscribe(t.Context(), "b"))
			elapse(time.Minute)
			n := len(failures)
			elapse(10 * time.Minute)
			assert.Equal(t, "failures after the lite topic left", len(failures), n)
			assert.NoError(t, stop(), "Run")
		})
	}
}

// No receive begins before the server has the set.
func TestLiteSetBeforeReceives(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		s.hook(unavailable, nil)
		p, handled := liteConsumer(t, s, consumer.PushOptions{})
		subscribe(t, p, transport.LiteStart{}, "a")
		s.addLite("a")
		runPush(t, p)
		elapse(time.Minute)
		assert.Equal(t, "receives", s.receives(), 0)
		s.hook(nil, nil)
		elapse(time.Minute)
		assert.Equal(t, "the handled messages", handled(), "a")
	})
}

// A Subscribe that waits for the server records its lite topic when the Run ends.
func TestLiteSubscribeOutlivesRun(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		p, _ := liteConsumer(t, s, consumer.PushOptions{})
		stop := runPush(t, p)
		synctest.Wait()
		s.hook(unavailable, nil)
		var done sync.WaitGroup
		done.Go(func() { subscribe(t, p, transport.LiteStart{Oldest: true}, "a") })
		elapse(time.Minute)
		begin := time.Now()
		stop()
		done.Wait()
		assert.That(t, time.Since(begin) == 0, "Subscribe returned %v after Run", time.Since(begin))
		s.hook(nil, nil)
		s.requests()
		stop = runPush(t, p)
		synctest.Wait()
		assert.Equal(t, "the requests of the next Run", s.requests(), "set; add a from the oldest")
		stop()

		// In a further Run the server has no lite topics at first, also none that it had before.
		s.hook(unavailable, nil)
		runPush(t, p)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := p.Subscribe(ctx, "a", transport.LiteStart{})
		assert.That(t, errors.Is(err, context.DeadlineExceeded) && len(p.LiteTopics()) == 1, "Subscribe: %v; the set is %v", err, p.LiteTopics())
	})
}

// A lite topic that the server ends leaves the set. The callback may subscribe to it again.
func TestLiteEnds(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		var p *consumer.Push
		var log bytes.Buffer
		var ended []string
		p, _ = liteConsumer(t, s, consumer.PushOptions{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			OnLiteEnd: func(name string) {
				ended = append(ended, name)
				if name == "c" {
					subscribe(t, p, transport.LiteStart{Newest: true}, "c")
					panic("after the subscription")
				}
			},
		})
		subscribe(t, p, transport.LiteStart{}, "a", "b", "c")
		stop := runPush(t, p)
		synctest.Wait()
		for _, name := range []string{"b", "c", "b", "unknown"} {
			s.ended(name)
		}
		synctest.Wait()
		assert.Equal(t, "the ended lite topics", strings.Join(ended, " "), "b c")
		assert.Equal(t, "the set", strings.Join(p.LiteTopics(), " "), "a c")
		assert.That(t, strings.Contains(log.String(), "level=INFO") && strings.Contains(log.String(), "lite_topic=b") && strings.Contains(log.String(), "OnLiteEnd panicked"), "the log is %s", log.String())
		s.requests()
		elapse(31 * time.Second)
		assert.Equal(t, "the next request", s.requests(), "set a c")
		stop()
	})
}

// One of several Runs waits for the ends of lite topics, and another one when that one has ended.
func TestLiteEndsOfSeveralRuns(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		p, _ := liteConsumer(t, s, consumer.PushOptions{})
		subscribe(t, p, transport.LiteStart{}, "a", "b")
		first := runPush(t, p)
		elapse(time.Second)
		runPush(t, p)
		elapse(time.Second)
		assert.Equal(t, "calls of ServeLite", len(s.served), 1)
		s.ended("a")
		assert.NoError(t, first(), "Run")
		elapse(time.Second)
		assert.Equal(t, "calls of ServeLite after the end of a Run", len(s.served), 2)
		s.ended("b")
		assert.Equal(t, "the set", strings.Join(p.LiteTopics(), " "), "")
	})
}

// A ServeLite that fails is called again after the backoff of receives.
func TestLiteEndsFail(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		s.onServe = func(n int) error {
			switch n {
			case 1, 2:
				return errors.New("connection lost")
			case 3:
				time.Sleep(time.Minute)
				return errors.New("connection lost")
			}
			return nil
		}
		p, _ := liteConsumer(t, s, consumer.PushOptions{ReceiveBackoff: backoff.Steps{time.Second, 2 * time.Second, 4 * time.Second}})
		runPush(t, p)
		elapse(10 * time.Minute)
		var gaps []time.Duration
		for i := range s.served[1:] {
			gaps = append(gaps, s.served[i+1].Sub(s.served[i]))
		}
		assert.Equal(t, "the times between the calls", fmt.Sprint(gaps), "[1s 2s 1m1s]")
	})
}

// Where a release counts as an attempt, a failed message of a lite topic is retried in the process,
// as in a FIFO group; also if the server does not announce an order.
func TestLiteRetryInTheProcess(t *testing.T) {
	for _, fifo := range []bool{true, false} {
		withServer(t, func(t *testing.T, plain *server) {
			s := newLiteServer(plain)
			s.settings = transport.ConsumerSettings{FIFO: fifo, MaxAttempts: 3, Retry: backoff.Steps{3 * time.Second}}
			begin := time.Now()
			var mu sync.Mutex
			var calls []string
			p := assert.Value(consumer.NewPush(s, liteSubscription, func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, fmt.Sprintf("%s#%d@%.0f", d.ID, d.Attempt, time.Since(begin).Seconds()))
				if d.ID == "a/0" {
					return errors.New("poison")
				}
				return nil
			}, consumer.PushOptions{Concurrency: 4}))(t)
			subscribe(t, p, transport.LiteStart{}, "a", "b")
			s.addLite("a", "a", "b")
			runPush(t, p)
			elapse(time.Hour)
			want := []string{"a/0#1@0", "a/0#2@3", "a/0#3@6", "a/1#1@6"}
			assert.That(t, slices.Contains(calls, "b/2#1@0"), "FIFO %v: the calls %v do not have b/2 at once", fifo, calls)
			calls = slices.DeleteFunc(calls, func(c string) bool { return strings.HasPrefix(c, "b") })
			assert.That(t, slices.Equal(calls, want) && s.dead["a/0"] == "poison" && len(s.retries) == 0, "FIFO %v: the calls %v, want %v; dead letters %v, %d retries of the server", fifo, calls, want, s.dead, len(s.retries))
		})
	}
}

// Whatever requests and responses are lost, the server has the set of the consumer in the end.
func TestLiteProperty(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex // of rnd
	below := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	for range model.Rounds(20) {
		withLite(t, func(t *testing.T, s *liteServer) {
			fail := func(r transport.LiteSync) error {
				time.Sleep(time.Duration(below(100)) * time.Millisecond)
				if below(4) == 0 {
					return unavailable(r)
				}
				return nil
			}
			s.hook(fail, fail)
			p, _ := liteConsumer(t, s, consumer.PushOptions{})
			runs := 1 + below(2)
			for range runs {
				runPush(t, p)
			}
			var users sync.WaitGroup
			for range 4 {
				users.Go(func() {
					for range 30 {
						name := fmt.Sprint(below(6))
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+below(3000))*time.Millisecond)
						switch below(5) {
						case 0, 1:
							if p.Subscribe(ctx, name, transport.LiteStart{Oldest: below(2) == 0}) == nil {
								time.Sleep(time.Duration(below(10)) * time.Second)
							}
						case 2, 3:
							_ = p.Unsubscribe(ctx, name) // an error is repaired by the next repetition
						case 4:
							s.mu.Lock()
							ended := s.ended
							for _, set := range s.sets {
								delete(set, name)
							}
							s.mu.Unlock()
							if ended != nil {
								ended(name)
							}
						}
						cancel()
					}
				})
			}
			users.Wait()
			s.hook(nil, nil)
			elapse(2 * time.Minute)
			assert.That(t, slices.Equal(p.LiteTopics(), s.has()), "seed %d, %d runs: the consumer has %v, the server %v", seed, runs, p.LiteTopics(), s.has())
			s.requests()
			elapse(time.Minute)
			requests := s.requests()
			assert.That(t, !strings.Contains(requests, "from"), "seed %d: a start is repeated: %s", seed, requests)
		})
	}
}

// A repetition of the set that overlaps with a change does not undo it: the server has the lite topic
// when Subscribe returns, and from then on until an Unsubscribe.
func TestLiteRepetitionsKeepChanges(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range model.Rounds(10) {
		withLite(t, func(t *testing.T, s *liteServer) {
			slow := rand.New(rand.NewPCG(seed, uint64(round)))
			s.hook(func(transport.LiteSync) error { // one request at a time
				time.Sleep(time.Duration(slow.IntN(4000)) * time.Millisecond)
				return nil
			}, nil)
			p, _ := liteConsumer(t, s, consumer.PushOptions{})
			runPush(t, p)
			time.Sleep(5 * time.Second)
			var users sync.WaitGroup
			for user := range 3 {
				users.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, uint64(100*round+user)))
					name := fmt.Sprint(user)
					for n := range 40 {
						change, want := p.Unsubscribe, n%2 == 0
						if want {
							change = func(ctx context.Context, name string) error { return p.Subscribe(ctx, name, transport.LiteStart{}) }
						}
						assert.NoError(t, change(t.Context(), name))
						for range 2 {
							assert.That(t, slices.Contains(s.has(), name) == want, "seed %d: the server has %v; %s in it: want %v", seed, s.has(), name, want)
							time.Sleep(time.Duration(rnd.IntN(20)) * time.Second)
						}
					}
				})
			}
			users.Wait()
		})
	}
}

// An idle consumer sends the same few requests with one lite topic and with thousands.
func TestLiteIdleRequests(t *testing.T) {
	withLite(t, func(t *testing.T, s *liteServer) {
		var settings atomic.Int64
		s.onSettings = func(context.Context) error { settings.Add(1); return nil }
		p, _ := liteConsumer(t, s, consumer.PushOptions{})
		for i := range 1000 {
			subscribe(t, p, transport.LiteStart{}, fmt.Sprint("session-", i))
		}
		runPush(t, p)
		elapse(61 * time.Second)
		s.requests()
		reads, receives := settings.Load(), s.receives()
		elapse(10 * time.Minute)
		syncs := strings.Count(s.requests(), "set ")
		reads, receives = settings.Load()-reads, s.receives()-receives
		t.Logf("in ten minutes: %d receives, %d repetitions of the set, %d reads of the settings", receives, syncs, reads)
		assert.That(t, syncs == 20 && receives <= 31 && reads <= 61, "want 31, 20 and 61 at most")
	})
}

// The errors of the constructors and of changes name the fault and the remedy.
func TestLiteFaults(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		handler := func(context.Context, *tidegate.Delivery) error { return nil }
		lite := newLiteServer(s)
		sub := liteSubscription
		filtered, several := sub, sub
		filtered.Filter = consumer.Tags("x")
		several.Topics = map[string]tidegate.Filter{"returns": {}}
		_, simple := consumer.NewSimple(lite, sub, consumer.SimpleOptions{})
		_, batch := consumer.NewBatch(s, sub, func(context.Context, []*tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		push := func(tr consumer.Transport, sub consumer.Subscription, o consumer.PushOptions) error {
			_, err := consumer.NewPush(tr, sub, handler, o)
			return err
		}
		p := assert.Value(consumer.NewPush(lite, sub, handler, consumer.PushOptions{}))(t)
		plain := assert.Value(consumer.NewPush(lite, consumer.Subscription{Group: "billing", Topic: "orders"}, handler, consumer.PushOptions{}))(t)
		for want, err := range map[string]error{
			"use NewPush or NewBatch":                             simple,
			"*consumer_test.server has no lite topics":            batch,
			"lite topics have no filters":                         push(lite, filtered, consumer.PushOptions{}),
			"the lite topics of a consumer have one parent":       push(lite, several, consumer.PushOptions{}),
			"it is never called without Sub":                      push(lite, consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.PushOptions{OnLiteEnd: func(string) {}}),
			"set Subscription.Lite":                               plain.Subscribe(t.Context(), "a", transport.LiteStart{}),
			`unsubscribe from the lite topic "a" of "orders" for`: plain.Unsubscribe(t.Context(), "a"),
			"the limit is 64":                                     p.Subscribe(t.Context(), strings.Repeat("x", 65), transport.LiteStart{}),
			`"" is blank`:                                         p.Unsubscribe(t.Context(), ""),
			"2 fields are set":                                    p.Subscribe(t.Context(), "a", transport.LiteStart{Oldest: true, Last: 1}),
			"Last is -1":                                          p.Subscribe(t.Context(), "a", transport.LiteStart{Last: -1}),
			"Offset is -2":                                        p.Subscribe(t.Context(), "a", transport.LiteStart{Offset: -2}),
		} {
			te, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && te.Code/1000 == 40 && strings.Contains(fmt.Sprint(err), want), "%v, want an error with %q", err, want)
		}
		assert.That(t, len(p.LiteTopics()) == 0 && plain.LiteTopics() == nil, "lite topics %v and %v", p.LiteTopics(), plain.LiteTopics())
	})
}
