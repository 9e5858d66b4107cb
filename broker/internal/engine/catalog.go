package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/address"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A CatalogConfig has the parts of a broker that a Catalog uses.
type CatalogConfig struct {
	Store        *store.Store
	Logger       *slog.Logger
	Loop         *maintenance
	Delayed      *delayed
	Transactions *transactions
	Retention    *Remover
	Letters      *Letters
	Owners       *Owners
	Directory    *Directory

	// Env is for all subscriptions. New sets its Topics, and Redrives of Letters.
	Env *Env

	// Transaction has the broker's times of transaction checks, for topics without times of their
	// own.
	Transaction *atomic.Pointer[settings.Transaction]

	Servers servers

	// MaxAutoGroups is the maximum number of auto-created groups.
	MaxAutoGroups int
}

// servers push settings to consumers.
type servers interface {
	// ConsumerSettingsChanged is called after each change of settings that consumers follow, with
	// the name of a changed group, or with "" for address settings, which can concern every group.
	// The caller holds the token of LockAdmin. ConsumerSettingsChanged must not wait and must not
	// change settings.
	ConsumerSettingsChanged(group string)
}

// A Catalog creates, changes, deletes and restores topics, groups and subscriptions. Several
// goroutines can call its methods at the same time, except those whose comment names the token of
// LockAdmin.
//
// The methods with a context wait for the token, which ctx ends, and for the disk. They return
// tidegate.ErrClosed if the broker is closing.
type Catalog struct {
	*Directory
	config CatalogConfig

	number     uint32 // guarded by the token: the last number of a topic or group
	autoGroups int    // guarded by the token: the number of auto-created groups

	addresses atomic.Pointer[address.Set[settings.Address]] // changed by the holder of the token and of mu
	idKey     store.IDKey                                   // of the hashes of message IDs; set by Recover, before there are topics

	forgetting *Task // of message IDs that are older than the duplicate window
	autoDelete *Task // of automatic dead letter queues

	classes atomic.Int64 // of dead letters, in all topics

	newest time.Time // see Newest

	creations creations
}

// NewCatalog returns a catalog, and adds its tasks to the loop.
func NewCatalog(config CatalogConfig) *Catalog {
	c := &Catalog{Directory: config.Directory, config: config}
	c.addresses.Store(&address.Set[settings.Address]{})
	c.config.Env.Topics, c.config.Letters.Redrives = c, c
	c.forgetting = config.Loop.Add(taskConfig{
		Step: c.forget, Failed: "old message IDs not deleted", Pause: time.Second, MaxPause: time.Minute,
	})
	c.autoDelete = config.Loop.Add(taskConfig{
		Step: c.deleteAllUnused, Failed: "empty auto-created dead-letter queue not deleted", Pause: autoDeleteDelay, MaxPause: autoDeleteDelay,
	})
	return c
}

// creations are the subscriptions that are being created. A creation runs to its end, so without
// them each repetition of a cancelled receive would add one while the disk does not respond. The
// zero value is ready for use.
type creations struct {
	mu      sync.Mutex
	running map[[2]uint32]*creation // guarded by mu: by the numbers of group and topic
}

// A creation is one subscription that is being created.
type creation struct {
	key     [2]uint32
	done    chan struct{} // closed by end
	created *Subscription
	err     error // valid once done is closed, as is created
}

// begin returns the creation that runs for a key. If there is none, first is true, and the caller
// runs the new creation and calls end.
func (c *creations) begin(key [2]uint32) (running *creation, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if running = c.running[key]; running != nil {
		return running, false
	}
	if c.running == nil {
		c.running = map[[2]uint32]*creation{}
	}
	running = &creation{key: key, done: make(chan struct{})}
	c.running[key] = running
	return running, true
}

// end ends a creation, whose result is set.
func (c *creations) end(running *creation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, running.key)
	close(running.done)
}

// wait returns the result of a creation, or the cause of ctx if ctx ends first.
func (r *creation) wait(ctx context.Context) (*Subscription, error) {
	select {
	case <-r.done:
		return r.created, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Subscribe returns the subscription of a group to a topic, and creates the subscription and the
// group if necessary. A new subscription begins at the position of the group's Start setting. The
// error is 40402 if there is no such topic, and otherwise that of EnsureGroup.
func (c *Catalog) Subscribe(ctx context.Context, groupName, topicName string) (*Subscription, error) {
	t, err := c.Topic(topicName)
	if err != nil {
		return nil, err
	}
	g, err := c.EnsureGroup(ctx, groupName)
	if err != nil {
		return nil, err
	}
	if s := c.Find(g.ID(), t.ID()); s != nil {
		return s, nil
	}
	if err := checkBinding(g, t); err != nil {
		return nil, err
	}
	if g.StartsLate(t) {
		return c.subscribeLate(ctx, g, t)
	}
	running, first := c.creations.begin([2]uint32{g.ID(), t.ID()})
	if !first {
		return running.wait(ctx)
	}
	return c.carryOut(ctx, func() (*Subscription, error) {
		defer c.creations.end(running)
		running.created, running.err = c.create(g, t)
		return running.created, running.err
	})
}

// create creates a subscription that begins at the oldest message. The record is on disk before the
// group consumes anything. Retention by consumption then keeps the unconsumed messages of the
// group, also after a power failure.
func (c *Catalog) create(g *Group, t *Topic) (*Subscription, error) {
	if err := c.noteSubscription(g, t); err != nil {
		return nil, err
	}
	return c.Register(newSubscription(c.config.Env, g, t, false))
}

// carryOut creates a subscription, to the end even if ctx ends before. A record without its
// subscription would be a subscription after the next restart.
func (c *Catalog) carryOut(ctx context.Context, create func() (*Subscription, error)) (*Subscription, error) {
	var created *Subscription
	err := c.config.Env.CarryOut(ctx, func() (err error) {
		created, err = create()
		return err
	})
	switch cause := context.Cause(ctx); {
	case err == nil:
		return created, nil
	case cause != nil && errors.Is(err, cause): // create may still run
		return nil, cause
	}
	return nil, err
}

// noteSubscription writes the record that a group receives from a topic.
func (c *Catalog) noteSubscription(g *Group, t *Topic) error {
	err := c.config.Store.Messages.Add(func(w *store.Batch) {
		if !t.Deleted() && !g.Deleted() {
			w.PutSubscription(g.ID(), t.ID())
		}
	}, nil).Wait()
	if err != nil {
		return refusal.Store(err)
	}
	return nil
}

// Register adds a subscription whose record is written, and returns it. If the group has another
// subscription to the topic, Register returns that one. An error means that the topic or the group
// was deleted.
func (c *Catalog) Register(s *Subscription) (*Subscription, error) {
	added, err := c.addSubscription(s)
	if err != nil || s.Topic().Deleted() { // the deletion of the topic may not have seen this subscription
		c.config.Store.Messages.Add(func(w *store.Batch) { w.DeleteSubscriptionOfTopic(s.Group().ID(), s.Topic().ID()) }, nil)
	}
	if err != nil {
		return nil, err
	}
	// PutTopic adds later queues. It may have added some before the subscription was registered.
	added.AddQueues()
	return added, nil
}

// subscribeLate adds a subscription that begins with the next message. The position is on disk
// before the subscription is used. Otherwise the group would receive all older messages after a
// restart.
func (c *Catalog) subscribeLate(ctx context.Context, g *Group, t *Topic) (*Subscription, error) {
	return c.carryOut(ctx, func() (*Subscription, error) {
		if err := c.LockAdmin(ctx); err != nil { // one goroutine creates the subscription
			return nil, err
		}
		defer c.UnlockAdmin()
		if s := c.Find(g.ID(), t.ID()); s != nil {
			return s, nil
		}
		return c.createLate(g, t)
	})
}

func (c *Catalog) createLate(g *Group, t *Topic) (*Subscription, error) {
	s := newSubscription(c.config.Env, g, t, false)
	if err := c.config.Store.Messages.Add(func(*store.Batch) { s.StartAtEnd() }, nil).Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	// After the wait above, the messages before the cursor are on disk: no stored cursor is past
	// the last message.
	write, _ := s.Update(func(*consume.Progress) {})
	if err := write.Wait(); err != nil {
		return nil, refusal.Store(err)
	}
	if err := c.noteSubscription(g, t); err != nil {
		return nil, err
	}
	return c.Register(s)
}

// RetrySubscriptions returns the group's subscriptions to its retry topics for the topic of s: at
// most its retry topic by settings, which it creates if necessary, and that of redriven messages.
func (c *Catalog) RetrySubscriptions(ctx context.Context, s *Subscription) (subs []*Subscription, err error) {
	if r, err := c.retrySubscription(ctx, s); err != nil {
		return nil, err
	} else if r != nil {
		subs = append(subs, r)
	}
	name := s.Group().Settings().RetryTopic.RedriveName(s.Topic().Name(), s.Group().Name())
	if c.FindTopic(name) == nil {
		return subs, nil
	}
	r, err := c.Subscribe(ctx, s.Group().Name(), name)
	switch {
	case err == nil:
		subs = append(subs, r)
	case !errors.Is(err, tidegate.ErrNotFound): // else just deleted
		return nil, err
	}
	return subs, nil
}

// RedriveTopic returns the topic of the messages of a topic that are redriven to a group alone. It
// creates the topic and the group's subscription to it if necessary, and has the receives of the
// group that wait for the original topic wait for both. The error is 40402 or 40403 if the original
// topic or the group does not exist, and otherwise that of OwnTopic.
func (c *Catalog) RedriveTopic(ctx context.Context, g *Group, original *Topic) (*Topic, error) {
	t, err := c.OwnTopic(ctx, g.Settings().RetryTopic.RedriveName(original.Name(), g.Name()), settings.Topic{Queues: 1}, false)
	if err != nil {
		return nil, err
	}
	if _, err := c.Subscribe(ctx, g.Name(), t.Name()); err != nil {
		return nil, err
	}
	if s := c.Find(g.ID(), original.ID()); s != nil {
		s.AddSource()
	}
	return t, nil
}

// retrySubscription returns the group's subscription to its retry topic for the topic of s, and
// creates both if necessary. It returns nil if the group has no such retry topic.
func (c *Catalog) retrySubscription(ctx context.Context, s *Subscription) (*Subscription, error) {
	retry := s.Group().Settings().RetryTopic
	if !retry.Enabled {
		return nil, nil //nolint:nilnil // most groups have none, and nothing is wrong then
	}
	if _, itself := retry.Original(s.Topic().Name(), s.Group().Name()); itself {
		return nil, nil //nolint:nilnil // likewise
	}
	name := retry.RetryName(s.Topic().Name(), s.Group().Name())
	if tidegate.ValidateTopic(name) != nil {
		return nil, nil //nolint:nilnil,nilerr // the names are too long together: ReconsumeLater reports it
	}
	if _, err := c.OwnTopic(ctx, name, settings.Topic{Queues: 1}, false); err != nil {
		return nil, err
	}
	r, err := c.Subscribe(ctx, s.Group().Name(), name)
	if errors.Is(err, tidegate.ErrNotFound) { // just deleted: the next receive creates it again
		return nil, nil //nolint:nilnil // likewise
	}
	return r, err
}

// autoDeleteDelay is the time without a receive after which an unused automatic dead letter queue
// is deleted, and the time between two checks.
const autoDeleteDelay = 30 * time.Second

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
			next = now.Add(autoDeleteDelay)
		}
	}
	return next, errors.Join(errs...)
}

// DeleteUnused deletes an automatic dead letter queue if it is unused, and reports whether it is
// deleted. The queue stays if a message arrives, or if PutTopic declares the topic, before the
// deletion.
func (c *Catalog) DeleteUnused(t *Topic) (deleted bool, err error) {
	if !t.Unused(autoDeleteDelay, time.Now()) {
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
	if !t.Unused(autoDeleteDelay, time.Now()) { // changed during the wait for the token
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

// PutGroup creates a consumer group or changes its settings. It returns when this is on disk. The
// errors are those of CheckGroup and of may, as in PutTopic.
func (c *Catalog) PutGroup(ctx context.Context, name string, s settings.Group, may func(now *settings.Group) error) (*Group, error) {
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := tidegate.ValidateGroup(name); err != nil {
		return nil, err
	}
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	if may != nil {
		var now *settings.Group
		if g := c.FindGroup(name); g != nil {
			now = g.Settings()
		}
		if err := may(now); err != nil {
			return nil, err
		}
	}
	g, err := c.putGroupLocked(name, s, false)
	if err != nil {
		return nil, err
	}
	c.config.Servers.ConsumerSettingsChanged(name)
	return g, nil
}

// PatchGroup is PutGroup for a change of the settings that a group has. It calls change with a copy
// of them, while no other change of settings is under way; change must not wait. The error is that
// of change, or 40403 if there is no such group.
func (c *Catalog) PatchGroup(ctx context.Context, name string, change func(*settings.Group) error) (*Group, error) {
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	g, err := c.Group(name)
	if err != nil {
		return nil, err
	}
	s := *g.Settings()
	if err := change(&s); err != nil {
		return nil, err
	}
	if g, err = c.putGroupLocked(name, s, false); err != nil {
		return nil, err
	}
	c.config.Servers.ConsumerSettingsChanged(name)
	return g, nil
}

// CheckGroup returns the error that PutGroup would return for the settings of a group, as the group
// is now. It changes nothing. The error is 40000.
func (c *Catalog) CheckGroup(name string, s settings.Group) error {
	s = s.WithDefaults()
	if err := refusal.Setting("PutGroup", name, s.ValidateFor(name)); err != nil {
		return err
	}
	if err := checkRetryNames(name, &s.RetryTopic, c.eachGroup); err != nil {
		return err
	}
	g := c.FindGroup(name)
	if g == nil {
		return nil
	}
	var received []*Consumption
	for _, sub := range c.SubscriptionsOf(g) {
		received = append(received, sub.Consumed())
	}
	if g.Settings().FIFO != s.FIFO && len(received) > 0 {
		return errFIFOFixed(name)
	}
	if before := g.Settings().Lite.Topic; before != s.Lite.Topic && len(received) > 0 {
		return refusal.New(tidegate.CodeBadRequest, name, "the group has received, so lite.topic cannot change from %q to %q; delete the group, or use another one", before, s.Lite.Topic)
	}
	return c.config.Letters.CheckRetryTopics(g, received, &s.RetryTopic)
}

func errFIFOFixed(group string) error {
	return refusal.New(tidegate.CodeBadRequest, group, "the group has received, so fifo cannot change; delete the group, or use another one")
}

// putGroupLocked is PutGroup without its wait. automatic means that the group is auto-created. The
// caller holds the token.
func (c *Catalog) putGroupLocked(name string, s settings.Group, automatic bool) (*Group, error) {
	if err := c.CheckGroup(name, s); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	g := c.FindGroup(name)
	if g != nil && reflect.DeepEqual(*g.Settings(), s) && g.Automatic() == automatic {
		return g, nil // nothing changes
	}
	number := c.number
	created := g == nil
	if created {
		number++
		g = newGroup(name, number, s)
	}
	v, err := groupRecord{ID: g.ID(), Automatic: automatic, Group: s}.Encode()
	if err != nil {
		return nil, refusal.Store(err)
	}
	before := *g.Settings()
	if before.FIFO != s.FIFO && !c.setFIFO(g, s.FIFO) { // a receive began since CheckGroup
		return nil, errFIFOFixed(name)
	}
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		w.PutGroup(name, v)
		w.PutNumber(number)
	}, nil).Wait(); err != nil {
		g.SetSettings(before)
		return nil, refusal.Store(err)
	}
	c.number = number
	g.SetSettings(s)
	c.autoGroups += toInt(automatic) - toInt(g.SetAutomatic(automatic))
	if created {
		c.addGroup(g)
	}
	return g, nil
}

// toInt returns 1 for true.
func toInt(counts bool) int {
	if counts {
		return 1
	}
	return 0
}

// EnsureGroup returns a consumer group, and creates it with default settings if there is none. The
// error is 40403 if the maximum of auto-created groups is reached.
func (c *Catalog) EnsureGroup(ctx context.Context, name string) (*Group, error) {
	return c.groupOr(ctx, name, func() (*Group, error) { return c.putGroupLocked(name, settings.Group{}, true) })
}

// GroupSettings returns the settings of a consumer group, or those that EnsureGroup would create it
// with. The errors are those of EnsureGroup.
func (c *Catalog) GroupSettings(ctx context.Context, name string) (settings.Group, error) {
	g, err := c.groupOr(ctx, name, func() (*Group, error) { return nil, nil }) //nolint:nilnil // it creates none
	if err != nil {
		return settings.Group{}, err
	}
	if g == nil {
		return settings.Group{}.WithDefaults(), nil
	}
	return *g.Settings(), nil
}

// groupOr returns a group. If there is none and another one can be auto-created, it returns the
// result of create, which it calls with the token.
func (c *Catalog) groupOr(ctx context.Context, name string, create func() (*Group, error)) (*Group, error) {
	if g := c.FindGroup(name); g != nil {
		return g, nil
	}
	if err := tidegate.ValidateGroup(name); err != nil {
		return nil, err
	}
	if !c.config.Env.Calls.Begin() {
		return nil, refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return nil, err
	}
	defer c.UnlockAdmin()
	if g := c.FindGroup(name); g != nil {
		return g, nil
	}
	if c.autoGroups >= c.config.MaxAutoGroups {
		return nil, refusal.New(protocol.CodeConsumerGroupNotFound, name, "the consumer group does not exist, and the limit of %d auto-created groups (max_auto_groups) is reached; "+
			"create it with PUT /v1/groups/%s, or delete unused groups", c.autoGroups, name)
	}
	return create()
}

// DeleteGroup removes a consumer group with its progress. Its dead letters stay, because they are
// messages of their own topic. The error is 40403 if there is no such group, or that of may, as in
// PutTopic.
func (c *Catalog) DeleteGroup(ctx context.Context, name string, may func(now *settings.Group) error) error {
	if !c.config.Env.Calls.Begin() {
		return refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return err
	}
	defer c.UnlockAdmin()
	g := c.FindGroup(name)
	if g == nil {
		return refusal.GroupNotFound(name)
	}
	if may != nil {
		if err := may(g.Settings()); err != nil {
			return err
		}
	}
	c.autoGroups -= toInt(g.Automatic())
	subs := c.removeGroup(g)
	defer c.config.Servers.ConsumerSettingsChanged(name) // the next receive creates the group with other settings
	defer c.config.Env.Failures.Forget(name)             // after the subscriptions are closed
	for _, s := range subs {
		s.Close(refusal.GroupNotFound(name))
	}
	for _, s := range subs {
		s.Topic().GroupConsumed(time.Now()) // messages that only this group needed
	}
	// The group is deleted before its progress, for the reason given in deleteTopic.
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		g.Delete()
		w.DeleteGroup(name, g.ID())
	}, nil).Wait(); err != nil {
		return refusal.Store(err)
	}
	return c.deleteProgress(subs)
}

// deleteProgress removes the records of closed subscriptions.
func (c *Catalog) deleteProgress(subs []*Subscription) error {
	if err := c.config.Store.Groups.Add(func(w *store.Batch) {
		for _, s := range subs {
			w.DeleteSubscription(s.Group().ID(), s.Topic().ID())
		}
	}, nil).Wait(); err != nil {
		return refusal.Store(err)
	}
	return nil
}
