package transporttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// settle finds the copy that d's handle names now and changes it.
func (m *model) settle(ctx context.Context, d *tidegate.Delivery, change func(i int, c *subCopy)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.unconnected(ctx); err != nil {
		return err
	}
	if m.isClosed() && m.fault != "open after Close" {
		return tidegate.ErrClosed
	}
	if ctx.Err() != nil && m.fault != "settle with a dead ctx" {
		return context.Cause(ctx)
	}
	i := index(d)
	c := m.copy(d.ConsumerGroup, i)
	m.expire(d.ConsumerGroup, i, c, time.Now())
	valid := c.handle == d.Handle || m.fault == "handles name messages"
	if c.handle == "" || !valid {
		return fault(tidegate.CodeInvalidReceiptHandle)
	}
	change(i, c)
	if m.server.RetriesWakeReceives {
		m.changed()
	}
	return nil
}

// index returns the place of the delivery's message in the log, from the handle.
func index(d *tidegate.Delivery) int {
	i, err := strconv.Atoi(strings.Split(d.Handle, "/")[1])
	if err != nil {
		panic(err)
	}
	return i
}

func (m *model) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = m.settle(ctx, d, func(_ int, c *subCopy) { c.done, c.handle = true, "" })
		if !m.server.RefusesStaleHandles && errors.Is(errs[i], tidegate.ErrInvalidHandle) {
			errs[i] = nil
			if m.fault == "old handles acknowledge" {
				m.mu.Lock()
				m.copy(d.ConsumerGroup, index(d)).done = true
				m.mu.Unlock()
			}
		}
	}
	return errs
}

func (m *model) Retry(ctx context.Context, d *tidegate.Delivery, after time.Duration, reason string) (result transport.RetryResult, err error) {
	err = m.settle(ctx, d, func(i int, c *subCopy) {
		if after == transport.BySchedule && m.fault != "no ladder for failures" {
			after = m.groups[d.ConsumerGroup].Retry.Delay(c.attempt - 1)
		}
		if m.server.LacksExactRetries && !m.groups[d.ConsumerGroup].FIFO {
			after = 12 * time.Second // the server's own
		}
		result = transport.RetryResult{Fate: transport.FateAgain, Delay: after}
		c.held, c.handle, c.due = false, "", time.Now().Add(after)
		switch m.fault {
		case "retry early":
			c.due = c.due.Add(-after / 4)
		case "retry late":
			c.due = c.due.Add(after / 4)
		case "retry does not count":
			c.attempt--
		}
		if c.attempt >= m.groups[d.ConsumerGroup].MaxAttempts {
			result = transport.RetryResult{Fate: transport.FateDeadLetter}
			m.bury(d.ConsumerGroup, i, c, cmp.Or(reason, "failed"))
		}
		if m.fault == "return no results" {
			result = transport.RetryResult{}
		}
	})
	return result, err
}

func (m *model) Snooze(ctx context.Context, d *tidegate.Delivery, dur time.Duration) error {
	return m.settle(ctx, d, func(_ int, c *subCopy) {
		c.held, c.handle, c.due = false, "", time.Now().Add(dur)
		if m.fault == "snooze early" {
			c.due = time.Now()
		}
		if m.fault != "snoozing counts" {
			c.attempt--
		}
	})
}

// Reconsume knows negative acknowledgements only.
func (m *model) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (transport.RetryResult, error) {
	err := m.settle(ctx, d, func(_ int, c *subCopy) {
		c.held, c.handle, c.due = false, "", time.Now().Add(mode.Delay)
		if m.fault == "negative acknowledgements come early" {
			c.due = time.Now()
		}
	})
	if err != nil {
		return transport.RetryResult{}, err
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: mode.Delay}, nil
}

func (m *model) ChangeInvisibleDuration(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (handle string, err error) {
	return m.change(ctx, d, dur, false)
}

func (m *model) Release(ctx context.Context, d *tidegate.Delivery) error {
	return m.settle(ctx, d, func(_ int, c *subCopy) {
		free := c.push && m.server.Capabilities.Suspend && m.fault != "suspending counts" || m.server.LacksCountedReleases
		c.due = time.Now()
		if c.push || free {
			c.held, c.handle = false, ""
		}
		if free {
			c.attempt--
		}
	})
}

func (m *model) RepeatChange(ctx context.Context, d *tidegate.Delivery, dur time.Duration) (handle string, err error) {
	now, again := *d, false
	m.mu.Lock()
	if c := m.copy(d.ConsumerGroup, index(d)); c.replaced == d.Handle && c.changed == c.handle && m.fault != "no change twice" {
		now.Handle, again = c.handle, true
	}
	m.mu.Unlock()
	return m.change(ctx, &now, dur, again)
}

func (m *model) change(ctx context.Context, d *tidegate.Delivery, dur time.Duration, again bool) (handle string, err error) {
	err = m.settle(ctx, d, func(_ int, c *subCopy) {
		m.serial++
		if m.fault == "change counts from the receipt" {
			c.due = c.due.Add(dur)
		} else {
			c.due = time.Now().Add(dur)
		}
		if !again {
			c.replaced, c.handle = c.handle, fmt.Sprint(c.handle, "+", m.serial)
			c.changed = c.handle
		}
		c.uncounted = dur > 0 && m.fault == "extended leases do not count"
		handle = c.handle
	})
	return handle, err
}

func (m *model) DeadLetter(ctx context.Context, d *tidegate.Delivery, reason string) (transport.RetryResult, error) {
	m.mu.Lock()
	over := m.copy(d.ConsumerGroup, index(d)).done && !m.isClosed()
	m.mu.Unlock()
	if over {
		return transport.RetryResult{}, nil
	}
	err := m.settle(ctx, d, func(i int, c *subCopy) { m.bury(d.ConsumerGroup, i, c, reason) })
	if m.fault == "late dead letters succeed" && errors.Is(err, tidegate.ErrInvalidHandle) {
		err = nil
	}
	return transport.RetryResult{}, err
}
