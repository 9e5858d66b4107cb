package rocketmq

import (
	"context"
	"errors"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/routing"
)

// parallelSends bounds the concurrent requests of one Send.
const parallelSends = 64

// A part is a list of messages that one Send sends one after the other: those for one server with
// batches, or those of one message group.
type part struct {
	queue   routing.Queue
	indexes []int // of the messages
}

// Send implements transport.Sender. The protocol does not report the queue, so Receipt.Queue is -1.
// Receipt.Offset is the offset in that queue, or -1 before the delivery time of the message.
func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	t, r, err := c.writable(ctx, msgs[0].Topic)
	if err != nil {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	if rest, some := c.refuse(ctx, t, r, msgs, results); some {
		sendRest(rest, msgs, results, func(msgs []*tidegate.Message) []transport.SendResult { return c.Send(ctx, msgs) })
		return results
	}
	if len(msgs) == 1 {
		q, _ := r.Choose(&t.next, msgs[0].MessageGroup, nil)
		c.sendRequest(ctx, t, q, c.sending(t, q, msgs), results, q.Server.Begin())
		return results
	}
	s := &sending{c: c, ctx: ctx, t: t, r: r, msgs: msgs, results: results}
	parts := s.split()
	if len(parts) == 1 {
		s.send(parts[0])
		return results
	}
	slots := make(chan struct{}, parallelSends)
	var wg sync.WaitGroup
	for _, p := range parts {
		slots <- struct{}{} // freed by requests that have a deadline
		wg.Go(func() {
			defer func() { <-slots }()
			s.send(p)
		})
	}
	wg.Wait()
	return results
}

// A sending is one call of Send.
type sending struct {
	c       *Client
	ctx     context.Context //nolint:containedctx // a sending lives as long as one call
	t       *topic
	r       *routing.Route
	msgs    []*tidegate.Message
	results []transport.SendResult
}

// split chooses a queue for each message and groups the messages into parts: one part for each
// server with batches, otherwise one for each message group or single message.
func (s *sending) split() []part {
	var parts []part
	place := map[string]int{}        // road → index of its part
	can := map[*remote.Server]bool{} // whether a server takes batches; constant within a call, although a response may change it
	var shared routing.Queue         // queue of all messages without a group that share a request
	for i, m := range s.msgs {
		q := shared
		if m.MessageGroup != "" || q.Server == nil {
			q, _ = s.r.Choose(&s.t.next, m.MessageGroup, nil)
		}
		batch, asked := can[q.Server]
		if !asked {
			batch = q.Server.Batch()
			can[q.Server] = batch
		}
		if batch && m.MessageGroup == "" {
			shared = q
		}
		road := ""
		switch {
		case batch:
			road = "server " + q.Server.Key
		case m.MessageGroup != "":
			road = "group " + m.MessageGroup
		}
		if at, ok := place[road]; ok && road != "" {
			parts[at].indexes = append(parts[at].indexes, i)
			continue
		}
		place[road] = len(parts)
		parts = append(parts, part{queue: q, indexes: []int{i}})
	}
	return parts
}

// send sends a part, in one or more requests, one after the other.
func (s *sending) send(p part) {
	var failed map[string]error // errors by message group; the later messages of these groups are not sent
	for rest := p.indexes; len(rest) > 0; {
		n := 1
		if p.queue.Server.Batch() {
			n = s.fitting(rest)
		}
		now := rest[:n]
		s.request(p.queue, now)
		if n > 1 && errors.Is(s.results[now[0]].Err, transport.ErrLaneChanged) {
			// Another server may be behind the address now. Nothing was sent; a single message
			// shows which server it is.
			now = rest[:1]
			s.request(p.queue, now)
		}
		rest = rest[len(now):]
		for _, i := range now {
			group := s.msgs[i].MessageGroup
			if group == "" || len(rest) == 0 {
				continue
			}
			if class := tidegate.Classify(s.results[i].Err); class != tidegate.ClassOK && class != tidegate.ClassPermanent {
				// Another attempt can succeed. The later messages of the group must wait for it,
				// because the group would otherwise be stored out of order.
				if failed == nil {
					failed = map[string]error{}
				}
				failed[group] = s.results[i].Err
			}
		}
		if len(failed) > 0 {
			rest = s.hold(rest, failed)
		}
	}
}

// request sends the messages in one request.
func (s *sending) request(q routing.Queue, indexes []int) {
	sendRest(indexes, s.msgs, s.results, func(msgs []*tidegate.Message) []transport.SendResult {
		results := make([]transport.SendResult, len(msgs))
		s.c.sendRequest(s.ctx, s.t, q, s.c.sending(s.t, q, msgs), results, q.Server.Begin())
		return results
	})
}

// fitting returns the number of messages that fit into one request.
func (s *sending) fitting(indexes []int) int {
	size := 0
	for n, i := range indexes {
		if size += s.c.encoder.SizeBound(s.msgs[i]); n == maxBatch || n > 0 && size > maxBatchBytes {
			return n
		}
	}
	return len(indexes)
}

// hold sets the results of messages whose group has failed, and returns the others.
func (s *sending) hold(indexes []int, failed map[string]error) (others []int) {
	for _, i := range indexes {
		if err := failed[s.msgs[i].MessageGroup]; err != nil {
			s.results[i].Err = notSent(err)
		} else {
			others = append(others, i)
		}
	}
	return others
}

// notSent returns the error of messages that were not sent because of err.
func notSent(err error) error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return err
	}
	held := *e
	held.MaybeStored = false
	held.Message = "not sent, because an earlier message of the message group was not stored: " + e.Message
	return &held
}
