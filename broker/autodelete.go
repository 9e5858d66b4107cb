package broker

import (
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// autoDeleteDelay is how long nobody has received from an automatic
// dead-letter queue before it is deleted, at least, and how often that is looked at.
const autoDeleteDelay = 30 * time.Second

// A sweeper deletes automatic dead-letter queues that are done with. It runs
// only while there is one.
type sweeper struct {
	broker *Broker

	mu    sync.Mutex
	armed bool // guarded by mu
	timer *time.Timer
}

func newSweeper(b *Broker) *sweeper {
	s := &sweeper{broker: b}
	s.timer = time.AfterFunc(time.Hour, s.sweep)
	s.timer.Stop()
	return s
}

// arm has the sweeper run, if it does not.
func (s *sweeper) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.armed {
		s.armed = true
		s.timer.Reset(autoDeleteDelay)
	}
}

func (s *sweeper) sweep() {
	b := s.broker
	if !b.begin() {
		return
	}
	defer b.end()
	s.mu.Lock()
	s.armed = false
	s.mu.Unlock()
	var automatic []*topic
	b.mu.RLock()
	for _, t := range b.topics {
		if t.automatic.Load() {
			automatic = append(automatic, t)
		}
	}
	b.mu.RUnlock()
	left := false
	for _, t := range automatic {
		deleted, err := b.deleteUnused(t)
		if err != nil {
			b.logger.Error("an automatic dead-letter queue could not be deleted; it is tried again", "topic", t.name, "error", err)
		}
		left = left || !deleted
	}
	if left {
		s.arm()
	}
}

// unused reports whether an automatic queue can go: groups have consumed all
// of it, and nobody receives from it.
func (t *topic) unused(now time.Time) bool {
	subs := *t.subs.Load()
	if t.address.Load().keepQueues || !t.automatic.Load() || len(subs) == 0 {
		return false
	}
	for _, s := range subs {
		s.mu.Lock()
		idle := len(s.waiters) == 0 && now.Sub(s.lastTake) >= autoDeleteDelay
		s.mu.Unlock()
		if !idle || s.backlog().Messages > 0 {
			return false
		}
	}
	return true
}

// deleteUnused deletes an automatic queue if it can go. A message that comes
// in this moment keeps it, and so does who puts it.
func (b *Broker) deleteUnused(t *topic) (deleted bool, err error) {
	if !t.unused(time.Now()) {
		return false, nil
	}
	if err := b.lockAdmin(b.life); err != nil {
		return false, nil // the broker closes; it is looked at again when it is opened
	}
	defer b.unlockAdmin()
	if t.deleted.Load() {
		return true, nil
	}
	stored := t.messages.Load()
	if !t.unused(time.Now()) { // somebody had admin
		return false, nil
	}
	if err := b.store.Messages.Add(func(w *store.Batch) {
		// With delayed ones it is a retry topic too: more is to come.
		if deleted = t.messages.Load() == stored && t.delays.messages.Load() == 0; deleted {
			t.deleted.Store(true)
			w.DeleteTopic(t.name, t.id)
			for _, s := range *t.subs.Load() {
				w.DeleteSubscriptionOfTopic(s.group.id, t.id)
			}
		}
	}, nil).Wait(); err != nil {
		return false, storeError(err)
	}
	if !deleted {
		return false, nil
	}
	b.mu.Lock()
	delete(b.topics, t.name)
	subs := *t.subs.Load()
	for _, s := range subs {
		b.subs.remove(s)
	}
	b.mu.Unlock()
	for _, s := range subs {
		s.close()
	}
	b.noteDeleted(t)
	defer b.retention.reclaimSoon()
	b.logger.Info("an automatic dead-letter queue was deleted: all of it was consumed", "topic", t.name)
	return true, b.deleteProgress(subs)
}
