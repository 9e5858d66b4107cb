package pulsar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

const opSend = "SendMessage"

// Send makes one attempt to send messages. All are in flight at the same time, except the messages
// of one message group: each waits for the response to the one before.
func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	if !transport.AwaitsConnection(ctx) {
		var cancel context.CancelFunc
		ctx, cancel = c.attempt(ctx)
		defer cancel()
	}
	todo := make([]int, len(msgs))
	for i := range todo {
		todo[i] = i
	}
	failed := map[string]*tidegate.Error{} // transient failures by message group
	for len(todo) > 0 {
		todo = c.round(ctx, msgs, todo, results, failed)
	}
	return results
}

// round sends the messages without a group and the first of each group. It returns the others.
func (c *Client) round(ctx context.Context, msgs []*tidegate.Message, todo []int, results []transport.SendResult, failed map[string]*tidegate.Error) (later []int) {
	type sent struct {
		i    int
		size int64
		pending
	}
	var flight []sent
	var groups map[string]bool
	for _, i := range todo {
		m := msgs[i]
		if g := m.MessageGroup; g != "" {
			if groups[g] {
				later = append(later, i)
				continue
			}
			if groups == nil {
				groups = map[string]bool{}
			}
			groups[g] = true
			if earlier := failed[g]; earlier != nil {
				results[i].Err = c.named(&tidegate.Error{
					Code: tidegate.CodeInternalServerError, Err: earlier, NotConnected: earlier.NotConnected,
					Message: "not sent, because an earlier message of its message group failed",
				}, opSend, m.Topic)
				continue
			}
		}
		err := c.usable(ctx)
		if err == nil {
			err = c.check(m)
		}
		if err != nil {
			results[i].Err = c.failure(m, err, failed)
			continue
		}
		size := min(int64(len(m.Body))+overhead, maxInFlight)
		if !c.memory.TryAcquire(size) {
			// The memory of the messages of this call is free when they are sent.
			if len(flight) > 0 {
				later = append(later, i)
				continue
			}
			if c.memory.Acquire(ctx, size) != nil {
				results[i].Err = c.failure(m, &tidegate.Error{Err: context.Cause(ctx), Message: "the message was not sent"}, failed)
				continue
			}
		}
		p, err := c.begin(ctx, c.place(m.Topic).topic, toPulsar(m, c.host, time.Now()))
		if err != nil {
			c.memory.Release(size)
			results[i].Err = c.failure(m, err, failed)
			continue
		}
		flight = append(flight, sent{i, size, p})
	}
	ctx, cancel := c.attempt(ctx) // also after a wait for a connection
	defer cancel()
	for _, s := range flight {
		m := msgs[s.i]
		err := s.wait(ctx, c.faults)
		c.memory.Release(s.size)
		if err != nil {
			results[s.i].Err = c.failure(m, err, failed)
			continue
		}
		results[s.i].Receipt = tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Queue: -1, Offset: -1, Endpoint: c.endpoint}
	}
	return later
}

// attempt returns a ctx for one attempt, which ends after RequestTimeout unless ctx has a deadline.
func (c *Client) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return c.bounded(ctx)
}

// failure returns the error of a message and records it for the message group.
func (c *Client) failure(m *tidegate.Message, e *tidegate.Error, failed map[string]*tidegate.Error) error {
	if c.ctx.Err() != nil {
		e.Err, e.NotConnected, e.Code = tidegate.ErrClosed, false, 0
	}
	if m.MessageGroup != "" && tidegate.Classify(e) != tidegate.ClassPermanent {
		failed[m.MessageGroup] = e
	}
	return c.named(e, opSend, m.Topic)
}

// check rejects a message that Pulsar would accept although no server may, or without a part of it.
func (c *Client) check(m *tidegate.Message) *tidegate.Error {
	if e, ok := errors.AsType[*tidegate.Error](m.Validate(c.options.MaxBodySize)); ok {
		own := *e
		return &own
	}
	fault := func(code tidegate.Code, format string, args ...any) *tidegate.Error {
		return &tidegate.Error{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case m.Priority > 0:
		return fault(tidegate.CodeNotImplemented, "the priority is %d, and Pulsar has no priorities; leave it 0", m.Priority)
	case m.LiteTopic != "":
		return fault(tidegate.CodeNotImplemented, "the lite topic is %q, and Pulsar has no lite topics; leave it empty, or send to a topic of its own", m.LiteTopic)
	case c.place(m.Topic).pattern:
		return fault(codeIllegalTopic, "the dead letters of a group have a topic for each of its topics; send to one of them, by the name TOPIC-GROUP-DLQ")
	}
	for name := range m.Properties {
		if strings.HasPrefix(name, reserved) {
			return fault(codeIllegalPropertyKey, "the property %q has a meaning for this transport; give it another name", name)
		}
	}
	return nil
}

// Lane returns the cluster, which is the same for all topics.
func (c *Client) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	if err := c.usable(ctx); err != nil {
		return transport.Lane{}, c.named(err, opSend, r.Topic)
	}
	return transport.Lane{Endpoint: c.endpoint, MaxMessages: laneMessages}, nil
}

// laneMessages is the number of messages of a SendLane. Each message is a command of its own, and
// has a response of its own: in a request of several messages all would wait for the last response.
const laneMessages = 1

// SendLane sends messages as Send does.
func (c *Client) SendLane(ctx context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return c.Send(ctx, msgs)
}
