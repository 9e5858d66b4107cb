package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// maxDelay is how far ahead a delivery time may be (RocketMQ: 24 h).
const maxDelay = 24 * time.Hour

// because says what makes a message of that type.
func because(k TopicType, m *tidegate.Message) string {
	switch k {
	case TopicFIFO:
		return fmt.Sprintf("FIFO: it has the message group %q", m.MessageGroup)
	case TopicDelay:
		return "DELAY: it has a delivery time"
	case TopicTransaction:
		return "TRANSACTION: it is a half message"
	}
	return "NORMAL: it has neither message group nor delivery time"
}

// needs says what a message has to be for a topic of the type.
func needs(k TopicType) string {
	switch k {
	case TopicFIFO:
		return "give it a message group, and no delivery time"
	case TopicDelay:
		return "give it a delivery time, and no message group"
	case TopicTransaction:
		return "send it within a transaction"
	}
	return "give it neither"
}

// delay writes a message of an Append that is to be delivered later. Only
// called within the message log's Add.
func (a *appending) delay(w *store.Batch, t *topic.Topic, m *store.Message, now time.Time) tidegate.Receipt {
	d := a.broker.delayed.Put(w, t, m, now)
	if a.earliest.IsZero() || d.Due.Before(a.earliest) {
		a.earliest = d.Due
	}
	return a.broker.delayedReceipt(t, m.ID, d)
}

func (b *Broker) delayedReceipt(t *topic.Topic, id string, d store.Delayed) tidegate.Receipt {
	return tidegate.Receipt{MessageID: id, Topic: t.Name(), Queue: -1, Offset: -1, Endpoint: b.name, RecallHandle: handle.Recall(d)}
}

// Recall takes back a message whose delivery time has not come, and returns
// its ID when that is on disk: 40401 if it is not waiting any more, 40000 for a
// handle that is not one.
func (b *Broker) Recall(ctx context.Context, topicName, recallHandle string) (id string, err error) {
	id, err = b.recall(ctx, topicName, recallHandle)
	return id, fail.WithOp("RecallMessage", err)
}

func (b *Broker) recall(ctx context.Context, topicName, recallHandle string) (string, error) {
	if !b.begin() {
		return "", fail.Closed()
	}
	defer b.end()
	t, err := b.topic(topicName)
	if err != nil {
		return "", err
	}
	d, err := handle.ParseRecall(recallHandle)
	if err != nil || d.Topic != t.ID() {
		return "", fail.New(tidegate.CodeBadRequest, "recall handle", "it is not one that this broker gave for topic %q", topicName)
	}
	id, ok, err := b.delayed.Recall(ctx, t, d)
	if err != nil {
		return "", fail.StoreUnless(ctx, err)
	}
	if !ok {
		return "", fail.New(tidegate.CodeMessageNotFound, "recall handle", "the message does not wait any more: its time has come, or it was recalled")
	}
	return id, nil
}
