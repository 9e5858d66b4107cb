package consumer

import "github.com/tidegate/tidegate/ratelimit"

// permits are how many messages a loop may receive, which the limiter has permitted. They outlive
// receives that bring fewer.
type permits struct {
	run   *run
	topic *topic
	left  int
}

// await waits until at least one message is permitted, and returns how many may be received now, at
// most most. With more, it takes as many as the limiter permits without a wait. It returns false if
// the run ends first. A helper does not wait if the limiter can report that it would have to:
// otherwise the helpers of one topic would stand before the other topics in the limiter's queue.
func (p *permits) await(most int, more, helper bool) (n int, ok bool) {
	l := p.run.opts.Limiter
	if l == nil {
		return most, true
	}
	a, allows := l.(interface{ Allow() bool })
	if helper && allows && p.left == 0 {
		if !a.Allow() {
			return 0, false
		}
		p.left = 1
	}
	for failures := 0; p.left == 0; {
		err := ratelimit.Wait(p.run.running, l, 1)
		switch {
		case err == nil:
			p.left = 1
		case p.run.running.Err() != nil:
			return 0, false
		default: // the limiter's own fault: without its permission nothing is received
			wait, end := p.run.receiveFailed(p.topic, "the limiter refuses to let messages be received", err, failures)
			failures++
			if end || p.run.pause(wait) != nil {
				return 0, false
			}
		}
	}
	if allows && more {
		for p.left < most && a.Allow() {
			p.left++
		}
	}
	return min(p.left, most), true
}

// spend counts n received messages.
func (p *permits) spend(n int) { p.left = max(p.left-n, 0) }
