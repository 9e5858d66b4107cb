package failover

import (
	"context"
	"errors"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// The outer name of a server is the endpoint's name followed by the name in the endpoint's
// transport.

func (e *end) outer(server string) string { return e.Name + "/" + server }

// inner returns the endpoint of an outer name and the inner name, or nil for an unknown name.
func (t *Transport) inner(outer string) (*end, string) {
	name, server, ok := strings.Cut(outer, "/")
	for _, e := range t.ends {
		if ok && e.Name == name {
			return e, server
		}
	}
	return nil, ""
}

// wrap returns err with the outer name of its server.
func (e *end) wrap(err error) error {
	inner, ok := err.(*tidegate.Error) //nolint:errorlint // an error that wraps it names its own server
	if !ok || inner == nil || inner.Endpoint == "" {
		return err
	}
	outer := *inner
	outer.Endpoint = e.outer(inner.Endpoint)
	return &outer
}

// results sets the outer names of the servers in the results.
func (e *end) results(list []transport.SendResult) []transport.SendResult {
	for i := range list {
		r := &list[i]
		if r.Err != nil {
			r.Err = e.wrap(r.Err)
			continue
		}
		r.Receipt.Endpoint = e.outer(r.Receipt.Endpoint)
		if r.Receipt.RecallHandle != "" {
			r.Receipt.RecallHandle = e.outer(r.Receipt.RecallHandle)
		}
	}
	return list
}

// Send sends to the active endpoint, in one attempt. Its results count for switching. A send that
// waits for a connection (transport.AwaitConnection) ends when sends switch to another endpoint;
// its error then matches tidegate.ErrUnavailable. The other errors are those of the endpoint's
// transport.
func (t *Transport) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	if len(msgs) == 0 {
		return nil
	}
	e := t.now()
	ctx, end := t.sending(ctx, e)
	defer end()
	report := t.track(ctx, e)
	list := e.Transport.Send(ctx, msgs)
	report(list)
	return e.results(list)
}

// Lane returns a lane of the active endpoint. If its transport has no lanes, the lane is the
// endpoint, for one message. Lane blocks and fails like the endpoint's transport.
func (t *Transport) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	e := t.now()
	s, ok := e.Transport.(transport.LaneSender)
	if !ok {
		return transport.Lane{Endpoint: e.outer(""), MaxMessages: 1}, nil
	}
	var avoid []string
	for _, outer := range r.Avoid {
		if at, server := t.inner(outer); at == e {
			avoid = append(avoid, server)
		}
	}
	r.Avoid = avoid
	ctx, end := t.sending(ctx, e)
	defer end()
	lane, err := s.Lane(ctx, r)
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), tidegate.ErrUnavailable) {
			t.track(ctx, e)([]transport.SendResult{{Err: err}}) // the send ends here
		}
		return lane, e.wrap(err)
	}
	lane.Endpoint = e.outer(lane.Endpoint)
	return lane, nil
}

// SendLane sends to the lane's endpoint like Send, if that endpoint is still active. Otherwise it
// sends nothing, and the results match transport.ErrLaneChanged.
func (t *Transport) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	e, server := t.inner(lane.Endpoint)
	if e == nil || e != t.now() {
		list := make([]transport.SendResult, len(msgs))
		for i := range list {
			list[i].Err = &tidegate.Error{Op: "SendMessage", Subject: msgs[i].Topic, Endpoint: lane.Endpoint, Err: transport.ErrLaneChanged}
		}
		return list
	}
	s, ok := e.Transport.(transport.LaneSender)
	if !ok {
		return t.Send(ctx, msgs)
	}
	lane.Endpoint = server
	ctx, end := t.sending(ctx, e)
	defer end()
	report := t.track(ctx, e)
	list := s.SendLane(ctx, lane, msgs)
	report(list)
	return e.results(list)
}
