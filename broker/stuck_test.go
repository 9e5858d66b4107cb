package broker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// The functions of this file hold a part of a broker, damage its records, or bring it into a state
// that is rare in use.

// holdWrites stops the commits of messages and settings after those under way, until release is
// called.
func holdWrites(b *broker.Broker) (release func()) { return holdLog(b.Engine().Parts().Store.Messages) }

// holdProgress is holdWrites for cursors and leases.
func holdProgress(b *broker.Broker) (release func()) { return holdLog(b.Engine().Parts().Store.Groups) }

func holdLog(l *store.Log) (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	l.Add(func(*store.Batch) {}, func(error) { close(held); <-free })
	<-held
	return func() { close(free) }
}

// awaitWrites returns when all earlier writes of messages and settings are on disk.
func awaitWrites(tb testing.TB, b *broker.Broker) { writeRecords(tb, b, func(*store.Batch) {}) }

// writeRecords writes records beside those of the broker.
func writeRecords(tb testing.TB, b *broker.Broker, f func(*store.Batch)) {
	tb.Helper()
	assert.Must(tb, b.Engine().Parts().Store.Messages.Add(f, nil).Wait())
}

// inLog calls f while no other write of messages and settings is encoded. Numbers, offsets and
// message IDs do not change meanwhile. The batch is the next one to be written.
func inLog(b *broker.Broker, f func(*store.Batch)) { b.Engine().Parts().Store.Messages.Add(f, nil) }

// holdSettings keeps changes of topics, groups and address settings waiting until release is
// called.
func holdSettings(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	catalog := b.Engine().Parts().Catalog
	assert.Must(t, catalog.LockAdmin(t.Context()))
	return catalog.UnlockAdmin
}

// holdRetention keeps the removal of messages waiting until release is called.
func holdRetention(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Retention.Task().Hold)
}

// holdDelayed keeps the moves, the recalls and the purge of delayed messages waiting.
func holdDelayed(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Delayed.Task.Hold)
}

// holdTransactions keeps the checks and the purge of transactions waiting.
func holdTransactions(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Transactions.Task.Hold)
}

// holdRedrives keeps redrives waiting, as a redrive under way does.
func holdRedrives(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Letters.Hold)
}

func holdTask(t *testing.T, hold func(context.Context) (func(), error)) (release func()) {
	t.Helper()
	release = assert.Value(hold(t.Context()))(t)
	return release
}

// reserveRoom reserves n bytes of the room that writes of messages have in memory.
func reserveRoom(t *testing.T, b *broker.Broker, n int64) (release func()) {
	t.Helper()
	log := b.Engine().Parts().Store.Messages
	assert.Must(t, log.Room(t.Context(), n, nil))
	return func() { log.Release(n) }
}

// leaveRoom reserves all but n bytes of that room.
func leaveRoom(t *testing.T, b *broker.Broker, n int64) {
	t.Helper()
	var reserved []func()
	for !roomIsFull(b) {
		reserved = append(reserved, reserveRoom(t, b, n))
	}
	last := len(reserved) - 1
	reserved[last]()
	for _, release := range reserved[:last] {
		t.Cleanup(release)
	}
}

// roomIsFull reports whether writes of messages wait for room.
func roomIsFull(b *broker.Broker) bool { return b.Engine().Parts().Store.Messages.Full() }

// stalled reports whether Pebble lets writes wait.
func stalled(b *broker.Broker) bool { return !b.Engine().Parts().Store.StalledSince().IsZero() }

// corruptRecord makes a record of the messages database unreadable.
func corruptRecord(t *testing.T, b *broker.Broker, key []byte) {
	t.Helper()
	writeRecords(t, b, func(w *store.Batch) {
		assert.NoError(t, (*pebble.Batch)(w).Set(key, []byte{0xff}, nil))
	})
}

// corruptMessage makes a stored message unreadable until repair is called.
func corruptMessage(t *testing.T, b *broker.Broker, topic string, queue uint16, offset int64) (repair func()) {
	t.Helper()
	s, at := b.Engine().Parts().Store, store.Place{Topic: topicOf(t, b, topic).ID(), Queue: queue, Offset: offset}
	whole, ok, err := s.Get(at)
	assert.MustThat(t, ok && err == nil, "offset %d is not there: %v", offset, err)
	k := binary.BigEndian.AppendUint32([]byte{'m'}, at.Topic)
	corruptRecord(t, b, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(k, queue), uint64(offset)))
	if _, _, err := s.Get(at); !store.IsDamage(err) {
		t.Fatalf("offset %d is not damaged: %v", offset, err)
	}
	return func() {
		t.Helper()
		writeRecords(t, b, func(w *store.Batch) { w.PutMessage(at, &whole) })
	}
}

// corruptDelayed makes one of the messages of a topic that wait for their delivery time unreadable:
// the nth in the order of their sends, from 0.
func corruptDelayed(t *testing.T, b *broker.Broker, topic string, n int) {
	t.Helper()
	tp := topicOf(t, b, topic)
	waiting := delayedRecords(t, b, tp)
	assert.MustThat(t, n < len(waiting), "%d messages wait: %+v", len(waiting), waiting)
	k := binary.BigEndian.AppendUint64([]byte{'y'}, uint64(waiting[n].Due.UnixNano()))
	corruptRecord(t, b, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(k, tp.ID()), waiting[n].Number))
}

// rememberID makes a topic remember a message ID at a place where its message is not, as with equal
// hashes or a corrupt message.
func rememberID(t *testing.T, b *broker.Broker, topic, id string, at engine.PendingLocation) {
	t.Helper()
	tp := topicOf(t, b, topic)
	inLog(b, func(*store.Batch) {
		tp.IDs().Remember(&store.Message{Message: tidegate.Message{ID: id}}, at, time.Minute, time.Now())
	})
}

// growQueues adds queues to a topic as PutTopic does, in the moment before its groups have them.
// The returned function adds them to the groups.
func growQueues(t *testing.T, b *broker.Broker, topic string, queues int) (addToGroups func()) {
	t.Helper()
	tp, subscriptions := topicOf(t, b, topic), b.Engine().Parts().Catalog.Subscriptions()
	subscriptions.Lock()
	defer subscriptions.Unlock()
	tp.Grow(queues)
	return func() {
		for _, s := range tp.Subscriptions() {
			s.AddQueues()
		}
	}
}

// nextQueue sets the queue of the next message without a message group.
func nextQueue(t *testing.T, b *broker.Broker, topic string, queue uint32) {
	t.Helper()
	tp := topicOf(t, b, topic)
	tp.RoundRobin.Store(queue + uint32(len(tp.Queues())) - 1)
}

// nearReclaim counts removed messages that never existed, so that the broker reclaims disk space
// after bytes more removed bytes.
func nearReclaim(b *broker.Broker, bytes int64) {
	freed(b).Add(store.Range{Topic: 9, Queue: 0, From: 0, To: 1}, retention.ReclaimBytes-bytes)
}

// hooked returns a file system that calls hook before each operation, which ends with its error.
func hooked(fs vfs.FS, hook func(errorfs.Op) error) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(hook))
}

// A stallFS blocks some operations while it is held.
type stallFS struct {
	vfs.FS
	mu   sync.Mutex
	held chan struct{} // guarded by mu; nil: it does not hold
}

func newStallFS(stalls func(errorfs.Op) bool) *stallFS {
	fs := &stallFS{}
	fs.FS = hooked(vfs.NewMem(), func(op errorfs.Op) error {
		fs.mu.Lock()
		held := fs.held
		fs.mu.Unlock()
		if held != nil && stalls(op) {
			<-held
		}
		return nil
	})
	return fs
}

func (fs *stallFS) hold(on bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.held != nil {
		close(fs.held)
		fs.held = nil
	}
	if on {
		fs.held = make(chan struct{})
	}
}

// syncsLog reports whether an operation is an fsync of a log.
func syncsLog(op errorfs.Op) bool {
	syncs := []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
	return strings.HasSuffix(op.Path, ".log") && slices.Contains(syncs, op.Kind)
}

// createsTable reports whether an operation is the creation of a table.
func createsTable(op errorfs.Op) bool {
	return op.Kind == errorfs.OpCreate && (strings.HasSuffix(op.Path, ".sst") || strings.HasSuffix(op.Path, ".blob"))
}

var errImpatient = errors.New("impatient")

// The contract of Transport: a call ends with its ctx, although the disk does not respond. Its
// effect happens later, as MaybeStored announces.
func TestSettlementsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	settles := map[string]func(*broker.Broker, context.Context, *tidegate.Delivery) error{
		"Ack": func(b *broker.Broker, ctx context.Context, d *tidegate.Delivery) error {
			return b.Ack(ctx, []*tidegate.Delivery{d})[0]
		},
		"Extend": func(b *broker.Broker, ctx context.Context, d *tidegate.Delivery) error {
			h, err := b.Extend(ctx, d, time.Hour, false)
			if err != nil && h != "" {
				return errors.New("a handle beside an error")
			}
			return err
		},
	}
	for _, k := range []transport.VerdictKind{transport.Release, transport.Retry, transport.DeadLetter, transport.Snooze, transport.RetryTopic, transport.NegativeAck} {
		settles[k.String()] = func(b *broker.Broker, ctx context.Context, d *tidegate.Delivery) error {
			v := transport.Verdict{Kind: k, Delay: time.Hour}
			if k == transport.Release || k == transport.DeadLetter {
				v.Delay = 0
			}
			return second(b.Settle(ctx, d, v))
		}
	}
	for name, settle := range settles {
		subtest(t, name, func(t *testing.T) {
			fs := newStallFS(syncsLog)
			b := open(t, broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs))
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: name == transport.RetryTopic.String()}})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute})
			assert.MustThat(t, err == nil && len(ds) == 1, "%+v, %+v", ds, err)

			dead, cancel := context.WithCancelCause(t.Context())
			cancel(errImpatient)
			var e *tidegate.Error
			if err := settle(b, dead, ds[0]); !errors.Is(err, errImpatient) || !errors.As(err, &e) || e.MaybeStored {
				t.Errorf("with a dead context: %v, want its cause, and that nothing is done", err)
			}

			fs.hold(true)
			start := time.Now()
			ctx, cancelLate := context.WithTimeoutCause(t.Context(), 3*time.Second, errImpatient)
			defer cancelLate()
			err = settle(b, ctx, ds[0])
			assert.Equal(t, "returned after", time.Since(start), 3*time.Second)
			assert.That(t, errors.Is(err, errImpatient) && errors.As(err, &e) && e.MaybeStored,
				"%v, want the cause of the context, and that it may be done", err)
			fs.hold(false)
			synctest.Wait()
			assert.Is(t, "acknowledged afterwards", b.Ack(t.Context(), ds)[0], tidegate.ErrInvalidHandle)
			if retries := sent(t, b, "t-g-RETRY"); (retries == 1) != (name == "ReconsumeLater") { // it is due by now
				t.Errorf("%d retries", retries)
			}
			assert.Equal(t, "dead letters", (sent(t, b, tidegate.DeadLetterTopic("g")) == 1), (name == "DeadLetter"))
		})
	}
}

// A receive ends with its context while the disk does not respond. Its messages were not delivered:
// the next receive gets them in the same attempt.
func TestReceiveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attemptID string
		expiry    bool // messages expire meanwhile
	}{
		"a later attempt": {},
		"repeated":        {attemptID: "x"},
		"expired":         {expiry: true},
	} {
		subtest(t, name, func(t *testing.T) {
			fs := newStallFS(syncsLog)
			b := open(t, broker.Options{Dir: "data"}.On(fs))
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
			putGroup(t, b, "g", settings.Group{FIFO: true})
			mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: "a", Body: []byte("x")})
			r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, AttemptID: c.attemptID, InvisibleDuration: time.Minute}
			receive(t, b, r)
			elapse(2 * time.Minute)
			want := 2
			if c.attemptID != "" { // the second attempt is repeated
				receive(t, b, r)
			}
			if c.expiry {
				putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(1)), ExpiryAddress: new("old")})
				want = 0
			}

			fs.hold(true)
			start := time.Now()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, errImpatient)
			defer cancel()
			ds, err := b.Receive(ctx, r)
			if d := time.Since(start); d != 3*time.Second || !errors.Is(err, errImpatient) || len(ds) > 0 {
				t.Errorf("%d deliveries, %v after %v; want the cause of the context after 3s", len(ds), err, d)
			}
			fs.hold(false)
			synctest.Wait()
			ds = receive(t, b, r)
			if n := len(ds); want == 0 && n != 0 || want > 0 && (n != 1 || ds[0].Attempt != want) {
				t.Errorf("then %q is delivered, want attempt %d", idsOf(ds), want)
			}
			assert.Equal(t, "messages have expired", (sent(t, b, "old") == 1), c.expiry)
		})
	}
}

// A consumer repeats its request for a dead letter while the disk hangs. Once the consumer has its
// response, no state of the repetitions is left.
func TestRepeatedDeadLettersLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newStallFS(syncsLog)
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})[0]
		fs.hold(true)
		before := 0
		for i := range 100 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errImpatient)
			_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter})
			cancel()
			var e *tidegate.Error
			assert.MustThat(t, errors.Is(err, errImpatient) && errors.As(err, &e) && e.MaybeStored,
				"request %d: %v, want the cause of the context, and that it may be done", i, err)
			synctest.Wait()
			if i == 0 {
				before = runtime.NumGoroutine()
			}
		}
		n := runtime.NumGoroutine()
		assert.That(t, n <= before+5, "%d goroutines after the first request, %d after 99 more", before, n)
		done := make(chan error)
		go func() { done <- second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})) }()
		synctest.Wait()
		fs.hold(false)
		assert.NoError(t, <-done, "a repetition that has time")
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "%DLQ%g")), 1)
	})
}

// A purge does not wait for a redrive after the end of its ctx. The messages that the purge would
// have removed are removed soon after the redrive.
func TestPurgeEndsWithItsContext(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		topicOf(t, b, "t").ExpectGaps() // as after a redrive from the topic
		release := holdRedrives(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := b.PurgeTopic(ctx, "t")
			done <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			assert.That(t, errors.Is(err, context.Canceled), "%v, want context.Canceled", err)
		default:
			t.Error("the purge still waits for the redrive")
		}
		release()
		time.Sleep(2 * time.Minute)
		left, err := b.Topic("t")
		assert.That(t, err == nil && left.StoredMessages == 0, "%d messages are left, %v", left.StoredMessages, err)
	})
}

// panics calls f and returns the value of its panic, as a caller that recovers does.
func panics(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// A panic in the middle of a call reaches the caller unchanged. A caller that recovers finds a
// broker that rejects all calls with the reason, ends the waiting receives, and closes.
func TestPanicBreaksTheBroker(t *testing.T) {
	for _, call := range []string{"receive", "rewind"} {
		t.Run(call, func(t *testing.T) {
			var on atomic.Bool
			fs := hooked(vfs.NewMem(), func(op errorfs.Op) error {
				// A panic in the broker's own goroutines would end the process.
				if on.Load() && op.Kind == errorfs.OpFileReadAt && bytes.Contains(debug.Stack(), []byte("broker_test.panics(")) {
					panic("a bug")
				}
				return nil
			})
			o := broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs)
			b, err := broker.Open(o)
			assert.Must(t, err)
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putTopic(t, b, "empty", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
			for range 10 {
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 40_000)})
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, InvisibleDuration: time.Hour})
			assert.Must(t, b.Close())
			if b, err = broker.Open(o); err != nil {
				t.Fatal(err)
			}
			poll := func(topic string, wait time.Duration) error {
				_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: topic, Queue: -1, InvisibleDuration: time.Minute, Wait: wait})
				return err
			}
			waiting := make(chan error)
			go func() { waiting <- poll("empty", time.Hour) }()
			on.Store(true)
			v := panics(func() {
				switch call {
				case "receive":
					_ = poll("t", 0)
				case "rewind":
					_, _ = b.Rewind(t.Context(), "g", "t", status.Position{Time: time.Now()})
				}
			})
			assert.That(t, v == "a bug", "the caller got %v", v)
			for name, err := range map[string]error{
				"waiting receive": <-waiting,
				"receive":         poll("t", 0),
				"send":            b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "t", Body: []byte("x")}})[0].Err,
				"ack":             b.Ack(t.Context(), ds)[0],
				"topic":           b.DeleteTopic(t.Context(), "t"),
				"health":          b.Healthy(),
				"close":           b.Close(),
			} {
				if err == nil || !strings.Contains(err.Error(), "a panic in the broker: a bug") || !strings.Contains(err.Error(), "restart the broker") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// unable cannot encode anything.
type unable struct{}

func (unable) Prepare([]*tidegate.Delivery, bool) { panic("cannot be encoded") }

// A message that cannot be encoded fails its receive, and becomes a dead letter in the end.
func TestPanicInPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		poll := func() error {
			_, err := serve(b).Poll(t.Context(), engine.Request{
				ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, InvisibleDuration: time.Minute},
				Encoder:        unable{},
			})
			return err
		}
		for attempt := range 2 {
			err := poll()
			assert.That(t, err != nil && strings.Contains(err.Error(), "cannot be encoded"), "attempt %d: %v", attempt+1, err)
			assert.Must(t, b.Healthy())
			<-time.After(2 * time.Minute)
		}
		assert.NoError(t, poll(), "the receive afterwards")
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "%DLQ%g")), 1)
	})
}

// Closing waits for no function that hands checks to producers, and ends within one.
func TestCloseBesideABlockedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := assert.Value(broker.Open(broker.Options{}))(t)
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		asked, over := make(chan struct{}), make(chan struct{})
		onCheck(b, func(engine.TransactionCheck) bool {
			close(asked)
			<-over
			return true
		})
		if r := serve(b).Append(t.Context(), []engine.Incoming{{Message: &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")}, Half: true}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		<-asked
		start := time.Now()
		err := b.Close()
		assert.That(t, err == nil && time.Since(start) <= time.Second, "closing: %v after %v", err, time.Since(start))
		close(over)
	})
}

// fullBatch returns a broker whose store is stalled, and whose next batch is full.
// done gets the results of the sends that are in it or before it.
func fullBatch(t *testing.T) (b *broker.Broker, fs *stallFS, sent int, done chan error) {
	fs = newStallFS(createsTable)
	b = open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(256<<10))
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	fs.hold(true)
	t.Cleanup(func() { fs.hold(false) }) // or a failure would hang
	leaveRoom(t, b, 1<<20)
	done = make(chan error, 1000)
	for ; sent < 100; sent++ {
		go func() { done <- send0(t, b, 256<<10) }()
		synctest.Wait()
		if stalled(b) && roomIsFull(b) {
			sent++
			break
		}
	}
	assert.MustThat(t, sent != 100, "25 MiB do not fill it")
	return b, fs, sent, done
}

// While the store stalls, senders that find the next batch full get an error after a second,
// whether or not they came before the stall.
func TestWriteStallEndsTheWaitForRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs, sent, done := fullBatch(t)
		start := time.Now()
		waiting := make(chan error)
		go func() { waiting <- send0(t, b, 256<<10) }()
		time.Sleep(500 * time.Millisecond)
		select {
		case err := <-waiting:
			t.Fatalf("after half a second: %v", err)
		default:
		}
		for name, err := range map[string]error{"a waiting send": <-waiting, "a new send": send0(t, b, 256<<10)} {
			assert.That(t, errors.Is(err, tidegate.ErrThrottled) && strings.Contains(err.Error(), "write stall"), "%s: %v", name, err)
		}
		d := time.Since(start)
		assert.That(t, d <= 1100*time.Millisecond, "it took %v", d)
		assert.Equal(t, "are counted", serve(b).Stats().Throttled[engine.WriteStall], 2)
		fs.hold(false)
		for range sent {
			assert.Must(t, <-done)
		}
	})
}

// A sender that gives up waiting for space still gets the fault of each message.
func TestEndedWaitForRoomKeepsRejections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs, sent, done := fullBatch(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		results := make(chan []transport.SendResult)
		go func() {
			results <- b.Send(ctx, []*tidegate.Message{{ID: "a", Topic: "none", Body: []byte("x")}, {ID: "b", Topic: "t", Body: []byte("x")}})
		}()
		synctest.Wait()
		cause := errors.New("enough")
		cancel(cause)
		rs := <-results
		if e, ok := errors.AsType[*tidegate.Error](rs[0].Err); !ok || e.Code != tidegate.CodeTopicNotFound {
			t.Errorf("the topic that is not there: %v", rs[0].Err)
		}
		assert.Is(t, "the other one", rs[1].Err, cause)
		fs.hold(false)
		for range sent {
			assert.Must(t, <-done)
		}
	})
}

// Commits wait for memory as sends do. A commit that finds the next batch full is rejected while
// the store hangs, and can be repeated.
func TestCommitsWaitForRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n, size = 14, 256 << 10
		fs := newStallFS(createsTable)
		b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(256<<10))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		ids := map[string]bool{}
		for range n {
			r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, size)}, time.Hour)
			assert.Must(t, r.Err)
			ids[r.Receipt.TransactionID] = true
		}
		fs.hold(true)
		t.Cleanup(func() { fs.hold(false) })
		leaveRoom(t, b, 4*size)
		type result struct {
			id  string
			err error
		}
		done := make(chan result, n)
		for id := range ids {
			go func() {
				done <- result{id, serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: id, Resolution: transport.Commit})}
			}()
			synctest.Wait()
		}
		assert.MustThat(t, roomIsFull(b), "%d commits do not fill it", n)
		time.Sleep(2 * time.Second)
		answered, refused := len(done), 0
		for range answered {
			if r := <-done; r.err != nil {
				ids[r.id] = false
				refused++
				assert.That(t, errors.Is(r.err, tidegate.ErrThrottled) && strings.Contains(r.err.Error(), "write stall"),
					"a send without space: %v", r.err)
			}
		}
		assert.That(t, refused >= n/2, "%d of %d are refused", refused, n)
		fs.hold(false)
		for range n - answered {
			if r := <-done; r.err != nil {
				t.Error(r.err)
			}
		}
		time.Sleep(time.Second)
		for id, ended := range ids {
			if ended {
				continue
			}
			assert.NoError(t, serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: id, Resolution: transport.Commit}))
		}
		assert.Equal(t, "messages are committed", stored(t, b, "t"), n)
	})
}

// Dead letters that wait for their topic, which cannot be created while settings change, reserve no
// space that sends need.
func TestDeadLettersWaitForTheirTopicWithoutRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n, size = 6, 256 << 10 // more than the log has room for below
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		for range n {
			assert.Must(t, send0(t, b, size))
		}
		var ds []*tidegate.Delivery
		for len(ds) < n {
			ds = append(ds, one(t, b, "g", "t"))
		}
		leaveRoom(t, b, n*size/2)
		release := holdSettings(t, b)
		done := make(chan error, n)
		for _, d := range ds {
			go func() { done <- second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := b.Send(ctx, []*tidegate.Message{{ID: "a", Topic: "t", Body: []byte("x")}})[0]; r.Err != nil {
			t.Errorf("a send meanwhile: %v", r.Err)
		}
		release()
		for range n {
			assert.NoError(t, <-done)
		}
		assert.Equal(t, "dead letters", sent(t, b, tidegate.DeadLetterTopic("g")), n)
	})
}

// A commit that waits for space does not hold its transaction: a purge of the topic and a check of
// due transactions do not wait for it.
func TestCommitWaitsForRoomWithoutItsClaim(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "a", Topic: "t", Body: []byte("x")}, time.Hour)
		assert.Must(t, r.Err)
		id := assert.Value(consume.ParseTransactionID(r.Receipt.TransactionID))(t)
		release := reserveRoom(t, b, 1<<30)
		done := make(chan error)
		go func() {
			done <- serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: r.Receipt.TransactionID, Resolution: transport.Commit})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if unclaim, err := b.Engine().Parts().Transactions.Claim(ctx, id); err != nil {
			t.Errorf("a request that waits for space holds the claim: %v", err)
		} else {
			unclaim()
		}
		release()
		assert.NoError(t, <-done)
		assert.Equal(t, "messages are committed", stored(t, b, "t"), 1)
	})
}
