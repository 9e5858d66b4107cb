package broker

import (
	"context"

	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/status"
)

// PurgeTopic removes all messages of a topic that were stored before the call: ready ones, those in
// flight, those that wait for a retry or their delivery time, and half messages. It returns their
// number and bytes once the removal is on disk. Groups continue with the next message, and offsets
// are not used again. Receipt handles and transaction IDs of removed messages are no longer valid,
// and the duplicate window forgets their message IDs. Dead letters of the topic's messages stay,
// because they are messages of another topic. The error's code is 40402 if there is no such topic.
// If ctx ends, a part of the messages may be removed.
func (b *Broker) PurgeTopic(ctx context.Context, name string) (status.Backlog, error) {
	removed, err := b.purgeTopic(ctx, name)
	return removed, refusal.WithOp("PurgeTopic", err)
}

func (b *Broker) purgeTopic(ctx context.Context, name string) (removed status.Backlog, err error) {
	if !b.calls.Begin() {
		return removed, refusal.Closed()
	}
	defer b.calls.End()
	if err := b.catalog.LockAdmin(ctx); err != nil { // a topic that is purged is not deleted meanwhile
		return removed, err
	}
	defer b.catalog.UnlockAdmin()
	t, err := b.catalog.Topic(name)
	if err != nil {
		return removed, err
	}
	all, err := b.retention.Purge(ctx, t)
	return status.Backlog(all), err
}

var removalCauses = [retention.Causes]serving.RemovalCause{
	retention.TooOld: serving.RemovedTime, retention.TooMany: serving.RemovedBytes, retention.Consumed: serving.RemovedConsumed, retention.Purged: serving.RemovedPurge,
}
