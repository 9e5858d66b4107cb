package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// open returns a recovered catalog with at most one auto-created group, and a function that closes
// its store. The loop is not started.
func open(t *testing.T, fs vfs.FS) (c *Catalog, closeStore func()) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st, err := store.Open(store.Options{Dir: "data", FS: fs, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
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
	l, err := NewLimits(LimitsConfig{Store: st, Logger: logger}, settings.Limits{})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := c.Recover(); err != nil {
		t.Fatal(err)
	}
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
		if err := st.Close(); err != nil {
			t.Error(err)
		}
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
	if err := c.config.Store.Subscriptions(func(group, topic uint32) error { out[[2]uint32{group, topic}] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// topicAndGroup creates the topic t and the group g.
func topicAndGroup(t *testing.T, c *Catalog, start settings.Start) (*Topic, *Group) {
	t.Helper()
	tp, err := c.PutTopic(t.Context(), "t", settings.Topic{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.PutGroup(t.Context(), "g", settings.Group{Start: start}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tp, g
}

// code returns the code of an error, and 0 if it has none.
func code(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

func TestRecover(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	c, closeStore := open(t, fs)
	persist := true
	if err := c.PutAddress(t.Context(), "orders.#", settings.Address{PersistDeliveryCountBeforeDelivery: &persist}, nil); err != nil {
		t.Fatal(err)
	}
	before, err := c.PutTopic(t.Context(), "orders.eu", settings.Topic{Queues: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(t.Context(), "automatic", "orders.eu"); err != nil {
		t.Fatal(err)
	}
	declared, err := c.PutGroup(t.Context(), "declared", settings.Group{MaxAttempts: 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	closeStore()

	c, _ = open(t, fs)
	after, err := c.Topic("orders.eu")
	if err != nil {
		t.Fatal(err)
	}
	if after.ID() != before.ID() || len(after.Queues()) != 3 || !after.Address().Persist {
		t.Errorf("the topic has number %d, %d queues and the address settings %+v", after.ID(), len(after.Queues()), after.Address())
	}
	g, err := c.Group("declared")
	if err != nil {
		t.Fatal(err)
	}
	if g.ID() != declared.ID() || g.Settings().MaxAttempts != 7 || g.Automatic() {
		t.Errorf("the declared group has number %d, %d attempts, automatic %t", g.ID(), g.Settings().MaxAttempts, g.Automatic())
	}
	automatic, err := c.Group("automatic")
	if err != nil {
		t.Fatal(err)
	}
	if !automatic.Automatic() || c.Find(automatic.ID(), after.ID()) == nil || len(after.Subscriptions()) != 1 {
		t.Errorf("the auto-created group is automatic %t; its topic has %d subscriptions", automatic.Automatic(), len(after.Subscriptions()))
	}
	if _, err := c.EnsureGroup(t.Context(), "another"); code(err) != tidegate.CodeConsumerGroupNotFound {
		t.Errorf("one auto-created group too many: %v", err)
	}
	next, err := c.PutTopic(t.Context(), "next", settings.Topic{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if next.ID() <= declared.ID() {
		t.Errorf("a new topic has number %d after %d", next.ID(), declared.ID())
	}
}

// A subscription of a topic that is deleted during the first receive leaves no record.
func TestRegisterAfterDeletion(t *testing.T) {
	t.Parallel()
	c, _ := open(t, vfs.NewMem())
	tp, g := topicAndGroup(t, c, "")
	if err := c.noteSubscription(g, tp); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteTopic(t.Context(), "t", nil); err != nil {
		t.Fatal(err)
	}
	s := newSubscription(c.config.Env, g, tp, false)
	t.Cleanup(s.Stop)
	if len(stored(t, c)) != 1 {
		t.Fatal("the deletion did not run before the subscription was registered")
	}
	if _, err := c.Register(s); code(err) != tidegate.CodeTopicNotFound {
		t.Errorf("a subscription to a deleted topic: %v", err)
	}
	if left := stored(t, c); len(left) != 0 || c.Find(g.ID(), tp.ID()) != nil {
		t.Errorf("left: records %v, subscription %v", left, c.Find(g.ID(), tp.ID()))
	}
}

// Open removes the records of a subscription whose group or topic does not exist, and no others.
func TestRecoverRemovesOrphans(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	c, closeStore := open(t, fs)
	tp, err := c.PutTopic(t.Context(), "t", settings.Topic{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Subscribe(t.Context(), "g", "t")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := d.LockAdmin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	if err := d.LockAdmin(ctx); !errors.Is(err, ended) {
		t.Errorf("a second holder: %v", err)
	}
	d.UnlockAdmin()
	if err := d.LockAdmin(t.Context()); err != nil {
		t.Error(err)
	}
}

// A deletion writes that a topic is deleted before it removes the topic from the directory. A
// subscription that is registered in between leaves no record.
func TestRegisterDuringDeletion(t *testing.T) {
	t.Parallel()
	c, _ := open(t, vfs.NewMem())
	tp, g := topicAndGroup(t, c, "")
	if err := c.noteSubscription(g, tp); err != nil {
		t.Fatal(err)
	}
	if err := c.config.Store.Messages.Add(func(*store.Batch) { tp.Delete() }, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(newSubscription(c.config.Env, g, tp, false)); err != nil {
		t.Fatal(err)
	}
	if left := stored(t, c); len(left) != 0 {
		t.Errorf("left: records %v", left)
	}
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
		if _, err := c.Subscribe(ctx, "g", "t"); err != nil && !errors.Is(err, cause) {
			t.Fatal(err)
		}
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
	if !c.setFIFO(g, true) || !g.Settings().FIFO {
		t.Error("a group without a subscription did not become FIFO")
	}
	if _, err := c.Subscribe(t.Context(), "g", "t"); err != nil {
		t.Fatal(err)
	}
	if c.setFIFO(g, false) || !g.Settings().FIFO {
		t.Error("a group with a subscription did not stay FIFO")
	}
	if _, err := c.PutGroup(t.Context(), "g", settings.Group{}, nil); code(err) != tidegate.CodeBadRequest {
		t.Errorf("another value of fifo: %v, want 40000", err)
	}
}

// While the disk does not respond, repeated first receives wait for one creation of their
// subscription: a client that gives up and tries again leaves no goroutine for each try.
func TestOneCreationOfASubscriptionRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
			if err := <-done; !errors.Is(err, left) {
				t.Errorf("a receive whose client left: %v", err)
			}
		}
		if n := calls.running.Load(); n != 1 {
			t.Errorf("%d creations of one subscription wait for the disk, want 1", n)
		}
		close(disk)
		s, err := c.Subscribe(t.Context(), "g", "t")
		if err != nil || s != c.Find(g.ID(), tp.ID()) {
			t.Errorf("when the disk responds: %v, %v", s, err)
		}
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
			if err := c.CheckGroup("g", settings.Group{}); err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		h, err := consume.ParseHandle(d.Handle)
		if err != nil {
			t.Fatal(err)
		}
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
			if _, err := c.PutTopic(t.Context(), "t", settings.Topic{Queues: queues}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Register(s); err != nil {
				t.Fatal(err)
			}
			fill(t, c, tp, 1)
			if n := drain(t, s); n != queues {
				t.Errorf("%d messages of %d are delivered", n, queues)
			}
		})
	}
}

// An automatic queue that is about to be deleted is created explicitly: it stays.
func TestPutKeepsAnAutomaticQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, vfs.NewMem())
		tp, err := c.OwnTopic(t.Context(), "DLQ.t", settings.Topic{Queues: 1}, true)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, c, tp, 2)
		s, err := c.Subscribe(t.Context(), "g", "DLQ.t")
		if err != nil {
			t.Fatal(err)
		}
		if n := drain(t, s); n != 2 {
			t.Fatalf("%d messages are delivered, want 2", n)
		}
		time.Sleep(autoDeleteDelay)
		if err := c.LockAdmin(t.Context()); err != nil {
			t.Fatal(err)
		}
		deleted := make(chan bool, 1)
		go func() {
			is, err := c.DeleteUnused(tp)
			if err != nil {
				t.Error(err)
			}
			deleted <- is
		}()
		if synctest.Wait(); len(deleted) > 0 {
			t.Fatal("the deletion does not wait for the token")
		}
		if _, err := c.PutTopicLocked("DLQ.t", settings.Topic{}, false); err != nil {
			t.Fatal(err)
		}
		c.UnlockAdmin()
		if <-deleted || c.FindTopic("DLQ.t") != tp {
			t.Fatal("the queue is gone")
		}
		tp.SetAutomatic(true)
		if is, err := c.DeleteUnused(tp); !is || err != nil {
			t.Errorf("an automatic queue that is not in use is deleted: %t, %v", is, err)
		}
		if n := c.config.Retention.Freed().Bytes(); n != 200 {
			t.Errorf("%d bytes can be reclaimed once it is deleted, want 200", n)
		}
	})
}
