package rocketmq

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

const (
	opSend = "SendMessage"

	// parallelSends bounds the requests that one Send makes at the same time.
	parallelSends = 64

	// maxBatch and maxBatchBytes bound the messages of one request, and all
	// that it has of them. A tidegate broker takes no more of them, and by
	// default twice as many bytes.
	maxBatch      = 1000
	maxBatchBytes = 16 << 20
)

// A part is the messages of a Send that travel on one road: in one request, or a
// few large ones, if the server can take several at once, else one after the other.
type part struct {
	queue   queue
	batch   bool
	indexes []int // of the messages
}

// Send sends msgs as [transport.Sender] says. The
// protocol does not tell the queue, so receipts do not either; their offset is
// that within the queue, 0 for a message that waits for its delivery time.
func (c *Client) Send(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	results := make([]transport.SendResult, len(msgs))
	if len(msgs) == 0 {
		return results
	}
	t, r, err := c.route(ctx, opSend, msgs[0].Topic)
	if err == nil && len(r.byGroup) == 0 {
		c.doubt(t)
		err = noQueue(opSend, msgs[0].Topic, c.access.key, "written")
	}
	if err != nil {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	s := &sending{c: c, ctx: ctx, t: t, r: r, topic: c.resource(msgs[0].Topic), msgs: msgs, results: results}
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
	r       *route
	topic   *rmqpb.Resource
	msgs    []*tidegate.Message
	results []transport.SendResult
}

// split gives every message a queue, and puts together what travels together:
// all messages for one server that takes several in one request, else those of
// one message group.
func (s *sending) split() []part {
	if len(s.msgs) == 1 {
		q := s.choose(s.msgs[0])
		return []part{{queue: q, batch: q.ep.capabilities().Batch, indexes: []int{0}}}
	}
	var parts []part
	place := map[string]int{}   // of a road's part
	can := map[*endpoint]bool{} // take several at once: asked once, since an answer may change it meanwhile
	var shared queue            // of all messages without a group that go in one request
	for i, m := range s.msgs {
		q := shared
		if m.MessageGroup != "" || q.ep == nil {
			q = s.choose(m)
		}
		batch, asked := can[q.ep]
		if !asked {
			batch = q.ep.capabilities().Batch
			can[q.ep] = batch
		}
		if batch && m.MessageGroup == "" {
			shared = q
		}
		road := ""
		switch {
		case batch:
			road = "server " + q.ep.key
		case m.MessageGroup != "":
			road = "group " + m.MessageGroup
		}
		if at, ok := place[road]; ok && road != "" {
			parts[at].indexes = append(parts[at].indexes, i)
			continue
		}
		place[road] = len(parts)
		parts = append(parts, part{queue: q, batch: batch, indexes: []int{i}})
	}
	return parts
}

func (s *sending) choose(m *tidegate.Message) queue {
	if m.MessageGroup != "" {
		return s.r.forGroup(m.MessageGroup)
	}
	return s.t.nextQueue(s.r, time.Now())
}

// send sends a part, in as many requests as it takes, one after the other.
func (s *sending) send(p part) {
	var failed map[string]error // why what follows in a message group has to wait
	for rest := p.indexes; len(rest) > 0; {
		now := rest[:1]
		if p.batch {
			now = rest[:s.fitting(rest)]
		}
		rest = rest[len(now):]
		s.request(p.queue, now)
		for _, i := range now {
			group := s.msgs[i].MessageGroup
			if group == "" || len(rest) == 0 {
				continue
			}
			if class := transport.Classify(s.results[i].Err); class != transport.OK && class != transport.Permanent {
				// Another attempt may cure it: what comes after it has to wait, or the
				// group would be stored out of order.
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

// fitting returns how many of the messages one request takes.
func (s *sending) fitting(indexes []int) int {
	size := 0
	for n, i := range indexes {
		if size += s.c.sizeBound(s.msgs[i]); n == maxBatch || n > 0 && size > maxBatchBytes {
			return n
		}
	}
	return len(indexes)
}

// hold gives the messages of groups that failed their results, and returns the others.
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

// notSent is err for the messages that were held back because of it.
func notSent(err error) error {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return err
	}
	held := *e
	held.MaybeStored = false
	held.Message = "not sent, since an earlier message of the message group was not stored: " + e.Message
	return &held
}

// request sends the messages in one request.
func (s *sending) request(q queue, indexes []int) {
	born := timestamppb.Now()
	req := &rmqpb.SendMessageRequest{Messages: make([]*rmqpb.Message, len(indexes))}
	for n, i := range indexes {
		req.Messages[n] = s.c.encodeMessage(s.msgs[i], q, s.topic, born)
	}
	res, trailer, err := call(s.ctx, s.c, request{ep: q.ep, id: s.c.id, op: opSend, subject: s.t.name},
		rmqpb.MessagingServiceClient.SendMessage, req)
	if err != nil {
		s.c.doubtIf(s.t, err)
	}
	if err != nil && res == nil {
		for _, i := range indexes {
			s.results[i].Err = err
		}
		return
	}
	for n, i := range indexes {
		e := s.result(q, res, n, len(indexes), s.msgs[i].ID, err, trailer)
		if e != nil {
			s.results[i].Err = e
			continue
		}
		entry := entryOf(res, n, len(indexes), s.msgs[i].ID) // may be nil
		receipt := tidegate.Receipt{MessageID: s.msgs[i].ID, Topic: s.t.name, Queue: -1, Endpoint: q.ep.key, RecallHandle: entry.GetRecallHandle()}
		// A message that waits is in no queue: RocketMQ tells where in its timer.
		if waits := receipt.RecallHandle != "" || s.msgs[i].DeliverAt.After(born.AsTime()); !waits {
			receipt.Offset = entry.GetOffset()
		}
		s.results[i].Receipt = receipt
	}
}

// result returns the error of message n of total, nil if it was stored. top is
// the error of the whole answer.
func (s *sending) result(q queue, res *rmqpb.SendMessageResponse, n, total int, id string, top *tidegate.Error, trailer metadata.MD) *tidegate.Error {
	entry := entryOf(res, n, total, id)
	st := entry.GetStatus()
	switch {
	case st.GetCode() == rmqpb.Code_OK:
		return nil
	case st.GetCode() != 0:
		e := statusError(opSend, s.t.name, q.ep.key, st, trailer)
		e.MaybeStored = maybeStored(e.Code)
		return e
	case top != nil:
		e := *top
		return &e
	case res.GetStatus().GetCode() == rmqpb.Code_OK && (entry != nil || len(res.GetEntries()) == 0):
		return nil // the status speaks for all
	}
	e := statusError(opSend, s.t.name, q.ep.key, &rmqpb.Status{
		Code:    rmqpb.Code_INTERNAL_SERVER_ERROR,
		Message: "the answer says nothing about message " + strconv.Quote(id) + ", which may be stored or not",
	}, nil)
	e.MaybeStored = true
	return e
}

// entryOf returns the entry of message n of total: by its place if there are
// as many as messages, else by its ID; nil if there is none.
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
