package spool

import (
	"context"
	"errors"
	"fmt"
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
