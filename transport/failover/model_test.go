package failover_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
)

// A fault is the behaviour of an endpoint for a while.
type fault int

const (
	works fault = iota
	fails
	throttles
	hangs
)

// A phase is the truth about an endpoint from a time on.
type phase struct {
	from         time.Time
	sends, pings fault
}

// A timed is an endpoint whose behaviour follows a plan, with messages by topic.
type timed struct {
	*store
	plan  []phase
	mu    sync.Mutex
	pings int
	bad   int // pings that failed
}

// now returns the current phase.
func (x *timed) now() phase {
	p := x.plan[0]
	for _, next := range x.plan {
		if !time.Now().Before(next.from) {
			p = next
		}
	}
	return p
}

func (f fault) do(ctx context.Context) error {
	switch f {
	case fails:
		return errDown
	case throttles:
		return errThrottled
	case hangs:
		<-ctx.Done()
		return &tidegate.Error{Op: "SendMessage", Err: context.Cause(ctx)}
	}
	return nil
}

func (x *timed) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	return []transport.SendResult{{Err: x.now().sends.do(ctx)}}
}

func (x *timed) Ping(ctx context.Context, _ ...string) error {
	err := x.now().pings.do(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pings++; err != nil && !errors.Is(err, tidegate.ErrThrottled) {
		x.bad++
	}
	return err
}

// Random faults that all end, random sends and receives. While they last, sends leave an endpoint
// that fails for one that works. After their end sends return to the first endpoint and stay, and
// all messages are received. Probes are bounded by the time, and switches by the failures.
func TestModel(t *testing.T) {
	model.Run(t, 60, func(t *testing.T, r *rand.Rand) { synctest.Test(t, func(t *testing.T) { sequence(t, r) }) })
}

func sequence(t *testing.T, r *rand.Rand) {
	pick := func(list ...time.Duration) time.Duration { return list[r.IntN(len(list))] }
	begin := time.Now()
	end := begin.Add(time.Duration(2+r.IntN(10)) * time.Minute)
	var mu sync.Mutex
	switches, last, events := 0, "", 0
	left := map[string]time.Time{}
	grace, switchBack := pick(5*time.Second, 30*time.Second, -1), pick(10*time.Second, time.Minute)
	o := failover.Options{
		Failures: 1 + r.IntN(4), ThrottleGrace: grace, SwitchBack: switchBack,
		OnSwitch: func(e failover.Event) {
			mu.Lock()
			defer mu.Unlock()
			switches++
			last = e.To
			if back := e.At.Sub(left[e.To]); e.Reason == failover.Recovered && back < switchBack {
				t.Errorf("sends return to %s %v after they left it, want at least %v", e.To, back, switchBack)
			}
			assert.That(t, e.Reason != failover.Throttling || grace >= 0, "sends left an endpoint for its throttles")
			left[e.From] = e.At
		},
	}
	var all []*timed
	var ends []failover.Endpoint
	for i := range 2 + r.IntN(2) {
		x := &timed{store: newStore(), plan: []phase{{from: begin}}}
		for at := begin; at.Before(end); {
			at = at.Add(time.Duration(r.Int64N(int64(2 * time.Minute))))
			x.plan = append(x.plan, phase{at, fault(r.IntN(4)), fault(r.IntN(4))})
		}
		x.plan = append(x.plan, phase{from: end})
		x.fail = func() error {
			if x.now().pings == fails {
				return errDown
			}
			return nil
		}
		all = append(all, x)
		ends = append(ends, failover.Endpoint{Name: fmt.Sprint(i), Transport: x})
	}
	x := assert.Value(failover.New(ends, o))(t)
	active := func() *timed { return all[x.Active()[0]-'0'] }

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		assert.NoError(t, x.Close())
	})
	topics := []string{"t", "u"}
	for _, topic := range topics {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := x.Receive(ctx, from(topic, time.Second)); err != nil {
					<-time.After(time.Second) // as a consumer's backoff
				}
			}
		})
	}
	since := map[*timed]time.Time{} // the first failed send in the current phase
	send := func() {
		e, p := active(), active().now()
		sctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		if x.Send(sctx, []*tidegate.Message{{ID: "1", Topic: "t"}})[0].Err == nil {
			return
		}
		mu.Lock()
		events++
		mu.Unlock()
		if first, ok := since[e]; !ok || first.Before(p.from) {
			since[e] = time.Now()
		}
	}
	stuck := func() {
		e, p := active(), active().now()
		first, ok := since[e]
		if p.sends != fails || p.pings != fails || !ok || first.Before(p.from) || time.Since(first) < 4*time.Second {
			return
		}
		for i, other := range all {
			if q := other.now(); other != e && q.pings == works && time.Since(q.from) > 4*time.Second {
				t.Errorf("%v after the start sends have stayed at endpoint %s for %v after a failure, although %d works",
					time.Since(begin), x.Active(), time.Since(first), i)
			}
		}
	}
	for time.Now().Before(end) && !t.Failed() {
		send()
		stuck()
		if r.IntN(3) == 0 {
			s := all[r.IntN(len(all))]
			s.set(topics[r.IntN(2)], r.IntN(5))
		}
		time.Sleep(time.Duration(r.Int64N(int64(pick(20*time.Millisecond, time.Second, 40*time.Second)))))
	}
	// After the end of all faults no send waits.
	for quiet := time.Now(); time.Since(quiet) < 33*o.SwitchBack+10*time.Second; time.Sleep(time.Second) {
		send()
		if time.Since(quiet) < 40*time.Second {
			continue
		}
		for i, s := range all {
			for _, topic := range topics {
				if n := s.left(topic); n > 0 {
					t.Fatalf("%d messages of endpoint %d wait %v after the end of all faults", n, i, time.Since(quiet))
				}
			}
		}
		if x.Active() == "0" && time.Since(quiet) > 2*time.Minute {
			break
		}
	}
	mu.Lock()
	before := switches
	mu.Unlock()
	for range 100 {
		send()
		time.Sleep(time.Second)
	}
	mu.Lock()
	defer mu.Unlock()
	assert.That(t, x.Active() == "0" && switches == before && (switches <= 0 || last == "0"), "after the end of all faults sends go to %s, and %d switches followed", x.Active(), switches-before)
	took, bad := time.Since(begin), 0
	for i, e := range all {
		e.mu.Lock()
		most := int(took/time.Second) + 1
		assert.That(t, e.pings <= most, "endpoint %d was probed %d times in %v", i, e.pings, took)
		bad += e.bad
		e.mu.Unlock()
	}
	most := events + bad + int(took/o.SwitchBack) + 1
	assert.That(t, switches <= most, "%d switches, want at most %d: one for each failure and each SwitchBack", switches, most)
}
