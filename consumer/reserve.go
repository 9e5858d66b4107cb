package consumer

import (
	"slices"

	"github.com/tidegate/tidegate/consumer/internal/credit"
	"github.com/tidegate/tidegate/consumer/internal/gate"
)

// A bid is a receive that waits for credits.
type bid struct {
	source *source
	batch  int
	prompt bool
	grant  credit.Grant  // valid once ended is closed; zero if no further receive may be made
	ended  chan struct{} // closed under hand.mu
}

// reserve waits until a receive of the queue may begin, and returns its grant, or false if no
// further receive may be made. Only the first receive of a queue waits. A prompt receive does not
// wait for messages on the server.
func (h *hand) reserve(s *source, batch int, wait, prompt bool) (g credit.Grant, ok bool) {
	h.mu.Lock()
	b := &bid{source: s, batch: batch, prompt: prompt, ended: make(chan struct{})}
	if !wait {
		defer h.mu.Unlock()
		if g = h.grant(b); !prompt {
			h.offer() // prompt receives no longer wait for each other once one is parked
		}
		return g, g.Messages > 0
	}
	h.bids = append(h.bids, b)
	h.offer()
	h.mu.Unlock()
	<-b.ended
	return b.grant, b.grant.Messages > 0
}

// ask returns the credit request of a receive, or false if no receive may begin.
func (h *hand) ask(b *bid) (credit.Ask, bool) {
	limit, buffered := h.gate.Limit(h.opts.Concurrency), 0
	if h.gate.Open() {
		buffered = max(h.opts.MaxBuffered, 0)
	}
	window := limit + h.stuck
	if h.gate.State() == gate.Probing {
		window += min(h.excuses.Len(), gate.Choice-1)
	}
	h.credits.SetWindow(window, buffered)
	return credit.Ask{
		Batch: b.batch, UnderWay: b.source.underWay, Spare: b.source.topic.inHand == 0 && h.gate.Open(), Prompt: b.prompt,
	}, limit > 0
}

// grant reserves messages for a receive, or none if the receive has to wait.
func (h *hand) grant(b *bid) (g credit.Grant) {
	s := b.source
	if ask, ok := h.ask(b); ok && !h.stopped && !s.removed {
		g = h.credits.Grant(ask)
	}
	if g.Messages > 0 {
		s.underWay++
		h.lastGrant++
		s.topic.lastGrant = h.lastGrant
	}
	return g
}

// offer grants the free credits to the waiting receives. The next one belongs to the topic whose
// last grant is the longest ago, so that a topic with many queues and a large backlog does not
// delay the others.
func (h *hand) offer() {
	h.bids = slices.DeleteFunc(h.bids, func(b *bid) bool {
		over := h.stopped || b.source.removed
		if over {
			close(b.ended)
		}
		return over
	})
	for {
		next := -1
		for i, b := range h.bids {
			ask, ok := h.ask(b)
			if ok && (next < 0 || b.source.topic.lastGrant < h.bids[next].source.topic.lastGrant) && h.credits.May(ask) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		b := h.bids[next]
		b.grant = h.grant(b)
		h.bids = slices.Delete(h.bids, next, next+1)
		close(b.ended)
	}
}

// giveUp ends the reservation of a receive without a response.
func (h *hand) giveUp(s *source, g credit.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credits.Refund(g)
	s.underWay--
	h.offer()
}
