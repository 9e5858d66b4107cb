package main

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// settle calls change with the state that d's handle names.
func (m *memory) settle(ctx context.Context, d *tidegate.Delivery, change func(s *state)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.leases[d.Handle]
	switch err := m.ended(ctx); {
	case err != nil:
		return err
	case s == nil || !time.Now().Before(s.due):
		return &tidegate.Error{Subject: d.Topic, Endpoint: "memory", Code: tidegate.CodeInvalidReceiptHandle}
	}
	change(s)
	m.wake()
	return nil
}

func (m *memory) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = m.settle(ctx, d, func(s *state) { s.done = true; delete(m.leases, s.Handle) })
	}
	return errs
}

func (m *memory) Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, _ string) (transport.RetryResult, error) {
	return transport.RetryResult{}, m.settle(ctx, d, func(s *state) { m.fail(s, time.Now().Add(after)) })
}

func (m *memory) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (handle string, err error) {
	err = m.settle(ctx, d, func(s *state) {
		m.lease(s, time.Now().Add(dur))
		handle = s.Handle
	})
	return handle, err
}

// Release counts the attempt, because the server announces no Capabilities.Suspend.
func (m *memory) Release(ctx context.Context, d *tidegate.Delivery) error {
	_, err := m.ChangeInvisibleDuration(ctx, d, 0)
	return err
}

func (m *memory) DeadLetter(ctx context.Context, d *tidegate.Delivery, _ string) (transport.RetryResult, error) {
	return transport.RetryResult{}, m.settle(ctx, d, m.bury)
}
