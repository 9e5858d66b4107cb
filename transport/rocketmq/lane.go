package rocketmq

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/failure"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/routing"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

const (
	opSend   = "SendMessage"
	opRecall = "RecallMessage"

	opQueryRoute = "QueryRoute"

	// maxBatch and maxBatchBytes bound the messages of one request. A tidegate broker accepts as
	// many messages and, by default, twice as many bytes.
	maxBatch      = 1000
	maxBatchBytes = 16 << 20
)

var _ transport.LaneSender = (*Client)(nil)

// Lane implements transport.LaneSender. It returns the server of the message group, or the next
// server in turn that did not fail. It sends a request only for the route of a new topic. A lane
// that probes a failed server is for one message.
func (c *Client) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	t, rt, err := c.writable(ctx, r.Topic)
	if err != nil {
		return transport.Lane{}, err
	}
	q, probe := rt.Choose(&t.next, r.MessageGroup, r.Avoid)
	lane := transport.Lane{Endpoint: q.Server.Key, MaxMessages: 1, MaxBytes: maxBatchBytes}
	if !probe && q.Server.Batch() {
		lane.MaxMessages = maxBatch
	}
	return lane, nil
}

// SendLane implements transport.LaneSender. The results also match transport.ErrLaneChanged if the
// route no longer leads to the lane's server, or if none of msgs has a message group, the server
// has failed since, and there is another one.
func (c *Client) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	topic := msgs[0].Topic
	t, rt, err := c.writable(ctx, topic)
	if err == nil {
		if rest, some := c.refuse(ctx, t, rt, msgs, results); some {
			sendRest(rest, msgs, results, func(msgs []*tidegate.Message) []transport.SendResult { return c.SendLane(ctx, lane, msgs) })
			return results
		}
	}
	if err == nil && !rt.Leads(lane.Endpoint, msgs) {
		err = laneChanged(topic, lane.Endpoint)
	}
	if err == nil {
		q := rt.At[lane.Endpoint]
		report := q.Server.Begin()
		if report != nil || slices.ContainsFunc(msgs, grouped) || !slices.Contains(rt.Excludes(), q.Server) {
			c.sendRequest(ctx, t, q, c.sending(t, q, msgs), results, report)
			return results
		}
		err = laneChanged(topic, lane.Endpoint)
	}
	for i := range results {
		results[i].Err = err
	}
	return results
}

// writable returns the topic and its route. It fails if the route has no writable queue.
func (c *Client) writable(ctx context.Context, name string) (*topic, *routing.Route, *tidegate.Error) {
	t, rt, err := c.route(ctx, opSend, name)
	if err == nil && len(rt.ByGroup) == 0 {
		c.lose(t)
		err = noQueue(opSend, name, c.access.Key, "written")
	}
	return t, rt, err
}

func laneChanged(topic, endpoint string) *tidegate.Error {
	return &tidegate.Error{Op: opSend, Subject: topic, Endpoint: endpoint, Err: transport.ErrLaneChanged}
}

// sendRest sends the messages at the indexes, and stores the results at the same indexes.
func sendRest(indexes []int, msgs []*tidegate.Message, results []transport.SendResult, send func([]*tidegate.Message) []transport.SendResult) {
	rest := make([]*tidegate.Message, len(indexes))
	for n, i := range indexes {
		rest[n] = msgs[i]
	}
	for n, r := range send(rest) {
		results[indexes[n]] = r
	}
}

func grouped(m *tidegate.Message) bool { return m.MessageGroup != "" }

// sending returns the request that sends msgs to a queue of a topic.
func (c *Client) sending(t *topic, q routing.Queue, msgs []*tidegate.Message) *wire.Sending {
	return &wire.Sending{
		Encoder: &c.encoder, Topic: c.resource(t.name), Queue: q.ID, Messages: msgs,
		Born: time.Now().Round(0), // compared with delivery times, in wall time
	}
}

// sendRequest sends req to the server of q, and fills in results. Several messages are sent only
// over a connection that announced batch. report gets the result for the server's breaker; nil
// means none. It returns the response, or nil if there was none.
func (c *Client) sendRequest(ctx context.Context, t *topic, q routing.Queue, req *wire.Sending, results []transport.SendResult, report func(remote.Verdict)) *rmqpb.SendMessageResponse {
	msgs := req.Messages
	v := remote.Nothing
	if report != nil {
		defer func() { report(v) }() // also after a panic, because a server without a report would never be probed again
	}
	r := request{ep: q.Server, id: c.id, op: opSend, subject: t.name}
	if len(msgs) > 1 {
		r.gate = new(remote.BatchGate)
	}
	begin := time.Now()
	res, trailer, err := c.exchange(ctx, r, req)
	if v = remote.Healthy; !slices.ContainsFunc(res.GetEntries(), stored) {
		top := err
		if top == nil && len(res.GetEntries()) == 0 {
			top = sendError(t.name, q.Server, res, nil, msgs[0].ID, nil, trailer)
		}
		v = remote.VerdictOf(top, context.Cause(ctx), time.Since(begin))
	}
	if err != nil {
		c.doubtIf(t, err)
	}
	if err != nil && res == nil {
		for i := range results {
			results[i].Err = err
		}
		return nil
	}
	for i, m := range msgs {
		entry := entryOf(res, i, len(msgs), m.ID) // may be nil
		if e := sendError(t.name, q.Server, res, entry, m.ID, err, trailer); e != nil {
			results[i].Err = e
			continue
		}
		results[i].Receipt = receipt(m, q.Server.Key, entry, req.Born)
	}
	return res
}

func stored(e *rmqpb.SendResultEntry) bool { return e.GetStatus().GetCode() == rmqpb.Code_OK }

func receipt(m *tidegate.Message, endpoint string, entry *rmqpb.SendResultEntry, born time.Time) tidegate.Receipt {
	r := tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Queue: -1, Offset: -1, Endpoint: endpoint, RecallHandle: entry.GetRecallHandle()}
	// A delayed message is not in a queue yet: RocketMQ returns its offset in the timer.
	if waits := r.RecallHandle != "" || m.DeliverAt.After(born); entry != nil && !waits {
		r.Offset = entry.GetOffset()
	}
	return r
}

// sendError returns the error of one message, or nil if it was stored. entry is the message's entry
// in res, and top the error of the whole response; both may be nil.
func sendError(topic string, server *remote.Server, res *rmqpb.SendMessageResponse, entry *rmqpb.SendResultEntry, id string, top *tidegate.Error, trailer metadata.MD) *tidegate.Error {
	st := entry.GetStatus()
	switch {
	case st.GetCode() == rmqpb.Code_OK:
		return nil
	case st.GetCode() != 0:
		e := failure.OfStatus(opSend, topic, server.Key, st, trailer)
		e.MaybeStored = failure.MaybeStored(e)
		server.Lapse(e, remote.Sends)
		return e
	case top != nil:
		e := *top
		return &e
	case res.GetStatus().GetCode() == rmqpb.Code_OK && entry != nil:
		return nil // the entry has no status of its own
	}
	e := failure.OfStatus(opSend, topic, server.Key, &rmqpb.Status{
		Code:    rmqpb.Code_INTERNAL_SERVER_ERROR,
		Message: "the response has no result for message " + id + ", which may be stored or not",
	}, nil)
	e.MaybeStored = true
	return e
}

// entryOf returns the entry of message n of total. If there are total entries it is entry n,
// otherwise the one with the message's ID. It returns nil if there is none.
func entryOf(res *rmqpb.SendMessageResponse, n, total int, id string) *rmqpb.SendResultEntry {
	entries := res.GetEntries()
	if len(entries) == total {
		return entries[n]
	}
	for _, e := range entries {
		if e.GetMessageId() == id {
			return e
		}
	}
	return nil
}
