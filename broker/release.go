package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Release returns deliveries that did not reach a consumer to the queue: they are ready again at
// once, and the attempt does not count. Handles that are not valid any more change nothing.
func (b *Broker) Release(_ context.Context, ds []*tidegate.Delivery) {
	if !b.begin() {
		return
	}
	defer b.end()
	var writes []*store.PendingWrite
	for i := 0; i < len(ds); {
		s, h, err := b.locate(ds[i])
		if i++; err != nil {
			continue
		}
		handles := []handle.Receipt{h}
		for ; i < len(ds); i++ { // those of the same topic and group are written together
			other, h, err := b.locate(ds[i])
			if err != nil || other != s {
				break
			}
			handles = append(handles, h)
		}
		writes = append(writes, s.release(handles))
	}
	for _, f := range writes {
		_ = f.Wait() // a store that fails tells everybody else
	}
}

// release returns deliveries that are still valid to the queue, as if they had not been made. The
// write is nil if there are none.
func (s *subscription) release(handles []handle.Receipt) *store.PendingWrite {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	now := time.Now()
	for _, h := range handles {
		s.progress.Release(h, now)
	}
	return s.apply(now).write
}

// releaseGrants is release for deliveries that a receive does not return.
func (s *subscription) releaseGrants(grants []consume.Grant) {
	handles := make([]handle.Receipt, len(grants))
	for i := range grants {
		handles[i] = grants[i].Receipt
	}
	s.release(handles)
}
