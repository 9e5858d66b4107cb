package amqp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp/internal/convert"
	"github.com/tidegate/tidegate/transport/held"
)

// laneMessages is the number of messages of a SendLane. AMQP has no requests: each message is a
// transfer of its own, and has an outcome of its own as soon as the server has stored it. In a
// request of several messages all would wait for the last outcome.
const laneMessages = 1

// Send makes one attempt to send messages. All are in flight at the same time, except the messages
// of one message group: each waits for the outcome of the one before.
func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	if len(msgs) == 0 {
		return nil
	}
	live, fail := c.live(ctx)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = c.bounded(ctx)
		defer cancel()
	}
	return held.Flight[pending]{
		Closed: c.supervisor.Closed,
		Begin: func(m *tidegate.Message, _ bool) (pending, bool, *tidegate.Error) {
			if fail != nil {
				own := *fail
				return pending{}, false, &own
			}
			if err := c.check(m); err != nil {
				return pending{}, false, err
			}
			x := convert.Extras{BornHost: c.host, BornAt: time.Now()}
			if !c.options.NoDuplicateDetection {
				x.Duplicate = convert.Duplicate(m)
			}
			p, err := c.link(live, c.place(m.Topic)).Send(ctx, convert.ToAMQP(m, x), len(m.Body))
			return p, err == nil, err
		},
		Wait: func(p pending) *tidegate.Error { return p.Wait(ctx) },
	}.Send(c.endpoint, msgs)
}

// check rejects a message that Artemis would accept although no server may, or without a part of it.
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
		return fault(tidegate.CodeNotImplemented, "the priority is %d, and this transport sends all messages with the default priority of Artemis; leave it 0", m.Priority)
	case m.LiteTopic != "":
		return fault(tidegate.CodeNotImplemented, "the lite topic is %q, and Artemis has no lite topics; leave it empty, or send to an address of its own", m.LiteTopic)
	}
	for name := range m.Properties {
		if strings.HasPrefix(name, convert.Reserved) || strings.HasPrefix(name, convert.ReservedArtemis) {
			return fault(convert.CodeIllegalPropertyKey, "the property %q has a meaning for Artemis or for this transport; give it another name", name)
		}
	}
	return nil
}

// A linkCache has the sending links of the newest connection that was used.
type linkCache struct {
	mu    sync.Mutex
	live  *connection
	links map[place]*sendLink
}

// link returns the sending link to a place.
func (c *Client) link(live *connection, to place) *sendLink {
	cache := &c.cache
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if cache.live != live {
		if cache.live != nil && !cache.live.Ended() {
			return newLink(live, to) // a late call: its connection is about to end
		}
		cache.live, cache.links = live, map[place]*sendLink{}
	}
	l := cache.links[to]
	if l == nil {
		l = newLink(live, to)
		cache.links[to] = l
	}
	return l
}

func newLink(live *connection, to place) *sendLink {
	return newSendLink(sendLinkOptions{
		Attach:  func() (linkSender, error) { return attach(live, to) },
		Traffic: live.Traffic,
		Done:    live.Done(),
		Lost:    live.Lost,
	})
}

// senders is the key of the session of all sending links.
type senders struct{}

// attach opens a sending link.
func attach(live *connection, to place) (linkSender, error) {
	ctx, cancel := live.Attaching()
	defer cancel()
	session, err := live.Session(ctx, senders{})
	if err != nil {
		return nil, err
	}
	s, err := session.NewSender(ctx, to.address, &amqp.SenderOptions{
		SettlementMode: amqp.SenderSettleModeUnsettled.Ptr(), TargetCapabilities: []string{to.capability()},
	})
	if err != nil {
		if _, ended := errors.AsType[*amqp.SessionError](err); ended || ctx.Err() != nil {
			live.Forget(senders{}, session)
		}
		return nil, err
	}
	return sender{s, live}, nil
}

// A sender is a link of go-amqp.
type sender struct {
	*amqp.Sender
	live *connection
}

func (s sender) Transfer(ctx context.Context, m *amqp.Message) (receipt, error) {
	r, err := s.SendWithReceipt(ctx, m, nil)
	return &r, err
}

func (s sender) Close() {
	ctx, cancel := s.live.Closing()
	defer cancel()
	_ = s.Sender.Close(ctx) // the link is not used again
}

// Lane returns the server, which is the same for all topics.
func (c *Client) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	if err := c.usable(ctx, "SendMessage", r.Topic); err != nil {
		return transport.Lane{}, err
	}
	return transport.Lane{Endpoint: c.endpoint, MaxMessages: laneMessages}, nil
}

// SendLane sends messages as Send does.
func (c *Client) SendLane(ctx context.Context, _ transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	return c.Send(ctx, msgs)
}

// Ping checks that the server accepts the credentials, and that it has or creates the topics. It
// opens a link to each.
func (c *Client) Ping(ctx context.Context, topics ...string) error {
	ctx = transport.AwaitConnection(ctx)
	if len(topics) == 0 {
		_, fail := c.live(ctx)
		return c.named(fail, "Ping", "")
	}
	for _, topic := range topics {
		if err := c.reach(ctx, "Ping", topic); err != nil {
			return err
		}
	}
	return nil
}

// reach opens and closes a link to a topic.
func (c *Client) reach(ctx context.Context, op, topic string) error {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return err
	}
	live, fail := c.live(ctx)
	if fail != nil {
		return c.named(fail, op, topic)
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { // the link is not opened with the ctx of the caller
		s, err := attach(live, c.place(topic))
		if err == nil {
			s.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return c.named(c.ofLink(live, err), op, topic)
		}
		return nil
	case <-ctx.Done():
		return c.named(&tidegate.Error{Err: context.Cause(ctx)}, op, topic)
	}
}
