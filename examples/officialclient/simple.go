package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"

	"github.com/tidegate/tidegate/broker/settings"
)

// invisible is how long messages stay with the simple consumer. A broker with
// default settings takes 10 s or more.
const invisible = 15 * time.Second

// simple receives NORMAL messages with a simple consumer, which decides for each message how long
// it stays invisible.
func (s scene) simple(ctx context.Context) error {
	topic, err := s.topic(ctx, "parcels", settings.Topic{Type: settings.TopicNormal, Queues: 2})
	if err != nil {
		return err
	}
	group, err := s.group(ctx, "warehouse", settings.Group{})
	if err != nil {
		return err
	}
	p, err := s.producer(ctx, topic)
	if err != nil {
		return err
	}
	defer p.GracefulStop()
	c, err := s.simpleConsumer(ctx, group, topic)
	if err != nil {
		return err
	}
	defer c.GracefulStop()

	var sent, received []string
	for i := range 3 {
		id, err := send(ctx, p, message{topic: topic, body: fmt.Sprintf("parcel %d", i+1)})
		if err != nil {
			return err
		}
		sent = append(sent, id)
	}
	mvs, err := receive(ctx, c, 3)
	if err != nil {
		return err
	}
	for _, mv := range mvs {
		received = append(received, mv.GetMessageId())
		s.say("received: %s", deliveryOf(mv))
	}
	slices.Sort(sent)
	slices.Sort(received)
	assertEqual(s, "IDs of the messages received", received, sent)

	if err := c.Ack(ctx, mvs[0]); err != nil {
		return err
	}
	s.say("acknowledged: %s", mvs[0].GetBody())
	if err := s.extend(ctx, c, mvs[1]); err != nil {
		return err
	}
	if err := s.hurry(ctx, c, mvs[2]); err != nil {
		return err
	}
	if err := s.settled(ctx, group, topic, progress{Acked: 3, Redelivered: 1}); err != nil {
		return err
	}

	mvs, err = c.Receive(ctx, 1, invisible)
	s.say("a receive without messages: %v", err)
	s.assert(len(mvs) == 0 && codeOf(err) == codeMessageNotFound, "no message and code %d: %v, %v", codeMessageNotFound, mvs, err)
	return nil
}

// extend keeps a message for longer, and acknowledges it with the handle that
// it got for that. The server rejects the handle that it replaced.
func (s scene) extend(ctx context.Context, c rmq.SimpleConsumer, mv *rmq.MessageView) error {
	stale := *mv
	if err := c.ChangeInvisibleDuration(mv, 2*invisible); err != nil {
		return fmt.Errorf("keeping %s for longer: %w", mv.GetBody(), err)
	}
	s.assert(mv.GetReceiptHandle() != stale.GetReceiptHandle(), "a new receipt handle with a new invisible duration")
	err := c.ChangeInvisibleDuration(&stale, 2*invisible)
	s.assert(codeOf(err) == codeInvalidHandle, "code %d for a stale receipt handle: %v", codeInvalidHandle, err)
	s.say("extended: %s; its old handle is rejected: %v", mv.GetBody(), err)
	return c.Ack(ctx, mv)
}

// hurry makes a message visible again in a second, and receives it once more.
func (s scene) hurry(ctx context.Context, c rmq.SimpleConsumer, mv *rmq.MessageView) error {
	const soon = time.Second
	began := time.Now()
	if err := c.ChangeInvisibleDuration(mv, soon); err != nil {
		return fmt.Errorf("giving %s back: %w", mv.GetBody(), err)
	}
	again, err := receive(ctx, c, 1)
	if err != nil {
		return err
	}
	waited := time.Since(began)
	d := deliveryOf(again[0])
	s.say("released for %v, received after %.2fs: %s", soon, waited.Seconds(), d)
	s.assert(d.id == mv.GetMessageId() && d.attempt == 2 && waited >= soon, "attempt 2 of %s after %v: %s after %v", mv.GetBody(), soon, d, waited)
	return c.Ack(ctx, again[0])
}
