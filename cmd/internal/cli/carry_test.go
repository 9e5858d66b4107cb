package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/filelock"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

func deliver(n int, group string) *tidegate.Delivery {
	return &tidegate.Delivery{Message: tidegate.Message{ID: fmt.Sprintf("id%d", n), Topic: "orders", MessageGroup: group, Body: []byte{byte(n)}}, Attempt: 1}
}

// A fakeSource delivers batches, one for each receive. Like a server it accepts only the last
// receipt handle of a message. Each lease that it gives must be in the journal before.
type fakeSource struct {
	transporttest.Fake

	journal string // its file; empty: not checked
	faults  []string

	mu       sync.Mutex
	receives int
	handles  map[string]string // by ID
	batches  [][]*tidegate.Delivery
	failures []error // of the next receives
	acked    []string
	lose     bool    // acknowledgements fail
	ackFails []error // of the next acknowledgements
	extends  error   // of each extension
	onAck    func([]*tidegate.Delivery)
	changed  []string // ID and duration of each extension
}

// leases notes a fault if the journal has no lease until a time. mu is held.
func (s *fakeSource) leases(until time.Time) {
	if s.journal == "" {
		return
	}
	text, err := os.ReadFile(s.journal)
	if err != nil {
		s.faults = append(s.faults, err.Error())
	}
	var last struct{ Until time.Time }
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, `{"event":"lease"`) {
			err = json.Unmarshal([]byte(line), &last)
		}
	}
	if err != nil || last.Until.Before(until) {
		s.faults = append(s.faults, fmt.Sprintf("the journal has leases until %v, and one until %v begins: %v", last.Until, until, err))
	}
}

// valid makes a handle the valid one of a message. mu is held.
func (s *fakeSource) valid(id, handle string) string {
	if s.handles == nil {
		s.handles = map[string]string{}
	}
	s.handles[id] = handle
	return handle
}

func (s *fakeSource) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases(time.Now().Add(r.InvisibleDuration))
	if len(s.failures) > 0 {
		err := s.failures[0]
		s.failures = s.failures[1:]
		return nil, err
	}
	if len(s.batches) == 0 {
		return nil, nil
	}
	first := s.batches[0]
	s.batches = s.batches[1:]
	for _, d := range first {
		s.receives++
		d.Handle = s.valid(d.ID, fmt.Sprintf("%s-%d", d.ID, s.receives))
	}
	return first, nil
}

func (s *fakeSource) Ack(_ context.Context, ds []*tidegate.Delivery) []error {
	if s.onAck != nil {
		s.onAck(ds)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(ds))
	if len(s.ackFails) > 0 {
		for i := range errs {
			errs[i] = s.ackFails[0]
		}
		s.ackFails = s.ackFails[1:]
		return errs
	}
	for i, d := range ds {
		if valid, ok := s.handles[d.ID]; s.lose || ok && valid != d.Handle {
			errs[i] = &tidegate.Error{Op: "Ack", Code: tidegate.CodeInvalidReceiptHandle}
			continue
		}
		s.acked = append(s.acked, d.ID)
	}
	return errs
}

func (s *fakeSource) Extend(_ context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extends != nil {
		return "", s.extends
	}
	if valid, ok := s.handles[d.ID]; ok && valid != d.Handle {
		return "", tidegate.ErrInvalidHandle
	}
	s.leases(time.Now().Add(dur))
	s.changed = append(s.changed, fmt.Sprintf("%s %v", d.ID, dur))
	return s.valid(d.ID, d.Handle+"'"), nil
}

// A fakeTarget stores a message once for each ID, as a broker with a duplicate window does. results
// has the errors of the next sends; a nil one stores the message.
type fakeTarget struct {
	mu      sync.Mutex
	stored  map[string]*tidegate.Message
	sent    []string // IDs of stored messages, in order
	results []error
	check   func(*tidegate.Message) error
	lost    error // the result of a send after the message was stored
	silent  bool  // no send has a result
	at      []time.Time
}

func (f *fakeTarget) SendAsync(ctx context.Context, m *tidegate.Message, done func(tidegate.Receipt, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = append(f.at, time.Now())
	if f.silent {
		go func() {
			<-ctx.Done()
			done(tidegate.Receipt{}, context.Cause(ctx))
		}()
		return nil
	}
	if len(f.results) > 0 {
		err := f.results[0]
		f.results = f.results[1:]
		if err != nil {
			go done(tidegate.Receipt{}, err)
			return nil
		}
	}
	if f.check != nil {
		if err := f.check(m); err != nil {
			go done(tidegate.Receipt{}, err)
			return nil
		}
	}
	if f.stored == nil {
		f.stored = map[string]*tidegate.Message{}
	}
	if f.stored[m.ID] == nil {
		f.stored[m.ID] = m.Clone()
		f.sent = append(f.sent, m.ID)
	}
	go done(tidegate.Receipt{}, f.lost)
	return nil
}

// bodies are the first bytes of the stored bodies, sorted.
func (f *fakeTarget) bodies() (all []byte) {
	for _, m := range f.stored {
		all = append(all, m.Body[0])
	}
	slices.Sort(all)
	return all
}

// refuse is the check of a target that rejects one ID.
func refuse(id string) func(*tidegate.Message) error {
	return func(m *tidegate.Message) error {
		if m.ID == id {
			return tooLarge
		}
		return nil
	}
}

var (
	tooLarge = &tidegate.Error{Op: "Send", Subject: "moved", Code: tidegate.CodeBadRequest, Message: "too large"}
	away     = &tidegate.Error{Op: "Send", Subject: "moved", NotConnected: true, Err: errors.New("connection refused")}
	lapsed   = &tidegate.Error{Op: "Send", Subject: "moved", Code: 40300, Message: "forbidden"}
)

func testCarryOptions(t *testing.T, s *fakeSource, f *fakeTarget, journal string) carryOptions {
	t.Helper()
	j := assert.Value(openCarryJournal(journal))(t)
	t.Cleanup(func() {
		_ = j.Close() // some tests have closed it
		for _, fault := range s.faults {
			t.Error(fault)
		}
	})
	s.journal = journal
	return carryOptions{Source: s, Target: f, Group: "billing", Topic: "orders", ToTopic: "moved", Workers: 1, Lease: time.Minute, Journal: j,
		Done: func(context.Context, time.Duration) (bool, error) { return true, nil }}
}

// A message that the target rejects stays, with the later ones of its message group or lite topic.
// The others are carried, and the run releases what stays at its end.
func TestRejectedMessageStopsItsGroup(t *testing.T) {
	t.Run("message group", func(t *testing.T) { testRejectedMessage(t, "message group", func(*tidegate.Delivery) {}) })
	t.Run("lite topic", func(t *testing.T) {
		testRejectedMessage(t, "lite topic", func(d *tidegate.Delivery) { d.LiteTopic, d.MessageGroup = d.MessageGroup, "" })
	})
}

// testRejectedMessage is the test with deliveries that were changed. order is what keeps them in order.
func testRejectedMessage(t *testing.T, order string, change func(*tidegate.Delivery)) {
	t.Helper()
	s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "a"), deliver(4, "b"), deliver(5, "")}, {deliver(6, "a"), deliver(7, "b")}, {deliver(2, "a")}}} // id2 again
	for _, d := range slices.Concat(s.batches...) {
		change(d)
	}
	f := &fakeTarget{check: refuse("id2")}
	o := testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j"))
	var notes []string
	o.Note = func(text string) { notes = append(notes, text) }
	r, err := carry(t.Context(), o)
	assert.That(t, err == nil && r.Moved == 4 && r.Aside == 1 && r.Behind == 2, "%+v, %v", r, err)
	if until := reopened(t, o.Journal); !until.IsZero() {
		t.Errorf("all that stays was released, and the journal has a lease until %v", until)
	}
	slices.Sort(f.sent)
	slices.Sort(s.acked)
	if want := []string{"id1", "id4", "id5", "id7"}; !slices.Equal(f.sent, want) || !slices.Equal(s.acked, want) {
		t.Errorf("sent %q, acknowledged %q, want %q", f.sent, s.acked, want)
	}
	for _, want := range []string{"id2 30m0s", "id3 30m0s", "id6 30m0s", "id2 0s", "id3 0s", "id6 0s"} {
		assert.That(t, slices.Contains(s.changed, want), "the changes of invisible durations are %q, and lack %q", s.changed, want)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], `message id2 stays, as do the later ones of `+order+` "a": the target rejects it`) {
		t.Errorf("the notes are %q", notes)
	}
}

// A message that stays is released without an attempt where the source can do that: else it would
// be a dead letter after some runs.
func TestMessageThatStaysKeepsItsAttempts(t *testing.T) {
	s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a")}}}
	s.Announces.Verdicts = transport.Snooze
	o := testCarryOptions(t, s, &fakeTarget{check: refuse("id1")}, filepath.Join(t.TempDir(), "j"))
	if r, err := carry(t.Context(), o); err != nil || r.Aside != 1 || r.Behind != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	var snoozed []string
	for _, c := range s.Calls("Settle") {
		assert.Equal(t, "the verdict is", c.Verdict.Kind, transport.Snooze)
		snoozed = append(snoozed, c.Deliveries[0].ID)
	}
	assert.Slices(t, "the releases without an attempt are", snoozed, []string{"id1", "id2"})
	assert.That(t, !slices.Contains(s.changed, "id1 0s"), "released with an attempt: %q", s.changed)
}

// The messages of one worker are in hand for longer than the source may be idle, because the target
// is away or the rate is low. Another worker that gets no message does not end the run.
func TestIdleWorkerDoesNotEndTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		f    *fakeTarget
		pace time.Duration
	}{"target away": {&fakeTarget{results: slices.Repeat([]error{away}, 30)}, 0}, "low rate": {&fakeTarget{}, 45 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slowSource{from: time.Now(), d: deliver(1, "")}
				o := testCarryOptions(t, &s.fakeSource, c.f, filepath.Join(t.TempDir(), "j"))
				o.Source, o.Workers, o.Wait = s, 2, time.Second
				o.Pace = func(ctx context.Context, _ int) error { return backoff.Sleep(ctx, c.pace) }
				o.Done = func(_ context.Context, idle time.Duration) (bool, error) { return idle >= 30*time.Second, nil }
				began := time.Now()
				r, err := carry(t.Context(), o)
				if took := time.Since(began); err != nil || r.Moved != 1 || !slices.Equal(s.acked, []string{"id1"}) || took < 75*time.Second {
					t.Errorf("%+v, %v after %v; acknowledged %q", r, err, took, s.acked)
				}
			})
		})
	}
}

// A worker can receive a message at the moment in which another one ends the run. If the message
// cannot be carried, the run fails.
func TestMessageAtTheEndOfTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowSource{from: time.Now().Add(1500 * time.Millisecond), d: deliver(1, "")}
		o := testCarryOptions(t, &s.fakeSource, &fakeTarget{results: slices.Repeat([]error{away}, 1000)}, filepath.Join(t.TempDir(), "j"))
		o.Source, o.Workers, o.Wait = s, 2, 2*time.Second
		s.first = time.Second // then the run ends, and the other worker still receives
		if r, err := carry(t.Context(), o); err == nil || r.Moved != 0 || len(s.acked) > 0 {
			t.Errorf("%+v, %v; acknowledged %q", r, err, s.acked)
		}
	})
}

// A target that rejects every message ends the run.
func TestRejectionOfAllEnds(t *testing.T) {
	s, f := &fakeSource{}, &fakeTarget{check: func(*tidegate.Message) error { return tooLarge }}
	for i := range 2 * maxAside {
		s.batches = append(s.batches, []*tidegate.Delivery{deliver(i, "")})
	}
	r, err := carry(t.Context(), testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j")))
	if err == nil || !strings.Contains(err.Error(), "the target rejected 100 messages") || r.Aside != maxAside || len(s.acked) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	s, f = &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "")}, {deliver(2, "")}}}, &fakeTarget{results: []error{lapsed}}
	if r, err := carry(t.Context(), testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j"))); !errors.Is(err, lapsed) || r.Moved != 0 || len(f.at) != 1 {
		t.Errorf("a fault of the configuration: %+v, %v after %d sends", r, err, len(f.at))
	}
}

// twin returns a delivery with an ID of its own, or of another one, and a place.
func twin(id string, n int, offset int64, born time.Time) *tidegate.Delivery {
	d := deliver(n, "")
	d.ID, d.Queue, d.Offset, d.BornAt = id, 3, offset, born
	return d
}

// Two messages with one ID are both carried, also to a target that drops duplicates: in one batch,
// one after the other, in a later run, and by a run after one that was killed with either of them
// sent. A message that is delivered twice is carried once.
func TestTwoMessagesWithOneID(t *testing.T) {
	at := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	for name, places := range map[string]bool{"by place": true, "by time": false} {
		var a, b func() *tidegate.Delivery
		if places {
			a, b = func() *tidegate.Delivery { return twin("x", 1, 10, at) }, func() *tidegate.Delivery { return twin("x", 2, 11, at) }
		} else { // each delivery has another place
			var next int64
			a, b = func() *tidegate.Delivery { next++; return twin("x", 1, next, at) }, func() *tidegate.Delivery { next++; return twin("x", 2, next, at.Add(time.Millisecond)) }
		}
		type batches = [][]*tidegate.Delivery
		for order, runs := range map[string][]batches{
			"one batch":           {{{a(), b()}}},
			"two batches":         {{{a()}, {b()}}},
			"two runs":            {{{a()}}, {{b()}}},
			"delivered twice":     {{{a()}, {a()}, {b()}, {a()}, {b()}}},
			"killed, other first": {{{a()}}, {{b()}, {a()}}},
			"killed, same first":  {{{a()}}, {{a(), b()}}},
			"killed, both sent":   {{{a(), b()}}, {{b(), a()}}},
			"killed, other alone": {{{a(), b()}}, {{b()}}, {{a()}}},
		} {
			f, journal := &fakeTarget{}, filepath.Join(t.TempDir(), "j")
			for n, run := range runs {
				s := &fakeSource{batches: run, lose: order == "delivered twice"}
				o := testCarryOptions(t, s, f, journal)
				o.Places = places
				f.lost = nil
				if n == 0 && strings.HasPrefix(order, "killed") {
					f.lost = lapsed // the messages are stored, and the run ends before it records that
				}
				if _, err := carry(t.Context(), o); (err != nil) != (f.lost != nil) {
					t.Errorf("%s, %s: run %d: %v", name, order, n, err)
				}
				assert.NoError(t, o.Journal.Close())
			}
			if got := f.bodies(); !slices.Equal(got, []byte{1, 2}) {
				t.Errorf("%s, %s: the target has %v, want 1 and 2: %v", name, order, got, f.sent)
			}
		}
	}
}

// The new ID of a message is the same in every run, and not longer than a broker accepts.
func TestNewID(t *testing.T) {
	for _, id := range []string{"x", strings.Repeat("x", 255)} {
		a, b := carryKey{id, "3/10"}, carryKey{id, "3/11"}
		if again := (carryKey{id, "3/10"}); len(a.newID()) > protocol.MaxMessageIDLength || a.newID() != again.newID() || a.newID() == b.newID() || a.newID() == id {
			t.Errorf("%q: %q and %q", id, a.newID(), b.newID())
		}
	}
}

// A server that is away is waited for: failed receives, sends, looks and acknowledgements are
// repeated, the leases of the messages in hand are extended, and each message is stored once.
func TestServersThatAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeSource{failures: []error{away, away, errors.New("EOF")}, batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a")}}, ackFails: []error{away}}
		f := &fakeTarget{results: slices.Repeat([]error{away}, 30)}
		o := testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j"))
		looks := 0
		o.Done = func(context.Context, time.Duration) (bool, error) {
			if looks++; looks == 1 {
				return false, away
			}
			return true, nil
		}
		var notes []string
		o.Note = func(text string) { notes = append(notes, text) }
		began := time.Now()
		r, err := carry(t.Context(), o)
		if err != nil || r.Moved != 2 || r.Unacked != 0 || !slices.Equal(f.sent, []string{"id1", "id2"}) || !slices.Equal(s.acked, []string{"id1", "id2"}) {
			t.Errorf("%+v, %v; sent %q, acknowledged %q", r, err, f.sent, s.acked)
		}
		if took := time.Since(began); took < 2*o.Lease || !slices.Contains(s.changed, "id1 1m0s") || !slices.Contains(s.changed, "id2 1m0s") {
			t.Errorf("the target was away for %v, and the extensions are %q", took, s.changed)
		}
		if len(notes) < 4 || !strings.HasPrefix(notes[0], "waiting for the source") || !slices.Contains(notes, "the source responds again") || !slices.Contains(notes, "the target responds again") {
			t.Errorf("the notes are %q", notes)
		}
		if until := reopened(t, o.Journal); !until.IsZero() {
			t.Errorf("after a run in order the journal has leases until %v", until)
		}
	})
}

// reopened closes a journal, and returns the end of the leases that the next run finds in it.
func reopened(t *testing.T, j *carryJournal) time.Time {
	t.Helper()
	assert.Must(t, j.Close())
	again := assert.Value(openCarryJournal(j.File.Name()))(t)
	defer again.Close()
	return again.LeasedUntil()
}

// A run that follows a killed one waits until the leases of that one have ended, and says until
// when they hold.
func TestLeasesOfAKilledRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := filepath.Join(t.TempDir(), "j")
		o := testCarryOptions(t, &fakeSource{}, &fakeTarget{}, journal)
		killed := time.Now()
		assert.Must(t, o.Journal.Lease(killed.Add(time.Minute)))
		if err := o.Journal.Close(); err != nil { // it writes no end
			t.Fatal(err)
		}
		o = testCarryOptions(t, &fakeSource{}, &fakeTarget{}, journal)
		until := o.Journal.LeasedUntil()
		if until.Before(killed.Add(time.Minute)) || until.After(killed.Add(time.Minute+10*time.Second)) {
			t.Errorf("the leases end %v after the kill, want a minute", until.Sub(killed))
		}
		o.Wait = time.Second
		o.Source = &slowSource{fakeSource: fakeSource{}, from: killed.Add(time.Minute), d: deliver(1, "")}
		o.Done = func(_ context.Context, idle time.Duration) (bool, error) { return idle >= 30*time.Second, nil }
		r, err := carry(t.Context(), o)
		if took := time.Since(killed); err != nil || r.Moved != 1 || took < 90*time.Second || took > 2*time.Minute {
			t.Errorf("%+v, %v after %v", r, err, took)
		}
	})
}

// A slowSource delivers one message from a time on.
type slowSource struct {
	fakeSource
	from  time.Time
	d     *tidegate.Delivery
	first time.Duration // of the first receive, instead of the longest time
}

func (s *slowSource) Receive(_ context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.d; d != nil && !time.Now().Before(s.from) {
		s.d = nil
		return []*tidegate.Delivery{d}, nil
	}
	wait := cmp.Or(s.first, r.Wait)
	s.first = 0
	s.mu.Unlock()
	<-time.After(wait)
	s.mu.Lock()
	if d := s.d; d != nil && !time.Now().Before(s.from) {
		s.d = nil
		return []*tidegate.Delivery{d}, nil
	}
	return nil, nil
}

// A message whose acknowledgement was lost is not sent again, also not by a run that continues the
// journal, and also if the end of the journal was cut off.
func TestLostAcknowledgement(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "j")
	s, f := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "")}, {deliver(1, "")}}, lose: true}, &fakeTarget{}
	o := testCarryOptions(t, s, f, journal)
	r, err := carry(t.Context(), o)
	assert.That(t, err == nil && r.Moved == 1 && r.Earlier == 1 && r.Unacked == 2, "%+v, %v", r, err)
	if until := reopened(t, o.Journal); !until.IsZero() {
		t.Errorf("the source delivers the message again, and the journal has a lease until %v", until)
	}
	file, err := os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0)
	assert.Must(t, err)
	assert.Must(t, assert.Err(file.WriteString(`{"event":"sent","messages":[{"id":"id`)))
	assert.Must(t, file.Close())
	s = &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, ""), deliver(2, "")}}}
	o = testCarryOptions(t, s, f, journal)
	r, err = carry(t.Context(), o)
	if err != nil || r.Moved != 1 || r.Earlier != 1 || !slices.Equal(f.sent, []string{"id1", "id2"}) || !slices.Equal(s.acked, []string{"id1", "id2"}) {
		t.Errorf("%+v, %v; sent %q, acknowledged %q", r, err, f.sent, s.acked)
	}
}

// A cached file keeps what was written since the last sync apart, as the cache of a disk does.
type cachedFile struct {
	filelock.File
	mu     sync.Mutex
	cache  string
	onDisk string
}

func (f *cachedFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache += string(p)
	return f.File.Write(p)
}

func (f *cachedFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onDisk, f.cache = f.onDisk+f.cache, ""
	return f.File.Sync()
}

// has reports whether the disk has an event of a message.
func (f *cachedFile) has(event, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for line := range strings.Lines(f.onDisk) {
		if strings.Contains(line, `"event":"`+event+`"`) && strings.Contains(line, `"id":"`+id+`"`) {
			return true
		}
	}
	return false
}

// A crash of the machine loses no message and stores none twice: the journal has the ID of each
// message on the disk before the message is sent, and that it was sent before it is acknowledged.
func TestJournalIsOnDiskBefore(t *testing.T) {
	s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "")}, {deliver(4, "a")}}}
	f := &fakeTarget{}
	o := testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j"))
	disk := &cachedFile{File: o.Journal.File}
	o.Journal.File = disk
	f.check = func(m *tidegate.Message) error {
		assert.That(t, disk.has(intentEvent, m.ID), "%s is sent, and its ID is not on disk", m.ID)
		return nil
	}
	s.onAck = func(ds []*tidegate.Delivery) {
		for _, d := range ds {
			assert.That(t, disk.has(sentEvent, d.ID), "%s is acknowledged, and its send is not on disk", d.ID)
		}
	}
	if r, err := carry(t.Context(), o); err != nil || r.Moved != 4 || len(s.acked) != 4 {
		t.Errorf("%+v, %v", r, err)
	}
	assert.That(t, !disk.has(sentEvent, "id5") && strings.Contains(disk.onDisk, "id4"), "the disk has %s", disk.onDisk)
}

// No message is sent after the end of its lease: it could pass one that was delivered again. If the
// source does not extend the leases, the sends end before them, and the run receives again.
func TestSendEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]*fakeTarget{
			"silent": {silent: true}, "away": {results: slices.Repeat([]error{away}, 1000)}, "slow source": {silent: true},
		} {
			s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a")}}, extends: tidegate.ErrInvalidHandle}
			began, left := time.Now(), time.Minute
			if name == "slow source" { // its response came half a lease after it had handed the messages out
				left = 30 * time.Second
				s.batches[0][1].InvisibleUntil = began.Add(left)
			}
			o := testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j"))
			r, err := carry(t.Context(), o)
			if took := time.Since(began); err != nil || took != left-10*time.Second || len(s.acked) > 0 || r.Moved != 0 {
				t.Errorf("%s: %+v, %v after %v, acknowledged %q", name, r, err, took, s.acked)
			}
			if last := f.at[len(f.at)-1].Sub(began); last >= left-10*time.Second {
				t.Errorf("%s: a send began %v after the receive, and the lease is %v", name, last, left)
			}
			if until := reopened(t, o.Journal); until.IsZero() {
				t.Errorf("%s: the journal does not have the leases that still hold", name)
			}
		}
	})
}

// Ctrl-C ends a run whose target is away.
func TestInterruptedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]*fakeTarget{"silent": {silent: true}, "away": {results: slices.Repeat([]error{away}, 1000)}} {
			s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "")}}}
			ctx, interrupt := context.WithCancel(t.Context())
			time.AfterFunc(5*time.Second, interrupt)
			began := time.Now()
			_, err := carry(ctx, testCarryOptions(t, s, f, filepath.Join(t.TempDir(), "j")))
			if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 16*time.Second || len(s.acked) > 0 {
				t.Errorf("%s: %v after %v, acknowledged %q", name, err, took, s.acked)
			}
			interrupt()
		}
	})
}

func TestMessage(t *testing.T) {
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	d := deliver(1, "a")
	d.Keys, d.Tag, d.StoredAt, d.TraceContext = []string{"k"}, "t", at, "00-x"
	d.Properties = map[string]string{"color": "red", "DLQ_REASON": "why"}
	m := carried(d, d.ID, "moved", false)
	if m.ID != "id1" || m.Topic != "moved" || !slices.Equal(m.Keys, []string{"k", "id1"}) || m.Tag != "t" || m.MessageGroup != "a" || m.TraceContext != "00-x" ||
		len(m.Properties) != 1 || !m.DeliverAt.IsZero() || len(d.Keys) != 1 {
		t.Errorf("the message is %+v", m)
	}
	if m := carried(d, d.ID, "moved", true); !m.DeliverAt.Equal(at) {
		t.Errorf("a message for a topic with delays is delivered at %v", m.DeliverAt)
	}
	d.Keys = []string{"id1"} // it was moved before
	if m := carried(d, "id2", "moved", false); m.ID != "id2" || !slices.Equal(m.Keys, []string{"id1"}) {
		t.Errorf("a message that was moved before is %+v", m)
	}
}

// Each class of errors is repeated or ends the run. A new class fails the test until it is decided.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]struct {
		err   error
		again bool
	}{
		tidegate.ClassOK: {nil, false}, tidegate.ClassThrottled: {&tidegate.Error{Code: tidegate.CodeTooManyRequests}, true},
		tidegate.ClassTransient: {tidegate.ErrUnavailable, true}, tidegate.ClassPermanent: {tidegate.ErrInvalid, false}, tidegate.ClassCancelled: {context.Canceled, false},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		if d, ok := decided[c]; !ok || tidegate.Classify(d.err) != c || again(d.err) != d.again {
			t.Errorf("%v: decided %t, repeated %t", c, ok, again(d.err))
		}
	}
}

// A journal of any length takes a bounded memory: it forgets the oldest of the IDs at the target.
func TestJournalIsBounded(t *testing.T) {
	const more = 1000
	j := &carryJournal{sent: map[carryKey]bool{}, names: map[carryKey]string{}, used: map[string]string{}}
	for i := range maxUsed + more {
		k := carryKey{ID: fmt.Sprint(i), At: "0/1"}
		j.apply(journalEntry{Event: intentEvent, Messages: []journalRecord{{carryKey: k}}})
		j.apply(journalEntry{Event: sentEvent, Messages: []journalRecord{{carryKey: k}}})
		j.apply(journalEntry{Event: ackedEvent, Messages: []journalRecord{{carryKey: k}}})
	}
	if len(j.used) != maxUsed || len(j.order) != maxUsed || len(j.sent)+len(j.names) > 0 {
		t.Errorf("the journal has %d IDs at the target, %d in order, %d sent, %d names", len(j.used), len(j.order), len(j.sent), len(j.names))
	}
	_, oldest := j.used[fmt.Sprint(more-1)]
	_, kept := j.used[fmt.Sprint(more)]
	assert.That(t, !oldest && kept, "ID %d is known: %v, and ID %d: %v; want the newest ones", more-1, oldest, more, kept)
}

// A fullFile is a file on a full disk: a write of an event leaves a part of its bytes and fails,
// as all later ones do.
type fullFile struct {
	filelock.File
	event string
	full  bool
}

func (f *fullFile) Write(b []byte) (int, error) {
	if !f.full && !strings.Contains(string(b), fmt.Sprintf(`"event":%q`, f.event)) {
		return f.File.Write(b)
	}
	if f.full {
		return 0, syscall.ENOSPC
	}
	f.full = true
	n, err := f.File.Write(b[:len(b)/2])
	return n, errors.Join(err, syscall.ENOSPC)
}

// A journal that cannot be written ends the run with the reason, whichever entry it is. Messages
// that the target has leave the source; when there is space, a run with this journal carries the
// others, and sends none twice.
func TestFullDiskUnderTheJournal(t *testing.T) {
	for _, event := range []string{leaseEvent, intentEvent, sentEvent, ackedEvent, endEvent} {
		t.Run(event, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "j")
				batches := [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "")}}
				s, f := &fakeSource{batches: batches}, &fakeTarget{}
				o := testCarryOptions(t, s, f, path)
				o.Journal.File = &fullFile{File: o.Journal.File, event: event}
				_, err := carry(t.Context(), o)
				if !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "the journal cannot be written") != 1 {
					t.Errorf("the run ends with %v", err)
				}
				if sent := slices.Sorted(slices.Values(f.sent)); !slices.Equal(slices.Sorted(slices.Values(s.acked)), sent) {
					t.Errorf("the target has %q, and the source removed %q", sent, s.acked)
				}
				assert.Must(t, o.Journal.Close())
				sends := len(f.at)
				if s.journal = ""; len(f.sent) == 0 {
					s.batches = [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "")}}
				}
				r, err := carry(t.Context(), testCarryOptions(t, s, f, path))
				if err != nil || len(f.sent) != 3 || len(f.at) != 3 || len(s.acked) != 3 {
					t.Errorf("the next run: %+v, %v; %d sends before it and %d now; the target has %q, the source removed %q", r, err, sends, len(f.at)-sends, f.sent, s.acked)
				}
			})
		})
	}
}

// The commands in the plan are whole and quoted: a name can be a flag, or have characters of
// shells.
func TestOfferedCommands(t *testing.T) {
	s := moveState{Group: status.Group{Name: "-a|b"}, Sees: status.Subscription{Parked: 2}}
	if got, want := s.stays(), []string{"2 messages parked: ready after tidegate parked redrive -- '-a|b'"}; !slices.Equal(got, want) {
		t.Errorf("the plan has %q, want %q", got, want)
	}
	topic, group := s.Creates(Server{}, "there", "-x", "-a|b")
	if want := "tidegate topic create --context there -- -x type=NORMAL queues="; !strings.HasPrefix(topic, want) {
		t.Errorf("the topic is created by %s, want %s", topic, want)
	}
	if want := "tidegate group create --context there -- '-a|b' max_attempts="; !strings.HasPrefix(group, want) {
		t.Errorf("the group is created by %s, want %s", group, want)
	}
}

// A move ends when no message has arrived for --wait; with --follow it never ends by itself.
func TestFollowHasNoEnd(t *testing.T) {
	const wait = 30 * time.Second
	for _, c := range []struct {
		follow bool
		idle   time.Duration
		done   bool
	}{{false, wait - 1, false}, {false, wait, true}, {true, wait, false}, {true, 1000 * time.Hour, false}} {
		for name, state := range map[string]*moveState{"a RocketMQ": nil, "a tidegate broker": {}} {
			if state != nil && !c.done && !c.follow {
				continue // it asks the broker
			}
			m := &moveCommand{follow: c.follow, wait: wait}
			if done, err := m.done(t.Context(), state, c.idle); done != c.done || err != nil {
				t.Errorf("%s, follow %t, after %v without a message: done %t, %v; want %t", name, c.follow, c.idle, done, err, c.done)
			}
		}
	}
}
