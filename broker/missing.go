package broker

import (
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// endOf returns where a queue ends, with the messages on their way to the disk.
func (b *Broker) endOf(q *topic.Queue) (end store.Mark) {
	b.store.Messages.Add(func(*store.Batch) { end = store.Mark{Offset: q.Next().Offset, Bytes: q.Next().Bytes} }, nil)
	return end
}
