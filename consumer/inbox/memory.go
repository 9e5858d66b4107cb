package inbox

import (
	"container/list"
	"context"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// defaultCapacity is the default number of records of a Memory.
const defaultCapacity = 100_000

// A Memory is an inbox in memory. It keeps a bounded number of records, of all groups together, and
// drops the oldest ones first. Several goroutines may share it. All consumers of a group in a
// process should use the same Memory. Create it with [NewMemory].
type Memory struct {
	capacity int

	mu      sync.Mutex // guards the fields below; never held while waiting
	running map[key]chan struct{}
	done    map[key]*list.Element
	order   list.List // of keys, consumed first at the front
}

// A key names a message for one consumer group.
type key struct{ group, topic, id string }

func (k key) fields() [3]string { return [...]string{k.group, k.topic, k.id} }

func keyOf(d *tidegate.Delivery) key { return key{d.ConsumerGroup, d.Topic, d.ID} }

// NewMemory returns an inbox that keeps up to capacity records of consumed messages. Zero or less
// means 100 000.
func NewMemory(capacity int) *Memory {
	if capacity <= 0 {
		capacity = defaultCapacity
	}
	return &Memory{capacity: capacity, running: map[key]chan struct{}{}, done: map[key]*list.Element{}}
}

// Handler returns a handler that calls next unless the message is recorded as consumed. The message
// is recorded when next returns nil; after an error or a panic it is not.
//
// While another goroutine handles the same message, the handler waits until that call has returned.
// It then calls next only if that call failed. If ctx ends first, the handler returns its cause.
func (m *Memory) Handler(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		k := keyOf(d)
		for {
			consumed, other := m.claim(k)
			if consumed {
				return nil
			}
			if other == nil {
				break
			}
			select {
			case <-other:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		consumed := false
		defer func() { m.finish(k, consumed) }()
		err := next(ctx, d)
		consumed = err == nil
		return err
	}
}

// claim reports whether the message was consumed. Otherwise it returns a channel
// that is closed when the goroutine at work on it has ended, or nil if the
// caller is the one to work on it.
func (m *Memory) claim(k key) (consumed bool, other <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done[k] != nil {
		return true, nil
	}
	if other := m.running[k]; other != nil {
		return false, other
	}
	m.running[k] = make(chan struct{})
	return false, nil
}

// finish ends a claim.
func (m *Memory) finish(k key, consumed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.running[k])
	delete(m.running, k)
	if !consumed {
		return
	}
	m.done[k] = m.order.PushBack(k)
	if m.order.Len() > m.capacity {
		delete(m.done, m.order.Remove(m.order.Front()).(key))
	}
}
