package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/topic"
)

// autoDeleteDelay is how long no client has received from an automatic dead-letter queue before it
// is deleted, and the time between two looks.
const autoDeleteDelay = 30 * time.Second

// deleteAllUnused deletes the automatic dead-letter queues that are consumed. It runs again while
// there are others.
func (b *Broker) deleteAllUnused(_ context.Context, now time.Time) (next time.Time, err error) {
	var automatic []*topic.Topic
	b.mu.RLock()
	for _, t := range b.topics {
		if t.Automatic() {
			automatic = append(automatic, t)
		}
	}
	b.mu.RUnlock()
	var errs []error
	for _, t := range automatic {
		deleted, err := b.deleteUnused(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("topic %q: %w", t.Name(), err))
		}
		if !deleted {
			next = now.Add(autoDeleteDelay)
		}
	}
	return next, errors.Join(errs...)
}

// deleteUnused deletes an automatic queue if it can go. A message that comes
// in this moment keeps it, and so does who puts it.
func (b *Broker) deleteUnused(t *topic.Topic) (deleted bool, err error) {
	if !t.Unused(autoDeleteDelay, time.Now()) {
		return false, nil
	}
	if err := b.lockAdmin(b.life); err != nil {
		return false, nil // the broker closes; it is looked at again when it is opened
	}
	defer b.unlockAdmin()
	if t.Deleted() {
		return true, nil
	}
	stored := t.Written().Messages
	if !t.Unused(autoDeleteDelay, time.Now()) { // somebody had admin
		return false, nil
	}
	deleted, err = b.deleteTopic(b.life, t, func() bool {
		// With delayed ones it is a retry topic too: more is to come.
		return t.Written().Messages == stored && t.Delayed().Messages == 0
	})
	if deleted {
		b.logger.Info("an automatic dead-letter queue was deleted: all of it was consumed", "topic", t.Name())
	}
	return deleted, err
}
