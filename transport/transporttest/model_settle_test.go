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

// Settle takes the verdicts of every server, Snooze and NegativeAck.
func (m *model) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (result transport.RetryResult, err error) {
	group := m.groups[d.ConsumerGroup]
	if v.Kind > transport.DeadLetter && !m.server.Capabilities.Verdicts.Has(v.Kind) && m.fault != "take every verdict" {
		return result, v.Unsupported(d)
	}
	switch v.Kind {
	case transport.Release:
		err = m.settle(ctx, d, func(_ int, c *subCopy) {
			free := c.push && m.server.Capabilities.Suspend && m.fault != "suspending counts" || m.server.LacksCountedReleases
			c.due = time.Now()
			if c.push || free {
				c.held, c.handle = false, ""
			}
			if free {
				c.attempt--
			}
		})
	case transport.Retry:
		err = m.settle(ctx, d, func(i int, c *subCopy) {
			after := v.Delay
			if after == transport.BySchedule && m.fault != "no ladder for failures" {
				after = group.Retry.Delay(c.attempt - 1)
			}
			if m.server.LacksExactRetries && !group.FIFO {
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
			if c.attempt >= group.MaxAttempts {
				result = transport.RetryResult{Fate: transport.FateDeadLetter}
				m.bury(d.ConsumerGroup, i, c, cmp.Or(v.Reason, "failed"))
			}
			if m.fault == "return no results" {
				result = transport.RetryResult{}
			}
		})
	case transport.DeadLetter:
		m.mu.Lock()
		over := m.copy(d.ConsumerGroup, index(d)).done && !m.isClosed()
		m.mu.Unlock()
		if over {
			return result, nil
		}
		err = m.settle(ctx, d, func(i int, c *subCopy) { m.bury(d.ConsumerGroup, i, c, v.Reason) })
		if m.fault == "late dead letters succeed" && errors.Is(err, tidegate.ErrInvalidHandle) {
			err = nil
		}
	case transport.Snooze:
		err = m.settle(ctx, d, func(_ int, c *subCopy) {
			c.held, c.handle, c.due = false, "", time.Now().Add(v.Delay)
			if m.fault == "snooze early" {
				c.due = time.Now()
			}
			if m.fault != "snoozing counts" {
				c.attempt--
			}
		})
	case transport.NegativeAck:
		err = m.settle(ctx, d, func(_ int, c *subCopy) {
			c.held, c.handle, c.due = false, "", time.Now().Add(v.Delay)
			if m.fault == "negative acknowledgements come early" {
				c.due = time.Now()
			}
			result = transport.RetryResult{Fate: transport.FateAgain, Delay: v.Delay}
		})
	}
	return result, err
}

func (m *model) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (handle string, err error) {
	now, again := *d, false
	m.mu.Lock()
	if c := m.copy(d.ConsumerGroup, index(d)); repeat && c.replaced == d.Handle && c.changed == c.handle && m.fault != "no change twice" {
		now.Handle, again = c.handle, true
	}
	m.mu.Unlock()
	err = m.settle(ctx, &now, func(_ int, c *subCopy) {
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
