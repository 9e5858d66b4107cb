package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// open returns a recovered catalog with at most one auto-created group, and a function that closes
// its store. The loop is not started.
func open(t *testing.T, fs vfs.FS) (c *Catalog, closeStore func()) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st := assert.Value(store.Open(store.Options{Dir: "data", FS: fs, Logger: logger}))(t)
	life, end := context.WithCancelCause(t.Context())
	loop := newMaintenance(life, logger, nil)
	d := NewDirectory(nil)
	var damaged atomic.Int64
	lateness := store.DurationHistogram()
	waiting := pendingConfig{Store: st, Loop: loop, Logger: logger, pendingParts: host{d}, Damaged: &damaged, Late: &lateness}
	delayed, transactions := newDelayed(waiting), newTransactions(waiting)
	var times atomic.Pointer[settings.Transaction]
	times.Store(&settings.Transaction{})
	owners := &Owners{}
	l := assert.Value(NewLimits(LimitsConfig{Store: st, Logger: logger}, settings.Limits{}))(t)
	calls := &calls{}
	c = NewCatalog(CatalogConfig{
		Store: st, Logger: logger, Loop: loop, Delayed: delayed, Transactions: transactions, Owners: owners, Directory: d,
		Retention: NewRemoval(RemovalConfig{
			Store: st, Loop: loop, Logger: logger, Delayed: delayed, Transactions: transactions, Directory: d, Subscriptions: d.Subscriptions(),
		}),
		Letters: NewLetters(LettersConfig{Store: st, Directory: d, Logger: logger, Life: life, Damaged: &damaged}),
		Env: &Env{
			Leases: NewLeases(1 << 30),
			Store:  st, Logger: logger, Reads: NewReads(), MaxInvisible: time.Hour, Owners: owners, Events: tally.New(logger),
			Life: life, Calls: calls, Limits: l, Delayed: delayed, Damaged: &damaged, Lateness: &lateness,
		},
		Servers: host{d}, Transaction: &times, MaxAutoGroups: 1,
	})
	assert.Must(t, c.Recover())
	var closed bool
	closeStore = func() {
		if closed {
			return
		}
		closed = true
		calls.operating.Wait()
		end(tidegate.ErrClosed)
		loop.Stop()
		_, subs := c.All()
		for _, s := range subs {
			s.Stop()
		}
		assert.NoError(t, st.Close())
	}
	t.Cleanup(closeStore)
	return c, closeStore
}

// A host is the broker of the messages that are in no queue yet.
type host struct{ d *Directory }

func (h host) Topics() func(uint32) pendingTopic { return h.d.PendingTopics() }
func (host) ShortOfDisk() bool                   { return false }
func (host) Room(context.Context, int64) error   { return nil }
func (host) GivenUp() pendingTopic               { return nil }
func (host) CreateGivenUp() error                { return nil }
func (host) Ask(TransactionCheck) bool           { return false }

func (host) ConsumerSettingsChanged(string) {}

// calls are the calls under way.
type calls struct {
	operating sync.WaitGroup
	running   atomic.Int64
}

func (c *calls) Begin() bool {
	c.operating.Add(1)
	c.running.Add(1)
	return true
}

func (c *calls) End() {
	c.running.Add(-1)
	c.operating.Done()
}

// stored returns the subscriptions that have a record, by the numbers of group and topic.
func stored(t *testing.T, c *Catalog) map[[2]uint32]bool {
	t.Helper()
	out := map[[2]uint32]bool{}
	if err := c.config.Store.Messages.Barrier().Wait(); err != nil { // the earlier batches are written
		t.Fatal(err)
	}
	assert.Must(t, c.config.Store.Subscriptions(func(group, topic uint32) error { out[[2]uint32{group, topic}] = true; return nil }))
	return out
}

// topicAndGroup creates the topic t and the group g.
func topicAndGroup(t *testing.T, c *Catalog, start settings.Start) (*Topic, *Group) {
	t.Helper()
	tp := assert.Value(c.PutTopic(t.Context(), "t", settings.Topic{}, nil))(t)
	g := assert.Value(c.PutGroup(t.Context(), "g", settings.Group{Start: start}, nil))(t)
	return tp, g
}

func TestRecover(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	c, closeStore := open(t, fs)
	persist := true
	assert.Must(t, c.PutAddress(t.Context(), "orders.#", settings.Address{PersistDeliveryCountBeforeDelivery: &persist}, nil))
	before := assert.Value(c.PutTopic(t.Context(), "orders.eu", settings.Topic{Queues: 3}, nil))(t)
	assert.Must(t, assert.Err(c.Subscribe(t.Context(), "automatic", "orders.eu")))
	declared := assert.Value(c.PutGroup(t.Context(), "declared", settings.Group{MaxAttempts: 7}, nil))(t)
	closeStore()

	c, _ = open(t, fs)
	after := assert.Value(c.Topic("orders.eu"))(t)
	if after.ID() != before.ID() || len(after.Queues()) != 3 || !after.Address().Persist {
		t.Errorf("the topic has number %d, %d queues and the address settings %+v", after.ID(), len(after.Queues()), after.Address())
	}
	g := assert.Value(c.Group("declared"))(t)
	if g.ID() != declared.ID() || g.Settings().MaxAttempts != 7 || g.Automatic() {
		t.Errorf("the declared group has number %d, %d attempts, automatic %t", g.ID(), g.Settings().MaxAttempts, g.Automatic())
	}
	automatic := assert.Value(c.Group("automatic"))(t)
	if !automatic.Automatic() || c.Find(automatic.ID(), after.ID()) == nil || len(after.Subscriptions()) != 1 {
		t.Errorf("the auto-created group is automatic %t; its topic has %d subscriptions", automatic.Automatic(), len(after.Subscriptions()))
	}
	_, err := c.EnsureGroup(t.Context(), "another")
	assert.That(t, codeOf(err) == protocol.CodeConsumerGroupNotFound, "one auto-created group too many: %v", err)
	next := assert.Value(c.PutTopic(t.Context(), "next", settings.Topic{}, nil))(t)
	if next.ID() <= declared.ID() {
		t.Errorf("a new topic has number %d after %d", next.ID(), declared.ID())
	}
}

// A subscription of a topic that is deleted during the first receive leaves no record.
func TestRegisterAfterDeletion(t *testing.T) {
	t.Parallel()
	c, _ := open(t, vfs.NewMem())
	tp, g := topicAndGroup(t, c, "")
	assert.Must(t, c.noteSubscription(g, tp))
	assert.Must(t, c.DeleteTopic(t.Context(), "t", nil))
	s := newSubscription(c.config.Env, g, tp, false)
	t.Cleanup(s.Stop)
	assert.MustEqual(t, "the deletion did not run before the subscription was registered", len(stored(t, c)), 1)
	assert.Equal(t, "a subscription to a deleted topic", codeOf(assert.Err(c.Register(s))), tidegate.CodeTopicNotFound)
	if left := stored(t, c); len(left) != 0 || c.Find(g.ID(), tp.ID()) != nil {
		t.Errorf("left: records %v, subscription %v", left, c.Find(g.ID(), tp.ID()))
	}
}

// Open removes the records of a subscription whose group or topic does not exist, and no others.
func TestRecoverRemovesOrphans(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	c, closeStore := open(t, fs)
	tp := assert.Value(c.PutTopic(t.Context(), "t", settings.Topic{}, nil))(t)
	s := assert.Value(c.Subscribe(t.Context(), "g", "t"))(t)
	if err := c.config.Store.Messages.Add(func(w *store.Batch) {
		w.PutSubscription(98, tp.ID())
		w.PutSubscription(s.Group().ID(), 99)
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	closeStore()
	c, _ = open(t, fs)
	if left := stored(t, c); len(left) != 1 || !left[[2]uint32{s.Group().ID(), tp.ID()}] {
		t.Errorf("records are left of %v, want only of %d and %d", left, s.Group().ID(), tp.ID())
	}
}

func TestLockAdmin(t *testing.T) {
	t.Parallel()
	d := NewDirectory(nil)
	assert.Must(t, d.LockAdmin(t.Context()))
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	assert.Is(t, "a second holder", d.LockAdmin(ctx), ended)
	d.UnlockAdmin()
	assert.NoError(t, d.LockAdmin(t.Context()))
}

// A deletion writes that a topic is deleted before it removes the topic from the directory. A
// subscription that is registered in between leaves no record.
func TestRegisterDuringDeletion(t *testing.T) {
	t.Parallel()
	c, _ := open(t, vfs.NewMem())
	tp, g := topicAndGroup(t, c, "")
	assert.Must(t, c.noteSubscription(g, tp))
	assert.Must(t, c.config.Store.Messages.Add(func(*store.Batch) { tp.Delete() }, nil).Wait())
	assert.Must(t, assert.Err(c.Register(newSubscription(c.config.Env, g, tp, false))))
	assert.Equal(t, "left: records", len(stored(t, c)), 0)
}

// A receive that ends while its subscription is written leaves no record without a subscription.
// From such a record the next Open would create a subscription without a consumer, whose backlog
// could throttle senders.
func TestSubscribeIsCompletedAfterItsContext(t *testing.T) {
	t.Parallel()
	for start, name := range map[settings.Start]string{settings.StartEarliest: "earliest", settings.StartLatest: "latest"} {
		fs := vfs.NewMem()
		c, closeStore := open(t, fs)
		tp, g := topicAndGroup(t, c, start)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the client left")
		time.AfterFunc(0, func() { cancel(cause) })
		_, err := c.Subscribe(ctx, "g", "t")
		assert.MustThat(t, err == nil || errors.Is(err, cause), "%+v", err)
		closeStore()
		inMemory := c.Find(g.ID(), tp.ID()) != nil
		again, _ := open(t, fs)
		if onDisk := again.Find(g.ID(), tp.ID()) != nil; onDisk != inMemory {
			t.Errorf("start %s: the subscription is in memory: %v, on disk: %v", name, inMemory, onDisk)
		}
		cancel(nil)
	}
}

// The FIFO setting of a group can change only before the group has a subscription: a receive can
// begin while PutGroup writes the settings.
func TestFIFOChangesBeforeTheFirstSubscription(t *testing.T) {
	t.Parallel()
	c, _ := open(t, vfs.NewMem())
	_, g := topicAndGroup(t, c, "")
	assert.That(t, c.setFIFO(g, true) && g.Settings().FIFO, "a group without a subscription did not become FIFO")
	assert.Must(t, assert.Err(c.Subscribe(t.Context(), "g", "t")))
	assert.That(t, !c.setFIFO(g, false) && g.Settings().FIFO, "a group with a subscription did not stay FIFO")
	assert.Equal(t, "another value of fifo", codeOf(assert.Err(c.PutGroup(t.Context(), "g", settings.Group{}, nil))), tidegate.CodeBadRequest)
}

// While the disk does not respond, repeated first receives wait for one creation of their
// subscription: a client that gives up and tries again leaves no goroutine for each try.
func TestOneCreationOfASubscriptionRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, closeStore := open(t, vfs.NewMem())
		tp, g := topicAndGroup(t, c, "")
		calls := c.config.Env.Calls.(*calls)
		disk := make(chan struct{})
		c.config.Store.Messages.Add(func(*store.Batch) {}, func(error) { <-disk })
		left := errors.New("the client left")
		for range 5 {
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := c.Subscribe(ctx, "g", "t")
				done <- err
			}()
			synctest.Wait()
			cancel(left)
			assert.Is(t, "a receive whose client left", <-done, left)
		}
		assert.Equal(t, "creations of one subscription wait for the disk", calls.running.Load(), 1)
		close(disk)
		s, err := c.Subscribe(t.Context(), "g", "t")
		assert.That(t, err == nil && s == c.Find(g.ID(), tp.ID()), "when the disk responds: %v, %v", s, err)
		closeStore()
	})
}

// The check of a group without a retry topic does not look at the other groups: creating n groups
// would take n² steps. A copy of their list would take at least 8 bytes for each. The bytes are
// those of the whole process, so the limit is half of that.
func TestCheckGroupIgnoresOtherGroups(t *testing.T) {
	const (
		groups = 10_000
		checks = 100
		limit  = groups * checks * 4
	)
	c, _ := open(t, vfs.NewMem())
	for i := range uint32(groups) {
		c.addGroup(newGroup(fmt.Sprint("other", i), i+1, settings.Group{}.WithDefaults()))
	}
	if got := assert.AllocatedBytes(func() {
		for range checks {
			assert.Must(t, c.CheckGroup("g", settings.Group{}))
		}
	}); got > limit {
		t.Errorf("%d checks beside %d groups allocated %d bytes, want at most %d", checks, groups, got, limit)
	}
}

// fill stores n messages of 100 bytes in each queue of a topic.
func fill(t *testing.T, c *Catalog, tp *Topic, n int) {
	t.Helper()
	for _, q := range tp.Queues() {
		if err := c.config.Store.Messages.Add(func(w *store.Batch) {
			for range n {
				tp.Put(w, q, &store.Message{Message: tidegate.Message{ID: tidegate.NewMessageID(), Body: make([]byte, 100)}}, time.Now())
			}
		}, func(error) {
			q.Publish(q.Next().Offset)
			tp.Wake(q, int64(n))
		}).Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// drain receives and acknowledges all messages, and returns their number.
func drain(t *testing.T, s *Subscription) int {
	t.Helper()
	ds, err := s.Receive(t.Context(), &Request{ReceiveRequest: transport.ReceiveRequest{
		Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Minute,
	}})
	assert.Must(t, err)
	for _, d := range ds {
		h := assert.Value(consume.ParseHandle(d.Handle))(t)
		errs := make([]error, 1)
		if s.Ack([]consume.Handle{h}, errs); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	return len(ds)
}

// A topic gets more queues while a group receives from it for the first time: the group receives
// from the new ones too.
func TestTopicGrowsDuringAFirstReceive(t *testing.T) {
	t.Parallel()
	for _, start := range []settings.Start{settings.StartEarliest, settings.StartLatest} {
		t.Run(string(start), func(t *testing.T) {
			t.Parallel()
			c, _ := open(t, vfs.NewMem())
			tp, g := topicAndGroup(t, c, start)
			s := newSubscription(c.config.Env, g, tp, false)
			queues := len(tp.Queues()) + 2
			assert.Must(t, assert.Err(c.PutTopic(t.Context(), "t", settings.Topic{Queues: queues}, nil)))
			assert.Must(t, assert.Err(c.Register(s)))
			fill(t, c, tp, 1)
			assert.Equal(t, "messages are delivered", drain(t, s), queues)
		})
	}
}

// An automatic queue that is about to be deleted is created explicitly: it stays.
func TestPutKeepsAnAutomaticQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _ := open(t, vfs.NewMem())
		tp := assert.Value(c.OwnTopic(t.Context(), "DLQ.t", settings.Topic{Queues: 1}, true))(t)
		fill(t, c, tp, 2)
		s := assert.Value(c.Subscribe(t.Context(), "g", "DLQ.t"))(t)
		assert.MustEqual(t, "messages are delivered", drain(t, s), 2)
		time.Sleep(autoDeleteDelay)
		assert.Must(t, c.LockAdmin(t.Context()))
		deleted := make(chan bool, 1)
		go func() {
			is, err := c.DeleteUnused(tp)
			assert.NoError(t, err)
			deleted <- is
		}()
		if synctest.Wait(); len(deleted) > 0 {
			t.Fatal("the deletion does not wait for the token")
		}
		assert.Must(t, assert.Err(c.PutTopicLocked("DLQ.t", settings.Topic{}, false)))
		c.UnlockAdmin()
		assert.MustThat(t, !<-deleted && c.FindTopic("DLQ.t") == tp, "the queue is gone")
		tp.SetAutomatic(true)
		is, err := c.DeleteUnused(tp)
		assert.That(t, is && err == nil, "an automatic queue that is not in use is deleted: %t, %v", is, err)
		assert.Equal(t, "bytes can be reclaimed once it is deleted", c.config.Retention.Freed().Bytes(), 200)
	})
}

// The end after the last attempt depends on the group.
func TestRulesOfAGroup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  settings.Group
		maximum int
		then    consume.Exhaustion
	}{
		{settings.Group{}, 17, consume.ThenDeadLetter},
		{settings.Group{FIFO: true}, 17, consume.ThenDeadLetter},
		{settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark}, 17, consume.ThenPark},
		{settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedBlock, MaxAttempts: 3}, 3, consume.ThenBlock},
		{settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark, MaxAttempts: -1}, -1, consume.ThenPark},
	} {
		config := c.config.WithDefaults()
		if got := (Policy{&config, &AddressPolicy{}}).Rules(); got.MaxAttempts != c.maximum || got.OnExhausted != c.then {
			t.Errorf("%+v: maximum %d, then %d; want %d, %d", c.config, got.MaxAttempts, got.OnExhausted, c.maximum, c.then)
		}
	}
}

// Fields that address settings with a part for redelivery leave out have their defaults.
//
// Artemis: undelivered messages: "Each time a message is redelivered the delay period will be equal
// to the previous delay * `redelivery-delay-multiplier`. A `max-redelivery-delay` can be set to
// prevent the delay from becoming too large. The `max-redelivery-delay` is defaulted to
// `redelivery-delay` \* 10."
// Artemis: undelivered messages: "default is 1.0"
// Artemis: undelivered messages: "default is 0.0"
// Artemis: undelivered messages: "`dead-letter-queue-suffix`|(empty string)"
// Artemis: undelivered messages: "default is redelivery-delay * 10"
func TestRedeliveryDefaults(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		settings settings.Address
		want     consume.RetryRules
	}{
		{
			settings.Address{DeadLetterAddress: new("")}, // as a more specific pattern takes it away
			consume.RetryRules{Multiplier: 1, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			settings.Address{RedeliveryDelay: new(settings.Milliseconds(100)), RedeliveryDelayMultiplier: new(3.0)},
			consume.RetryRules{Delay: 100 * ms, Longest: 1000 * ms, Multiplier: 3, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			settings.Address{RedeliveryDelay: new(maxMilliseconds)},
			consume.RetryRules{Delay: maxMilliseconds.Duration(), Longest: maxMilliseconds.Duration(), Multiplier: 1, MaxAttempts: 10, Prefix: "DLQ."},
		},
		{
			settings.Address{
				RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000)),
				RedeliveryCollisionAvoidanceFactor: new(0.5), MaxDeliveryAttempts: new(-1), DeadLetterAddress: new("DLA"),
				AutoCreateDeadLetterResources: new(true), DeadLetterQueuePrefix: new(""), DeadLetterQueueSuffix: new(".DLQ"),
			},
			consume.RetryRules{
				Delay: 5000 * ms, Longest: 15000 * ms, Multiplier: 2, Factor: 0.5, MaxAttempts: -1,
				DeadLetter: "DLA", AutoCreate: true, Suffix: ".DLQ",
			},
		},
	} {
		if got := newAddressPolicy(c.settings).Redelivery; got == nil || *got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// Artemis: undelivered messages: "By default, messages are redelivered 10 times at the maximum. Set
// `max-delivery-attempts` to -1 for infinite redeliveries."
//
// The default of max-delivery-attempts is 10, and it counts deliveries: the
// seed's 3 are "3 unsuccessful delivery attempts".
func TestMaxDeliveryAttempts(t *testing.T) {
	t.Parallel()
	group := settings.Group{}.WithDefaults()
	for _, c := range []struct {
		settings  settings.Address
		attempt   int
		exhausted bool
	}{
		{settings.Address{RedeliveryDelay: new(settings.Milliseconds(0))}, 9, false},
		{settings.Address{RedeliveryDelay: new(settings.Milliseconds(0))}, 10, true},
		{settings.Address{MaxDeliveryAttempts: new(3)}, 2, false},
		{settings.Address{MaxDeliveryAttempts: new(3)}, 3, true},
		{settings.Address{MaxDeliveryAttempts: new(-1)}, math.MaxInt, false},
		{settings.Address{}, 16, false}, // the group's own: 16 retries
		{settings.Address{}, 17, true},
		{settings.Address{ExpiryDelay: new(settings.Milliseconds(5)), PersistDeliveryCountBeforeDelivery: new(true)}, 16, false}, // without a setting of redelivery
	} {
		rules := Policy{&group, newAddressPolicy(c.settings)}.Rules()
		got := rules.LastAttempt(c.attempt)
		assert.That(t, got == c.exhausted, "%+v: attempt %d is the last one: %t", c.settings, c.attempt, got)
	}
}

// A retry topic's dead letters go to a topic that is named after the original
func TestDeadLetterTopicsOfRetryTopics(t *testing.T) {
	t.Parallel()
	for naming, want := range map[string]string{"2.9.2": "t-g-DLQ", "2.7.2": "g-DLQ", "2.6.1": "g-dlq"} {
		rc := settings.RetryTopic{Enabled: true, Naming: naming}.WithDefaults()
		p := Policy{&settings.Group{RetryTopic: rc}, &AddressPolicy{}}
		for _, topic := range []string{"t", rc.RetryName("t", "g")} {
			if got := p.DeadLetterTopics("g", topic, false); !slices.Equal(got, []string{want}) {
				t.Errorf("naming %s: the dead letters of %s go to %q, want %q", naming, topic, got, want)
			}
		}
	}
}

// Each limit follows its configured value if that has changed, and else its set value. A quota is
// one limit.
func TestEachLimitFollowsItsLastChange(t *testing.T) {
	t.Parallel()
	fields := leaves(reflect.TypeFor[settings.Limits](), nil)
	assert.MustEqual(t, "fields", len(fields), 10)
	for _, f := range fields {
		var was, set, is settings.Limits
		at := func(l *settings.Limits) reflect.Value { return reflect.ValueOf(l).Elem().FieldByIndex(f) }
		put := func(l *settings.Limits, n int64) {
			if v := at(l); v.CanFloat() {
				v.SetFloat(float64(n))
			} else {
				v.SetInt(n)
			}
		}
		put(&was, 1)
		put(&set, 2)
		put(&is, 1)
		got := (change{Set: set, Configured: was}).over(is)
		assert.That(t, got == set, "%v, configured as before: %+v, want %+v", f, got, set)
		put(&is, 3)
		got = (change{Set: set, Configured: was}).over(is)
		assert.That(t, got == is, "%v, configured anew: %+v, want %+v", f, got, is)
	}
	quota := func(rate float64, burst int) settings.Limits {
		return settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: rate, Burst: burst}}
	}
	c := change{Set: quota(10, 50), Configured: quota(5, 0)}
	assert.Equal(t, "a quota without a rate", c.over(quota(0, 0)), quota(0, 0))
}

// leaves returns the indices of all fields that are not structs.
func leaves(t reflect.Type, at []int) (out [][]int) {
	if t.Kind() != reflect.Struct {
		return [][]int{at}
	}
	for i := range t.NumField() {
		out = append(out, leaves(t.Field(i).Type, append(slices.Clip(at), i))...)
	}
	return out
}

// All stored settings of a topic or group are rejected, or can be used.
func FuzzStoredSettings(f *testing.F) {
	f.Add([]byte(`{"id":1,"type":"FIFO","queues":3,"duplicate_window":"1s"}`))
	f.Add([]byte(`{"id":1,"max_attempts":3,"retry":["1s","2s"],"fifo":true}`))
	f.Add([]byte(`{"queues":-1}`))
	f.Fuzz(func(t *testing.T, v []byte) {
		if st, err := decodeRecord("t", v); err == nil {
			tp := newTopic(TopicConfig{ID: st.ID, Name: "t"}, st.Topic)
			if tp.Pick(&tidegate.Message{MessageGroup: "g"}) == nil || tp.Settings().IDWindow() < 0 {
				t.Fatalf("the settings are %+v", *tp.Settings())
			}
		}
		if st, err := decodeGroupRecord("g", v); err == nil {
			c := newGroup("g", st.ID, st.Group).Settings()
			for _, attempt := range []int{1, 17, 1 << 20} {
				d := c.Interval(attempt)
				assert.MustThat(t, d >= 0, "the interval after delivery %d is %v", attempt, d)
			}
		}
	})
}

// All valid settings, stored or sent, make a policy within its bounds.
func FuzzAddressSettings(f *testing.F) {
	f.Add(`{"redelivery-delay":5000,"redelivery-delay-multiplier":2,"max-redelivery-delay":15000}`, 3)
	f.Add(`{"redelivery-delay":"876000h","redelivery-collision-avoidance-factor":1,"max-delivery-attempts":-1}`, 1<<30)
	f.Add(`{"redelivery-delay-multiplier":1e308,"redelivery-delay":1}`, -1)
	f.Fuzz(func(t *testing.T, text string, attempt int) {
		var s settings.Address
		if json.Unmarshal([]byte(text), &s) != nil || s.Validate() != nil {
			return
		}
		r := newAddressPolicy(s).Redelivery
		if r == nil {
			return
		}
		for _, d := range []consume.Draw{{}, {Negative: true, Number: .999}, {Number: .999}} {
			if got := r.After(attempt, d); got < 0 || got > r.Longest {
				t.Errorf("%s: after attempt %d with %+v: %v, the maximum is %v", text, attempt, d, got, r.Longest)
			}
		}
		for _, name := range (Policy{&settings.Group{}, newAddressPolicy(s)}).DeadLetterTopics("g", "orders", false) {
			assert.That(t, name != "orders" && tidegate.ValidateTopic(name) == nil, "%s: dead letters go to %q", text, name)
		}
	})
}

// Any text is rejected or is the position of offsets that are not negative; the position has the
// same text again.
func FuzzCursor(f *testing.F) {
	s := &scan{query: &status.MessageQuery{}, readers: []*reader{{from: 7}, {from: 1 << 40}}}
	f.Add(s.cursor(), byte(forward))
	f.Add("AQ", byte(backward))
	f.Fuzz(func(t *testing.T, text string, direction byte) {
		at, err := parse(text, direction)
		if err != nil {
			return
		}
		s := &scan{query: &status.MessageQuery{}}
		for _, n := range at {
			assert.MustThat(t, n >= 0, "%q has the offset %d", text, n)
			s.readers = append(s.readers, &reader{from: n})
		}
		again, err := parse(s.cursor(), forward)
		assert.MustThat(t, err == nil && len(again) == len(at), "%v becomes %v, %v", at, again, err)
	})
}

func TestOwners(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	o.Touch("stranger", start)
	o.Own("a", OwnerPlace{1, 1}, start)
	o.Own("b", OwnerPlace{1, 1}, start)
	o.Own("c", OwnerPlace{1, 1}, start)
	o.Touch("a", start.Add(memory))
	o.Forget("c")
	o.Own("d", OwnerPlace{1, 1}, start.Add(memory+time.Second)) // removes b, whose last heartbeat is too long ago
	for owner, want := range map[string]time.Time{
		"stranger": {}, "a": start.Add(memory), "b": {}, "c": {}, "d": start.Add(memory + time.Second),
	} {
		at, ok := o.Last(owner)
		assert.That(t, at == want && ok != want.IsZero(), "Last(%q) = %v, %t, want %v", owner, at, ok, want)
	}
	assert.That(t, len(o.seen) == 2, "%d clients are remembered, want 2: %v", len(o.seen), o.seen)
}

// The end of a client concerns the places at which it received, each once.
func TestPlacesOfAClient(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var o Owners
	for range 2 {
		for _, p := range []OwnerPlace{{1, 1}, {1, 2}, {2, 2}} {
			o.Own("a", p, now)
		}
		o.Own("b", OwnerPlace{3, 1}, now)
	}
	for _, c := range []struct {
		client string
		want   []OwnerPlace
	}{{"stranger", nil}, {"b", []OwnerPlace{{3, 1}}}, {"a", []OwnerPlace{{1, 1}, {1, 2}, {2, 2}}}, {"a", nil}} {
		got, many := o.Forget(c.client)
		slices.SortFunc(got, func(a, b OwnerPlace) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic)) })
		assert.That(t, slices.Equal(got, c.want) && !many, "Forget(%q) = %v, %t; want %v", c.client, got, many, c.want)
	}
}

// The places of a client are bounded.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	var o Owners
	for _, n := range []int{mostPlaces, mostPlaces + 1, 3 * mostPlaces} {
		for i := range uint32(n) {
			o.Own("a", OwnerPlace{Group: i, Topic: 1}, time.Time{})
		}
		remembered := len(o.seen["a"].more)
		if got, many := o.Forget("a"); many != (n > mostPlaces) || !many && len(got) != n || many && remembered > 0 {
			t.Errorf("of %d places %d are remembered, and Forget returns %d and %t", n, remembered, len(got), many)
		}
	}
}
