package broker_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/wallclock"
	"github.com/tidegate/tidegate/transport"
)

// stepAhead does what the broker does when it notices that the wall clock went ahead.
func stepAhead(b *broker.Broker, step time.Duration) {
	b.Engine().Parts().Env.Clock.Compare(time.Now().Add(-step))
	b.Engine().Parts().ClockChanged()
	synctest.Wait()
}

func clockOf(b *broker.Broker) *status.Clock { return b.Engine().Survey().Clock }

// Retention removes no message by its age for ten minutes after a start whose clock is far from the
// newest time in the directory. Log and survey have what it would remove. Then the time is
// accepted.
func TestStartAfterALongStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs, log := vfs.NewMem(), bytes.Buffer{}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		sendN(t, b, "t", 47, 1)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * 24 * time.Hour)
		b = open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(fs))
		synctest.Wait()
		want := status.Clock{AheadMS: 4 * 24 * 3600_000, AtStart: true, Kept: 47}
		got := clockOf(b)
		if got == nil || !got.AcceptedAt.Equal(time.Now().Add(wallclock.Pause)) {
			t.Fatalf("the clock is %+v", got)
		}
		if got.Expected, got.AcceptedAt = (time.Time{}), (time.Time{}); *got != want {
			t.Errorf("the clock is %+v, want %+v", *got, want)
		}
		elapse(wallclock.Pause - time.Second)
		if n := stored(t, b, "t"); n != 47 {
			t.Errorf("%d messages are left before the time is accepted", n)
		}
		elapse(2 * time.Second)
		if n := stored(t, b, "t"); n != 0 || clockOf(b) != nil {
			t.Errorf("%d messages are left, and the clock is %+v, after the time is accepted", n, clockOf(b))
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"differs by more than an hour", "messages=47", "removed by age again"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("the log has %d times %q:\n%s", strings.Count(log.String(), want), want, log.String())
			}
		}
	})
}

// A broker that was idle for a week, and stopped in order, trusts its clock at the next start.
// After a crash the newest message counts.
func TestStartAfterIdleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{})
		sendN(t, b, "t", 1, 1)
		time.Sleep(24 * time.Hour)
		if b = reopen(t, b, fs); clockOf(b) != nil {
			t.Errorf("after an orderly stop: %+v", clockOf(b))
		}
		time.Sleep(2 * time.Hour)
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		_ = b.Close()
		b = open(t, broker.Options{Dir: "data"}.On(crashed))
		defer b.Close()
		if c := clockOf(b); c == nil || c.AheadMS != 2*3600_000 { // the record of the second start
			t.Errorf("after a crash: %+v", c)
		}
	})
}

// A process that begins while the clock of the last one was not trusted compares with the time that
// was trusted last, not with messages that were stored since.
func TestDistrustSurvivesRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		time.Sleep(80 * time.Hour) // without a clock that notices: a step by 80 h
		b.Engine().Parts().Env.Clock.Compare(time.Now().Add(-80 * time.Hour))
		b.Engine().Parts().ClockChanged()
		sendN(t, b, "t", 1, 1)
		for range 3 {
			b = reopen(t, b, fs)
			synctest.Wait()
			if c := clockOf(b); c == nil || !c.AtStart {
				t.Fatalf("after a restart the clock is %+v", c)
			}
			time.Sleep(time.Minute)
		}
		elapse(wallclock.Pause)
		if b = reopen(t, b, fs); clockOf(b) != nil {
			t.Errorf("after the time was accepted, the clock is %+v", clockOf(b))
		}
		_ = b.Close()
	})
}

// An Open that fails writes nothing about the clock, which it has not compared. The next one does.
func TestFailedStartDoesNotTrustTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		fault := func(b *store.Store, record []byte) {
			if err := b.Messages.Add(func(w *store.Batch) { w.PutAddressSettings("#", record) }, nil).Wait(); err != nil {
				t.Fatal(err)
			}
		}
		fault(b.Engine().Parts().Store, []byte("not a record"))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(80 * time.Hour) // and the clock is wrong
		if _, err := broker.Open(broker.Options{Dir: "data"}.On(fs)); err == nil {
			t.Fatal("the broker opens a directory with a faulty record")
		}
		s, err := store.Open(store.Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		fault(s, []byte("{}"))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		defer b.Close()
		if c := clockOf(b); c == nil || !c.AtStart {
			t.Errorf("the clock is %+v after a start that failed, want one that is not trusted", c)
		}
	})
}

// Messages that a clock calls expired which is not trusted are neither delivered nor removed, and
// other messages are delivered. Once the time is accepted they expire.
func TestExpiryWithDistrustedClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(60_000)), ExpiryAddress: new("expired")})
		sendN(t, b, "t", 3, 1)
		time.Sleep(2 * time.Minute)
		stepAhead(b, 2*time.Hour)
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "young", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute}
		if ds := receive(t, b, r); len(ds) != 1 || ds[0].ID != "young" || b.Ack(t.Context(), ds)[0] != nil {
			t.Fatalf("%d deliveries", len(ds))
		}
		r.Wait = 8 * time.Minute
		if ds := receive(t, b, r); len(ds) != 0 || clockOf(b).Postponed != 3 {
			t.Errorf("%d more deliveries, the clock is %+v", len(ds), clockOf(b))
		}
		if n := subscriptionOf(t, b, "g"); n.Expired != 0 || n.Backlog.Messages != 3 {
			t.Errorf("before the time is accepted: %+v", n)
		}
		r.Wait = 2 * time.Minute
		if ds := receive(t, b, r); len(ds) != 0 {
			t.Errorf("%d deliveries of expired messages", len(ds))
		}
		if n := subscriptionOf(t, b, "g"); n.Expired != 3 || n.Backlog.Messages != 0 {
			t.Errorf("after the time is accepted: %+v", n)
		}
		for _, d := range receiveAll(t, b, "expired") {
			if d.Properties["_AMQ_ORIG_ADDRESS"] != "t" {
				t.Errorf("the expired message has %v", d.Properties)
			}
		}
	})
}

// A correction of the clock makes the postponed messages due at once.
func TestPostponedUntilCorrection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{})
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(60_000))})
		sendN(t, b, "t", 3, 1)
		time.Sleep(2 * time.Minute)
		stepAhead(b, 2*time.Hour)
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}
		if ds := receive(t, b, r); len(ds) != 0 || clockOf(b).Postponed != 3 {
			t.Fatalf("%d deliveries, %+v", len(ds), clockOf(b))
		}
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(3600_000))}) // young again, as by a clock that went back
		stepAhead(b, 2*time.Hour)
		r.Wait = time.Second
		if ds := receive(t, b, r); len(ds) != 3 || ds[0].Attempt != 1 {
			t.Errorf("%d deliveries after the correction", len(ds))
		}
	})
}

// The limit of the age of a backlog rejects no send because of a step of the clock.
func TestAgeLimitWithDistrustedClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Age: settings.Duration(time.Hour)}})
		sendN(t, b, "t", 1, 1)
		time.Sleep(2 * time.Hour)
		stepAhead(b, 90*time.Minute) // the message is half an hour old without the step
		sendN(t, b, "t", 1, 1)
		elapse(wallclock.Pause + time.Second)
		if r := send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0]; r.Err == nil {
			t.Error("the limit does not apply after the time was accepted")
		}
	})
}

// While the clock is behind the time that it had, stored times go on from there, so retention,
// which searches a queue by these times, removes no newer message.
func TestStoredTimesAscend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{})
		b.Engine().Parts().Env.Clock.Compare(time.Now().Add(100 * time.Hour))
		time.Sleep(time.Second)
		sendN(t, b, "t", 1, 1)
		if d := one(t, b, "g", "t"); !d.StoredAt.Equal(time.Now().Add(100 * time.Hour)) {
			t.Errorf("stored %v after the wall clock, want 100h", time.Until(d.StoredAt))
		}
	})
}
