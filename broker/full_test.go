package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
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
		if len(ds) == 0 {
			t.Fatalf("%d of %d came", len(ids), n)
		}
		for i, d := range ds {
			var err error
			if i%5 == 0 && d.Attempt == 1 {
				_, err = b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})
			} else {
				err = b.Ack(t.Context(), []*tidegate.Delivery{d})[0]
				ids = append(ids, d.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return ids
}

// On a full disk the broker throttles sends, and no other requests; once there is space again, the
// broker accepts sends without a restart, and no message was lost.
func TestFullDiskThrottlesSendsUntilSpaceIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := newQuotaFS()
		o := broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs).MemTable(1 << 20)
		b, err := broker.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
		all := map[string]bool{}
		for round, free := range []int64{0, 3 << 20, 17 << 20} {
			fs.leave(free)
			stored := fill(t, b, fmt.Sprint(round, "."))
			if th := b.Throttles(); len(th) == 0 || th[0].Limit != engine.DiskFull || !th[0].On || th[0].Value <= 0 {
				t.Errorf("the throttles are %+v", th)
			}
			time.Sleep(3 * time.Second)
			if more := fill(t, b, fmt.Sprint(round, "again")); len(more) > 0 {
				t.Errorf("%d sends were accepted on a full disk", len(more))
			}
			if serve(b).Stats().Throttled[engine.DiskFull] < 2 {
				t.Error("the refusals were not counted")
			}
			for _, id := range consumeFailing(t, b, len(stored)) {
				all[id] = true
			}
			if len(all) < len(stored) || b.Healthy() != nil {
				t.Errorf("%d of %d came; %v", len(all), len(stored), b.Healthy())
			}
			if round == 1 { // a restart on the full disk
				if err := b.Close(); err != nil {
					t.Errorf("closing: %v", err)
				}
				if b, err = broker.Open(o); err != nil {
					t.Fatal(err)
				}
				if more := fill(t, b, "restarted"); len(more) > 0 {
					t.Errorf("%d sends were accepted on a full disk after a restart", len(more))
				}
			}
			fs.leave(1 << 30)
			time.Sleep(2 * time.Second)
			id := fmt.Sprint("after", round)
			mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", Body: []byte("x")})
			if got := consumeFailing(t, b, 1); got[0] != id {
				t.Errorf("%s came, want %s", got, id)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if b, err = broker.Open(o); err != nil {
			t.Fatal(err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) > 0 {
			t.Errorf("%s is redelivered", ds[0].ID)
		}
		for _, d := range receiveAll(t, b, "t") {
			delete(all, d.ID)
		}
		if len(all) > 0 {
			t.Errorf("%d messages were consumed, and are not there any more", len(all))
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// When even the reserve is used up, consumers wait. They continue once space is free.
func TestFullDiskWithoutReserveWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := newQuotaFS()
		b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
		if err != nil {
			t.Fatal(err)
		}
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
		if err := <-acked; err != nil {
			t.Error(err)
		}
		fs.leave(0)
		go func() { acked <- b.Ack(t.Context(), ds[1:])[0] }()
		time.Sleep(10 * time.Second)
		fs.leave(1 << 30)
		if err := <-acked; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // writes in the background look for room again; Close would end their wait
		if err := b.Close(); err != nil {
			t.Error(err)
		}
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
			if err != nil {
				t.Fatal(err)
			}
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
				if err != nil && !strings.Contains(err.Error(), "no space left") {
					t.Errorf("closing: %v", err)
				}
			case <-time.After(time.Hour):
				t.Errorf("waits %t: it does not close", waits)
				fs.leave(1 << 30)
				<-closed
			}
			if waits && <-acked == nil {
				t.Error("acknowledged without space")
			}
			fs.leave(1 << 30)
			if b, err = broker.Open(o); err != nil {
				t.Fatal(err)
			}
			for _, d := range receiveAll(t, b, "t") {
				if at := slices.Index(ids, d.ID); at >= 0 {
					ids = slices.Delete(ids, at, at+1)
				}
			}
			if len(ids) > 0 {
				t.Errorf("waits %t: %q are gone", waits, ids)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
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
	b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, Pressure: settings.Pressure{MinFreeDisk: -1}}.On(fs))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// A broker without a minimum of free space fills its disk. If it is killed then, it starts again as
// often as that happens, also if other programs took the space that was left. All messages are
// there, and after a purge the broker accepts sends again.
func TestKilledOnFullDiskStartsAgain(t *testing.T) {
	t.Parallel()
	for _, mib := range []int64{48, 160}[:max(1, soak(2))] {
		t.Run(fmt.Sprint(mib, " MiB"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, fs := smallDisk(t, mib)
				ids := fill(t, b, "a")
				if n := int64(len(ids)) * 50_000; n < mib<<20*6/10 {
					t.Errorf("%d messages fill a disk of %d MiB", len(ids), mib)
				}
				for round := range max(2, soak(6)) {
					if round%2 == 1 {
						fs.leave(0)
						time.Sleep(5 * time.Second)
					}
					old := fs
					fs = fs.kill()
					leaveProcess(old, b)
					b = openSmall(t, fs)
					time.Sleep(2 * time.Second)
					for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}) {
						if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
							t.Errorf("round %d: an acknowledgement on the full disk: %v", round, err)
						}
					}
				}
				old := fs
				fs = fs.kill()
				leaveProcess(old, b)
				check := fs.kill()
				allStored(t, openSmall(t, check), check, ids)

				b = openSmall(t, fs)
				time.Sleep(2 * time.Second)
				if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Messages < int64(len(ids)) {
					t.Errorf("the purge removed %+v: %v", removed, err)
				}
				time.Sleep(time.Minute)
				if again := fill(t, b, "again"); len(again) < len(ids)/2 {
					t.Errorf("after the purge %d messages fill the disk, %d before", len(again), len(ids))
				}
				leaveProcess(fs, b)
			})
		})
	}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("the error does not contain %q: %v", w, err)
			}
		}
		killed.leave(8 << 20)
		time.Sleep(10 * time.Minute) // the failed start holds its lock until it has space
		allStored(t, openSmall(t, killed), killed, ids)
	})
}
