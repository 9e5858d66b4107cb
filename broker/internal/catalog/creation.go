package catalog

import (
	"context"
	"sync"

	"github.com/tidegate/tidegate/broker/internal/subscription"
)

// creations are the subscriptions that are being created. A creation runs to its end, so without
// them each repetition of a cancelled receive would add one while the disk does not respond. The
// zero value is ready for use.
type creations struct {
	mu      sync.Mutex
	running map[[2]uint32]*creation // guarded by mu: by the numbers of group and topic
}

// A creation is one subscription that is being created.
type creation struct {
	key     [2]uint32
	done    chan struct{} // closed by end
	created *subscription.Subscription
	err     error // valid once done is closed, as is created
}

// begin returns the creation that runs for a key. If there is none, first is true, and the caller
// runs the new creation and calls end.
func (c *creations) begin(key [2]uint32) (running *creation, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running = c.running[key]; running != nil {
		return running, false
	}
	if c.running == nil {
		c.running = map[[2]uint32]*creation{}
	}
	running = &creation{key: key, done: make(chan struct{})}
	c.running[key] = running
	return running, true
}

// end ends a creation, whose result is set.
func (c *creations) end(running *creation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, running.key)
	close(running.done)
}

// wait returns the result of a creation, or the cause of ctx if ctx ends first.
func (r *creation) wait(ctx context.Context) (*subscription.Subscription, error) {
	select {
	case <-r.done:
		return r.created, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
