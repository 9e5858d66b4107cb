package broker_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
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
	bubble(t, func(t *testing.T) {
		fs, log := vfs.NewMem(), bytes.Buffer{}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		sendN(t, b, "t", 47, 1)
		assert.Must(t, b.Close())
		time.Sleep(4 * 24 * time.Hour)
		b = open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(fs))
		synctest.Wait()
		want := status.Clock{AheadMS: 4 * 24 * 3600_000, AtStart: true, Kept: 47}
		got := clockOf(b)
		assert.MustThat(t, got != nil && got.AcceptedAt.Equal(time.Now().Add(wallclock.Pause)), "the clock is %+v", got)
		if got.Expected, got.AcceptedAt = (time.Time{}), (time.Time{}); *got != want {
			t.Errorf("the clock is %+v, want %+v", *got, want)
		}
		elapse(wallclock.Pause - time.Second)
		assert.Equal(t, "messages are left before the time is accepted", stored(t, b, "t"), 47)
		elapse(2 * time.Second)
		n := stored(t, b, "t")
		assert.That(t, n == 0 && clockOf(b) == nil, "%d messages are left, and the clock is %+v, after the time is accepted", n, clockOf(b))
		assert.Must(t, b.Close())
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
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
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
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		time.Sleep(80 * time.Hour) // without a clock that notices: a step by 80 h
		b.Engine().Parts().Env.Clock.Compare(time.Now().Add(-80 * time.Hour))
		b.Engine().Parts().ClockChanged()
		sendN(t, b, "t", 1, 1)
		for range 3 {
			b = reopen(t, b, fs)
			synctest.Wait()
			c := clockOf(b)
			assert.MustThat(t, c != nil && c.AtStart, "after a restart the clock is %+v", c)
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
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		fault := func(b *store.Store, record []byte) {
			assert.Must(t, b.Messages.Add(func(w *store.Batch) { w.PutAddressSettings("#", record) }, nil).Wait())
		}
		fault(b.Engine().Parts().Store, []byte("not a record"))
		assert.Must(t, b.Close())
		time.Sleep(80 * time.Hour) // and the clock is wrong
		assert.MustThat(t, assert.Err(broker.Open(broker.Options{Dir: "data"}.On(fs))) != nil,
			"the broker opens a directory with a faulty record")
		s := assert.Value(store.Open(store.Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler), CacheBytes: 1 << 20, MemTableBytes: 1 << 20}))(t)
		fault(s, []byte("{}"))
		assert.Must(t, s.Close())
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		defer b.Close()
		c := clockOf(b)
		assert.That(t, c != nil && c.AtStart, "the clock is %+v after a start that failed, want one that is not trusted", c)
	})
}

// Messages that a clock calls expired which is not trusted are neither delivered nor removed, and
// other messages are delivered. Once the time is accepted they expire.
func TestExpiryWithDistrustedClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(60_000)), ExpiryAddress: new("expired")})
		sendN(t, b, "t", 3, 1)
		time.Sleep(2 * time.Minute)
		stepAhead(b, 2*time.Hour)
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "young", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute}
		ds := receive(t, b, r)
		assert.MustThat(t, len(ds) == 1 && ds[0].ID == "young" && b.Ack(t.Context(), ds)[0] == nil, "%d deliveries", len(ds))
		r.Wait = 8 * time.Minute
		ds = receive(t, b, r)
		assert.That(t, len(ds) == 0 && clockOf(b).Postponed == 3, "%d more deliveries, the clock is %+v", len(ds), clockOf(b))
		n := subscriptionOf(t, b, "g")
		assert.That(t, n.Expired == 0 && n.Backlog.Messages == 3, "before the time is accepted: %+v", n)
		r.Wait = 2 * time.Minute
		assert.Equal(t, "deliveries of expired messages", len(receive(t, b, r)), 0)
		n = subscriptionOf(t, b, "g")
		assert.That(t, n.Expired == 3 && n.Backlog.Messages == 0, "after the time is accepted: %+v", n)
		for _, d := range receiveAll(t, b, "expired") {
			assert.That(t, d.Properties["_AMQ_ORIG_ADDRESS"] == "t", "the expired message has %v", d.Properties)
		}
	})
}

// A correction of the clock makes the postponed messages due at once.
func TestPostponedUntilCorrection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{})
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(60_000))})
		sendN(t, b, "t", 3, 1)
		time.Sleep(2 * time.Minute)
		stepAhead(b, 2*time.Hour)
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}
		ds := receive(t, b, r)
		assert.MustThat(t, len(ds) == 0 && clockOf(b).Postponed == 3, "%d deliveries, %+v", len(ds), clockOf(b))
		putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(3600_000))}) // young again, as by a clock that went back
		stepAhead(b, 2*time.Hour)
		r.Wait = time.Second
		ds = receive(t, b, r)
		assert.That(t, len(ds) == 3 && ds[0].Attempt == 1, "%d deliveries after the correction", len(ds))
	})
}

// The limit of the age of a backlog rejects no send because of a step of the clock.
func TestAgeLimitWithDistrustedClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := open(t, broker.Options{Dir: "data"}.On(vfs.NewMem()))
		defer b.Close()
		putTopic(t, b, "t", settings.Topic{MaxBacklog: settings.Limit{Age: settings.Duration(time.Hour)}})
		sendN(t, b, "t", 1, 1)
		time.Sleep(2 * time.Hour)
		stepAhead(b, 90*time.Minute) // the message is half an hour old without the step
		sendN(t, b, "t", 1, 1)
		elapse(wallclock.Pause + time.Second)
		assert.That(t, send(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})[0].Err != nil,
			"the limit does not apply after the time was accepted")
	})
}

// While the clock is behind the time that it had, stored times go on from there, so retention,
// which searches a queue by these times, removes no newer message.
func TestStoredTimesAscend(t *testing.T) {
	bubble(t, func(t *testing.T) {
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

var clockSteps = flag.Bool("clock.steps", false, "build a broker whose wall clock a test can set; it compiles the standard library anew")

// steppedBroker builds the program in testdata/clockstep with a time.Now that adds time.WallStep to
// the wall clock, and not to the monotonic clock, as a time server does.
func steppedBroker(t *testing.T) string {
	t.Helper()
	source := filepath.Join(runtime.GOROOT(), "src", "time", "time.go") //nolint:staticcheck // the toolchain that runs the test builds the program
	b := assert.Value(os.ReadFile(source))(t)
	const before = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n\t\treturn Time{uint64(nsec)"
	text := strings.Replace(string(b), before, strings.Replace(before, "\tif", "\tsec += WallStep.Load()\n\tif", 1), 1)
	assert.MustThat(t, text != string(b), "%s has no %q", source, before)
	text = strings.Replace(text, "import (\n", "import (\n\t\"sync/atomic\"\n", 1) +
		"\n// WallStep is how far the wall clock is ahead, in seconds.\nvar WallStep atomic.Int64\n"
	dir := t.TempDir()
	overlay := assert.Value(json.Marshal(map[string]any{"Replace": map[string]string{source: filepath.Join(dir, "time.go")}}))(t)
	for name, text := range map[string]string{"time.go": text, "overlay.json": string(overlay)} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	program := filepath.Join(dir, "clockstep")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./testdata/clockstep")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return program
}

// A stepped is a running program of steppedBroker.
type stepped struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startStepped(t *testing.T, program, dir string, env ...string) *stepped {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = t.Output()
	in := assert.Value(cmd.StdinPipe())(t)
	out := assert.Value(cmd.StdoutPipe())(t)
	assert.Must(t, cmd.Start())
	s := &stepped{t, cmd, in, bufio.NewScanner(out)}
	got := s.answer()
	assert.MustThat(t, got == "open <nil>", "%+v", got)
	return s
}

func (s *stepped) answer() string {
	s.t.Helper()
	if !s.out.Scan() {
		s.t.Fatal("the program has ended: ", s.out.Err())
	}
	return s.out.Text()
}

// do writes a command and compares the response.
func (s *stepped) do(command, want string) {
	s.t.Helper()
	fmt.Fprintln(s.in, command)
	got := s.answer()
	assert.That(s.t, got == want, "%s: %s, want %s", command, got, want)
}

// until repeats a command until it has the response.
func (s *stepped) until(command, want string) {
	s.t.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		fmt.Fprintln(s.in, command)
		if got = s.answer(); got == want {
			return
		}
	}
	s.t.Errorf("%s: %s, want %s", command, got, want)
}

func (s *stepped) close() {
	s.t.Helper()
	s.do("close", "closed <nil>")
	assert.NoError(s.t, s.cmd.Wait())
}

// A wall clock that is wrong for a while removes and hides no message, in a process and at its
// start. .ci/run -long runs it with -clock.steps.
func TestClockSteps(t *testing.T) {
	if !*clockSteps {
		return
	}
	program := steppedBroker(t)
	const day = 24 * 3600
	t.Run("four days ahead for a moment", func(t *testing.T) {
		s := startStepped(t, program, t.TempDir())
		s.do("send 47", "sent 47")
		s.do(fmt.Sprint("step ", 4*day), "ok")
		s.do("send 1", "sent 1")
		s.until("clock", "distrusted 47 0") // the round of retention has looked at them
		s.do("stored", "stored 48 <nil>")
		s.do(fmt.Sprint("step ", -4*day), "ok")
		s.do("send 1", "sent 1")
		s.until("clock", "distrusted 0 0")
		s.do("receive 60000", "received 32 <nil>")
		s.do("receive 60000", "received 17 <nil>")
		s.close()
	})
	t.Run("a restart four days ahead", func(t *testing.T) {
		dir := t.TempDir()
		s := startStepped(t, program, dir)
		s.do("send 47", "sent 47")
		s.close()
		for range 2 { // the time of the first process is not trusted in the second one
			s = startStepped(t, program, dir, fmt.Sprint("WALL_STEP=", 4*day))
			s.do("send 1", "sent 1")
			s.until("clock", "distrusted 47 0")
			s.close()
		}
		s = startStepped(t, program, dir)
		s.do("clock", "trusted")
		s.do("stored", "stored 49 <nil>")
		s.close()
	})
	t.Run("expiry two hours ahead", func(t *testing.T) {
		s := startStepped(t, program, t.TempDir(), "EXPIRY=1")
		s.do("send 3", "sent 3")
		s.do("step 7200", "ok")
		s.do("send 1", "sent 1")
		s.do("consume 60000", "received 1 <nil>") // the new one
		s.do("clock", "distrusted 0 3")
		s.do("step -7200", "ok")
		s.do("consume 60000", "received 3 <nil>")
		s.close()
	})
	t.Run("leases an hour behind", func(t *testing.T) {
		dir := t.TempDir()
		s := startStepped(t, program, dir)
		s.do("send 1", "sent 1")
		s.do("receive 60000", "received 1 <nil>")
		s.close()
		s = startStepped(t, program, dir, "WALL_STEP=-3000") // trusted: within an hour of the newest time
		s.do("clock", "trusted")
		s.do("receive 60000", "received 1 <nil>") // after its invisible duration of a second
		s.close()
	})
}

// Open rejects each duration of the options above the maximum, and names its field.
func TestDurationsOfOptionsAreBounded(t *testing.T) {
	t.Parallel()
	const tooLong = settings.MaxDuration + 1
	for name, o := range map[string]broker.Options{
		"MinInvisibleDuration":       {MinInvisibleDuration: tooLong, MaxInvisibleDuration: tooLong},
		"MaxInvisibleDuration":       {MaxInvisibleDuration: tooLong},
		"MaxBacklog.age":             {MaxBacklog: settings.Limit{Age: settings.Duration(tooLong)}},
		"Pressure.max_write_stall":   {Pressure: settings.Pressure{MaxWriteStall: settings.Duration(tooLong)}},
		"Transaction.timeout":        {Transaction: settings.Transaction{Timeout: settings.Duration(tooLong)}},
		"Transaction.check_interval": {Transaction: settings.Transaction{CheckInterval: settings.Duration(tooLong)}},
	} {
		_, err := broker.Open(o)
		assert.That(t, err != nil && strings.Contains(err.Error(), name+" is "), "%s: %v", name, err)
	}
	assert.NoError(t, (broker.Options{MinInvisibleDuration: 1, MaxInvisibleDuration: settings.MaxDuration}).Validate())
}

// A window that begins before 1970 is valid: the IDs of waiting, half and delivered messages are
// remembered after a restart.
func TestLongestDuplicateWindow(t *testing.T) {
	t.Parallel()
	for _, kind := range []settings.TopicType{settings.TopicDelay, settings.TopicTransaction, settings.TopicNormal} {
		subtest(t, string(kind), func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Type: kind, DuplicateWindow: settings.Duration(settings.MaxDuration), Retention: settings.Retention{Time: -1}})
			first := ""
			for range 3 {
				m := &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")}
				if kind == settings.TopicDelay {
					m.DeliverAt = time.Now().Add(time.Hour)
				}
				r := serve(b).Append(t.Context(), []engine.Incoming{{Message: m, Half: kind == settings.TopicTransaction}})[0]
				assert.Must(t, r.Err)
				if receipt := fmt.Sprint(r.Receipt); first == "" {
					first = receipt
				} else if receipt != first {
					t.Errorf("sent again: %s, first %s", receipt, first)
				}
				b = reopen(t, b, fs)
			}
			info, err := b.Topic("t")
			assert.That(t, err == nil && info.StoredMessages+info.DelayedMessages+info.HalfMessages == 1, "%+v, %v", info, err)
			elapse(2 * time.Hour)
		})
	}
}
