package consumer

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tidegate/tidegate/transport"
)

const (
	// manyTopics is the number of topics above which a consumer leaves watches. With fewer, waiting
	// receives need one request for each message, and a watch needs a report too. A waiting receive
	// reserves messages of PushOptions.MaxBuffered, so many of them leave each other little.
	manyTopics = 16

	// rewatch is the mean time after which a queue with a watch is received from again. The server
	// reports each message, so this only bounds the effect of a fault.
	rewatch = 5 * time.Minute

	// maxEmpty is the number of receives in turn that may find no message after a report, before the
	// consumer keeps minPoll between them.
	maxEmpty = 4
)

// watcher returns the transport if the first receives of queues leave watches, and nil otherwise.
func (r *run) watcher(caps transport.Capabilities) transport.Watcher {
	if !caps.Watch || len(r.topics) <= manyTopics {
		return nil
	}
	w, _ := r.transport.(transport.Watcher)
	return w
}

// awaitReady waits until a watch reports a message, or the receives of the queue are interrupted.
func (r *run) awaitReady(ctx context.Context, p *poll, ready <-chan struct{}) {
	if !r.hand.beginWatch(p) {
		return
	}
	defer r.hand.endWatch(p)
	again := time.NewTimer(rewatch/2 + rand.N(rewatch))
	defer again.Stop()
	select {
	case <-ready:
	case <-again.C:
	case <-ctx.Done():
	}
}
