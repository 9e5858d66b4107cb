package rocketmq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// parallelSends bounds the concurrent requests of one Send.
const parallelSends = 64

// A part is a list of messages that one Send sends one after the other: those for one server with
// batches, or those of one message group or lite topic.
type part struct {
	queue   conn.Queue
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
		q, _ := r.Choose(&t.next, msgs[0].OrderKey(), nil)
		c.sendRequest(ctx, q.Server, []parcel{c.parcel(t, r, q, msgs, results)}, q.Server.Begin())
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
	r       *conn.Route
	msgs    []*tidegate.Message
	results []transport.SendResult
}

// split chooses a queue for each message and groups the messages into parts: one part for each
// server with batches, otherwise one for each message group, lite topic or single message.
func (s *sending) split() []part {
	var parts []part
	place := map[string]int{}      // road → index of its part
	can := map[*conn.Server]bool{} // whether a server takes batches; constant within a call, although a response may change it
	var shared conn.Queue          // queue of all messages without a group that share a request
	for i, m := range s.msgs {
		q := shared
		if m.OrderKey() != "" || q.Server == nil {
			q, _ = s.r.Choose(&s.t.next, m.OrderKey(), nil)
		}
		batch, asked := can[q.Server]
		if !asked {
			batch = q.Server.Batch()
			can[q.Server] = batch
		}
		if batch && m.OrderKey() == "" {
			shared = q
		}
		road := ""
		switch {
		case batch:
			road = "server " + q.Server.Key
		case m.OrderKey() != "":
			road = "group " + m.OrderKey()
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
			group := s.msgs[i].OrderKey()
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
func (s *sending) request(q conn.Queue, indexes []int) {
	sendRest(indexes, s.msgs, s.results, func(msgs []*tidegate.Message) []transport.SendResult {
		results := make([]transport.SendResult, len(msgs))
		s.c.sendRequest(s.ctx, q.Server, []parcel{s.c.parcel(s.t, s.r, q, msgs, results)}, q.Server.Begin())
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
		if err := failed[s.msgs[i].OrderKey()]; err != nil {
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
	held.Message = "not sent, because an earlier message of the message group or lite topic was not stored: " + e.Message
	return &held
}

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
// that probes a failed server is for one message. A lane of the only server of a topic shares its
// requests with other topics if that server announced it. RocketMQ does not.
func (c *Client) Lane(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
	t, rt, err := c.writable(ctx, r.Topic)
	if err != nil {
		return transport.Lane{}, err
	}
	q, probe := rt.Choose(&t.next, r.MessageGroup, r.Avoid)
	lane := transport.Lane{Endpoint: q.Server.Key, MaxMessages: 1, MaxBytes: maxBatchBytes}
	if !probe && q.Server.Batch() {
		lane.MaxMessages = maxBatch
		lane.Topics = len(rt.Servers) == 1 && q.Server.Topics()
	}
	return lane, nil
}

// SendLane implements transport.LaneSender. The results also match transport.ErrLaneChanged if the
// route no longer leads to the lane's server, if the lane has Topics and the topic has another
// server too, or if none of msgs has a message group, the server has failed since, and there is
// another one.
func (c *Client) SendLane(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	if sameTopic(msgs) < len(msgs) {
		c.sendTopics(ctx, lane, msgs, results)
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
	if err == nil && (!rt.Leads(lane.Endpoint, msgs) || lane.Topics && len(rt.Servers) > 1) {
		err = laneChanged(topic, lane.Endpoint)
	}
	if err == nil {
		q := rt.At[lane.Endpoint]
		report := q.Server.Begin()
		if report != nil || slices.ContainsFunc(msgs, grouped) || !slices.Contains(rt.Excludes(), q.Server) {
			c.sendRequest(ctx, q.Server, []parcel{c.parcel(t, rt, q, msgs, results)}, report)
			return results
		}
		err = laneChanged(topic, lane.Endpoint)
	}
	failAll(results, err)
	return results
}

// sameTopic returns the number of messages, from the first on, with the topic of the first.
func sameTopic(msgs []*tidegate.Message) int {
	n := slices.IndexFunc(msgs, func(m *tidegate.Message) bool { return m.Topic != msgs[0].Topic })
	if n < 0 {
		return len(msgs)
	}
	return n
}

func failAll(results []transport.SendResult, err error) {
	for i := range results {
		results[i].Err = err
	}
}

// sendTopics sends messages of several topics to the lane's server, in one request. A topic does
// not delay the others: the lane of a topic without a known route has changed, and a topic that may
// not accept its messages has a request of its own.
func (c *Client) sendTopics(ctx context.Context, lane transport.Lane, msgs []*tidegate.Message, results []transport.SendResult) {
	var parcels []parcel
	var server *conn.Server
	var alone sync.WaitGroup
	for len(msgs) > 0 {
		n := sameTopic(msgs)
		of, to := msgs[:n], results[:n]
		msgs, results = msgs[n:], results[n:]
		t, err := c.topic(opSend, of[0].Topic)
		if err != nil {
			failAll(to, err)
			continue
		}
		switch rt := t.known(); {
		case rt == nil || len(rt.Servers) > 1 || !rt.Leads(lane.Endpoint, of):
			failAll(to, laneChanged(t.name, lane.Endpoint))
		case rt.Accepts != nil && slices.ContainsFunc(of, func(m *tidegate.Message) bool { return !rt.Takes(m) }):
			alone.Go(func() { copy(to, c.SendLane(ctx, lane, of)) })
		default:
			q := rt.At[lane.Endpoint]
			server = q.Server
			parcels = append(parcels, c.parcel(t, rt, q, of, to))
		}
	}
	if len(parcels) > 0 {
		c.sendRequest(ctx, server, parcels, server.Begin())
	}
	alone.Wait()
}

// writable returns the topic and its route. It fails if the route has no writable queue.
func (c *Client) writable(ctx context.Context, name string) (*topic, *conn.Route, *tidegate.Error) {
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

func grouped(m *tidegate.Message) bool { return m.OrderKey() != "" }

// A parcel is the messages of one topic in a request, and the places of their results.
type parcel struct {
	topic   *topic
	sending wire.Sending
	results []transport.SendResult
}

// parcel returns the parcel of msgs for a queue of a topic with the route r.
func (c *Client) parcel(t *topic, r *conn.Route, q conn.Queue, msgs []*tidegate.Message, results []transport.SendResult) parcel {
	return parcel{topic: t, results: results, sending: wire.Sending{
		Encoder: &c.encoder, Queue: q.ID, Messages: msgs, Ranked: r.Ranked(),
		Born: time.Now().Round(0), // compared with delivery times, in wall time
	}}
}

// sendRequest sends parcels to a server in one request, and fills in their results. Several
// messages are sent only over a connection that announced batch, and several parcels only over one
// that announced topics. If the server rejects several parcels as a whole for a permanent reason,
// it stored nothing, and one topic can be the reason: each half of the parcels then has a request
// of its own. report gets the result for the server's breaker; nil means none. sendRequest returns
// the response, or nil if there was none.
func (c *Client) sendRequest(ctx context.Context, server *conn.Server, parcels []parcel, report func(conn.Verdict)) *rmqpb.SendMessageResponse {
	v := conn.Nothing
	if report != nil {
		defer func() { report(v) }() // also after a panic, because a server without a report would never be probed again
	}
	first, several, total := &parcels[0], len(parcels) > 1, 0
	for i := range parcels {
		total += len(parcels[i].results)
	}
	r := request{ep: server, id: c.id, op: opSend, subject: first.topic.name}
	if total > 1 {
		r.gate = &conn.BatchGate{Topics: several}
	}
	begin := time.Now()
	var res *rmqpb.SendMessageResponse
	var trailer metadata.MD
	var err *tidegate.Error
	if several {
		sendings := make(wire.Sendings, len(parcels))
		for i := range parcels {
			sendings[i] = &parcels[i].sending
		}
		r.headers = []string{wire.HeaderFeatures, wire.FeatureTopics}
		res, trailer, err = call(ctx, c, r, sendOn[wire.Sendings](server), sendings)
	} else {
		res, trailer, err = call(ctx, c, r, sendOn[*wire.Sending](server), &first.sending)
	}
	if v = conn.Healthy; !slices.ContainsFunc(res.GetEntries(), stored) {
		top := err
		if top == nil && len(res.GetEntries()) == 0 {
			top = sendError(first.topic.name, server, res, nil, first.sending.Messages[0].ID, nil, trailer)
		}
		v = conn.VerdictOf(top, context.Cause(ctx), time.Since(begin))
	}
	if several && err != nil && len(res.GetEntries()) == 0 && !err.MaybeStored &&
		tidegate.Classify(err) == tidegate.ClassPermanent && !errors.Is(err, transport.ErrLaneChanged) {
		for _, half := range [][]parcel{parcels[:len(parcels)/2], parcels[len(parcels)/2:]} {
			c.sendRequest(ctx, server, half, server.Begin())
		}
		return nil
	}
	var waits []string // of the parcels
	if list := trailer.Get(wire.TrailerPushBacks); len(list) > 0 {
		waits, trailer = strings.Split(list[0], ","), nil
	}
	n := 0
	for i := range parcels {
		p, own := &parcels[i], err
		if several && err != nil {
			e := *err
			e.Subject, own = p.topic.name, &e
		}
		if own != nil {
			c.doubtIf(p.topic, own)
		}
		if own != nil && res == nil {
			failAll(p.results, own)
			continue
		}
		if waits != nil {
			trailer = nil
			if i < len(waits) && waits[i] != "0" {
				trailer = metadata.Pairs(wire.TrailerPushBack, waits[i])
			}
		}
		for j, m := range p.sending.Messages {
			entry := entryOf(res, n, total, m.ID) // may be nil
			n++
			if e := sendError(p.topic.name, server, res, entry, m.ID, own, trailer); e != nil {
				p.results[j].Err = e
				continue
			}
			server.Accepts(conn.Sends)
			p.results[j].Receipt = receipt(m, server.Key, entry, p.sending.Born)
		}
	}
	return res
}

func stored(e *rmqpb.SendResultEntry) bool { return conn.Succeeded(e.GetStatus()) }

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
func sendError(topic string, server *conn.Server, res *rmqpb.SendMessageResponse, entry *rmqpb.SendResultEntry, id string, top *tidegate.Error, trailer metadata.MD) *tidegate.Error {
	st := entry.GetStatus()
	switch {
	case conn.Succeeded(st):
		return nil
	case st.GetCode() != 0:
		e := conn.OfStatus(opSend, topic, server.Key, st, trailer)
		e.MaybeStored = conn.MaybeStored(e)
		server.Lapse(e, conn.Sends)
		return e
	case top != nil:
		e := *top
		return &e
	case conn.Succeeded(res.GetStatus()) && entry != nil:
		return nil // the entry has no status of its own
	}
	e := conn.OfStatus(opSend, topic, server.Key, &rmqpb.Status{
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

// sendOn returns the method of call for a send to a server.
func sendOn[Req any](server *conn.Server) func(rmqpb.MessagingServiceClient, context.Context, Req, ...grpc.CallOption) (*rmqpb.SendMessageResponse, error) {
	return func(_ rmqpb.MessagingServiceClient, ctx context.Context, req Req, opts ...grpc.CallOption) (*rmqpb.SendMessageResponse, error) {
		return server.SendMessage(ctx, req, opts...)
	}
}
