package broker_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// fill sends messages of 50 kB until one is rejected, and returns the IDs of
// those that were stored.
func fill(t *testing.T, b *broker.Broker, name string) (stored []string) {
	t.Helper()
	noise := rand.NewChaCha8([32]byte{}) // the tables are compressed
	for n := range 5000 {
		id, body := fmt.Sprint(name, n), make([]byte, 50_000)
		_, _ = noise.Read(body)
		switch err := send(t, b, &tidegate.Message{ID: id, Topic: "t", Body: body})[0].Err; {
		case err == nil:
			stored = append(stored, id)
		case !errors.Is(err, tidegate.ErrThrottled) || !strings.Contains(err.Error(), "the disk of the data directory is full"):
			t.Fatal(err)
		default:
			return stored
		}
	}
	t.Fatal("the disk does not get full")
	return nil
}

// consume receives and settles n messages, some at the second attempt.
func consumeFailing(t *testing.T, b *broker.Broker, n int) (ids []string) {
	t.Helper()
	for len(ids) < n {
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute})
		assert.MustThat(t, len(ds) != 0, "%d of %d came", len(ids), n)
		for i, d := range ds {
			var err error
			if i%5 == 0 && d.Attempt == 1 {
				_, err = b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})
			} else {
				err = b.Ack(t.Context(), []*tidegate.Delivery{d})[0]
				ids = append(ids, d.ID)
			}
			assert.Must(t, err)
		}
	}
	return ids
}

// On a full disk the broker throttles sends, and no other requests; once there is space again, the
// broker accepts sends without a restart, and no message was lost.
func TestFullDiskThrottlesSendsUntilSpaceIsFree(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := newQuotaFS()
		o := broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(1 << 20)
		b, err := broker.Open(o)
		assert.Must(t, err)
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
		all := map[string]bool{}
		for round, free := range []int64{0, 3 << 20, 17 << 20} {
			fs.leave(free)
			stored := fill(t, b, fmt.Sprint(round, "."))
			th := b.Throttles()
			assert.That(t, len(th) != 0 && th[0].Limit == engine.DiskFull && th[0].On && th[0].Value > 0, "the throttles are %+v", th)
			time.Sleep(3 * time.Second)
			more := fill(t, b, fmt.Sprint(round, "again"))
			assert.That(t, len(more) == 0, "%d sends were accepted on a full disk", len(more))
			assert.That(t, serve(b).Stats().Throttled[engine.DiskFull] >= 2, "the refusals were not counted")
			for _, id := range consumeFailing(t, b, len(stored)) {
				all[id] = true
			}
			if len(all) < len(stored) || b.Healthy() != nil {
				t.Errorf("%d of %d came; %v", len(all), len(stored), b.Healthy())
			}
			if round == 1 { // a restart on the full disk
				assert.NoError(t, b.Close(), "closing")
				if b, err = broker.Open(o); err != nil {
					t.Fatal(err)
				}
				more := fill(t, b, "restarted")
				assert.That(t, len(more) == 0, "%d sends were accepted on a full disk after a restart", len(more))
			}
			fs.leave(1 << 30)
			time.Sleep(2 * time.Second)
			id := fmt.Sprint("after", round)
			mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", Body: []byte("x")})
			assert.Equal(t, "came", consumeFailing(t, b, 1)[0], id)
		}
		assert.Must(t, b.Close())
		if b, err = broker.Open(o); err != nil {
			t.Fatal(err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) > 0 {
			t.Errorf("%s is redelivered", ds[0].ID)
		}
		for _, d := range receiveAll(t, b, "t") {
			delete(all, d.ID)
		}
		assert.That(t, len(all) == 0, "%d messages were consumed, and are not there any more", len(all))
		assert.Must(t, b.Close())
	})
}

// When even the reserve is used up, consumers wait. They continue once space is free.
func TestFullDiskWithoutReserveWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := newQuotaFS()
		b := assert.Value(broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs)))(t)
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("a")}, &tidegate.Message{Topic: "t", Body: []byte("b")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, InvisibleDuration: time.Hour})
		fs.leave(0)
		fill(t, b, "full")
		fs.leave(0) // with or without the ballast
		acked := make(chan error, 1)
		go func() { acked <- b.Ack(t.Context(), ds[:1])[0] }()
		time.Sleep(10 * time.Second)
		select {
		case err := <-acked:
			t.Fatalf("acknowledged without space: %v", err)
		default:
		}
		fs.leave(1 << 30)
		assert.NoError(t, <-acked)
		fs.leave(0)
		go func() { acked <- b.Ack(t.Context(), ds[1:])[0] }()
		time.Sleep(10 * time.Second)
		fs.leave(1 << 30)
		assert.NoError(t, <-acked)
		time.Sleep(2 * time.Second) // writes in the background look for room again; Close would end their wait
		assert.NoError(t, b.Close())
	})
}

// When even the reserve is used up, Close waits for no space, with or without other waiting calls,
// and all acknowledged data is there afterwards.
func TestFullDiskWithoutReserveCloses(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fs := newQuotaFS()
			o := broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs)
			b, err := broker.Open(o)
			assert.Must(t, err)
			putTopic(t, b, "t", settings.Topic{})
			mustSend(t, b, &tidegate.Message{ID: "a", Topic: "t", Body: []byte("a")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Hour})
			fs.leave(0)
			ids := append(fill(t, b, "full"), "a")
			fs.leave(0) // with or without the ballast
			acked := make(chan error, 1)
			if waits {
				go func() { acked <- b.Ack(t.Context(), ds)[0] }()
				time.Sleep(10 * time.Second)
			}
			closed := make(chan error, 1)
			go func() { closed <- b.Close() }()
			select {
			case err := <-closed: // an error names the disk, or it is nil
				assert.That(t, err == nil || strings.Contains(err.Error(), "no space left"), "closing: %v", err)
			case <-time.After(time.Hour):
				t.Errorf("waits %t: it does not close", waits)
				fs.leave(1 << 30)
				<-closed
			}
			assert.That(t, !waits || <-acked != nil, "acknowledged without space")
			fs.leave(1 << 30)
			if b, err = broker.Open(o); err != nil {
				t.Fatal(err)
			}
			for _, d := range receiveAll(t, b, "t") {
				if at := slices.Index(ids, d.ID); at >= 0 {
					ids = slices.Delete(ids, at, at+1)
				}
			}
			assert.That(t, len(ids) == 0, "waits %t: %q are gone", waits, ids)
			assert.Must(t, b.Close())
		})
	}
}

// smallDisk returns a broker on a new disk of so many MiB, without a minimum of free space.
func smallDisk(t *testing.T, mib int64) (*broker.Broker, *quotaFS) {
	t.Helper()
	fs := newQuotaFS()
	fs.total, fs.quota = mib<<20, mib<<20
	b := openSmall(t, fs)
	putTopic(t, b, "t", settings.Topic{Queues: 2, DuplicateWindow: -1})
	putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
	return b, fs
}

func openSmall(t *testing.T, fs *quotaFS) *broker.Broker {
	t.Helper()
	b := assert.Value(broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs)))(t)
	return b
}

// leaveProcess ends a broker that was killed: the disk after the kill is a copy.
func leaveProcess(fs *quotaFS, b *broker.Broker) {
	fs.leave(1 << 30)
	_ = b.Close() // writes that wait may fail
}

// allStored reports the IDs that are gone, then closes the broker.
func allStored(t *testing.T, b *broker.Broker, fs *quotaFS, ids []string) {
	t.Helper()
	fs.leave(1 << 30)
	time.Sleep(2 * time.Second)
	there := map[string]bool{}
	for _, d := range receiveAll(t, b, "t") {
		there[d.ID] = true
	}
	gone := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return there[id] })
	if len(gone) > 0 {
		t.Errorf("%d of %d messages are gone: %q", len(gone), len(ids), gone[:min(10, len(gone))])
	}
	assert.NoError(t, b.Close())
}

// A broker is killed at a write near the moment at which its disk is full, and then while it
// starts, again and again. The start that is not killed succeeds, and has all messages.
func TestKilledAtWritesOnFullDisk(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		const mib = 32
		kills, starts := soak(6), soak(10)
		type moment struct {
			fs  *quotaFS
			ids int
		}
		var moments []moment
		b, fs := smallDisk(t, mib)
		var ids []string
		var changes int
		fs.each(func(string) {
			u, _ := fs.GetDiskUsage("")
			if changes++; u.AvailBytes < 1<<20 && rnd.IntN(20) == 0 || changes%400 == 0 {
				moments = append(moments, moment{fs.kill(), len(ids)})
			}
		})
		noise := rand.NewChaCha8([32]byte{})
		for refused := 0; refused < 20; {
			id, body := fmt.Sprint("m", len(ids)), make([]byte, 50_000)
			_, _ = noise.Read(body)
			if err := send(t, b, &tidegate.Message{ID: id, Topic: "t", Body: body})[0].Err; err != nil {
				refused++
				time.Sleep(time.Second)
				continue
			}
			fs.order.Lock()
			ids = append(ids, id)
			fs.order.Unlock()
		}
		fs.each(nil)
		moments = append(moments, moment{fs.kill(), len(ids)})
		fs.leave(0)
		moments = append(moments, moment{fs.kill(), len(ids)})
		leaveProcess(fs, b)
		rnd.Shuffle(len(moments)-2, func(i, k int) { moments[i], moments[k] = moments[k], moments[i] })
		t.Logf("%d moments, %d messages", len(moments), len(ids))
		for _, m := range moments[max(0, len(moments)-kills):] {
			fs := m.fs
			for range starts {
				at, changes := rnd.IntN(120), 0
				var next *quotaFS
				fs.each(func(string) {
					if changes++; changes == at {
						next = fs.kill()
					}
				})
				b := openSmall(t, fs)
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
				fs.order.Lock()
				if fs.before = nil; next == nil {
					next = fs.kill()
				}
				fs.order.Unlock()
				leaveProcess(fs, b)
				fs = next
			}
			allStored(t, openSmall(t, fs), fs, ids[:m.ids])
		}
	})
}

// A broker is killed at every start on a full disk, after it has written the tables and before a
// manifest names them. These tables do not use up the reserve.
func TestUnfinishedStartsLeaveTheReserve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := smallDisk(t, 48)
		ids := fill(t, b, "a")
		fs.leave(0)
		old := fs
		fs = fs.kill()
		leaveProcess(old, b)
		for range max(10, soak(30)) {
			var next *quotaFS
			fs.each(func(name string) {
				if next == nil && strings.HasPrefix(name, "data/messages/MANIFEST") {
					next = fs.kill()
				}
			})
			b := openSmall(t, fs)
			if fs.each(nil); next == nil {
				t.Fatal("a start without a manifest")
			}
			leaveProcess(fs, b)
			fs = next
		}
		allStored(t, openSmall(t, fs), fs, ids)
	})
}

// A start without the space that it needs fails with the directory, the numbers and the remedy. It
// succeeds once the space is there, and nothing is lost.
func TestStartWithoutSpaceNamesTheRemedy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := smallDisk(t, 48)
		ids := fill(t, b, "a")
		killed := fs.kill()
		leaveProcess(fs, b)
		for _, name := range []string{"BALLAST", "RESERVE"} {
			_ = killed.Remove("data/" + name)
		}
		killed.leave(10_000)
		_, err := broker.Open(broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(killed))
		for _, w := range []string{"data directory data", "the disk of the directory is full", " bytes are free, and this start needs at most ", "remove other files from the disk, or enlarge it", "remove no file of the directory"} {
			assert.That(t, err != nil && strings.Contains(err.Error(), w), "the error does not contain %q: %v", w, err)
		}
		killed.leave(8 << 20)
		time.Sleep(10 * time.Minute) // the failed start holds its lock until it has space
		allStored(t, openSmall(t, killed), killed, ids)
	})
}

// Messages that become due on a full disk leave the reserve to the consumers. The broker delivers
// them once there is space.
func TestFullDiskPostponesDelayedMessages(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		subtest(t, fmt.Sprintf("known=%t", known), func(t *testing.T) {
			const n, acks = 1000, 300
			fs := newQuotaFS()
			b := open(t, broker.Options{Dir: "data", Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(1<<20))
			putTopic(t, b, "t", settings.Topic{Queues: 2})
			putTopic(t, b, "later", settings.Topic{Type: settings.TopicDelay, Queues: 2})
			var handle string
			for i := range n {
				r := send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "later", Body: make([]byte, 5_000), DeliverAt: time.Now().Add(time.Hour)})[0]
				assert.Must(t, r.Err)
				handle = r.Receipt.RecallHandle
			}
			sendN(t, b, "t", acks, 10)
			var ds []*tidegate.Delivery
			for len(ds) < acks {
				ds = append(ds, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: 12 * time.Hour, Wait: time.Minute})...)
			}
			fs.leave(0)
			if known {
				fill(t, b, "full")
			}
			elapse(2 * time.Hour)
			start := time.Now()
			for _, d := range ds {
				assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
			}
			id, err := b.Recall(t.Context(), "later", handle)
			assert.That(t, err == nil && id == fmt.Sprint(n-1), "recalling: %q, %v", id, err)
			d := time.Since(start)
			assert.That(t, d <= time.Second, "they took %v", d)
			moved := stored(t, b, "later")
			assert.That(t, moved <= 512 && (!known || moved <= 0), "%d messages were moved on a full disk", moved)
			fs.leave(1 << 30)
			elapse(5 * time.Second)
			assert.Equal(t, "messages were delivered once there was space", stored(t, b, "later"), n-1)
		})
	}
}

// With too little disk space the broker rejects commits and gives up no transaction, but accepts
// rollbacks. Once space is free, commits and checks continue.
func TestShortDiskPostponesTransactions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := newQuotaFS()
		b := open(t, broker.Options{Dir: "data", Transaction: settings.Transaction{Timeout: settings.Duration(time.Minute), CheckInterval: settings.Duration(time.Minute), CheckMax: 1}}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		var ids []string
		for i := range 3 {
			r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: make([]byte, 1000)}, 0)
			assert.Must(t, r.Err)
			ids = append(ids, r.Receipt.TransactionID)
		}
		end := func(i int, r transport.Resolution) error {
			return serve(b).EndTransaction(t.Context(), engine.TransactionEnd{Topic: "t", TransactionID: ids[i], Resolution: r})
		}
		fs.leave(100 << 20) // less than MinFreeDisk
		time.Sleep(time.Second)
		err := end(0, transport.Commit)
		assert.That(t, errors.Is(err, tidegate.ErrThrottled) && strings.Contains(err.Error(), "free disk"), "commit: %v", err)
		assert.NoError(t, end(0, transport.ResolutionUnknown), "the transaction does not exist")
		assert.NoError(t, end(1, transport.Rollback), "rollback")
		elapse(10 * time.Minute)
		assert.That(t, assert.Err(b.Topic(broker.AbandonedTransactions)) != nil, "a transaction was given up")
		fs.leave(1 << 40)
		time.Sleep(time.Second)
		assert.NoError(t, end(0, transport.Commit), "commit once there is space")
		elapse(2 * time.Minute)
		if got, given := stored(t, b, "t"), stored(t, b, broker.AbandonedTransactions); got != 1 || given != 1 {
			t.Errorf("%d are committed and %d given up, want one each", got, given)
		}
	})
}

// A quotaFS is a disk of limited size in memory. Writes to a file that was removed meanwhile do not
// count.
type quotaFS struct {
	*vfs.MemFS

	mu    sync.Mutex
	quota int64            // guarded by mu
	total int64            // the reported size of the disk
	sizes map[string]int64 // guarded by mu: the size of each file

	order  sync.Mutex        // held over before and the change
	before func(name string) // guarded by order: called before each change of a file; nil: none
}

func newQuotaFS() *quotaFS {
	return &quotaFS{MemFS: vfs.NewCrashableMem(), quota: 1 << 40, total: 1 << 40, sizes: map[string]int64{}}
}

// kill returns the disk after a kill of the process that uses it: the operating system keeps all
// that was written.
func (fs *quotaFS) kill() *quotaFS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return &quotaFS{MemFS: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}),
		quota: fs.quota, total: fs.total, sizes: maps.Clone(fs.sizes)}
}

// each has a function called before each change from now on, one call after another.
func (fs *quotaFS) each(before func(name string)) {
	fs.order.Lock()
	defer fs.order.Unlock()
	fs.before = before
}

// change makes one change. Nothing else changes meanwhile.
func (fs *quotaFS) change(name string, do func()) {
	fs.order.Lock()
	defer fs.order.Unlock()
	if fs.before != nil {
		fs.before(name)
	}
	do()
}

// leave sets the quota so that free bytes are left.
func (fs *quotaFS) leave(free int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.quota = fs.used() + free
}

func (fs *quotaFS) used() (n int64) {
	for _, size := range fs.sizes {
		n += size
	}
	return n
}

// take gives a file room up to size, and returns how much of that it has.
func (fs *quotaFS) take(name string, size int64) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if more := size - fs.sizes[name]; more > 0 {
		fs.sizes[name] += min(more, max(0, fs.quota-fs.used()))
	}
	return min(size, fs.sizes[name])
}

func (fs *quotaFS) move(old, name string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if name != "" {
		fs.sizes[name] = fs.sizes[old]
	}
	delete(fs.sizes, old)
}

func (fs *quotaFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	used := fs.used()
	return vfs.DiskUsage{AvailBytes: uint64(max(0, fs.quota-used)), TotalBytes: uint64(fs.total), UsedBytes: uint64(used)}, nil
}

func (fs *quotaFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.change(name, func() {
		fs.move(name, "")
		f, err = fs.MemFS.Create(name, c)
	})
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (f vfs.File, err error) {
	fs.change(name, func() { f, err = fs.MemFS.OpenReadWrite(name, c, o...) })
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.change(old, func() {
		fs.move(old, name)
		f, err = fs.MemFS.ReuseForWrite(old, name, c)
	})
	return &quotaFile{File: f, fs: fs, name: name}, err
}

func (fs *quotaFS) Rename(old, name string) (err error) {
	fs.change(old, func() {
		fs.move(old, name)
		err = fs.MemFS.Rename(old, name)
	})
	return err
}

func (fs *quotaFS) Remove(name string) (err error) {
	fs.change(name, func() {
		fs.move(name, "")
		err = fs.MemFS.Remove(name)
	})
	return err
}

type quotaFile struct {
	vfs.File
	fs   *quotaFS
	name string
	at   int64
}

func (f *quotaFile) Write(p []byte) (n int, err error) {
	f.fs.change(f.name, func() {
		room := f.fs.take(f.name, f.at+int64(len(p))) - f.at
		n, err = f.File.Write(p[:max(0, room)])
		f.at += int64(n)
	})
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *quotaFile) WriteAt(p []byte, at int64) (n int, err error) {
	f.fs.change(f.name, func() {
		room := f.fs.take(f.name, at+int64(len(p))) - at
		n, err = f.File.WriteAt(p[:max(0, room)], at)
	})
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

func (f *quotaFile) Preallocate(at, n int64) (err error) {
	f.fs.change(f.name, func() {
		if f.fs.take(f.name, at+n) < at+n {
			err = syscall.ENOSPC
		}
	})
	return err
}

// A badFS cannot write files of one kind once bad is set.
type badFS struct {
	vfs.FS
	bad      atomic.Bool
	failures atomic.Int64
}

func newBadFS(suffix string, err error) *badFS {
	fs := &badFS{}
	fs.FS = hooked(vfs.NewMem(), func(op errorfs.Op) error {
		if !fs.bad.Load() || !strings.HasSuffix(op.Path, suffix) || op.Kind != errorfs.OpCreate && op.Kind != errorfs.OpFileWrite {
			return nil
		}
		fs.failures.Add(1)
		return err
	})
	return fs
}

// bounded fails the test if the store keeps trying: it gives every other goroutine many turns to do
// so.
func (fs *badFS) bounded(t *testing.T) {
	t.Helper()
	before := fs.failures.Load()
	for range 10_000 {
		runtime.Gosched()
	}
	if n := fs.failures.Load() - before; n > 10 {
		t.Errorf("it tried %d times more", n)
	}
}

// A store that cannot write its log or its tables rejects all requests with the reason and ends the
// waiting receives. It neither hangs nor spins, and can be closed. The test runs in no bubble,
// because a broken store may leave goroutines of Pebble behind.
func TestBrokenStoreRejectsEverything(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{".log", ".sst"} {
		t.Run(suffix, func(t *testing.T) {
			fs := newBadFS(suffix, syscall.EIO)
			b := assert.Value(broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs)))(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putTopic(t, b, "empty", settings.Topic{Queues: 1})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			poll := func(wait time.Duration) error {
				_, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "empty", Queue: -1, InvisibleDuration: time.Minute, Wait: wait})
				return err
			}
			waiting := make(chan error)
			go func() { waiting <- poll(time.Hour) }()
			size := 1000
			if suffix == ".sst" {
				size = 1 << 20 // soon a table is written
			}
			fs.bad.Store(true)
			for n := 0; b.Healthy() == nil; n++ {
				assert.MustThat(t, n != 1000, "1000 sends, and it is still healthy")
				b.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "t", Body: make([]byte, size)}})
			}
			for name, err := range map[string]error{
				"waiting receive": <-waiting,
				"receive":         poll(0),
				"send":            b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "t", Body: []byte("x")}})[0].Err,
				"ack":             b.Ack(t.Context(), ds)[0],
				"topic":           b.DeleteTopic(t.Context(), "t"),
				"health":          b.Healthy(),
			} {
				if err == nil || !strings.Contains(err.Error(), "input/output error") || !strings.Contains(err.Error(), "restart the broker") {
					t.Errorf("%s: %v", name, err)
				}
			}
			fs.bounded(t)
			_ = b.Close() // success or failure depends on the writes that are left
		})
	}
}

// The disk has room for logs, which reuse files, and for no table. Writes then wait for a table,
// and Close ends that wait. The test is in no bubble, because Pebble's write never ends.
func TestFullDiskForTablesCloses(t *testing.T) {
	t.Parallel()
	fs := newBadFS(".sst", syscall.ENOSPC)
	b := assert.Value(broker.Open(broker.Options{Dir: "data"}.On(fs).MemTable(256 << 10)))(t)
	fs.bad.Store(true)
	done := make(chan error)
	calls := b.Engine().Parts().Calls
	for n := 0; !stalled(b); n++ {
		assert.MustThat(t, n != 100, "100 writes do not stall it")
		calls.Begin()
		go func() {
			defer calls.End()
			done <- b.Engine().Parts().Store.Messages.Add(func(w *store.Batch) { w.PutTopic("t", make([]byte, 50_000)) }, nil).Wait()
		}()
		for waits := true; waits && !stalled(b); {
			select {
			case err := <-done:
				if err != nil || b.Healthy() != nil {
					t.Fatal(err, b.Healthy())
				}
				waits = false
			default:
				runtime.Gosched()
			}
		}
	}
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the write that waited: %v", err)
	}
	if err := <-closed; err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("closing: %v", err)
	}
	fs.bounded(t)
}
