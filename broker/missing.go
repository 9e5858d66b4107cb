package broker

import "github.com/tidegate/tidegate/broker/internal/store"

// endOf returns where a queue ends, with the messages on their way to the disk.
func (b *Broker) endOf(q *queue) (end store.Mark) {
	b.store.Messages.Add(func(*store.Batch) { end = store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes} }, nil)
	return end
}
