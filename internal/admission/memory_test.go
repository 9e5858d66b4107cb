package admission

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
)

// An ended is a Conn that calls itself when it is ended.
type ended func()

func (f ended) End() { f() }

func TestFits(t *testing.T) {
	for _, c := range []struct {
		name                   string
		limit, held, own, more int64
		want                   bool
	}{
		{"half for a single connection", 100, 0, 0, 50, true},
		{"not more than half", 100, 0, 0, 51, false},
		{"its own bytes count", 100, 40, 40, 10, true},
		{"its own bytes count, one too many", 100, 40, 40, 11, false},
		{"half of the bytes that others leave", 100, 60, 0, 20, true},
		{"not more than half of it", 100, 60, 0, 21, false},
		{"nothing is left", 100, 100, 0, 1, false},
		{"a byte is left", 100, 99, 0, 1, false},
		{"two are", 100, 98, 0, 1, true},
	} {
		if got := fits(c.limit, c.held, c.own, c.more); got != c.want {
			t.Errorf("%s: fits(%d, %d, %d, %d) = %t", c.name, c.limit, c.held, c.own, c.more, got)
		}
	}
}

func TestYields(t *testing.T) {
	for _, c := range []struct {
		waiting int64
		long    time.Duration
		own     int64
		want    bool
	}{
		{0, time.Hour, 1, false},
		{2, 100*time.Millisecond - 1, 1, false},
		{2, 100 * time.Millisecond, 1, true},
		{2, 100 * time.Millisecond, 2, false},
		{2, time.Second - 1, 2, false},
		{2, time.Second, 2, true},
		{1, time.Second, 2, true},
	} {
		if got := yields(c.waiting, c.long, time.Second, c.own); got != c.want {
			t.Errorf("yields(%d, %v, 1s, %d) = %t", c.waiting, c.long, c.own, got)
		}
	}
	if yields(1, time.Hour, 0, 1) || !yields(2, 0, 0, 1) {
		t.Error("without an end of its patience a connection yields to no other that holds as much, and to one that holds less")
	}
}

// Connections that take and keep all the bytes that they can get do not lock out a later
// connection.
func TestGreedyConnectionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{1, 2, 10, 100, 500} {
			b := NewBudget("test", 128<<20, time.Second)
			closed := map[int]bool{}
			for i := range n {
				for {
					h := b.Hold(i, ended(func() { closed[i] = true }))
					if h.Resize(64<<10, true) != nil {
						break
					}
				}
			}
			time.Sleep(100 * time.Millisecond)
			late := b.Hold("late", nil)
			assert.NoError(t, late.Resize(128<<10, false), "after %d greedy connections there is no space", n)
			if b.Held() > b.Limit() {
				t.Errorf("%d bytes are held, more than %d", b.Held(), b.Limit())
			}
			if int(b.Closed()) != len(closed) {
				t.Errorf("%d connections were closed, and %d counted", len(closed), b.Closed())
			}
		}
	})
}

// Connections that are being closed hold a part of the budget at most, or one of them all that it
// had.
func TestConnectionsAreClosedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget("test", 1000, time.Second)
		holds := make([]Hold, 3)
		for i, n := range []int64{500, 250, 125} {
			holds[i] = b.Hold(i, ended(func() {}))
			assert.Must(t, holds[i].Resize(n, true))
		}
		time.Sleep(time.Second)
		late, later := b.Hold("late", nil), b.Hold("later", nil)
		if err := late.Resize(300, false); err != nil || b.ending != 500 {
			t.Fatalf("%v, %d bytes end", err, b.ending)
		}
		if err := later.Resize(200, false); !errors.Is(err, tidegate.ErrThrottled) {
			t.Errorf("while one connection ends, another one was closed: %v", err)
		}
		holds[0].Release()
		if err := later.Resize(200, false); err != nil || b.ending != 250 {
			t.Errorf("once it has ended: %v, %d bytes end", err, b.ending)
		}
	})
}

// A connection whose requests do not wait for the client is never closed. A connection that holds
// no more than the asking one is closed only after it has waited for a second.
func TestOnlyConnectionsThatWaitYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget("test", 100, time.Second)
		closed := 0
		busy, equal := b.Hold("busy", ended(func() { t.Error("a busy connection was closed") })), b.Hold("equal", ended(func() { closed++ }))
		assert.Must(t, errors.Join(busy.Resize(50, true), busy.Resize(50, false), equal.Resize(25, true)))
		late := b.Hold("late", nil)
		if err := late.Resize(25, false); !errors.Is(err, tidegate.ErrThrottled) || closed != 0 {
			t.Errorf("at once: %v, %d closed", err, closed)
		}
		time.Sleep(time.Second)
		if err := late.Resize(25, false); err != nil || closed != 1 || b.Held() != 75 {
			t.Errorf("after a second: %v, %d closed, %d held", err, closed, b.Held())
		}
		if err := equal.Resize(0, false); err != nil || equal.Bytes() != 0 || b.Held() != 75 {
			t.Errorf("the closed connection's request has %d bytes, and %d are held: %v", equal.Bytes(), b.Held(), err)
		}
		for _, h := range []*Hold{&busy, &equal, &late} {
			h.Release()
		}
		if b.Held() != 0 || len(b.shares) != 0 {
			t.Errorf("at the end %d bytes are held, by %d connections", b.Held(), len(b.shares))
		}
	})
}

func TestRejectionReportsHeldMemory(t *testing.T) {
	b := NewBudget("request memory", 100, time.Second)
	h, other := b.Hold(1, nil), b.Hold(2, nil)
	assert.Must(t, other.Resize(30, false))
	assert.Must(t, h.Resize(20, false))
	err := h.Resize(60, false)
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok || e.Code != tidegate.CodeTooManyRequests || e.RetryAfter <= 0 || !errors.Is(err, tidegate.ErrThrottled) {
		t.Fatalf("the refusal is %#v", err)
	}
	const want = "530 TOO_MANY_REQUESTS: request memory: 40 more bytes exceed the limit: 50 of 100 are in use, 20 of them by this connection; retry when other requests have ended"
	if e.Message != want || h.Bytes() != 20 || b.Held() != 50 || b.Refused() != 1 {
		t.Errorf("%q, %d bytes of %d, %d refused; want %q", e.Message, h.Bytes(), b.Held(), b.Refused(), want)
	}
}

// With any behaviour of the connections, no more than the limit is held, and nothing at the end.
func TestAccounting(t *testing.T) {
	b := NewBudget("test", 1<<20, 1)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			holds := make([]Hold, 8)
			for j := range holds {
				holds[j] = b.Hold((i+j)%5, ended(func() {}))
			}
			for range 2000 {
				h := &holds[r.IntN(len(holds))]
				if want := r.Int64N(b.Limit()); h.Resize(want, r.IntN(2) == 0) == nil && h.Bytes() != want {
					t.Errorf("a hold has %d bytes, want %d", h.Bytes(), want)
				}
				if held := b.Held(); held < 0 || held > b.Limit() {
					t.Errorf("%d bytes are held of %d", held, b.Limit())
				}
			}
			for j := range holds {
				holds[j].Release()
				holds[j].Release()
			}
		})
	}
	wg.Wait()
	if b.Held() != 0 || len(b.shares) != 0 || b.ending != 0 {
		t.Errorf("at the end %d bytes are held, by %d connections, and %d by some that are being closed", b.Held(), len(b.shares), b.ending)
	}
	if b.Closed() == 0 || b.Refused() == 0 {
		t.Errorf("%d connections were closed and %d requests refused: the test shows nothing", b.Closed(), b.Refused())
	}
}

func TestPace(t *testing.T) {
	for bytes, want := range map[int64]time.Duration{0: 10 * time.Second, 64 << 10: 11 * time.Second, 4 << 20: 74 * time.Second, 1 << 32: 65546 * time.Second} {
		if got := Pace(bytes); got != want {
			t.Errorf("%d bytes may take %v, want %v", bytes, got, want)
		}
	}
}

// Watch closes the connection of a client that takes longer than Pace, once its time is over, and
// counts it. A connection that cannot be closed counts too.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget("memory", 100, 0)
		closed := make(chan struct{}, 2)
		known, unknown := b.Hold(1, ended(func() { closed <- struct{}{} })), b.Hold(2, nil)
		const size = 1 << 20
		known.Watch(size)
		unknown.Watch(size)
		known.Watch(size).Stop()
		time.Sleep(Pace(size) - 1)
		synctest.Wait()
		if n := b.Slow(); n != 0 || len(closed) != 0 {
			t.Errorf("before the time is over %d are slow, %d closed", n, len(closed))
		}
		time.Sleep(1)
		synctest.Wait()
		if n := b.Slow(); n != 2 || len(closed) != 1 {
			t.Errorf("%d are slow, %d closed; want 2 and 1", n, len(closed))
		}
	})
}
