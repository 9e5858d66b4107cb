package spool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/wallclock"
)

var (
	modelSeed    = flag.Uint64("model.seed", 0, "run the random tests with this seed; 0 for another one each time")
	damagedFiles = flag.Int("damage.files", 400, "how many damaged spools TestDamagedFiles opens")
	damageSeed   = flag.Uint64("damage.seed", 1, "the seed of the damage")
)

// seeded returns a random source and names the command that repeats a failure.
func seeded(t *testing.T) *rand.Rand {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with: go test ./producer/spool -run '^%s$' -model.seed %d", t.Name(), seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

var quiet = slog.New(slog.DiscardHandler)

func openMem(t *testing.T, d *memDisk) *Spool {
	t.Helper()
	return assert.Value(openDisk(d, Options{Logger: quiet, MaxBytes: 1 << 20}, 2<<10))(t)
}

// onMemDisk runs a test in a bubble, with a spool on a disk in memory.
func onMemDisk(t *testing.T, test func(t *testing.T, d *memDisk, s *Spool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := newMemDisk()
		test(t, d, openMem(t, d))
	})
}

// A state is where each message is: pending, rejected or nowhere.
type state map[string]string

func stateOf(t *testing.T, s *Spool) (st state, order []string) {
	t.Helper()
	st = state{}
	for _, rejected := range []bool{false, true} {
		list := assert.Value(s.Entries(rejected, 0, 1<<20))(t)
		for _, e := range list {
			if e.Message == nil {
				continue
			}
			if want := body(e.Message.ID); string(e.Message.Body) != want {
				t.Fatalf("message %s has the body %q, want %q", e.Message.ID, e.Message.Body, want)
			}
			assert.MustThat(t, st[e.Message.ID] == "", "message %s is in the spool twice", e.Message.ID)
			st[e.Message.ID] = map[bool]string{false: "pending", true: "rejected"}[rejected]
			if !rejected {
				order = append(order, e.Message.ID)
			}
		}
	}
	return st, order
}

func body(id string) string { return "the body of " + id + strings.Repeat(".", len(id)*7) }

// A workload changes a spool step by step.
type workload struct {
	s *Spool
	r *rand.Rand
	n int
}

func (w *workload) message() *tidegate.Message {
	w.n++
	m := message(fmt.Sprintf("m%04d", w.n), []string{"", "a", "b"}[w.r.IntN(3)])
	m.Body = []byte(body(m.ID))
	return m
}

var errRefused = &tidegate.Error{Code: tidegate.CodeMessageBodyTooLarge}

func (w *workload) step(t *testing.T) {
	t.Helper()
	assert.Must(t, w.try(t.Context()))
}

// try does a step on a disk that can fail.
func (w *workload) try(ctx context.Context) error {
	switch w.r.IntN(6) {
	case 0, 1:
		return w.s.Put(ctx, w.message())
	case 2:
		var msgs []*tidegate.Message
		for range 1 + w.r.IntN(5) {
			msgs = append(msgs, w.message())
		}
		return errors.Join(w.s.PutBatch(ctx, msgs)...)
	case 3, 4:
		batch, _, err := w.s.next()
		if err != nil {
			return err
		}
		results := make([]error, len(batch))
		for i := range results {
			results[i] = []error{nil, nil, errRefused, tidegate.ErrUnavailable}[w.r.IntN(4)]
		}
		return w.s.record(batch, results)
	}
	list, err := w.s.Entries(true, 0, 3)
	for _, e := range list {
		if w.r.IntN(2) == 0 {
			_, err = w.s.Requeue(e.Sequence)
		} else {
			_, err = w.s.Discard(e.Sequence)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// A point is the state between two steps of a workload.
type point struct {
	at int // changes of the disk so far
	state
	tried int // the number of the last message so far
}

// checkCrashes checks the state after a crash at each change of the disk: it is that before or
// after the step under way, or one that perhaps permits for a message.
func checkCrashes(t *testing.T, d *memDisk, r *rand.Rand, points []point, perhaps func(before point, id, got string) bool) {
	t.Helper()
	for n := points[0].at; n <= points[len(points)-1].at; n++ {
		i, _ := slices.BinarySearchFunc(points, n+1, func(p point, n int) int { return p.at - n })
		before, after := points[i-1], points[min(i, len(points)-1)]
		for _, powerFails := range []bool{false, true} {
			what := fmt.Sprintf("crash before change %d, power fails: %v", n, powerFails)
			s := openMem(t, d.crashed(n, powerFails, r))
			assert.Must(t, s.Damage(), "%s", what)
			got, order := stateOf(t, s)
			for id := range union(before.state, after.state, got) {
				assert.MustThat(t, got[id] == before.state[id] || got[id] == after.state[id] || perhaps(before, id, got[id]),
					"%s: message %s is %q, want %q or %q", what, id, got[id], before.state[id], after.state[id])
			}
			if n%5 == 0 {
				use(t, s, order, what)
			}
		}
	}
}

// After a crash at any change of the disk, the spool has all that was confirmed before, nothing
// that was removed, and perhaps parts of the step under way; it reports no damage; and it can be
// used.
func TestCrashAtEveryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := seeded(t)
		d := newMemDisk()
		w := &workload{s: openMem(t, d), r: r}
		points := []point{{state: state{}}, {at: d.changes(), state: state{}}}
		most := 0
		for range 120 {
			w.step(t)
			st, _ := stateOf(t, w.s)
			points = append(points, point{at: d.changes(), state: st})
			synctest.Wait() // until the removal of old segments
			most = max(most, len(w.s.records.segments))
		}
		if first := w.s.records.segments[0].number; most < 3 || first == 1 {
			t.Errorf("at most %d segments, at the end from %d on: the test shows too little", most, first)
		}
		assert.Must(t, w.s.Close())
		checkCrashes(t, d, r, points, func(point, string, string) bool { return false })
	})
}

func union(states ...state) map[string]bool {
	all := map[string]bool{}
	for _, st := range states {
		for id := range st {
			all[id] = true
		}
	}
	return all
}

// use checks that a spool accepts and drains messages, in the order of their groups.
func use(t *testing.T, s *Spool, order []string, what string) {
	t.Helper()
	put(t, s, message("z-last", "a"))
	f := &server{}
	drainAll(t, s, f)
	got := f.ids()
	assert.MustThat(t, len(got) == len(order)+1 && got[len(got)-1] != "" && slices.Contains(got, "z-last"), "%s: drained %v, want %v and z-last", what, got, order)
	assert.Must(t, s.Close(), "%s", what)
}

// A damaged spool opens, reports the place, changes no message, keeps all messages whose bytes are
// whole, and can be used.
func TestDamagedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(*damageSeed, 0))
		d := newMemDisk()
		w := &workload{s: openMem(t, d), r: r}
		for range 150 {
			w.step(t)
		}
		type place struct {
			file      string
			off, size int64
		}
		places := map[string]place{}
		for _, e := range w.s.index.all {
			if !e.gone {
				h := assert.Value(w.s.message(e))(t)
				places[h.Message.ID] = place{segmentName(e.seg.number), e.off, int64(e.size)}
			}
		}
		want, _ := stateOf(t, w.s)
		assert.Must(t, w.s.Close())
		assert.MustThat(t, len(want) >= 20 && len(d.names) >= 5, "%d messages in %d files: the test shows too little", len(want), len(d.names))
		names, _ := d.list()
		slices.Sort(names)
		for n := range *damagedFiles {
			c := d.clone()
			name := names[r.IntN(len(names))]
			what, from, to := harm(c, name, r)
			what = fmt.Sprintf("damage %d of seed %d: %s", n, *damageSeed, what)
			s := openMem(t, c)
			got, order := stateOf(t, s)
			report := fmt.Sprint(s.Damage())
			assert.That(t, name == syncedName || from >= to || strings.Contains(report, name+": "), "%s: reported %q, want the file", what, report)
			for id, p := range places {
				if whole := p.file != name || p.off+p.size <= from || p.off >= to; whole && got[id] == "" {
					t.Errorf("%s: message %s in bytes %d to %d of %s is lost", what, id, p.off, p.off+p.size, p.file)
				}
			}
			assert.That(t, name != syncedName || fmt.Sprint(got) == fmt.Sprint(want), "%s: the messages are %v, want %v", what, got, want)
			use(t, s, order, what)
		}
	})
}

// The file synced records how much of the log is on disk. Without it, messages may have been cut
// off: Open reports that it is missing, except in a new spool.
func TestAMissingSyncedFileIsReported(t *testing.T) {
	d := newMemDisk()
	s := openMem(t, d)
	assert.NoError(t, s.Damage(), "a new spool")
	put(t, s, message("1", ""))
	assert.Must(t, s.Close())
	delete(d.names, syncedName)
	s = openMem(t, d)
	err := s.Damage()
	assert.That(t, err != nil && strings.Contains(err.Error(), syncedName+": "), "%v, want a report of %s", err, syncedName)
	assert.NoError(t, s.Close())
}

// harm damages a file. It returns the range of the changed bytes.
func harm(d *memDisk, name string, r *rand.Rand) (what string, from, to int64) {
	f := d.names[name]
	size := int64(len(f.data))
	before := string(f.data)
	switch r.IntN(4) {
	case 0:
		n := r.Int64N(size)
		f.truncate(n)
		return fmt.Sprintf("%s of %d bytes cut to %d", name, size, n), n, size
	case 1:
		at := r.Int64N(size)
		f.data[at] ^= 1 << r.IntN(8)
		return fmt.Sprintf("a bit of byte %d of %s flipped", at, name), at, at + 1
	case 2:
		from = r.Int64N(size)
		to = min(size, from+1+r.Int64N(1000))
		clear(f.data[from:to])
		what = fmt.Sprintf("bytes %d to %d of %s zeroed", from, to, name)
	default:
		delete(d.names, name)
		return name + " removed", 0, size
	}
	if string(f.data) == before {
		return what + " (they were zero)", 0, 0
	}
	return what, from, to
}

// Reading does not trust the contents of the files.
func FuzzLoad(f *testing.F) {
	d := newMemDisk()
	s := assert.Value(openDisk(d, Options{MaxBytes: 1 << 20}, 2<<10))(f)
	for i := range 3 {
		assert.Must(f, s.Put(context.Background(), message(fmt.Sprint(i), "g")))
	}
	assert.Must(f, s.Close())
	f.Add(d.names[segmentName(1)].data, d.names[syncedName].data)
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, segment, synced []byte) {
		d := newMemDisk()
		d.names[segmentName(1)] = &memFile{disk: d, data: segment}
		d.names[syncedName] = &memFile{disk: d, data: synced}
		s, err := openDisk(d, Options{Logger: quiet, MaxBytes: 1 << 20}, 2<<10)
		if err != nil {
			assert.That(t, errors.Is(err, errVersion), "%v, want errVersion or success", err)
			return
		}
		for _, rejected := range []bool{false, true} {
			assert.NoError(t, assert.Err(s.Entries(rejected, 0, 1<<20)))
		}
		assert.NoError(t, s.Put(t.Context(), message("new", "g")))
		assert.NoError(t, s.Close())
	})
}

// A file of an earlier version, or any other file, is rejected with the reason and the remedy.
func TestOpenRejectsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orders.spool")
	assert.Must(t, os.WriteFile(path, make([]byte, 32<<10), 0o600))
	_, err := Open(path, Options{})
	assert.That(t, err != nil && strings.Contains(err.Error(), path) && strings.Contains(err.Error(), "a spool is a directory"), "%v, want the path and the reason", err)
	if info, err := os.Stat(path); err != nil || info.Size() != 32<<10 {
		t.Errorf("the file has changed: %v, %v", info, err)
	}
}

// Concurrent Puts share an fsync: those that arrive during a write are in the next one together.
func TestPutsShareAnFsync(t *testing.T) {
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		syncs := 0
		d.beforeSync = func() {
			syncs++
			time.Sleep(10 * time.Millisecond)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 6 { // all of them are in one segment
			wg.Go(func() { assert.NoError(t, s.Put(t.Context(), message(fmt.Sprint(i), ""))) })
		}
		wg.Wait()
		if took := time.Since(start); syncs > 2 || took != time.Duration(syncs)*10*time.Millisecond {
			t.Errorf("6 concurrent Puts took %v and %d fsyncs, want at most 2", took, syncs)
		}
		d.beforeSync = nil
		assert.NoError(t, s.Close())
	})
}

// A damaged file keeps its bytes: when its messages have left, it is renamed, and Open reports it
// no longer.
func TestADamagedFileIsKept(t *testing.T) {
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		for i := range 30 {
			put(t, s, message(fmt.Sprint(i), "g"))
		}
		e := s.index.all[2]
		assert.Must(t, s.Close())
		name := segmentName(e.seg.number)
		d.names[name].data[e.off+20] ^= 1
		harmed := string(d.names[name].data)
		s = openMem(t, d)
		if err := s.Damage(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s: bytes %d to %d are damaged", name, e.off, e.off+int64(e.size))) {
			t.Errorf("reported %v, want bytes %d to %d of %s", err, e.off, e.off+int64(e.size), name)
		}
		f := &server{}
		drainAll(t, s, f)
		assert.Must(t, s.Close())
		if kept := d.names[name+".damaged"]; kept == nil || string(kept.data) != harmed || d.names[name] != nil || len(f.ids()) != 29 {
			t.Errorf("%d messages were sent; kept: %v", len(f.ids()), kept != nil)
		}
		s = openMem(t, d)
		assert.NoError(t, s.Damage())
		assert.NoError(t, s.Close())
	})
}

func TestRejectedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "spool.db")
		s := open(t, path, Options{})
		put(t, s, message("good", "g"), message("bad", "g"), message("next", "g"))
		f := &server{}
		f.setFail(func(m *tidegate.Message) error {
			if m.ID == "bad" {
				return &tidegate.Error{Code: tidegate.CodeMessageBodyTooLarge, Message: "too large"}
			}
			return nil
		})
		stop := drain(t, s, f)
		synctest.Wait()
		assert.Slices(t, "sent", f.ids(), []string{"good", "next"})
		stop()
		assert.Must(t, s.Close())
		s = open(t, path, Options{})
		list, err := s.Entries(true, 0, 10)
		assert.MustThat(t, err == nil && len(list) == 1 && list[0].Message.ID == "bad" && strings.Contains(list[0].Reason, "too large") && !list[0].Rejected.IsZero(), "%+v, %v", list, err)
		got := s.Stats()
		assert.That(t, got.Rejected == 1 && got.Pending == 0 && got.Bytes == int64(list[0].Bytes), "%+v", got)
		f.setFail(nil)
		stop = drain(t, s, f)
		if n, err := s.Requeue(list[0].Sequence, 12345); n != 1 || err != nil {
			t.Errorf("Requeue: %d, %v", n, err)
		}
		synctest.Wait()
		stop()
		if got := f.ids(); !slices.Equal(got, []string{"good", "next", "bad"}) || s.Stats() != (Stats{}) {
			t.Errorf("sent %v, left %+v", got, s.Stats())
		}
	})
}

// A fault of the set-up, such as rejected credentials, is not the messages' fault: they wait until
// it is cured.
func TestSetUpFaultsRejectNothing(t *testing.T) {
	for _, code := range []tidegate.Code{
		tidegate.CodeUnauthorized, tidegate.CodeForbidden, tidegate.CodeTopicNotFound, tidegate.CodeIllegalAccessPoint,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpool(t, Options{})
			put(t, s, message("1", "g"), message("2", ""))
			f := &server{}
			f.setFail(func(*tidegate.Message) error { return &tidegate.Error{Code: code} })
			stop := drain(t, s, f)
			time.Sleep(time.Minute)
			if got := s.Stats(); got.Rejected != 0 || got.Pending != 2 {
				t.Errorf("%v: %+v, want both messages to wait", code, got)
			}
			f.setFail(nil)
			empty(s)
			stop()
			got := f.ids()
			assert.That(t, len(got) == 2, "%v: sent %v after the cure, want both", code, got)
		})
	}
}

func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{MaxAge: time.Minute})
		put(t, s, message("old", ""), message("old2", ""))
		time.Sleep(2 * time.Minute)
		put(t, s, message("new", ""))
		f := &server{}
		drainOnce(t, s, f)
		assert.Slices(t, "sent", f.ids(), []string{"new"})
		list, _ := s.Entries(true, 0, 1)
		assert.MustThat(t, len(list) == 1 && strings.Contains(list[0].Reason, "1m0s"), "%+v", list)
		rest, _ := s.Entries(true, list[0].Sequence, 10)
		assert.MustThat(t, len(rest) == 1 && rest[0].Message.ID == "old2", "%+v", rest)
		n, err := s.Discard(list[0].Sequence, rest[0].Sequence)
		assert.That(t, n == 2 && err == nil && s.Stats() == (Stats{}), "%d, %v, %+v", n, err, s.Stats())
	})
}

// A wall clock that is not trusted makes no message too old: such messages are neither sent nor
// rejected until its time is accepted, and others are sent.
func TestDistrustedClock(t *testing.T) {
	t.Parallel()
	t.Run("step", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newSpool(t, Options{MaxAge: time.Minute})
			put(t, s, message("old", ""), message("first", "g"))
			time.Sleep(2 * time.Minute)
			s.clock.Compare(time.Now().Add(-2 * time.Hour)) // as after a step by two hours
			put(t, s, message("new", ""), message("second", "g"))
			f := &server{}
			stop := drain(t, s, f)
			time.Sleep(wallclock.Pause - time.Second)
			synctest.Wait()
			if got := f.ids(); !slices.Equal(got, []string{"new"}) || s.Stats().Pending != 3 || s.Stats().Rejected != 0 {
				t.Errorf("sent %v, %+v; want the new message without a group, and nothing rejected", got, s.Stats())
			}
			time.Sleep(2 * distrustPause) // the backoff of a queue can be longer
			synctest.Wait()
			stop()
			if got := f.ids(); !slices.Equal(got, []string{"new"}) || s.Stats().Rejected != 3 { // second waited for longer than a minute, too
				t.Errorf("sent %v, %+v; want the old messages rejected", got, s.Stats())
			}
		})
	})
	t.Run("start", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spool.db")
			s := open(t, dir, Options{MaxAge: time.Minute})
			put(t, s, message("old", ""))
			assert.Must(t, s.Close())
			time.Sleep(3 * time.Hour)
			s = open(t, dir, Options{MaxAge: time.Minute})
			f := &server{}
			defer drain(t, s, f)()
			time.Sleep(wallclock.Pause - time.Second)
			synctest.Wait()
			assert.That(t, s.Stats().Rejected == 0, "%+v before the time is accepted", s.Stats())
			time.Sleep(2 * distrustPause) // the backoff of a queue can be longer
			synctest.Wait()
			got := f.ids()
			assert.That(t, len(got) == 0 && s.Stats().Rejected == 1, "sent %v, %+v; want the message rejected", got, s.Stats())
		})
	})
}

// A requeued message is pending only, without a reason and a time of rejection, also after a
// restart.
func TestRequeueRemovesTheRejection(t *testing.T) {
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		if n, err := s.Requeue(rejected(t, s, message("1", ""))[0].Sequence); n != 1 || err != nil {
			t.Fatalf("Requeue: %d, %v", n, err)
		}
		for _, when := range []string{"after Requeue", "after the restart"} {
			list, err := s.Entries(false, 0, 2)
			assert.That(t, err == nil && len(list) == 1 && list[0].Reason == "" && list[0].Rejected.IsZero(), "%s: pending are %+v, %v; want the message without a rejection", when, list, err)
			n := s.Stats().Rejected
			assert.That(t, n == 0, "%s: %d messages are rejected, want none", when, n)
			assert.Must(t, s.Close())
			s = openMem(t, d)
		}
		assert.NoError(t, s.Close())
	})
}

// A topic whose sends fail does not delay other topics, for any number of its waiting messages.
func TestADeadTopicHoldsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		var msgs []*tidegate.Message
		for i := range 600 {
			m := message(fmt.Sprint(i), "")
			m.Topic = "dead"
			msgs = append(msgs, m)
		}
		msgs = append(msgs, message("alive", ""))
		assert.Must(t, errors.Join(s.PutBatch(t.Context(), msgs)...))
		f := &server{}
		var attempts atomic.Int64
		f.setFail(func(m *tidegate.Message) error {
			if m.Topic == "dead" {
				attempts.Add(1)
				return errors.New("no server")
			}
			return nil
		})
		stop := drain(t, s, f)
		time.Sleep(time.Second)
		assert.Slices(t, "sent after a second", f.ids(), []string{"alive"})
		time.Sleep(time.Minute)
		n := attempts.Load()
		assert.That(t, n <= 20*batchMessages, "%d attempts for the dead topic in a minute, want a batch in about 5 s", n)
		f.setFail(nil)
		empty(s)
		stop()
		assert.Equal(t, "messages were sent", len(f.ids()), 601)
	})
}
