package amqp

import (
	"context"
	"errors"
	"reflect"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/amqp/internal/convert"
	"github.com/tidegate/tidegate/transport/held"
)

const opReceive = "ReceiveMessage"

// A system opens the links of a client's receives.
type system struct{ c *Client }

// Open attaches a receiver to the queue of a group, after a check that its dead letters have a
// queue.
func (s system) Open(ctx context.Context, f *held.Feed) (held.Link, error) {
	c := s.c
	if err := errors.Join(tidegate.ValidateGroup(f.Group), tidegate.ValidateTopic(f.Topic)); err != nil {
		return nil, err
	}
	if f.Filter.SQL {
		return nil, c.named(&tidegate.Error{Code: tidegate.CodeNotImplemented,
			Message: "an Artemis queue keeps the messages that a SQL filter does not select; filter by tags"}, opReceive, f.Topic)
	}
	live, fail := c.supervisor.Get(ctx, false)
	if fail != nil {
		return nil, c.named(fail, opReceive, f.Topic)
	}
	if !c.place(f.Topic).anycast {
		if err := c.probe(ctx, live, f.Group); err != nil {
			return nil, err
		}
	}
	session, err := live.NewSession(ctx, nil)
	if err != nil {
		return nil, c.named(c.ofLink(live, err), opReceive, f.Topic)
	}
	l := &link{client: c, live: live, feed: f, session: session, jobs: make(chan *job, 64), closed: make(chan struct{})}
	if err := guarded("Options.Queue", func() { l.from = c.queue(f.Topic, f.Group) }); err != nil {
		go l.end()
		return nil, c.named(&tidegate.Error{Err: err}, opReceive, f.Topic)
	}
	l.receiver, err = session.NewReceiver(ctx, l.from.address, &amqp.ReceiverOptions{
		Credit: -1, SourceCapabilities: []string{l.from.capability()}, SettlementMode: amqp.ReceiverSettleModeFirst.Ptr(),
	})
	if err != nil {
		go l.end()
		return nil, c.named(c.ofLink(live, err), opReceive, f.Topic)
	}
	if deliveryIDs {
		l.acceptor = live.Acceptor(l.receiver.LinkName())
	}
	l.life, l.stop = context.WithCancel(context.WithoutCancel(ctx)) // ended by Close and by the loss of the link
	go l.receive()
	for range settlers {
		go l.settle()
	}
	return l, nil
}

// ofLink returns the error of a link, with NotConnected if the connection is lost.
func (c *Client) ofLink(live *connection, err error) *tidegate.Error {
	e := convert.OfLink(err)
	if live.Ended() && tidegate.Classify(e) == tidegate.ClassTransient {
		e.Code, e.NotConnected = 0, true
		if e.Err == nil {
			e.Err = tidegate.ErrUnavailable
		}
	}
	return e
}

// A probe is a receiver without credit at the queue of dead letters. While it is attached, Artemis
// does not delete the queue, and a copy that is sent to its address is not dropped.
type probe struct {
	done chan struct{} // closed after the attempt to attach it
	err  error
}

// probe checks that the dead letters of a group have a queue, or creates it.
func (c *Client) probe(ctx context.Context, live *connection, group string) error {
	type key struct{ group string }
	p := live.Value(key{group}, func() any {
		p := &probe{done: make(chan struct{})}
		go func() {
			defer close(p.done)
			p.err = c.attachProbe(live, c.deadLetters(group))
		}()
		return p
	}).(*probe)
	select {
	case <-p.done:
	case <-ctx.Done():
		return c.named(&tidegate.Error{Err: context.Cause(ctx)}, opReceive, group)
	}
	if p.err == nil {
		return nil
	}
	live.Remove(key{group}, p)
	e := c.ofLink(live, p.err)
	if e.Code == tidegate.CodeTopicNotFound {
		e.Code = tidegate.CodeNotFound
		e.Message = "the dead letters of the group have no queue: create the anycast queue " + c.deadLetters(group).address +
			", or permit its creation by the address settings; " + e.Message
	}
	return c.named(e, opReceive, group)
}

func (c *Client) attachProbe(live *connection, at place) error {
	type probes struct{}
	ctx, cancel := live.Attaching()
	defer cancel()
	session, err := live.Session(ctx, probes{})
	if err != nil {
		return err
	}
	_, err = session.NewReceiver(ctx, at.address, &amqp.ReceiverOptions{Credit: -1, SourceCapabilities: []string{at.capability()}})
	if _, ended := errors.AsType[*amqp.SessionError](err); ended || ctx.Err() != nil {
		live.Forget(probes{}, session)
	}
	return err
}

// A link is the receiver of one group and topic.
type link struct {
	client   *Client
	live     *connection
	feed     *held.Feed
	from     place // the queue
	session  *amqp.Session
	receiver *amqp.Receiver
	acceptor *acceptor // nil: go-amqp accepts the messages
	jobs     chan *job
	life     context.Context //nolint:containedctx // of the link's goroutines
	stop     context.CancelFunc
	closed   chan struct{} // closed by Close before the session ends
}

// A native is a message of a link.
type native struct {
	*amqp.Message
	delivery sessionDelivery // for link.acceptor
}

// idField is the number of the field of an amqp.Message with the delivery ID. go-amqp does not
// export it; it is the ID that go-amqp writes with an outcome. deliveryIDs reports whether there is
// such a field. Without it go-amqp accepts the messages, with a frame for each.
var idField, deliveryIDs = func() (int, bool) {
	f, ok := reflect.TypeFor[amqp.Message]().FieldByName("deliveryID")
	if !ok || f.Type.Kind() != reflect.Uint32 || len(f.Index) != 1 {
		return 0, false
	}
	return f.Index[0], true
}()

// deliveryID returns the delivery ID of a received message.
func deliveryID(m *amqp.Message) uint32 {
	if !deliveryIDs {
		return 0
	}
	return uint32(reflect.ValueOf(m).Elem().Field(idField).Uint())
}

// Grant issues credit.
func (l *link) Grant(n int) {
	_ = l.receiver.IssueCredit(uint32(n)) // it fails only for a link that drains or without manual credit
}

// receive passes messages to the feed until the link ends.
func (l *link) receive() {
	defer l.stop()
	for {
		m, err := l.receiver.Receive(l.life, nil)
		if err != nil {
			select {
			case <-l.closed:
			default:
				l.feed.Lost(l.client.named(l.client.ofLink(l.live, err), opReceive, l.feed.Topic))
			}
			return
		}
		r := convert.FromAMQP(l.feed.Topic, m)
		one := &struct { // one allocation
			delivery tidegate.Delivery
			native   native
		}{
			tidegate.Delivery{
				Message: r.Message, Attempt: r.Failed + 1, Endpoint: l.client.endpoint, Queue: -1, Offset: -1,
				BornAt: r.BornAt, BornHost: r.BornHost, StoredAt: r.StoredAt,
			},
			native{m, sessionDelivery{ID: deliveryID(m)}},
		}
		l.feed.Deliver(&one.delivery, &one.native)
	}
}

// Close ends the session: the server gets all messages back that are not settled. The Table calls
// it once.
func (l *link) Close() {
	close(l.closed)
	l.end()
	l.stop()
}

func (l *link) end() {
	ctx, cancel := l.live.Closing()
	defer cancel()
	_ = l.session.Close(ctx) // the end of the connection has the same effect
}
