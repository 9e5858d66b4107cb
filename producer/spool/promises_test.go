package spool

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

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
