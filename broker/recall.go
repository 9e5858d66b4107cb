package broker

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Recall cancels a delayed message with the handle in its receipt, and returns the ID of the
// message when this is on disk. The error is 40401 if the message no longer waits for its delivery
// time, and 40000 for an invalid handle.
func (b *Broker) Recall(ctx context.Context, topicName, recallHandle string) (id string, err error) {
	id, err = b.recall(ctx, topicName, recallHandle)
	return id, refusal.WithOp("RecallMessage", err)
}

func (b *Broker) recall(ctx context.Context, topicName, recallHandle string) (string, error) {
	if !b.calls.Begin() {
		return "", refusal.Closed()
	}
	defer b.calls.End()
	t, err := b.catalog.Topic(topicName)
	if err != nil {
		return "", err
	}
	d, err := consume.ParseRecallHandle(recallHandle)
	if err != nil || d.Topic != t.ID() {
		return "", refusal.New(tidegate.CodeBadRequest, "recall handle", "this broker did not issue it for a message of topic %q; give the RecallHandle of that message's receipt", topicName)
	}
	id, ok, err := b.delayed.Recall(ctx, t, d)
	if err != nil {
		return "", refusal.StoreUnless(ctx, err)
	}
	if !ok {
		return "", refusal.New(protocol.CodeMessageNotFound, "recall handle", "no such message waits for its delivery time: it was already delivered to its queue, or recalled")
	}
	return id, nil
}
