package catalog

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// Recover restores the topics, groups and subscriptions of the store, with their messages, message
// IDs and progress. Nothing else runs yet: the caller starts the loop afterwards.
func (c *Catalog) Recover() error {
	st := c.config.Store
	var err error
	if c.number, err = st.LastNumber(); err != nil {
		return err
	}
	if c.idKey, err = st.IDKey(); err != nil {
		return err
	}
	if err := c.recoverAddresses(); err != nil {
		return err
	}
	topics, groups, err := c.recoverSettings()
	if err != nil {
		return err
	}
	pendingTopics := c.PendingTopics()
	if err := c.config.Delayed.Recover(pendingTopics); err != nil {
		return err
	}
	now := time.Now()
	for _, t := range topics {
		newest, err := t.Restore(st)
		c.noteTime(newest)
		if err == nil && t.Delayed().Messages > 0 && newest.After(now) {
			err = c.config.Delayed.AdvanceRetries(t, now)
		}
		if err := errors.Join(err, c.recoverIDs(t, now)); err != nil {
			return fmt.Errorf("topic %q: %w", t.Name(), err)
		}
	}
	if err := st.Classes(func(id, class uint32, lc *store.LetterClass) error {
		if t := topics[id]; t != nil {
			t.Classes().Restore(class, lc)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := c.recoverProgress(topics, groups); err != nil {
		return err
	}
	newest, err := c.config.Transactions.Recover(pendingTopics, now)
	if err != nil {
		return err
	}
	c.noteTime(newest)
	for _, t := range topics {
		if t.Written().Messages > t.Before().Messages || t.Leftovers().Messages > 0 {
			t.WakeRetention(now)
		}
		if t.Automatic() {
			c.autoDelete.Wake(now.Add(AutoDeleteDelay))
		}
	}
	return nil
}

// noteTime notes a time in the data directory, for Newest.
func (c *Catalog) noteTime(at time.Time) {
	if at.After(c.newest) {
		c.newest = at
	}
}

// Newest returns the newest time that Recover has read: of the last messages of queues, of delayed
// and half messages, and of deliveries that are not settled. Zero means that there is none.
func (c *Catalog) Newest() time.Time { return c.newest }

// ClockChanged starts the work that the verdict about the wall clock decides: rounds of retention
// in all topics, and the delivery of postponed messages.
func (c *Catalog) ClockChanged(now time.Time) {
	topics, subs := c.All()
	for _, t := range topics {
		if t.Written().Messages > t.Before().Messages || t.Leftovers().Messages > 0 {
			t.WakeRetention(now)
		}
	}
	for _, s := range subs {
		s.EndPostponed()
	}
}

// recoverSettings restores the topics and groups with their settings, and returns them by number.
func (c *Catalog) recoverSettings() (topics map[uint32]*topic.Topic, groups map[uint32]*topic.Group, err error) {
	topics, groups = map[uint32]*topic.Topic{}, map[uint32]*topic.Group{}
	if err := c.config.Store.Topics(func(name string, v []byte) error {
		r, err := topic.DecodeRecord(name, v)
		if err != nil {
			return err
		}
		t := c.newTopic(name, r.ID, r.Topic)
		t.SetAddress(c.addressPolicy(name))
		t.SetAutomatic(r.Automatic)
		topics[r.ID] = t
		c.AddTopic(t)
		return nil
	}); err != nil {
		return nil, nil, err
	}
	err = c.config.Store.AllGroups(func(name string, v []byte) error {
		r, err := topic.DecodeGroupRecord(name, v)
		if err != nil {
			return err
		}
		g := topic.NewGroup(name, r.ID, r.Group)
		g.SetAutomatic(r.Automatic)
		c.autoGroups += toInt(r.Automatic)
		groups[r.ID] = g
		c.addGroup(g)
		return nil
	})
	return topics, groups, err
}

// recoverProgress restores the subscriptions, and removes records that have no effect any more.
func (c *Catalog) recoverProgress(topics map[uint32]*topic.Topic, groups map[uint32]*topic.Group) error {
	r := restoration{
		Catalog: c, topicsByID: topics, groupsByID: groups,
		subs: map[[2]uint32]*subscription.Subscription{}, orphans: map[[2]uint32]bool{}, lost: topic.LostEnds{}, texts: map[string]string{},
	}
	// Leases come after the cursors, and the records of parked and spilled messages after the
	// leases.
	for _, restore := range []func() error{r.subscriptions, r.cursors, r.leases, r.parked, r.spilled} {
		if err := restore(); err != nil {
			return err
		}
	}
	r.lost.Restore(c.config.Store, c.config.Logger)
	r.removeStrays()
	for _, s := range r.subs {
		s.Resume()
	}
	return nil
}

// A restoration restores the subscriptions of a broker. Nothing else runs yet.
type restoration struct {
	*Catalog
	topicsByID map[uint32]*topic.Topic
	groupsByID map[uint32]*topic.Group
	subs       map[[2]uint32]*subscription.Subscription

	lost topic.LostEnds

	// orphans are pairs of group and topic with records, whose value is true if the group or the
	// topic does not exist. A power failure during a deletion leaves such records.
	orphans map[[2]uint32]bool

	texts map[string]string // owners and message groups of leases, each once

	strays []func(*store.Batch) // remove records of messages that the group does not have any more
}
