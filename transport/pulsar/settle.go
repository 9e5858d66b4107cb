package pulsar

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/held"
)

// maxAcks bounds the messages of one acknowledgement.
const maxAcks = 1000

// Settle settles messages. A retry and a dead letter are first sent to their topics and then
// acknowledged: if the process ends between, the group has both.
func (l *link) Settle(ctx context.Context, list []held.Settlement) []error {
	ctx, cancel := l.client.bounded(ctx, time.Now())
	defer cancel()
	errs := make([]error, len(list))
	copies := make([]*pending, len(list))
	moves := make([]bool, len(list)) // the message goes to another topic
	for i, s := range list {
		n := s.Native.(*native)
		topic, m := l.copyOf(s, n)
		if moves[i] = m != nil; !moves[i] || n.copied {
			continue
		}
		if s.Outcome == held.DeadLettered {
			if err := l.client.keepLetters(ctx, topic, time.Minute); err != nil {
				errs[i] = l.client.named(err, opOf(s.Outcome), l.feed.Topic)
				continue
			}
		}
		p, err := l.client.begin(ctx, topic, m)
		if err != nil {
			errs[i] = l.client.named(err, opOf(s.Outcome), l.feed.Topic)
			continue
		}
		copies[i] = &p
	}
	a := &acks{reply: make(chan []*tidegate.Error, 1)}
	var at []int
	for i, s := range list {
		n := s.Native.(*native)
		if p := copies[i]; p != nil {
			switch err := p.wait(ctx, l.client.faults); {
			case err == nil:
				n.copied = true
			case s.Outcome == held.Retried && err.Code == tidegate.CodeMessageBodyTooLarge:
				moves[i] = false // with the properties of a retry; the server delivers the message itself again
			default:
				errs[i] = l.client.named(err, opOf(s.Outcome), l.feed.Topic)
			}
		}
		switch {
		case errs[i] != nil:
		case s.Outcome == held.Released && !n.copied:
			l.give(n)
		case (s.Outcome == held.Redelivered || s.Outcome == held.Retried && !moves[i]) && !n.copied:
			l.nack(n, s.Delay)
		default:
			a.list, at = append(a.list, n), append(at, i)
		}
	}
	if len(at) == 0 {
		return errs
	}
	for j, err := range l.ack(ctx, a) {
		if err != nil {
			errs[at[j]] = l.client.named(err, opOf(list[at[j]].Outcome), l.feed.Topic)
		}
	}
	return errs
}

func opOf(o held.Outcome) string {
	switch o {
	case held.Retried:
		return "RetryMessage"
	case held.Redelivered:
		return "NegativeAck"
	case held.DeadLettered:
		return "ForwardMessageToDeadLetterQueue"
	}
	return "AckMessage"
}

// copyOf returns the copy that a settlement sends before it acknowledges the message; nil for none.
func (l *link) copyOf(s held.Settlement, n *native) (topic string, m *pulsar.ProducerMessage) {
	o := l.client.options
	retry, letters := o.Naming.Topics(strings.TrimPrefix(l.feed.Topic, deadLetterPrefix), l.feed.Group)
	switch {
	case s.Outcome == held.DeadLettered:
		return o.full(letters), letterOf(n, s.Delivery, l.feed.Group, s.Reason)
	case s.Outcome == held.Retried && l.retry != "":
		return o.full(retry), retryOf(n, s.Delivery, l.retry, time.Now(), s.Delay)
	}
	return "", nil
}

// nack asks for the message again after a time. The request has no response.
func (l *link) nack(n *native, delay time.Duration) {
	if delay -= nackDelay; delay <= 0 {
		n.Consumer.NackID(n.ID())
		return
	}
	consumer, id := n.Consumer, n.ID() // the timer does not keep the body
	time.AfterFunc(delay, func() { consumer.NackID(id) })
}

// An acks is a list of messages to acknowledge.
type acks struct {
	list  []*native
	reply chan []*tidegate.Error // of one element
}

// ack acknowledges messages. It returns an error for each.
func (l *link) ack(ctx context.Context, a *acks) []*tidegate.Error {
	all := func(e tidegate.Error) []*tidegate.Error {
		errs := make([]*tidegate.Error, len(a.list))
		for i := range errs {
			own := e
			errs[i] = &own
		}
		return errs
	}
	lost := tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true, Message: "the consumer is closed"}
	select {
	case l.acks <- a:
	case <-l.closed:
		return all(lost)
	case <-ctx.Done():
		return all(tidegate.Error{Err: context.Cause(ctx)})
	}
	select {
	case errs := <-a.reply:
		return errs
	case <-l.over:
		select {
		case errs := <-a.reply:
			return errs
		default:
			return all(lost) // acknowledge did not take it
		}
	case <-ctx.Done():
		return all(tidegate.Error{Err: context.Cause(ctx), MaybeStored: true})
	}
}

// acknowledge sends acknowledgements until the link ends, one request at a time: the client sends
// no more of them, and waits for ever for one that comes after the end of its consumer.
func (l *link) acknowledge() {
	defer close(l.over)
	for {
		var batch []*acks
		select {
		case a := <-l.acks:
			batch = append(batch, a)
		case <-l.closed:
			return
		}
		list := batch[0].list
		for more := true; more && len(list) < maxAcks; {
			select {
			case a := <-l.acks:
				batch, list = append(batch, a), append(slices.Clip(list), a.list...)
			default:
				more = false
			}
		}
		errs := acknowledgeAll(list)
		for _, a := range batch {
			a.reply <- l.failures(a.list, errs)
		}
	}
}

// acknowledgeAll acknowledges messages through the consumers of their topics: the client's consumer of
// several topics ignores chunked messages. It returns the errors.
func acknowledgeAll(list []*native) pulsar.AckError {
	consumers := map[pulsar.Consumer][]pulsar.MessageID{}
	for _, n := range list {
		consumers[n.Consumer] = append(consumers[n.Consumer], n.ID())
	}
	replies := make(chan pulsar.AckError, len(consumers))
	for consumer, ids := range consumers {
		go func() {
			err := consumer.AckIDList(ids)
			each, ok := err.(pulsar.AckError) //nolint:errorlint // it is no type of a chain
			if err != nil && !ok {
				each = pulsar.AckError{}
				for _, id := range ids {
					each[id] = err
				}
			}
			replies <- each
		}()
	}
	all := pulsar.AckError{}
	for range consumers {
		maps.Copy(all, <-replies)
	}
	return all
}

// failures returns the errors of messages in those of their acknowledgement.
func (l *link) failures(list []*native, all pulsar.AckError) []*tidegate.Error {
	errs := make([]*tidegate.Error, len(list))
	for i, n := range list {
		if err := all[n.ID()]; err != nil {
			e := l.client.faults.of(err)
			e.MaybeStored, e.NotConnected = true, false
			errs[i] = e
		}
	}
	return errs
}
