package spool

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

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
