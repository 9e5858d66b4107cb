package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/topic"
)

// AutoDeleteDelay is the time without a receive after which an unused automatic dead letter queue
// is deleted, and the time between two checks.
const AutoDeleteDelay = 30 * time.Second

// deleteAllUnused deletes the automatic dead letter queues that are consumed. It runs again while
// others exist.
func (c *Catalog) deleteAllUnused(_ context.Context, now time.Time) (next time.Time, err error) {
	topics, _ := c.All()
	var errs []error
	for _, t := range topics {
		if !t.Automatic() {
			continue
		}
		deleted, err := c.DeleteUnused(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("topic %q: %w", t.Name(), err))
		}
		if !deleted {
			next = now.Add(AutoDeleteDelay)
		}
	}
	return next, errors.Join(errs...)
}

// DeleteUnused deletes an automatic dead letter queue if it is unused, and reports whether it is
// deleted. The queue stays if a message arrives, or if PutTopic declares the topic, before the
// deletion.
func (c *Catalog) DeleteUnused(t *topic.Topic) (deleted bool, err error) {
	if !t.Unused(AutoDeleteDelay, time.Now()) {
		return false, nil
	}
	if err := c.LockAdmin(c.config.Env.Life); err != nil {
		return false, nil // the broker closes; the next Open checks the queue again
	}
	defer c.UnlockAdmin()
	if t.Deleted() {
		return true, nil
	}
	stored := t.Written().Messages
	if !t.Unused(AutoDeleteDelay, time.Now()) { // changed during the wait for the token
		return false, nil
	}
	deleted, err = c.deleteTopic(c.config.Env.Life, t, func() bool {
		// A queue with delayed messages is also a retry topic: these messages are still to come.
		return t.Written().Messages == stored && t.Delayed().Messages == 0
	})
	if deleted {
		c.config.Logger.Info("empty auto-created dead-letter queue deleted", "topic", t.Name())
	}
	return deleted, err
}
