package spool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
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
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
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
		ID: "id-1", Topic: "orders", Tag: "new", Keys: []string{"k1", "k2"}, MessageGroup: "", LiteTopic: "session-1", Priority: 5,
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
	assert.That(t, n == 11, "Message has %d fields; add the new ones to TestMessagesKeepAllTheirFields", n)
}

// A group whose head fails holds no other group and no message without one. So does a lite topic.
func TestAFailedHeadHoldsOnlyItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{})
		l1, l2 := message("l1", ""), message("l2", "")
		l1.LiteTopic, l2.LiteTopic = "lite", "lite"
		put(t, s, l1, l2)
		put(t, s, message("a1", "a"), message("a2", "a"), message("b1", "b"), message("b2", "b"), message("n1", ""), message("n2", ""))
		f := &server{}
		f.setFail(func(m *tidegate.Message) error {
			if m.ID == "a1" || m.ID == "l1" {
				return errors.New("connection reset")
			}
			return nil
		})
		drain(t, s, f)
		time.Sleep(time.Minute)
		got := f.ids()
		assert.That(t, !slices.Contains(got, "a2") && !slices.Contains(got, "l2") && len(got) == 4, "sent %v, want all but those of group a and the lite topic", got)
		assert.That(t, s.Holds("orders", "a") && s.Holds("orders", "lite") && !s.Holds("orders", "b") && !s.Holds("orders", "") && !s.Holds("other", "a"), "Holds is wrong")
		f.setFail(nil)
		time.Sleep(time.Minute)
		got = f.ids()
		assert.That(t, len(got) == 8 && slices.Index(got, "l1") < slices.Index(got, "l2") && !s.Holds("orders", "a") && !s.Holds("orders", "lite"), "sent %v, want all", got)
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

const (
	crashMode = "TIDEGATE_SPOOL_CRASH_MODE" // of the process in crashDir: a number of a life, or one of:
	lastMode  = "last"                      // sends the content of the spool and ends
)

// A recorder is a server that appends the ID of each message to a file, and is down
// half of the time unless it is steady.
type recorder struct {
	mu     sync.Mutex
	file   *os.File
	steady bool
	dead   bool // guarded by mu
}

func (r *recorder) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := make([]transport.SendResult, len(msgs))
	for i, m := range msgs {
		if r.dead || !r.steady && time.Now().UnixMilli()/20%2 == 0 {
			results[i].Err = errors.New("connection refused")
			continue
		}
		_, results[i].Err = fmt.Fprintln(r.file, m.ID)
	}
	return results
}

func (r *recorder) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func failOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// produceUntilKilled sends messages through a producer with a spool. It appends the
// ID of each accepted message to a file, and the server that of each delivered one.
func produceUntilKilled(dir, life string) {
	appendTo := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		failOn(err)
		return f
	}
	s, err := Open(filepath.Join(dir, "spool.db"), Options{})
	failOn(err)
	accepted := appendTo("accepted")
	p, err := producer.New(&recorder{file: appendTo("delivered"), steady: life == lastMode}, producer.Options{Spool: s})
	failOn(err)
	if life == lastMode {
		for s.Stats().Pending > 0 {
			<-time.After(10 * time.Millisecond)
		}
		failOn(p.Close())
		failOn(s.Close())
		return
	}
	var wg sync.WaitGroup
	for _, group := range []string{"", "", "a", "b"} {
		wg.Go(func() {
			for n := range 100_000 { // the parent kills long before
				m := message(fmt.Sprintf("%s-%s-%d", group, life, n), group)
				if group == "" {
					m.ID = tidegate.NewMessageID()
				}
				_, err := p.Send(context.Background(), m)
				failOn(err)
				_, err = fmt.Fprintln(accepted, m.ID)
				failOn(err)
			}
		})
	}
	wg.Wait()
}

func child(t *testing.T, dir, mode string, stderr *strings.Builder) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashMode+"="+mode)
	cmd.Stderr = stderr
	assert.Must(t, cmd.Start())
	return cmd
}

// Every message that a producer with a spool accepted is delivered, in the order of
// its message group, although the process was killed at random moments.
//
// Messages wait on the local disk while the broker is away.
func TestKilledProducerLosesNothing(t *testing.T) {
	dir := t.TempDir()
	var stderr strings.Builder
	for life := range 5 {
		before := len(lines(t, dir, "accepted"))
		cmd := child(t, dir, fmt.Sprint(life), &stderr)
		for len(lines(t, dir, "accepted")) < before+100 && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		<-time.After(time.Duration(rand.IntN(400)) * time.Millisecond) // chance picks the moment
		assert.Must(t, cmd.Process.Kill())
		err := cmd.Wait()
		assert.MustThat(t, err != nil && stderr.Len() <= 0, "the process ended before its kill: %v, %s", err, stderr.String())
	}
	s := open(t, filepath.Join(dir, "spool.db"), Options{})
	waiting := s.Stats().Pending
	s.Close()
	err := child(t, dir, lastMode, &stderr).Wait()
	assert.MustThat(t, err == nil, "%v: %s", err, stderr.String())
	last := map[string]int{} // number of the latest message of a message group
	delivered := map[string]bool{}
	for _, id := range lines(t, dir, "delivered") {
		if delivered[id] {
			continue // again, with its ID: a server that remembers IDs stores it once
		}
		delivered[id] = true
		if group, rest, ok := strings.Cut(id, "-"); ok {
			var life, n int
			assert.Must(t, assert.Err(fmt.Sscanf(rest, "%d-%d", &life, &n)))
			if n += life * 1_000_000; n < last[group] {
				t.Errorf("message group %s: message %d was delivered behind %d", group, n, last[group])
			}
			last[group] = n
		}
	}
	accepted := lines(t, dir, "accepted")
	for _, id := range accepted {
		assert.That(t, delivered[id], "message %s was accepted and is lost", id)
	}
	assert.That(t, len(last) == 2 && waiting != 0, "message groups %v, %d messages waited in the spool: the test shows too little", last, waiting)
	t.Logf("%d accepted, %d delivered, %d waited in the spool after the last kill", len(accepted), len(delivered), waiting)
}

// crashDir names the directory of the process that is killed.
const crashDir = "TIDEGATE_SPOOL_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		produceUntilKilled(dir, os.Getenv(crashMode))
		return
	}
	os.Exit(m.Run())
}

// lines returns the complete lines of a file.
func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return nil
	}
	assert.Must(t, err)
	defer f.Close()
	var list []string
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return list
		}
		list = append(list, strings.TrimSuffix(line, "\n"))
	}
}
