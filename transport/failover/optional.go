package failover

import (
	"context"
	"errors"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// ProducerSettings returns the settings of the active endpoint, in one attempt. The errors are
// those of its transport.
func (t *Transport) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	e := t.now()
	s, err := e.Transport.ProducerSettings(ctx, topic)
	return s, e.wrap(err)
}

// ConsumerSettings returns the settings of the active endpoint. If that fails with a transient
// error, it returns the settings of the first other endpoint that responds. It queries the
// endpoints one after the other until ctx ends. The error is that of the active endpoint.
func (t *Transport) ConsumerSettings(ctx context.Context, group, topic string) (s transport.ConsumerSettings, err error) {
	active := t.now()
	if s, err = active.Transport.ConsumerSettings(ctx, group, topic); err == nil || !reactionTo(err).askOthers {
		return s, active.wrap(err)
	}
	for _, e := range t.ends {
		if e != active && ctx.Err() == nil {
			if s, err := e.Transport.ConsumerSettings(ctx, group, topic); err == nil {
				return s, nil
			}
		}
	}
	return s, active.wrap(err)
}

// EndpointSettings returns the settings of the endpoint that delivered a message, as the last
// Queues of the group and topic read them. ok is false if endpoint is at none of the endpoints, or
// its settings are unknown. It does not block.
func (t *Transport) EndpointSettings(endpoint, group, topic string) (s transport.ConsumerSettings, ok bool) {
	e, server := t.inner(endpoint)
	if e == nil {
		return s, false
	}
	if c, several := e.Transport.(transport.EndpointConfigurer); several {
		if s, ok = c.EndpointSettings(server, group, topic); ok {
			return s, true
		}
	}
	last, ok := e.known.Load(groupTopic{group, topic})
	if !ok {
		return s, false
	}
	return last.(known).settings, true
}

// Capabilities returns the capabilities of one server, named as in Delivery.Endpoint. Without an
// endpoint it returns those that all endpoints have, and for an unknown one none. It does not
// block.
func (t *Transport) Capabilities(endpoint string) transport.Capabilities {
	if endpoint != "" {
		e, server := t.inner(endpoint)
		if e == nil {
			return transport.Capabilities{}
		}
		return e.Transport.Capabilities(server)
	}
	all := t.ends[0].Transport.Capabilities("")
	for _, e := range t.ends[1:] {
		c := e.Transport.Capabilities("")
		all.Batch = all.Batch && c.Batch
		all.PushBack = all.PushBack && c.PushBack
		all.Suspend = all.Suspend && c.Suspend
		all.IdempotentDeadLetter = all.IdempotentDeadLetter && c.IdempotentDeadLetter
		all.RetryResult = all.RetryResult && c.RetryResult
		all.Verdicts &= c.Verdicts
		all.RepeatReceive = all.RepeatReceive && c.RepeatReceive
		all.RepeatChange = all.RepeatChange && c.RepeatChange
		all.Watch = all.Watch && c.Watch
	}
	return all
}

// Ping succeeds if one of the endpoints responds and knows the topics. It queries all endpoints at
// the same time. It returns when the first one has succeeded, all have failed, or ctx ends. The
// error is that of the first endpoint.
func (t *Transport) Ping(ctx context.Context, topics ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(t.ends))
	t.each(func(e *end) {
		if errs[e.index] = e.wrap(e.ping.Ping(ctx, topics...)); errs[e.index] == nil {
			cancel() // one success is enough
		}
	})
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errs[0]
}

// Recall recalls a message at the endpoint that it was sent to, in one attempt. The error has
// CodeBadRequest if the handle names none of the endpoints, CodeNotImplemented if the endpoint's
// transport cannot recall; the others are those of its transport.
func (t *Transport) Recall(ctx context.Context, topic, handle string) (string, error) {
	e, inner := t.inner(handle)
	if e == nil {
		return "", &tidegate.Error{Op: "RecallMessage", Subject: topic, Code: tidegate.CodeBadRequest,
			Message: "the recall handle belongs to none of the endpoints; give Receipt.RecallHandle of a message with a delivery time"}
	}
	r, ok := e.Transport.(transport.Recaller)
	if !ok {
		return "", e.missing("RecallMessage", topic)
	}
	id, err := r.Recall(ctx, topic, inner)
	return id, e.wrap(err)
}

// SendHalf stores a half message at the active endpoint, in one attempt, whose result counts for
// switching. Like Send it ends if it waits for a connection when sends leave a failing endpoint.
// The error has CodeNotImplemented if the endpoint's transport has no transactions; the others are
// those of its transport.
func (t *Transport) SendHalf(ctx context.Context, msg *tidegate.Message) transport.SendResult {
	e := t.now()
	x, ok := e.Transport.(transport.Transactor)
	if !ok {
		return transport.SendResult{Err: e.missing("SendMessage", msg.Topic)}
	}
	ctx, end := t.sending(ctx, e)
	defer end()
	report := t.track(ctx, e)
	list := []transport.SendResult{x.SendHalf(ctx, msg)}
	report(list)
	return e.results(list)[0]
}

// EndTransaction ends a transaction at the endpoint that stored the half message, also if another
// one is active, in one attempt. The error has CodeIllegalAccessPoint if tx.Endpoint is at none of
// the endpoints, CodeNotImplemented if the endpoint's transport has no transactions; the others are
// those of its transport.
func (t *Transport) EndTransaction(ctx context.Context, tx transport.Transaction, r transport.Resolution) error {
	e, server := t.inner(tx.Endpoint)
	if e == nil {
		return &tidegate.Error{Op: "EndTransaction", Subject: tx.Topic, Endpoint: tx.Endpoint, Code: tidegate.CodeIllegalAccessPoint,
			Message: "none of the endpoints has the half message; give its Receipt.Endpoint"}
	}
	x, ok := e.Transport.(transport.Transactor)
	if !ok {
		return e.missing("EndTransaction", tx.Topic)
	}
	tx.Endpoint = server
	return e.wrap(x.EndTransaction(ctx, tx, r))
}

// ServeChecks serves the checks of all endpoints that have transactions, until ctx ends. A
// transient error of one endpoint ends the others and is returned, so that the caller can repeat
// the call for all. A permanent error of one endpoint is logged, and the others continue;
// ServeChecks returns the joined errors once all endpoints have failed permanently. It returns once
// all calls of check have returned.
func (t *Transport) ServeChecks(ctx context.Context, topics []string, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	return t.serve(ctx, "transaction checks", "", func(ctx context.Context, e *end) (served bool, err error) {
		x, ok := e.Transport.(transport.Transactor)
		if !ok {
			return false, nil
		}
		return true, e.wrap(x.ServeChecks(ctx, topics, func(ctx context.Context, q transport.TransactionCheck) transport.Resolution {
			q.Transaction.Endpoint = e.outer(q.Transaction.Endpoint)
			return check(ctx, q)
		}))
	})
}

// serve calls one for all endpoints at the same time, until ctx ends. The call for an endpoint
// reports false if its transport does not support it.
func (t *Transport) serve(ctx context.Context, what, subject string, one func(ctx context.Context, e *end) (served bool, err error)) error {
	all, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs, served := make([]error, len(t.ends)), make([]bool, len(t.ends))
	t.each(func(e *end) {
		ok, err := one(all, e)
		switch served[e.index], errs[e.index] = ok, err; {
		case err == nil || all.Err() != nil:
		case reactionTo(err).endsAlone:
			t.opts.Logger.Error("failover: the "+what+" of an endpoint ended; those of the others continue", "endpoint", e.Name, "error", err)
		default:
			cancel(err) // the others must not continue as if all endpoints were served
		}
	})
	switch cause := context.Cause(all); {
	case ctx.Err() != nil:
		return nil
	case cause != nil:
		return cause
	case !slices.Contains(served, true):
		return t.ends[0].missing("Telemetry", subject)
	}
	return errors.Join(errs...)
}
