package broker

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// Return returns deliveries that did not reach a consumer to the queue: they are ready again at
// once, and the attempt does not count. Handles that are not valid any more change nothing.
func (b served) Return(_ context.Context, ds []*tidegate.Delivery) {
	if !b.calls.Begin() {
		return
	}
	defer b.calls.End()
	var writes []*store.PendingWrite
	for i := 0; i < len(ds); {
		s, h, err := b.locate(ds[i])
		if i++; err != nil {
			continue
		}
		handles := []consume.Handle{h}
		for ; i < len(ds); i++ { // those of the same topic and group are written together
			other, h, err := b.locate(ds[i])
			if err != nil || other != s {
				break
			}
			handles = append(handles, h)
		}
		writes = append(writes, s.Release(handles))
	}
	for _, f := range writes {
		_ = f.Wait() // other calls report a store that fails
	}
}
