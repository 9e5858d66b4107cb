package spool

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/wallclock"
)

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
