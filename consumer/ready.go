package consumer

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tidegate/tidegate/transport"
)

const (
	// manyTopics is the number of topics above which a consumer leaves watches. With fewer topics
	// it uses waiting receives: they need one request for each message, and a watch also needs a
	// report. But a waiting receive reserves messages of PushOptions.MaxBuffered, so many of them
	// leave each other little.
	manyTopics = 16

	// rewatch is the mean time after which a queue with a watch is received from again. The server
	// reports each message, so this only bounds the effect of a fault. The actual times are between
	// half of it and one and a half times it.
	rewatch = 5 * time.Minute

	// maxEmpty is the number of consecutive receives without a message before the consumer keeps
	// minPoll between them. Other consumers may take each message that the server reports.
	maxEmpty = 4
)

// watcher returns the transport if receives leave watches, and nil otherwise.
func (r *run) watcher(caps transport.Capabilities) transport.Watcher {
	if !caps.Watch || len(r.topics) <= manyTopics {
		return nil
	}
	w, _ := r.transport.(transport.Watcher)
	return w
}

// awaitReady waits until a watch is ready or the receives of the queue are interrupted.
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
