package transporttest

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// ReceiveOrWatch leaves a watch that every change makes ready.
func (m *model) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	r.Wait = 0
	m.mu.Lock()
	ready := m.wake
	m.mu.Unlock()
	ds, err := m.Receive(ctx, r)
	switch {
	case err != nil || len(ds) == r.Max || m.fault == "leave no watch":
		return ds, nil, err
	case m.fault == "report no message":
		ready = make(chan struct{})
	case m.fault == "report all the time":
		done := make(chan struct{})
		close(done)
		ready = done
	}
	return ds, ready, nil
}
