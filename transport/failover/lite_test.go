package failover_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A liteEnd is an endpoint with the lite topics of one consumer.
type liteEnd struct {
	transporttest.Fake

	mu   sync.Mutex
	fail func(s transport.LiteSync) error // nil means never
	down error                            // the response to receives; nil for messages
	has  map[string]bool
	log  []string
}

func newLiteEnd() *liteEnd {
	e := &liteEnd{has: map[string]bool{}}
	e.OnSyncLite = func(_ context.Context, _ int, s transport.LiteSync) error {
		e.mu.Lock()
		fail := e.fail
		e.mu.Unlock()
		if fail != nil {
			if err := fail(s); err != nil {
				return err
			}
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.log = append(e.log, [...]string{"set", "add", "remove"}[s.Action]+" "+strings.Join(s.Topics, " "))
		if s.Action == transport.LiteSet {
			e.has = map[string]bool{}
		}
		for _, name := range s.Topics {
			e.has[name] = s.Action != transport.LiteRemove
		}
		return nil
	}
	e.OnReceive = func(_ context.Context, _ int, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.log = append(e.log, "receive")
		return nil, e.down
	}
	return e
}

// did returns the requests since the last call.
func (e *liteEnd) did() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := strings.Join(e.log, "; ")
	e.log = nil
	return list
}

func (e *liteEnd) set() (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, in := range e.has {
		if in {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (e *liteEnd) respond(fail func(transport.LiteSync) error, down error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail, e.down = fail, down
}

var liteConsumer = transport.LiteConsumer{Group: "g", Topic: "t", ID: "1"}

func syncLite(x *failover.Transport, a transport.LiteAction, names ...string) error {
	return x.SyncLite(context.Background(), transport.LiteSync{LiteConsumer: liteConsumer, Action: a, Topics: names})
}

// fromQueue is a receive of the lite consumer from a queue of the first endpoint (0) or the second
// (1).
func fromQueue(queue int) transport.ReceiveRequest {
	return transport.ReceiveRequest{Group: "g", Topic: "t", Queue: queue, LiteConsumer: "1"}
}

// An endpoint that missed a change of the lite topics, or may have been restarted, gets them before
// the next receive of the consumer.
func TestLiteTopicsOfEachEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newLiteEnd(), newLiteEnd()
		x := pair(t, a, b, failover.Options{})
		receives := []func(context.Context, transport.ReceiveRequest) error{
			func(ctx context.Context, r transport.ReceiveRequest) error { return assert.Err(x.Receive(ctx, r)) },
			func(ctx context.Context, r transport.ReceiveRequest) error {
				_, _, err := x.ReceiveOrWatch(ctx, r)
				return err
			},
		}
		want := func(what, first, second string) {
			t.Helper()
			assert.Equal(t, what+", the first endpoint", a.did(), first)
			assert.Equal(t, what+", the second endpoint", b.did(), second)
		}
		assert.NoError(t, syncLite(x, transport.LiteSet, "p", "q"))
		want("a set", "set p q", "set p q")
		for _, receive := range receives {
			assert.NoError(t, receive(t.Context(), fromQueue(0)))
			assert.NoError(t, receive(t.Context(), fromQueue(1)))
			want("receives", "receive", "receive")

			b.respond(func(transport.LiteSync) error { return errDown }, nil)
			assert.NoError(t, syncLite(x, transport.LiteAdd, "r"))
			assert.NoError(t, syncLite(x, transport.LiteRemove, "q"))
			assert.NoError(t, receive(t.Context(), fromQueue(0)))
			assert.Is(t, "a receive from an endpoint that rejects the set", receive(t.Context(), fromQueue(1)), tidegate.ErrUnavailable)
			want("the second endpoint is down", "add r; remove q; receive", "")
			b.respond(nil, nil)
			for range 2 {
				assert.NoError(t, receive(t.Context(), fromQueue(1)))
			}
			want("it is up again", "", "set p r; receive; receive")

			a.respond(nil, errDown)
			assert.Is(t, "a receive without a connection", receive(t.Context(), fromQueue(0)), tidegate.ErrUnavailable)
			a.respond(nil, nil)
			for range 2 {
				assert.NoError(t, receive(t.Context(), fromQueue(0)))
			}
			want("after a lost connection", "receive; set p r; receive; receive", "")
			assert.NoError(t, syncLite(x, transport.LiteSet, "p", "q"))
			want("another set", "set p q", "set p q")
		}
		_, err := x.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: 0})
		assert.NoError(t, err)
		want("a receive without lite topics", "receive", "")
	})
}

// A quota of one endpoint rejects an addition for all; other errors count if no endpoint accepts a
// change.
func TestLiteErrors(t *testing.T) {
	quota := &tidegate.Error{Code: 42902}
	always := func(err error) func(transport.LiteSync) error {
		return func(transport.LiteSync) error { return err }
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := newLiteEnd(), newLiteEnd()
		x := pair(t, a, b, failover.Options{})
		assert.NoError(t, syncLite(x, transport.LiteSet, "p"))
		b.respond(always(quota), nil)
		assert.Is(t, "an addition above a quota", syncLite(x, transport.LiteAdd, "q"), quota)
		b.respond(nil, nil)
		assert.NoError(t, assert.Err(x.Receive(t.Context(), fromQueue(0))))
		assert.NoError(t, assert.Err(x.Receive(t.Context(), fromQueue(1))))
		assert.That(t, slices.Equal(a.set(), []string{"p"}) && slices.Equal(b.set(), []string{"p"}), "after the error the endpoints have %v and %v, want p", a.set(), b.set())

		a.respond(always(errDown), nil)
		b.respond(always(errPermanent), nil)
		for _, action := range []transport.LiteAction{transport.LiteSet, transport.LiteAdd, transport.LiteRemove} {
			assert.Is(t, "a change that no endpoint accepts", syncLite(x, action, "r"), tidegate.ErrUnavailable)
		}
		a.respond(nil, nil)
		assert.NoError(t, syncLite(x, transport.LiteAdd, "s"))
		assert.NoError(t, assert.Err(x.Receive(t.Context(), fromQueue(0))))
		assert.Equal(t, "the set", strings.Join(a.set(), " "), "p s")
		assert.Is(t, "a receive from the endpoint without them", assert.Err(x.Receive(t.Context(), fromQueue(1))), tidegate.ErrInvalid)
	})
	synctest.Test(t, func(t *testing.T) {
		type plain struct {
			transport.Transport
			transport.Pinger
		}
		a := newLiteEnd()
		x := pair(t, a, plain{&a.Fake, &a.Fake}, failover.Options{})
		assert.NoError(t, syncLite(x, transport.LiteSet, "p"))
		err := assert.Err(x.Receive(t.Context(), fromQueue(1)))
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && e.Code == tidegate.CodeNotImplemented && strings.Contains(e.Message, `"b"`), "a receive from an endpoint without lite topics: %v", err)
	})
}

// ServeLite reports the ends of all endpoints. The endpoints no longer get the ended lite topics.
func TestLiteEndsOfEachEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newLiteEnd(), newLiteEnd()
		ends := func(after time.Duration, name string, err error) func(context.Context, int, transport.LiteConsumer, func(string)) error {
			return func(ctx context.Context, _ int, c transport.LiteConsumer, ended func(string)) error {
				assert.Equal(t, "the consumer", c, liteConsumer)
				time.Sleep(after)
				ended(name)
				if err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			}
		}
		a.OnServeLite, b.OnServeLite = ends(time.Second, "p", nil), ends(2*time.Second, "q", nil)
		x := pair(t, a, b, failover.Options{})
		assert.NoError(t, syncLite(x, transport.LiteSet, "p", "q", "r"))
		var ended []string
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := x.ServeLite(ctx, liteConsumer, func(name string) { ended = append(ended, name) })
		assert.That(t, err == nil && time.Since(begin) == time.Minute && fmt.Sprint(ended) == "[p q]", "ServeLite: %v after %v; ended %v", err, time.Since(begin), ended)
		a.respond(nil, errDown)
		assert.That(t, assert.Err(x.Receive(t.Context(), fromQueue(0))) != nil, "the endpoint is not down")
		a.respond(nil, nil)
		assert.NoError(t, assert.Err(x.Receive(t.Context(), fromQueue(0))))
		assert.Equal(t, "the set after the ends", strings.Join(a.set(), " "), "r")

		b.OnServeLite = ends(time.Second, "r", errDown)
		err = x.ServeLite(t.Context(), liteConsumer, func(string) {})
		assert.Is(t, "ServeLite of an endpoint that is down", err, tidegate.ErrUnavailable)
	})
}

// Whatever requests fail, an endpoint has the lite topics of the consumer when a receive begins and
// no change is under way.
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
		synctest.Test(t, func(t *testing.T) {
			ends := []*liteEnd{newLiteEnd(), newLiteEnd()}
			x := pair(t, ends[0], ends[1], failover.Options{})
			var users sync.WaitGroup
			for i, e := range ends {
				e.respond(func(transport.LiteSync) error {
					time.Sleep(time.Duration(below(20)) * time.Millisecond)
					if below(4) == 0 {
						return errDown
					}
					return nil
				}, nil)
				for range 2 {
					users.Go(func() {
						for range 40 {
							_, _ = x.Receive(t.Context(), fromQueue(i)) // fails if the endpoint does not take the set
							time.Sleep(time.Duration(below(30)) * time.Millisecond)
						}
					})
				}
			}
			has := map[string]bool{}
			want := func() (names []string) {
				for name, in := range has {
					if in {
						names = append(names, name)
					}
				}
				slices.Sort(names)
				return names
			}
			for range 30 {
				name, action := fmt.Sprint(below(5)), transport.LiteAction(below(3))
				names := []string{name}
				if action == transport.LiteSet {
					names = append(names, want()...)
				}
				if syncLite(x, action, names...) == nil {
					has[name] = action != transport.LiteRemove
				}
				for i, e := range ends {
					_, err := x.Receive(t.Context(), fromQueue(i))
					assert.That(t, err != nil || slices.Equal(e.set(), want()), "seed %d: endpoint %d has %v, want %v", seed, i, e.set(), want())
				}
				time.Sleep(time.Duration(below(30)) * time.Millisecond)
			}
			users.Wait()
			for i, e := range ends {
				e.respond(nil, nil)
				assert.NoError(t, assert.Err(x.Receive(t.Context(), fromQueue(i))))
				assert.That(t, slices.Equal(e.set(), want()), "seed %d: endpoint %d has %v, want %v", seed, i, e.set(), want())
			}
		})
	}
}
