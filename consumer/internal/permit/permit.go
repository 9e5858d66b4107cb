// Package permit counts how many messages a limiter has permitted a loop to receive.
package permit

import (
	"context"

	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/ratelimit"
)

// Permits are those of one loop. They outlive receives that bring fewer messages. The zero value
// permits all.
type Permits struct {
	Limiter ratelimit.Limiter // nil permits all
	Report  guard.Report      // of its panics; may be nil

	left int
}

// Await waits until at least one message is permitted, and returns how many may be received now, at
// most most. With more, it takes as many as the limiter permits without a wait. It returns none if
// ctx ends first, or with an error that is the limiter's own. A helper does not wait if the limiter
// can report that it would have to, and gets none: otherwise the helpers of one topic would stand
// before the other topics in the limiter's queue.
func (p *Permits) Await(ctx context.Context, most int, more, helper bool) (n int, err error) {
	if p.Limiter == nil {
		return most, nil
	}
	a, allows := p.Limiter.(interface{ Allow() bool })
	allow := func() (ok bool) {
		guard.Call("Limiter", p.Report, func() { ok = a.Allow() })
		return ok
	}
	if helper && allows && p.left == 0 {
		if !allow() {
			return 0, nil
		}
		p.left = 1
	}
	if p.left == 0 {
		err := guard.Wait(ctx, "Limiter", p.Report, func() error { return ratelimit.Wait(ctx, p.Limiter, 1) })
		if err != nil {
			if ctx.Err() != nil {
				return 0, nil //nolint:nilerr // the end of ctx is no fault of the limiter
			}
			return 0, err
		}
		p.left = 1
	}
	if allows && more {
		for p.left < most && allow() {
			p.left++
		}
	}
	return min(p.left, most), nil
}

// Spend counts n received messages.
func (p *Permits) Spend(n int) { p.left = max(p.left-n, 0) }
