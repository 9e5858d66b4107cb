package main

import (
	"context"
	"fmt"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// A message is the input of send.
type message struct {
	topic, body, tag, group string
	keys                    []string
	properties              map[string]string
}

// send sends a message and returns its ID.
func send(ctx context.Context, p rmq.Producer, m message) (string, error) {
	out := &rmq.Message{Topic: m.topic, Body: []byte(m.body)}
	if m.tag != "" {
		out.SetTag(m.tag)
	}
	if m.group != "" {
		out.SetMessageGroup(m.group)
	}
	if len(m.keys) > 0 {
		out.SetKeys(m.keys...)
	}
	for k, v := range m.properties {
		out.AddProperty(k, v)
	}
	receipts, err := p.Send(ctx, out)
	if err != nil {
		return "", fmt.Errorf("sending %q to %s: %w", m.body, m.topic, err)
	}
	if len(receipts) != 1 || receipts[0].MessageID == "" {
		return "", fmt.Errorf("sending %q to %s: want one receipt with a message ID, got %+v", m.body, m.topic, receipts)
	}
	return receipts[0].MessageID, nil
}

// A delivery holds the fields of a received message.
type delivery struct {
	id, body, tag, group string
	keys                 []string
	properties           map[string]string
	attempt              int32
	at                   time.Time
}

func deliveryOf(mv *rmq.MessageView) delivery {
	return delivery{
		id: mv.GetMessageId(), body: string(mv.GetBody()), tag: orEmpty(mv.GetTag()), group: orEmpty(mv.GetMessageGroup()),
		keys: mv.GetKeys(), properties: mv.GetProperties(), attempt: mv.GetDeliveryAttempt(), at: time.Now(),
	}
}

func (d delivery) String() string { return fmt.Sprintf("%s (attempt %d)", d.body, d.attempt) }

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// next returns the next delivery.
func next(ctx context.Context, deliveries <-chan delivery) (delivery, error) {
	select {
	case d := <-deliveries:
		return d, nil
	case <-ctx.Done():
		return delivery{}, fmt.Errorf("waiting for a delivery: %w", context.Cause(ctx))
	}
}
