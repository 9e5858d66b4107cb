package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/transport"
)

// An inProcessTransport calls the engine of a site directly. The faults of the site apply to it
// like to gRPC requests.
type inProcessTransport struct{ s *site }

// inProcessTimeout bounds a call whose response a fault suppresses. It is that of gRPC clients.
const inProcessTimeout = 3 * time.Second

// call makes one request. Like over a network, a request whose broker stops has no response.
func (p *inProcessTransport) call(ctx context.Context, op string, do func(context.Context, *broker.Broker) error) error {
	if p.s.engine.Load() == nil || p.s.cuts.Load() > 0 {
		return &tidegate.Error{Op: op, Message: "connection refused, by the simulation", Err: tidegate.ErrUnavailable}
	}
	reached := false
	err := p.s.around(ctx, op, func(ctx context.Context) error {
		engine := p.s.engine.Load()
		if engine == nil {
			return errLost
		}
		reached = true
		return do(ctx, engine)
	})
	switch {
	case ctx.Err() != nil && err != nil:
		return &tidegate.Error{Op: op, Message: "the call was cancelled", Err: context.Cause(ctx), MaybeStored: reached}
	case errors.Is(err, server.ErrNoAnswer):
		wait(ctx, inProcessTimeout)
		if ctx.Err() != nil {
			return &tidegate.Error{Op: op, Err: context.Cause(ctx), MaybeStored: reached}
		}
		err = errLost
	case errors.Is(err, tidegate.ErrClosed): // the engine's end is that of a connection
		err = errLost
	case p.s.cuts.Load() > 0:
		err = errLost
	}
	if errors.Is(err, errLost) {
		return &tidegate.Error{Op: op, Message: err.Error(), Err: tidegate.ErrUnavailable, MaybeStored: reached}
	}
	return err
}

func (p *inProcessTransport) Close() error { return nil }

func (p *inProcessTransport) Ping(ctx context.Context, topics ...string) error {
	return p.call(ctx, "QueryRoute", func(context.Context, *broker.Broker) error { return nil })
}

func (p *inProcessTransport) Send(ctx context.Context, msgs []*tidegate.Message) (results []transport.SendResult) {
	err := p.call(ctx, "SendMessage", func(ctx context.Context, b *broker.Broker) error {
		results = b.Send(ctx, msgs)
		for _, r := range results {
			if errors.Is(r.Err, tidegate.ErrClosed) || ctx.Err() != nil && r.Err != nil {
				return r.Err
			}
		}
		return nil
	})
	if err != nil {
		results = make([]transport.SendResult, len(msgs))
		for i := range results {
			results[i].Err = err
		}
	}
	return results
}

func (p *inProcessTransport) Receive(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, err error) {
	err = p.call(ctx, "ReceiveMessage", func(ctx context.Context, b *broker.Broker) (err error) {
		ds, err = b.Receive(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ds, nil
}

func (p *inProcessTransport) Ack(ctx context.Context, ds []*tidegate.Delivery) (errs []error) {
	err := p.call(ctx, "AckMessage", func(ctx context.Context, b *broker.Broker) error {
		errs = b.Ack(ctx, ds)
		for _, err := range errs {
			if errors.Is(err, tidegate.ErrClosed) || ctx.Err() != nil && err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		errs = make([]error, len(ds))
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

func (p *inProcessTransport) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (r transport.RetryResult, err error) {
	op := "ChangeInvisibleDuration"
	switch v.Kind {
	case transport.DeadLetter:
		op = "ForwardMessageToDeadLetterQueue"
	case transport.RetryTopic, transport.NegativeAck:
		op = "SendMessage"
	}
	err = p.call(ctx, op, func(ctx context.Context, b *broker.Broker) (err error) {
		r, err = b.Settle(ctx, d, v)
		return err
	})
	return r, err
}

func (p *inProcessTransport) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (handle string, err error) {
	err = p.call(ctx, "ChangeInvisibleDuration", func(ctx context.Context, b *broker.Broker) (err error) {
		handle, err = b.Extend(ctx, d, dur, repeat)
		return err
	})
	return handle, err
}

func (p *inProcessTransport) Recall(ctx context.Context, topic, handle string) (id string, err error) {
	err = p.call(ctx, "RecallMessage", func(ctx context.Context, b *broker.Broker) (err error) {
		id, err = b.Recall(ctx, topic, handle)
		return err
	})
	return id, err
}

func (p *inProcessTransport) ProducerSettings(ctx context.Context, topic string) (s transport.ProducerSettings, err error) {
	err = p.call(ctx, "QueryRoute", func(ctx context.Context, b *broker.Broker) (err error) {
		s, err = b.ProducerSettings(ctx, topic)
		return err
	})
	return s, err
}

func (p *inProcessTransport) ConsumerSettings(ctx context.Context, group, topic string) (s transport.ConsumerSettings, err error) {
	err = p.call(ctx, "QueryRoute", func(ctx context.Context, b *broker.Broker) (err error) {
		s, err = b.ConsumerSettings(ctx, group, topic)
		return err
	})
	return s, err
}

func (p *inProcessTransport) Queues(ctx context.Context, group, topic string) (queues []int, err error) {
	err = p.call(ctx, "QueryAssignment", func(ctx context.Context, b *broker.Broker) (err error) {
		queues, err = b.Queues(ctx, group, topic)
		return err
	})
	return queues, err
}

func (p *inProcessTransport) Capabilities(endpoint string) transport.Capabilities {
	if b := p.s.engine.Load(); b != nil {
		return b.Capabilities(endpoint)
	}
	return transport.Capabilities{}
}

// promisesOfSessions are checked when all clients are closed.
var promisesOfSessions = []promise{
	{"no session is left within a bounded time after the end of the clients", sessionsEnd},
}

// sessionLimit is longer than a broker remembers the requests of a client.
const sessionLimit = 5 * time.Minute

// sessionsEnd waits until no broker has a session.
func sessionsEnd(w *world, broken func(string, ...any)) {
	for _, s := range w.sites {
		for began := w.now(); ; wait(w.t.Context(), 10*time.Second) {
			n, err := s.sessions()
			if err != nil {
				broken("broker %d: %v", s.number, err)
				break
			}
			if n == 0 {
				break
			}
			if w.now()-began > sessionLimit {
				broken("broker %d has %d sessions", s.number, n)
				break
			}
		}
	}
}

// sessions returns the sessions of a broker, as its metrics report them.
func (s *site) sessions() (n int, err error) {
	c := http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return s.DialHTTP(ctx, address)
	}}}
	defer c.CloseIdleConnections()
	response, err := c.Get(s.HTTPAddress() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	_, value, found := strings.Cut(string(text), "\ntidegate_sessions ")
	if !found {
		return 0, fmt.Errorf("the metrics have no sessions: %s", response.Status)
	}
	_, err = fmt.Sscan(value, &n)
	return n, err
}
