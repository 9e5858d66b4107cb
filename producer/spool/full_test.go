package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// fillUp puts messages of three message groups until the disk with a number of bytes is full. It
// returns the accepted ones.
func fillUp(t *testing.T, s *Spool, d *memDisk, bytes int) (accepted []string) {
	t.Helper()
	d.mu.Lock()
	d.most = bytes
	d.mu.Unlock()
	for n := 0; ; n++ {
		m := message(fmt.Sprintf("%04d", n), []string{"a", "b", ""}[n%3])
		err := s.Put(t.Context(), m)
		if errors.Is(err, ErrDisk) {
			break
		}
		assert.Must(t, err)
		accepted = append(accepted, m.ID)
	}
	d.fill() // another program takes the rest
	assert.MustThat(t, len(accepted) >= 20, "%d messages fill the disk: the test shows too little", len(accepted))
	return accepted
}

// checkSent checks that messages of fillUp were sent once, and in the order of their groups.
func checkSent(t *testing.T, f *server, want []string) {
	t.Helper()
	last := map[string]string{}
	seen := map[string]bool{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.got {
		assert.That(t, !seen[m.ID], "message %s was sent twice", m.ID)
		seen[m.ID] = true
		assert.That(t, m.MessageGroup == "" || m.ID > last[m.MessageGroup], "message %s of group %s was sent behind %s", m.ID, m.MessageGroup, last[m.MessageGroup])
		last[m.MessageGroup] = m.ID
	}
	for _, id := range want {
		assert.That(t, seen[id], "message %s was accepted and not sent", id)
	}
	assert.That(t, len(seen) == len(want), "%d messages were sent, and %d accepted", len(seen), len(want))
}

// On a disk without a free byte all messages leave the spool, each is sent once, and the space of
// the spool becomes free, also that of the only segment. Nothing of them comes back after a
// restart.
func TestDrainOnAFullDisk(t *testing.T) {
	for _, segment := range []int64{2 << 10, 1 << 20} {
		for _, restart := range []bool{false, true} {
			assert.Bubble(t, fmt.Sprintf("segments of %d bytes, restart %t", segment, restart), func(t *testing.T) {
				d := newMemDisk()
				open := func() *Spool {
					s := assert.Value(openDisk(d, Options{Logger: quiet, MaxBytes: 1 << 20}, segment))(t)
					assert.NoError(t, s.Damage())
					return s
				}
				s := open()
				accepted := fillUp(t, s, d, 20_000)
				full := d.used()
				if restart {
					d = d.clone()
					d.most = full
					s = open()
				}
				f := &server{}
				stop := drain(t, s, f)
				time.Sleep(time.Minute)
				stop()
				checkSent(t, f, accepted)
				list, err := s.Entries(false, 0, 1)
				assert.MustThat(t, err == nil && len(list) == 0, "%v, %v; want an empty spool", list, err)
				last := s.index.next
				put(t, s, message("later", "a")) // frees the space if it has to
				if used := d.used(); used > full/4 {
					t.Errorf("the empty spool keeps %d bytes of %d", used, full)
				}
				assert.NoError(t, s.Close())
				s = open()
				list, err = s.Entries(false, 0, 2)
				assert.That(t, err == nil && len(list) == 1 && list[0].Message.ID == "later" && list[0].Sequence == last, "%+v, %v; want the later message with the sequence %d", list, err, last)
				assert.NoError(t, s.Close())
			})
		}
	}
}

// The files of sent messages are removed, and then a full disk takes the records of their removals
// from the last file. A power failure brings back neither.
func TestRemovedFilesStayRemoved(t *testing.T) {
	r := seeded(t)
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		for i := range 40 {
			put(t, s, message(fmt.Sprintf("%04d", i), ""))
		}
		f := &server{}
		drainAll(t, s, f)
		d.fill()
		assert.MustIs(t, "err", s.Put(t.Context(), message("large", string(make([]byte, 10_000)))), ErrDisk)
		for range 20 {
			after := d.crashed(d.changes(), true, r)
			list, err := openMem(t, after).Entries(false, 0, 1)
			assert.MustThat(t, err == nil && len(list) == 0, "after a power failure %+v, %v; want an empty spool", list, err)
		}
		assert.NoError(t, s.Close())
	})
}

// A removal that the disk rejects is written by the next Drain, and the message is not sent again.
func TestARemovalThatFailsIsNotASecondSend(t *testing.T) {
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		var want []string
		for i := range 6 {
			m := message(fmt.Sprintf("%04d", i), []string{"a", "b", ""}[i%3])
			put(t, s, m)
			want = append(want, m.ID)
		}
		f := &server{}
		d.failing = 1000
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			assert.That(t, s.Drain(ctx, f.send) != nil, "Drain returned nil on a disk that rejects all writes")
			cancel()
		}
		d.failing = 0
		drainAll(t, s, f)
		checkSent(t, f, want)
		assert.NoError(t, s.Close())
	})
}

// After a crash at any change of a disk that is full at times, the spool has all that was confirmed
// before, and nothing that was refused or removed.
func TestCrashOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := seeded(t)
		d := newMemDisk()
		w := &workload{s: openMem(t, d), r: r}
		points := []point{{d.changes(), state{}, 0}}
		refused := 0
		for range 150 {
			switch r.IntN(4) {
			case 0:
				d.mu.Lock()
				d.most = d.used() + r.IntN(1000)
				d.mu.Unlock()
			case 1:
				d.mu.Lock()
				d.most = 0
				d.mu.Unlock()
			}
			if err := w.try(t.Context()); errors.Is(err, ErrDisk) {
				refused++
			} else if err != nil && !errors.Is(err, errNoSpace) {
				t.Fatal(err)
			}
			st, _ := stateOf(t, w.s)
			points = append(points, point{d.changes(), st, w.n})
		}
		assert.That(t, refused >= 5, "%d refused Puts: the test shows too little", refused)
		d.mu.Lock()
		d.most = 0
		d.mu.Unlock()
		assert.Must(t, w.s.Close())
		checkCrashes(t, d, r, points, func(before point, id, got string) bool {
			// The crash interrupted a write of several records that would have failed.
			return got == "pending" && id > fmt.Sprintf("m%04d", before.tried) || got == "rejected" && before.state[id] == "pending"
		})
	})
}

// Each sync of a file fails once, and the system then loses what was written before. A power
// failure afterwards takes no accepted message, and brings no refused one.
func TestAFailedSyncIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := seeded(t)
		for bad := 1; bad < 60; bad++ {
			d := newMemDisk()
			w := &workload{s: openMem(t, d), r: r}
			d.badSync = bad
			for range 30 {
				err := w.try(t.Context())
				assert.MustThat(t, err == nil || errors.Is(err, errBadSync), "%v", err)
				err = w.s.Put(t.Context(), w.message())
				assert.MustThat(t, err == nil || errors.Is(err, errBadSync), "%v", err)
				want, _ := stateOf(t, w.s)
				s := openMem(t, d.crashed(d.changes(), true, r))
				got, _ := stateOf(t, s)
				assert.MustThat(t, fmt.Sprint(got) == fmt.Sprint(want) && s.Damage() == nil,
					"sync %d fails: after the power failure %v, want %v; damage: %v", bad, got, want, s.Damage())
			}
			assert.MustThat(t, d.badSync == 0, "sync %d did not come: the test shows too little", bad)
			assert.Must(t, w.s.Close())
		}
	})
}

// A message that the server rejects is kept if the disk has no space for its reason; the messages
// of other groups leave the spool meanwhile, and it is rejected when there is space.
func TestARejectionOnAFullDisk(t *testing.T) {
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		put(t, s, message("poison", "p"), message("behind", "p"))
		accepted := append(fillUp(t, s, d, 20_000), "behind")
		f := &server{}
		f.setFail(func(m *tidegate.Message) error {
			if m.ID == "poison" {
				return errRefused
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				_ = s.Drain(ctx, f.send) // it fails while the rejection has no space
				time.Sleep(time.Second)
			}
		}()
		time.Sleep(10 * time.Minute)
		cancel()
		<-done
		checkSent(t, f, accepted)
		list, err := s.Entries(true, 0, 10)
		assert.That(t, err == nil && len(list) == 1 && list[0].Message.ID == "poison" && s.Stats().Pending == 0,
			"%+v, %v, %+v; want the rejected message", list, err, s.Stats())
		assert.NoError(t, s.Close())
	})
}

// A failed write leaves nothing, also if the disk refuses to cut it off at once.
func TestAFailedWriteLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for failing := 2; failing < 5; failing++ { // the write, then the cuts
			d := newMemDisk()
			s := openMem(t, d)
			put(t, s, message("1", ""))
			d.failing = failing
			for s.Put(t.Context(), message("refused", "")) != nil {
				assert.Equal(t, "messages are pending after a failed Put", s.Stats().Pending, 1)
			}
			put(t, s, message("2", ""))
			assert.Must(t, s.Close())
			s = openMem(t, d)
			list, err := s.Entries(false, 0, 10)
			assert.That(t, err == nil && s.Damage() == nil && len(list) == 3 && list[2].Message.ID == "2",
				"%+v, %v, damage %v; want message 1, the repeated one and 2", list, err, s.Damage())
			assert.NoError(t, s.Close())
		}
	})
}

// The messages of a batch count in MaxBytes together, before any of them is on disk.
func TestABatchIsBounded(t *testing.T) {
	s := newSpool(t, Options{MaxBytes: 5000})
	var msgs []*tidegate.Message
	for i := range 100 {
		msgs = append(msgs, message(fmt.Sprint(i), ""))
	}
	full := 0
	for _, err := range s.PutBatch(t.Context(), msgs) {
		if errors.Is(err, ErrFull) {
			full++
		}
	}
	if got := s.Stats(); got.Bytes > 5000 || got.Pending+full != 100 || got.Pending < 5 {
		t.Errorf("%+v and %d refused, want at most 5000 bytes", got, full)
	}
}

// Messages that were sent and failed Puts do not count in MaxBytes.
func TestSentMessagesAndFailedPutsTakeNoSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newMemDisk()
		s := assert.Value(openDisk(d, Options{Logger: quiet, MaxBytes: 4000}, 2<<10))(t)
		stop := drain(t, s, &server{})
		for i := range 200 { // many times MaxBytes
			put(t, s, message(fmt.Sprint("sent", i), ""))
			synctest.Wait()
			d.failing = 1000 // all writes
			err := s.Put(t.Context(), message(fmt.Sprint("failed", i), ""))
			assert.MustThat(t, errors.Is(err, ErrDisk), "Put %d: %v, want ErrDisk", i, err)
			d.failing = 0
		}
		stop()
		assert.Equal(t, "s.Stats()", s.Stats(), (Stats{}))
		assert.NoError(t, s.Close())
	})
}

// rejected puts messages that a server rejects, and returns their entries.
func rejected(t *testing.T, s *Spool, msgs ...*tidegate.Message) []Entry {
	t.Helper()
	put(t, s, msgs...)
	f := &server{}
	f.setFail(func(*tidegate.Message) error { return errRefused })
	drainOnce(t, s, f)
	list, err := s.Entries(true, 0, 10)
	assert.MustThat(t, err == nil && len(list) == len(msgs), "%+v, %v; want %d rejected messages", list, err, len(msgs))
	return list
}

// Discard and Requeue ignore the sequences of pending messages. A sequence that is given twice, or
// that an earlier call has changed, counts once.
func TestASequenceCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		list := rejected(t, s, message("1", ""), message("2", ""))
		one, two := list[0].Sequence, list[1].Sequence
		if n, err := s.Requeue(one, one, one+100); n != 1 || err != nil {
			t.Errorf("Requeue: %d, %v", n, err)
		}
		if n, err := s.Discard(two, two, one); n != 1 || err != nil {
			t.Errorf("Discard: %d, %v", n, err)
		}
		if n, err := s.Requeue(one); n != 0 || err != nil {
			t.Errorf("Requeue of a pending message: %d, %v; want no change", n, err)
		}
		got := s.Stats()
		assert.That(t, got.Pending == 1 && got.Rejected == 0, "%+v, want one pending message", got)
	})
}

// The name of a new directory is on disk before the spool is open: otherwise a power failure could
// lose all messages that the spool has accepted. Other users cannot read the directory.
func TestNewDirectoryIsDurable(t *testing.T) {
	errSync := errors.New("by the test")
	for _, tt := range []struct {
		name   string
		exists bool
		err    error // of the sync
		syncs  int
		opens  bool
	}{
		{"a new directory", false, nil, 1, true},
		{"a new directory on a broken disk", false, errSync, 1, false},
		{"an existing directory", true, nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			path := filepath.Join(parent, "orders.spool")
			if tt.exists {
				assert.Must(t, os.Mkdir(path, 0o700))
			}
			var synced []string
			lock, err := prepare(path, func(dir string) error { synced = append(synced, dir); return tt.err })
			if tt.opens {
				assert.Must(t, err)
				defer lock.Close()
			} else if !errors.Is(err, errSync) {
				t.Errorf("error %v, want that of the disk", err)
			}
			want := []string{parent, parent}[:tt.syncs]
			assert.That(t, slices.Equal(synced, want), "synced %q, want %q", synced, want)
			info := assert.Value(os.Stat(path))(t)
			if m := info.Mode().Perm(); m != 0o700 && runtime.GOOS != "windows" {
				t.Errorf("the directory has the mode %v, want rwx for its owner alone", m)
			}
		})
	}
}

// Open of a spool that another process has open waits for a second.
func TestOpenWaitsForAnotherProcess(t *testing.T) {
	for _, tt := range []struct {
		name   string
		closes time.Duration // the other one closes the spool then; 0 for never
		opens  bool
	}{
		{"it closes the spool", 500 * time.Millisecond, true},
		{"it closes the spool too late", 2 * time.Second, false},
		{"it keeps the spool", 0, false},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "orders.spool")
			other := open(t, path, Options{})
			if tt.closes > 0 {
				time.AfterFunc(tt.closes, func() { other.Close() })
			}
			begin := time.Now()
			s, err := Open(path, Options{})
			took := time.Since(begin)
			switch {
			case tt.opens && (err != nil || took > time.Second):
				t.Errorf("error %v after %v, want none within a second", err, took)
			case !tt.opens && (!errors.Is(err, ErrInUse) || took < time.Second || took > 1100*time.Millisecond):
				t.Errorf("error %v after %v, want ErrInUse after a second", err, took)
			}
			if s != nil {
				s.Close()
			}
			time.Sleep(2 * time.Second)
		})
	}
}

// Close waits for concurrent Puts, and their messages are in the spool.
func TestCloseWaitsForPuts(t *testing.T) {
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		var syncs atomic.Int64
		d.beforeSync = func() {
			if syncs.Add(1) == 1 {
				time.Sleep(10 * time.Second)
			}
		}
		done := make(chan error, 1)
		go func() { done <- s.Put(context.Background(), message("1", "")) }()
		synctest.Wait()
		begin := time.Now()
		if err := s.Close(); err != nil || time.Since(begin) < 10*time.Second {
			t.Errorf("Close: %v after %v, want the end of the write", err, time.Since(begin))
		}
		assert.NoError(t, <-done, "Put")
		s = openMem(t, d)
		assert.Equal(t, "messages are pending", s.Stats().Pending, 1)
		assert.NoError(t, s.Close())
	})
}

// Without a Logger, damage is logged to slog's default, and nothing else is.
func TestDamageIsLoggedWithoutALogger(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	onMemDisk(t, func(t *testing.T, d *memDisk, s *Spool) {
		put(t, s, message("1", ""), message("2", ""))
		e := s.index.all[0]
		assert.Must(t, s.Close())
		assert.That(t, log.Len() <= 0, "an undamaged spool logs %s", log.String())
		d.names[segmentName(e.seg.number)].data[e.off+20] ^= 1
		s = assert.Value(openDisk(d, Options{MaxBytes: 1 << 20}, segmentBytes))(t)
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=ERROR") || !strings.Contains(text, segmentName(e.seg.number)) {
			t.Errorf("the log has %q, want one error that names the file", text)
		}
		assert.NoError(t, s.Close())
	})
}

// Drain pauses a message group for about 1 s after the first failure, and up to about 5 s after
// further ones. A message that was sent begins the series again.
func TestPausesBeginAgainAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		put(t, s, message("1", "g"), message("2", "g"))
		var mu sync.Mutex
		var times []time.Time // of each call
		send := func(_ context.Context, msgs []*tidegate.Message) []error {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, time.Now())
			if n := len(times); n == 5 || n > 6 { // message 1 after four failures, and message 2 after one
				return make([]error, len(msgs))
			}
			return []error{tidegate.ErrUnavailable}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Drain(ctx, send) }()
		time.Sleep(time.Minute)
		cancel()
		err := <-done
		assert.MustThat(t, err == nil && len(times) == 7, "%v after %d calls, want 7", err, len(times))
		want := []time.Duration{time.Second, 1600 * time.Millisecond, 2560 * time.Millisecond, 4096 * time.Millisecond, 0, time.Second}
		for i, w := range want {
			got := times[i+1].Sub(times[i])
			assert.That(t, got >= w*8/10 && got <= w*12/10, "pause %d lasts %v, want %v and a jitter of a fifth", i+1, got, w)
		}
	})
}

// A record is valid only at its own place: bytes of a message that look like a record are not read
// as one after damage before them.
func TestRecordsBelongToTheirPlace(t *testing.T) {
	const segment, off = 3, 1000
	b := appendRecord(nil, segment, off, kindPending, []byte("payload"))
	for _, tt := range []struct {
		name    string
		segment uint64
		off     int64
		valid   bool
	}{
		{"its place", segment, off, true},
		{"another offset", segment, off + 1, false},
		{"another segment", segment + 1, off, false},
	} {
		if k, payload, size, ok := readRecord(b, tt.segment, tt.off); ok != tt.valid || ok && (k != kindPending || string(payload) != "payload" || size != len(b)) {
			t.Errorf("%s: kind %d, payload %q, %d bytes, valid: %t", tt.name, k, payload, size, ok)
		}
	}
	// A message whose body has the record of another place.
	outer := appendRecord(nil, segment, 0, kindPending, b)
	outer[4] ^= 1 // damage
	assert.Equal(t, "a record is found at byte of the damaged one", nextRecord(outer, segment, 0), len(outer))
}

// Messages without a message group pause only if none of them finished: one that fails does not
// hold the others up.
func TestPausesOfQueues(t *testing.T) {
	now := time.Unix(0, 0)
	away := &tidegate.Error{Err: tidegate.ErrUnavailable}
	for name, tt := range map[string]struct {
		results []error
		paused  bool
	}{
		"all failed":        {[]error{away, away, away}, true},
		"the first failed":  {[]error{away, nil, nil}, false},
		"the last finished": {[]error{away, away, nil}, false},
		"all finished":      {[]error{nil, nil, nil}, false},
	} {
		x, seg := newIndex(), &segment{}
		for i := range 4 { // one more than the batch has
			x.add("orders\x00", &entry{seq: uint64(i + 1), seg: seg, size: 1})
		}
		q := x.queues["orders\x00"]
		x.note([]*queue{q, q, q}, tt.results, now)
		if paused := q.paused >= 0; paused != tt.paused || paused != (len(x.batch(now)) == 0) {
			t.Errorf("%s: the queue is in a pause: %t, want %t", name, paused, tt.paused)
		}
	}
}
