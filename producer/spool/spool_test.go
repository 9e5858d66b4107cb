package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

func open(t *testing.T, path string, o Options) *Spool {
	t.Helper()
	s := assert.Value(Open(path, o))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

func newSpool(t *testing.T, o Options) *Spool {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "spool.db"), o)
}

func message(id, group string) *tidegate.Message {
	return &tidegate.Message{ID: id, Topic: "orders", MessageGroup: group, Body: []byte("body of " + id)}
}

func put(t *testing.T, s *Spool, msgs ...*tidegate.Message) {
	t.Helper()
	for _, m := range msgs {
		assert.Must(t, s.Put(t.Context(), m))
	}
}

// A server receives the messages of Drain.
type server struct {
	mu   sync.Mutex
	fail func(m *tidegate.Message) error
	got  []*tidegate.Message
}

func (f *server) send(_ context.Context, msgs []*tidegate.Message) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	errs := make([]error, len(msgs))
	for i, m := range msgs {
		if f.fail != nil {
			errs[i] = f.fail(m)
		}
		if errs[i] == nil {
			f.got = append(f.got, m)
		}
	}
	return errs
}

func (f *server) setFail(fail func(m *tidegate.Message) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *server) ids() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, m := range f.got {
		ids = append(ids, m.ID)
	}
	return ids
}

// drain drains s into f until stop is called.
func drain(t *testing.T, s *Spool, f *server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Drain(ctx, f.send) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			assert.NoError(t, <-done)
		})
	}
	t.Cleanup(stop)
	return stop
}

// drainAll drains s into f, inside a bubble, until nothing is pending.
func drainAll(t *testing.T, s *Spool, f *server) {
	t.Helper()
	stop := drain(t, s, f)
	empty(s)
	stop()
}

// drainOnce drains s into f, inside a bubble, until the next pause.
func drainOnce(t *testing.T, s *Spool, f *server) {
	t.Helper()
	stop := drain(t, s, f)
	synctest.Wait()
	stop()
}

// empty waits, inside a bubble, until nothing is pending.
func empty(s *Spool) {
	for s.Stats().Pending > 0 {
		time.Sleep(time.Second)
	}
}

func TestMessagesKeepAllTheirFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spool.db")
	s := open(t, path, Options{})
	want := &tidegate.Message{
		ID: "id-1", Topic: "orders", Tag: "new", Keys: []string{"k1", "k2"}, MessageGroup: "",
		DeliverAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Properties: map[string]string{"a": "b\x00ü"},
		TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Body: []byte{0, 1, 255},
	}
	put(t, s, want)
	assert.Must(t, s.Close())
	s = open(t, path, Options{})
	if got := s.Stats(); got.Pending != 1 || got.Rejected != 0 || got.Bytes == 0 {
		t.Errorf("after a restart: %+v", got)
	}
	entries, err := s.Entries(false, 0, 10)
	assert.MustThat(t, err == nil && len(entries) == 1, "%v, %v", entries, err)
	got := entries[0].Message
	assert.That(t, reflect.DeepEqual(got, want), "got %+v\nwant %+v", got, want)
}

// A message has no field that the spool forgets: each is set above.
func TestEveryFieldOfAMessageIsTested(t *testing.T) {
	n := reflect.TypeFor[tidegate.Message]().NumField()
	assert.That(t, n == 9, "Message has %d fields; add the new ones to TestMessagesKeepAllTheirFields", n)
}

// A group whose head fails holds no other group and no message without one.
func TestAFailedHeadHoldsOnlyItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		put(t, s, message("a1", "a"), message("a2", "a"), message("b1", "b"), message("b2", "b"), message("n1", ""), message("n2", ""))
		f := &server{}
		f.setFail(func(m *tidegate.Message) error {
			if m.ID == "a1" {
				return errors.New("connection reset")
			}
			return nil
		})
		drain(t, s, f)
		time.Sleep(time.Minute)
		got := f.ids()
		assert.That(t, !slices.Contains(got, "a2") && len(got) == 4, "sent %v, want all but those of group a", got)
		assert.That(t, s.Holds("orders", "a") && !s.Holds("orders", "b") && !s.Holds("orders", "") && !s.Holds("other", "a"), "Holds is wrong")
		f.setFail(nil)
		time.Sleep(time.Minute)
		got = f.ids()
		assert.That(t, len(got) == 6 && !s.Holds("orders", "a"), "sent %v, want all", got)
	})
}

// While nothing can be sent, attempts follow the backoff and push-back.
func TestDrainWaitsWhileAllFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		put(t, s, message("1", ""))
		var times []time.Duration
		start := time.Now()
		f := &server{}
		f.setFail(func(*tidegate.Message) error {
			times = append(times, time.Since(start))
			if len(times) == 1 {
				return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: 10 * time.Second}
			}
			return errors.New("connection refused")
		})
		stop := drain(t, s, f)
		time.Sleep(10 * time.Minute)
		stop()
		assert.MustThat(t, len(times) >= 2 && times[1] >= 10*time.Second, "attempts at %v, want the second after the 10 s asked for", times)
		n := len(times)
		assert.That(t, n <= 160 && n >= 90, "%d attempts in 10 min, want about one in 5 s in the end", n)
	})
}

func TestErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spool.db")
	s := open(t, path, Options{})
	assert.Is(t, "a second Open", assert.Err(Open(path, Options{})), ErrInUse)
	for _, o := range []Options{{MaxBytes: -1}, {MaxAge: -1}} {
		_, err := Open(path, o)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%+v: %v, want ErrInvalid", o, err)
	}
	assert.Is(t, "no ID", s.Put(t.Context(), message("", "")), tidegate.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Is(t, "ended ctx", s.Put(ctx, message("1", "")), context.Canceled)
	assert.Must(t, s.Close())
	assert.Is(t, "closed", s.Put(t.Context(), message("1", "")), os.ErrClosed)
	assert.Is(t, "closed", assert.Err(s.Entries(false, 0, 1)), os.ErrClosed)
	assert.Equal(t, "failed Puts are counted", s.Stats(), (Stats{}))
	assert.Is(t, "err", assert.Err(Open(filepath.Join(t.TempDir(), "no", "directory"), Options{})), os.ErrNotExist)
}

func TestOneDrainAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		stop := drain(t, s, &server{})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Is(t, "err", s.Drain(ctx, nil), errDraining)
		stop()
		assert.NoError(t, s.Drain(ctx, nil), "after the end of the other Drain")
	})
}

// An entry that cannot be read is rejected, and holds nothing up.
func TestCorruptEntry(t *testing.T) { synctest.Test(t, testCorruptEntry) }

func testCorruptEntry(t *testing.T) {
	s := newSpool(t, Options{})
	put(t, s, message("1", "g"), message("2", "g"))
	e := s.index.all[0]
	if _, err := e.seg.file.WriteAt([]byte{'x'}, e.off+int64(e.size)-1); err != nil { // in the body
		t.Fatal(err)
	}
	f := &server{}
	drainAll(t, s, f)
	list, err := s.Entries(true, 0, 10)
	if err != nil || len(list) != 1 || list[0].Message != nil || !strings.Contains(list[0].Reason, "0000000000000001.log: the message in bytes ") || !slices.Equal(f.ids(), []string{"2"}) {
		t.Errorf("%+v, %v, sent %v", list, err, f.ids())
	}
	if n, err := s.Requeue(list[0].Sequence); n != 0 || err != nil {
		t.Errorf("requeued %d corrupt entries, %v", n, err)
	}
	if n, err := s.Discard(list[0].Sequence); n != 1 || err != nil {
		t.Errorf("discarded %d, %v", n, err)
	}
}

// The order of queues in a batch rotates, so that many groups cannot starve others.
func TestEveryQueueHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		r := rand.New(rand.NewPCG(1, 2))
		groups := batchMessages + 100
		for range 2 * groups {
			put(t, s, message(tidegate.NewMessageID(), fmt.Sprint(r.IntN(groups))))
		}
		put(t, s, message("last", "zzz"))
		f := &server{}
		f.setFail(func(m *tidegate.Message) error {
			if m.MessageGroup != "zzz" && m.MessageGroup != "0" {
				return errors.New("connection reset") // the queues before it fail for ever
			}
			return nil
		})
		stop := drain(t, s, f)
		time.Sleep(5 * time.Minute)
		stop()
		assert.That(t, slices.Contains(f.ids(), "last"), "the last queue never had its turn")
	})
}

// The spool has the messages of a batch in their order, as separate entries.
func TestPutBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{MaxBytes: 2000})
		var msgs []*tidegate.Message
		for i := range 4 {
			msgs = append(msgs, message(fmt.Sprint(i), "g"))
		}
		msgs[1].Body = make([]byte, 3000)
		msgs[2] = message("", "g")
		errs := s.PutBatch(t.Context(), msgs)
		assert.MustThat(t, errs[0] == nil && errors.Is(errs[1], ErrFull) && errors.Is(errs[2], tidegate.ErrInvalid) && errs[3] == nil, "%v", errs)
		got := s.Stats()
		assert.That(t, got.Pending == 2 && s.Holds("orders", "g"), "%+v", got)
		f := &server{}
		drainAll(t, s, f)
		assert.Slices(t, "sent", f.ids(), []string{"0", "3"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Is(t, "after the end of ctx", s.PutBatch(ctx, msgs[:1])[0], context.Canceled)
		s.Close()
		assert.Is(t, "after Close", s.PutBatch(t.Context(), msgs[:1])[0], os.ErrClosed)
	})
}

func FuzzDecode(f *testing.F) {
	good := assert.Value(encode(header{Accepted: time.Unix(1, 0), Message: *message("1", "g")}, []byte("body")))(f)
	f.Add(good)
	f.Add([]byte{format, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decode(b)
		if err != nil {
			assert.That(t, errors.Is(err, errFormat), "%v does not match errFormat", err)
			return
		}
		if again, err := encode(h, h.Message.Body); err == nil {
			back, err := decode(again)
			assert.That(t, err == nil && bytes.Equal(back.Message.Body, h.Message.Body) && back.Message.ID == h.Message.ID, "%v: decoded %+v, then %+v", err, h, back)
		}
	})
}
