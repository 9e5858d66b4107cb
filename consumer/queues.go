package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate/consumer/internal/decision"
	"github.com/tidegate/tidegate/consumer/internal/policies"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/transport"
)

// refresh is the time between two requests for the server's settings and queues.
const refresh = 10 * time.Second

// watchQueues keeps one receive loop for each queue of the topic until the run ends.
func (r *run) watchQueues(t *topic) {
	sources := map[int]*source{}
	failures := 0
	var outage recovery
	for r.running.Err() == nil {
		wait := refresh
		pause := r.pause
		queues, err := r.refresh(r.running, t)
		switch {
		case r.running.Err() != nil:
			return
		case err == nil:
			failures, outage = 0, recovery{}
			r.setQueues(t, sources, queues)
		case t.settings.Load() == nil:
			// Without the settings the order of the group is unknown.
			var end bool
			if wait, end = r.receiveFailed(t, "reading the group's settings failed", err, failures); end {
				return
			}
			failures++
			pause = func(d time.Duration) error { return outage.await(r.running, r.transport, d, err) }
		default:
			// The earlier settings remain in effect. The receive loops report every other fault.
			r.log.Debug("rereading the group's settings failed",
				"topic", t.name, "group", r.sub.Group, "error", err)
		}
		if pause(wait) != nil {
			return
		}
	}
}

// setQueues starts loops for new queues, and ends those of removed queues.
func (r *run) setQueues(t *topic, sources map[int]*source, queues []int) {
	r.hand.addSources(len(queues) - len(sources))
	for _, q := range queues {
		if sources[q] == nil {
			s := &source{topic: t, queue: q}
			sources[q] = s
			r.receivers.Go(func() { r.receive(s, false) })
		}
	}
	for q, s := range sources {
		if !slices.Contains(queues, q) {
			delete(sources, q)
			for _, cancel := range r.hand.remove(s) {
				cancel()
			}
		}
	}
}

// refresh reads the server's settings for the topic and the queues to receive from.
func (r *run) refresh(ctx context.Context, t *topic) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, refresh)
	defer cancel()
	s, err := r.transport.ConsumerSettings(ctx, r.sub.Group, t.name)
	if err != nil {
		return nil, err
	}
	queues, err := r.transport.Queues(ctx, r.sub.Group, t.name)
	if err != nil {
		return nil, err
	}
	t.settings.Store(&s)
	return queues, nil
}

// settingsOf returns the settings for a topic of the server at endpoint, or of the transport if it
// does not know them for each server.
func (r *run) settingsOf(t *topic, endpoint string) *transport.ConsumerSettings {
	if endpoint == "" { // there was no delivery
		return t.settings.Load()
	}
	if c, ok := r.transport.(transport.EndpointConfigurer); ok {
		if s, ok := c.EndpointSettings(endpoint, r.sub.Group, t.name); ok {
			return &s
		}
	}
	return t.settings.Load()
}

// capsOf returns the capabilities of the server at endpoint.
func (r *run) capsOf(endpoint string) transport.Capabilities {
	return r.transport.Capabilities(endpoint)
}

// ofSource returns the settings and capabilities of the server that delivered last from a queue.
func (r *run) ofSource(s *source) (*transport.ConsumerSettings, transport.Capabilities) {
	endpoint := r.hand.endpointOf(s)
	return r.settingsOf(s.topic, endpoint), r.capsOf(endpoint)
}

// rulesFor returns the rules for a failure of the delivery.
func (r *run) rulesFor(it *item) decision.Rules {
	caps := r.capsOf(it.current.Endpoint)
	rules := it.choice.Rules(policies.Base{Retry: r.sub.Retry, Server: *r.settingsOf(it.source.topic, it.current.Endpoint), Capabilities: caps})
	rules.Schedule = guard.Policy("the retry schedule", rules.Schedule, r.reportPanic)
	return rules
}

func (h *hand) endpointOf(s *source) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.endpoint
}

func (h *hand) addSources(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sources += n
	h.credits.SetSources(max(1, h.sources))
}

// startHelper starts another loop of the queue, unless there are enough or the run stops. It calls
// start under the lock, so that no loop starts after stop.
func (h *hand) startHelper(s *source, start func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped && s.helpers < overlap-1 {
		s.helpers++
		start()
	}
}

func (h *hand) endHelper(s *source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.helpers--
}
