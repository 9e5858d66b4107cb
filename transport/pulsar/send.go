package pulsar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

// Send makes one attempt to send messages. All are in flight at the same time, except the messages
// of one message group: each waits for the response to the one before.
func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	if !transport.AwaitsConnection(ctx) {
		var cancel context.CancelFunc
		ctx, cancel = c.attempt(ctx, time.Now())
		defer cancel()
	}
	type sent struct {
		pending
		size int64 // in memory
	}
	return held.Flight[sent]{
		Closed: c.closed,
		Begin: func(m *tidegate.Message, alone bool) (sent, bool, *tidegate.Error) {
			to, err := c.place(m.Topic), c.usable(ctx)
			if err == nil {
				err = c.check(m, to)
			}
			if err != nil {
				return sent{}, false, err
			}
			size := min(int64(len(m.Body))+overhead, maxInFlight)
			if !c.memory.TryAcquire(size) {
				if !alone {
					return sent{}, false, nil // the messages of this call may have the memory
				}
				if c.memory.Acquire(ctx, size) != nil {
					return sent{}, false, &tidegate.Error{Err: context.Cause(ctx), Message: "the message was not sent"}
				}
			}
			p, err := c.begin(ctx, to.topic, toPulsar(m, c.host, time.Now()))
			if err != nil {
				c.memory.Release(size)
				return sent{}, false, err
			}
			return sent{p, size}, true, nil
		},
		Wait: func(s sent) *tidegate.Error {
			ctx, cancel := c.attempt(ctx, s.begun) // it may have no end, because it waited for a connection
			defer cancel()
			defer c.memory.Release(s.size)
			return s.wait(ctx, c.faults)
		},
	}.Send(c.endpoint, msgs)
}

// attempt returns a ctx for an attempt that began at a time. It ends after RequestTimeout unless ctx
// has a deadline.
func (c *Client) attempt(ctx context.Context, begin time.Time) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return c.bounded(ctx, begin)
}

// check rejects a message that Pulsar would accept although no server may, or without a part of it.
func (c *Client) check(m *tidegate.Message, to place) *tidegate.Error {
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
	case to.pattern:
		return fault(codeIllegalTopic, "the dead letters of a group have a topic for each of its topics; send to one of them, by the name TOPIC-GROUP-DLQ")
	}
	for name := range m.Properties {
		if ownProperty(name) {
			return fault(codeIllegalPropertyKey, "the property %q has a meaning for this transport or for Pulsar's clients; give it another name", name)
		}
	}
	return nil
}

// Lane returns the cluster, which is the same for all topics.
func (c *Client) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	if err := c.usable(ctx); err != nil {
		return transport.Lane{}, c.named(err, "SendMessage", r.Topic)
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
