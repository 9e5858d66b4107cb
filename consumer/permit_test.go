package consumer

import (
	"context"
	"errors"
	"testing"
)

// bucket is a limiter that permits a number of events without a wait, and then fails.
type bucket struct {
	free int
	err  error // of a wait; nil permits one event
}

func (b *bucket) Allow() bool { b.free--; return b.free >= 0 }

func (b *bucket) WaitN(ctx context.Context, _ int) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return b.err
}

// waiter is a limiter that can only be waited for.
type waiter struct{ bucket *bucket }

func (w waiter) WaitN(ctx context.Context, n int) error { return w.bucket.WaitN(ctx, n) }

func TestAwait(t *testing.T) {
	fault := errors.New("the limiter is out of order")
	ended, end := context.WithCancel(t.Context())
	end()
	for name, tt := range map[string]struct {
		p            permits
		ctx          context.Context
		more, helper bool
		want         int
		err          error
	}{
		"no limiter":                    {want: 10},
		"one, after a wait":             {p: permits{Limiter: &bucket{free: 5}}, want: 1},
		"as many as there are":          {p: permits{Limiter: &bucket{free: 5}}, more: true, want: 6},
		"no more than asked for":        {p: permits{Limiter: &bucket{free: 50}}, more: true, want: 10},
		"one without Allow":             {p: permits{Limiter: waiter{&bucket{free: 5}}}, more: true, want: 1},
		"those that are left":           {p: permits{Limiter: &bucket{err: fault}, left: 3}, want: 3},
		"a helper does not wait":        {p: permits{Limiter: &bucket{}}, more: true, helper: true},
		"a helper takes a free permit":  {p: permits{Limiter: &bucket{free: 2}}, more: true, helper: true, want: 2},
		"a helper waits without Allow":  {p: permits{Limiter: waiter{&bucket{}}}, helper: true, want: 1},
		"the limiter's fault":           {p: permits{Limiter: &bucket{err: fault}}, err: fault},
		"the end of ctx is not a fault": {p: permits{Limiter: &bucket{}}, ctx: ended},
	} {
		ctx := tt.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		if n, err := tt.p.Await(ctx, 10, tt.more, tt.helper); n != tt.want || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %d, %v; want %d, %v", name, n, err, tt.want, tt.err)
		}
	}
}

func TestSpend(t *testing.T) {
	p := permits{Limiter: &bucket{free: 5}}
	n, _ := p.Await(t.Context(), 4, true, false)
	p.Spend(1)
	if again, _ := p.Await(t.Context(), 10, false, false); n != 4 || again != 3 {
		t.Errorf("%d, and %d after one was spent, want 4 and 3", n, again)
	}
	p.Spend(9) // a server brought more than was asked for
	if again, _ := p.Await(t.Context(), 10, false, false); again != 1 {
		t.Errorf("%d after all were spent, want 1 after a wait", again)
	}
}
