package pulsar

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
)

// Browse returns the messages that the server keeps of a topic, in the order of their publish times,
// also those that are acknowledged or delayed. No subscription is involved, and no message counts as
// delivered. The sequence ends after the messages that the topic had at its begin, or with an error.
//
// It begins with the oldest message that was published at from or later; zero means the oldest one.
// The Handle of a delivery, given as after instead, begins behind that delivery. Queue is the
// partition, StoredAt the publish time, Message.DeliverAt the delivery time of a delayed message; a
// delivery cannot be settled. Dead letters are in the topics that Naming names, not in %DLQ%group.
//
// The client needs the permission to consume. The server creates a topic that is missing, if it
// permits that, and removes it later.
func (c *Client) Browse(ctx context.Context, topic string, from time.Time, after string) iter.Seq2[*tidegate.Delivery, error] {
	return func(yield func(*tidegate.Delivery, error) bool) {
		if err := tidegate.ValidateTopic(topic); err != nil {
			yield(nil, err)
			return
		}
		b := &browse{client: c, topic: topic}
		defer b.close()
		if e := b.open(ctx, from, after); e != nil {
			yield(nil, c.named(e, opBrowse, topic))
			return
		}
		for {
			d, e := b.next(ctx)
			switch {
			case e != nil:
				yield(nil, c.named(e, opBrowse, topic))
				return
			case d == nil || !yield(d, nil):
				return
			}
		}
	}
}

const opBrowse = "Browse"

// A browse reads the partitions of a topic.
type browse struct {
	client *Client
	topic  string
	parts  []*browsed
}

// A browsed is a partition that a browse reads.
type browsed struct {
	reader pulsar.Reader
	from   time.Time      // begin of the messages
	at     position       // of the last message that was returned
	last   position       // of the last message that the partition had at the begin
	head   pulsar.Message // the next one; nil if it is not read
}

// A position is the place of a message in a partition: ledger, entry, and number in the entry. The
// zero value precedes all messages.
type position [3]int64

func positionOf(id pulsar.MessageID) position {
	return position{id.LedgerID(), id.EntryID(), int64(max(id.BatchIdx(), 0))}
}

func (p position) compare(other position) int {
	return cmp.Or(cmp.Compare(p[0], other[0]), cmp.Compare(p[1], other[1]), cmp.Compare(p[2], other[2]))
}

// open opens a reader for each partition.
func (b *browse) open(ctx context.Context, from time.Time, after string) *tidegate.Error {
	c := b.client
	p := c.place(b.topic)
	if p.group != "" {
		return &tidegate.Error{Code: tidegate.CodeBadRequest, Message: "the dead letters of a group are in a topic for each topic of the group; give its name, which Options.Naming determines"}
	}
	if e := c.usable(ctx); e != nil {
		return e
	}
	names, e := timed(ctx, c, func() ([]string, error) { return c.native.TopicPartitions(p.topic) }, kept)
	if e != nil {
		return e
	}
	positions, e := parsePositions(after, len(names))
	if e != nil {
		return e
	}
	for i, name := range names {
		part := &browsed{at: positions[i]}
		o := pulsar.ReaderOptions{Topic: name, StartMessageID: pulsar.EarliestMessageID(), ReceiverQueueSize: c.options.Prefetch}
		if part.at != (position{}) {
			o.StartMessageID = pulsar.NewMessageID(part.at[0], part.at[1], int32(part.at[2]), int32(i))
		} else {
			part.from = from
		}
		if part.reader, e = timed(ctx, c, func() (pulsar.Reader, error) { return c.native.CreateReader(o) }, pulsar.Reader.Close); e != nil {
			return e
		}
		b.parts = append(b.parts, part)
		last, e := timed(ctx, c, part.reader.GetLastMessageID, kept)
		if e == nil && last.EntryID() >= 0 { // it has messages
			part.last = positionOf(last)
			e = b.seek(ctx, part, name, last)
		}
		if e != nil {
			return e
		}
	}
	return nil
}

// seek goes to the begin of a partition. If the last message was published earlier, the partition
// has none: the reader would wait for the next one.
func (b *browse) seek(ctx context.Context, p *browsed, name string, last pulsar.MessageID) *tidegate.Error {
	if p.from.IsZero() {
		return nil
	}
	c := b.client
	r, e := timed(ctx, c, func() (pulsar.Reader, error) {
		return c.native.CreateReader(pulsar.ReaderOptions{Topic: name, StartMessageID: last, StartMessageIDInclusive: true, ReceiverQueueSize: 1})
	}, pulsar.Reader.Close)
	if e != nil {
		return e
	}
	defer c.background(r.Close)
	m, e := c.read(ctx, r)
	switch {
	case e != nil:
		return e
	case m.PublishTime().Before(p.from):
		p.last = position{}
		return nil
	}
	_, e = timed(ctx, c, func() (struct{}, error) { return struct{}{}, p.reader.SeekByTime(p.from) }, kept)
	return e
}

// next returns the oldest message that is left; nil for none.
func (b *browse) next(ctx context.Context) (*tidegate.Delivery, *tidegate.Error) {
	var oldest *browsed
	for _, p := range b.parts {
		if e := p.read(ctx, b.client); e != nil {
			return nil, e
		}
		if p.head != nil && (oldest == nil || p.head.PublishTime().Before(oldest.head.PublishTime())) {
			oldest = p
		}
	}
	if oldest == nil {
		return nil, nil //nolint:nilnil // there is no message
	}
	m := oldest.head
	oldest.head, oldest.at = nil, positionOf(m.ID())
	r := fromPulsar(b.topic, m)
	r.Message.DeliverAt = r.due
	positions := make([]string, len(b.parts))
	for i, p := range b.parts {
		positions[i] = fmt.Sprintf("%d:%d:%d", p.at[0], p.at[1], p.at[2])
	}
	return &tidegate.Delivery{
		Message: r.Message, Handle: strings.Join(positions, ","), Attempt: 1, Endpoint: b.client.endpoint, Queue: r.queue, Offset: -1,
		BornAt: r.bornAt, BornHost: r.bornHost, StoredAt: m.PublishTime(),
	}, nil
}

// read reads the next message of a partition, unless it has read the last one.
func (p *browsed) read(ctx context.Context, c *Client) *tidegate.Error {
	for p.head == nil && p.at.compare(p.last) < 0 {
		m, e := c.read(ctx, p.reader)
		if e != nil {
			return e
		}
		switch at := positionOf(m.ID()); {
		case at.compare(p.last) > 0:
			p.last = p.at // the last message is gone
		case at.compare(p.at) > 0 && !m.PublishTime().Before(p.from):
			p.head = m
		}
	}
	return nil
}

// read reads the next message of a reader, which has one.
func (c *Client) read(ctx context.Context, r pulsar.Reader) (pulsar.Message, *tidegate.Error) {
	ctx, cancel := c.bounded(ctx, time.Now())
	defer cancel()
	m, err := r.Next(ctx)
	switch {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, c.faults.interrupted(context.Cause(ctx))
	}
	return nil, c.faults.of(err)
}

func (b *browse) close() {
	for _, p := range b.parts {
		b.client.background(p.reader.Close)
	}
}

// parsePositions returns the positions of n partitions in the handle of a delivery.
func parsePositions(handle string, n int) ([]position, *tidegate.Error) {
	positions := make([]position, n)
	if handle == "" {
		return positions, nil
	}
	words := strings.Split(handle, ",")
	fault := &tidegate.Error{Code: tidegate.CodeBadRequest, Message: fmt.Sprintf("%q is no Handle of a delivery of this topic, which has %d partitions", handle, n)}
	if len(words) > n {
		return nil, fault
	}
	for i, word := range words {
		numbers := strings.Split(word, ":")
		if len(numbers) != len(positions[i]) {
			return nil, fault
		}
		for j, number := range numbers {
			var err error
			if positions[i][j], err = strconv.ParseInt(number, 10, 64); err != nil {
				return nil, fault
			}
		}
	}
	return positions, nil
}

// timed is call with Options.RequestTimeout.
func timed[T any](ctx context.Context, c *Client, request func() (T, error), undo func(T)) (T, *tidegate.Error) {
	ctx, cancel := c.bounded(ctx, time.Now())
	defer cancel()
	return call(ctx, c, request, undo)
}

// kept is the undo of a request that creates nothing.
func kept[T any](T) {}
