package deadletter

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/filelock"
	"github.com/tidegate/tidegate/transport/transporttest"
)

func letter(id string, generation int) *Letter {
	return &Letter{
		Message: tidegate.Message{ID: id, Topic: "%DLQ%billing"},
		Origin:  tidegate.DeadLetter{Topic: "orders", MessageID: id, Group: "billing", Reason: "no such customer", Redrives: generation},
	}
}

func from(topic string, l *Letter) *Letter {
	l.Origin.Topic = topic
	return l
}

func in(group string, l *Letter) *Letter {
	l.Message.MessageGroup = group
	return l
}

// A step asks the plan about a letter, and reports the result if the letter is taken.
type step struct {
	letter *Letter
	fails  bool
	want   string // the action and its reason
}

func several(n int, s step) []step {
	var list []step
	for i := range n {
		l := *s.letter
		l.Message.ID = fmt.Sprint(l.Message.ID, "-", i)
		list = append(list, step{&l, s.fails, s.want})
	}
	return list
}

func TestPlan(t *testing.T) {
	const go1 = "take "
	join := func(lists ...[]step) (all []step) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	for name, tt := range map[string]struct {
		plan  plan
		steps []step
	}{
		"all in the order of the source": {plan{}, []step{{letter("b", 0), false, go1}, {letter("a", 0), false, go1}}},
		"filter": {plan{filter: &Filter{MessageIDs: []string{"b"}}}, []step{
			{letter("a", 0), false, "skip filtered out"}, {letter("b", 0), false, go1},
		}},
		"filter by fingerprint": {plan{filter: &Filter{Fingerprint: letter("", 0).Fingerprint()}}, []step{{letter("a", 0), false, go1}}},
		"generations": {plan{}, []step{
			{letter("a", 1), false, go1}, {letter("b", 2), false, go1}, {letter("c", 3), false, "skip sent back too often"}, {letter("d", 9), false, "skip sent back too often"},
		}},
		"one generation": {plan{maxGenerations: 1}, []step{{letter("a", 0), false, go1}, {letter("b", 1), false, "skip sent back too often"}}},
		"sent before a crash": {plan{sent: map[exact]bool{{key: key{"orders", "a", 0}}: true}}, []step{
			{letter("a", 0), false, "clean sent before a crash"}, {letter("b", 0), false, go1},
		}},
		"sent by another generation only":   {plan{sent: map[exact]bool{{key: key{"orders", "a", 2}}: true}}, []step{{letter("a", 0), false, go1}}},
		"begun before a crash":              {plan{pending: map[exact]bool{{key: key{"orders", "a", 0}}: true}}, []step{{letter("a", 0), false, go1}}},
		"came back":                         {plan{}, []step{{letter("a", 0), false, go1}, {letter("a", 1), false, "skip became a dead letter again during this job"}}},
		"came back after a crash":           {plan{pending: map[exact]bool{{key: key{"orders", "a", 0}}: true}}, []step{{letter("a", 1), false, "skip became a dead letter again during this job"}}},
		"came back under its new ID":        {plan{}, []step{{letter("a", 1), false, go1}, {letter("a.redrive-2", 2), false, "skip became a dead letter again during this job"}}},
		"came back from another topic":      {plan{to: "repaired"}, []step{{letter("a", 0), false, go1}, {from("repaired", letter("a", 1)), false, "skip became a dead letter again during this job"}}},
		"of another topic with the same ID": {plan{}, []step{{letter("a", 0), false, go1}, {from("returns", letter("a", 1)), false, go1}}},
		"an unknown topic tells nothing": {plan{to: "repaired"}, []step{
			{from("", letter("a", 0)), false, go1}, {from("repaired", letter("a", 1)), false, go1}, {from("", letter("a", 1)), false, "skip became a dead letter again during this job"},
		}},
		"no topic is another one":     {plan{}, []step{{letter("a", 0), false, go1}, {from("", letter("a", 1)), false, go1}}},
		"of another job":              {plan{}, []step{{letter("a.redrive-1", 1), false, go1}}},
		"a name that looks like ours": {plan{sent: map[exact]bool{{key: key{"orders", "a", 0}}: true}}, []step{{letter("a.redrive-1", 0), false, go1}}},
		"a message group waits for its failure": {plan{}, []step{
			{in("g", letter("a", 0)), true, go1}, {in("g", letter("b", 0)), false, "skip an earlier message of its message group failed"},
			{in("h", letter("c", 0)), false, go1}, {letter("d", 0), false, go1},
		}},
		"limit": {plan{limit: 2}, []step{
			{letter("a", 0), false, go1}, {letter("x", 3), false, "skip sent back too often"}, {letter("b", 0), true, go1}, {letter("c", 0), false, "stop limit reached"},
		}},
		"few results prove nothing": {plan{}, several(9, step{letter("a", 0), true, go1})},
		"every tenth may fail": {plan{}, join(
			several(9, step{letter("a", 0), false, go1}), several(1, step{letter("b", 0), true, go1}), several(1, step{letter("c", 0), false, go1}),
		)},
		"more than every tenth may not": {plan{}, join(
			several(8, step{letter("a", 0), false, go1}), several(2, step{letter("b", 0), true, go1}), several(1, step{letter("c", 0), false, "stop too many failures"}),
		)},
		"a late outage stops soon": {plan{}, join(
			several(1000, step{letter("a", 0), false, go1}), several(6, step{letter("b", 0), true, go1}), several(1, step{letter("c", 0), false, "stop too many failures"}),
		)},
		"returns stop too": {plan{sent: map[exact]bool{{key: key{"orders", "r-0", 0}}: true, {key: key{"orders", "r-1", 0}}: true}}, join(
			several(8, step{letter("a", 0), false, go1}), []step{
				{letter("r-0", 1), false, "skip became a dead letter again during this job"}, {letter("r-1", 1), false, "stop too many failures"},
			},
		)},
		"all may fail": {plan{maxFailureShare: 1}, several(100, step{letter("a", 0), true, go1})},
		"none may fail": {plan{maxFailureShare: -1}, join(
			several(9, step{letter("a", 0), false, go1}), several(1, step{letter("b", 0), true, go1}), several(1, step{letter("c", 0), false, "stop too many failures"}),
		)},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.plan
			if p.filter == nil {
				p.filter = &Filter{}
			}
			if p.maxGenerations == 0 {
				p.maxGenerations = 3
			}
			switch p.maxFailureShare {
			case 0:
				p.maxFailureShare = 0.1
			case -1:
				p.maxFailureShare = 0
			}
			if p.sent == nil {
				p.sent = map[exact]bool{}
			}
			p.failed, p.away = map[string]bool{}, map[key]bool{}
			for _, keys := range []map[exact]bool{p.sent, p.pending} {
				for k := range keys {
					p.leaves(k.key, "")
				}
			}
			for i, s := range tt.steps {
				d := p.decide(s.letter)
				if got := [...]string{take: "take", clean: "clean", skip: "skip", stop: "stop"}[d.action] + " " + d.why; got != s.want {
					t.Fatalf("step %d, %s of generation %d: %q, want %q", i, s.letter.Message.ID, s.letter.Generation(), got, s.want)
				}
				if d.action == take {
					p.result(s.letter, !s.fails)
				}
			}
		})
	}
}

// The ID of a redrive depends on the message and its number alone, and is legal.
func TestSentAs(t *testing.T) {
	for _, tt := range []struct {
		id         string
		generation int
		want       string
	}{
		{"a", 0, "a.redrive-1"}, {"a.redrive-1", 1, "a.redrive-2"}, {"a", 1, "a.redrive-2"}, {"a.redrive-1", 0, "a.redrive-1.redrive-1"},
	} {
		got := sentAs(letter(tt.id, tt.generation))
		assert.That(t, got == tt.want, "%s of generation %d is sent as %q, want %q", tt.id, tt.generation, got, tt.want)
	}
	long := strings.Repeat("x", 255)
	got := sentAs(letter(long, 0))
	assert.That(t, len(got) <= 255 && got != sentAs(letter(long[1:]+"y", 0)), "a long ID is sent as %q", got)
}

// Reasons that differ in numbers, identifiers and quotations have one fingerprint; others, and
// those of other topics, do not.
func TestFingerprint(t *testing.T) {
	of := func(topic, reason string) string {
		return (&Letter{Origin: tidegate.DeadLetter{Topic: topic, Reason: reason}}).Fingerprint()
	}
	base := of("orders", `order 4711 of customer "Müller" timed out after 1.5s at 10.0.0.7:5432`)
	for _, same := range []string{
		`order 9 of customer "Weiß & Co" timed out after 30s at db-2.internal:5432`, `Order 9 of customer '' timed out after 2m1s at 127.0.0.1:1`,
		"order a5f3-77 of customer \"x\"  timed out after 1s at h1\ngoroutine 7 [running]:",
	} {
		assert.That(t, of("orders", same) == base, "%q has another fingerprint", same)
	}
	for _, other := range []string{"", "order 4711 of customer X is forbidden", "timed out"} {
		assert.That(t, of("orders", other) != base, "%q has the same fingerprint", other)
	}
	assert.That(t, of("bills", `order 4711 of customer "Müller" timed out after 1.5s at 10.0.0.7:5432`) != base,
		"another topic has the same fingerprint")
}

// A redriven message with a long ID is recognized when it becomes a dead letter again.
func TestLongIDsReturn(t *testing.T) {
	for n := 230; n <= 255; n++ {
		id := strings.Repeat("x", n)
		for generation := range 12 {
			l := letter(id, generation)
			p := plan{filter: &Filter{}, maxGenerations: 20, away: map[key]bool{keyOf(l): true}}
			if id = sentAs(l); len(id) > 255 {
				t.Fatalf("sent as an ID of %d bytes", len(id))
			}
			if d := p.decide(letter(id, generation+1)); d.action != skip || d.why != whyReturned {
				t.Fatalf("ID of %d bytes, returned from redrive %d: %+v", n, generation+1, d)
			}
		}
	}
}

// Since is inclusive, Before is not.
func TestFilterTimes(t *testing.T) {
	at := time.Unix(1000, 0)
	l := &Letter{StoredAt: at}
	for _, tt := range []struct {
		name   string
		filter Filter
		want   bool
	}{
		{"since then", Filter{Since: at}, true},
		{"since later", Filter{Since: at.Add(1)}, false},
		{"before then", Filter{Before: at}, false},
		{"before later", Filter{Before: at.Add(1)}, true},
	} {
		got := tt.filter.matches(l)
		assert.That(t, got == tt.want, "%s: %v, want %v", tt.name, got, tt.want)
	}
}

// Each class of errors has a step after a failed send. A new class fails the test until it is
// decided.
func TestEveryClass(t *testing.T) {
	decided := map[tidegate.Class]struct {
		err         error
		first, last afterSend // after the first failed send, and after the last one
	}{
		tidegate.ClassOK:        {nil, letterFailed, letterFailed}, // no failed send
		tidegate.ClassThrottled: {&tidegate.Error{Code: tidegate.CodeTooManyRequests}, sendAgain, sendAgain},
		tidegate.ClassTransient: {tidegate.ErrUnavailable, sendAgain, endRun},
		tidegate.ClassPermanent: {tidegate.ErrInvalid, letterFailed, letterFailed},
		tidegate.ClassCancelled: {context.Canceled, endRun, endRun},
	}
	for c := tidegate.ClassOK; c.String() != "unknown"; c++ {
		d, ok := decided[c]
		if !ok || tidegate.Classify(d.err) != c {
			t.Errorf("%v is not decided", c)
			continue
		}
		if first, last := stepAfter(d.err, 0), stepAfter(d.err, transientAttempts-1); first != d.first || last != d.last {
			t.Errorf("%v: %v, later %v; want %v, %v", c, first, last, d.first, d.last)
		}
	}
}

// The reason of a class is that of its latest letter, for any order of the letters in the lists of
// queues. It keeps 100 reasons, and counts only the letters of these.
func TestReasonsOfAClass(t *testing.T) {
	c := Class{Reasons: map[string]int{}}
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	letter := func(reason int, at time.Duration) {
		c.add(&Letter{Origin: tidegate.DeadLetter{Reason: fmt.Sprint("no order ", reason)}, StoredAt: start.Add(at)})
	}
	for i := range 150 {
		letter(i, time.Duration(i)*time.Second)
	}
	letter(7, 0)
	want := "no order 149"
	assert.That(t, c.Reason == want, "the reason is %q, want %q", c.Reason, want)
	assert.That(t, len(c.Reasons) == 100 && c.Reasons["no order 7"] == 2,
		"it has %d reasons, one of them %d times; want 100 and 2", len(c.Reasons), c.Reasons["no order 7"])
}

// A letter that was sent and whose lease has ended is unresolved: the next run removes it.
func TestEndedLeaseIsUnresolved(t *testing.T) {
	for _, c := range []struct {
		err        error
		ends       bool
		unresolved int
	}{
		{nil, false, 0},
		{tidegate.ErrInvalidHandle, false, 1},
		{tidegate.ErrUnavailable, true, 0},
	} {
		r := &runner{src: unremovable{err: c.err}}
		if err := r.remove(t.Context(), &Letter{}); (err != nil) != c.ends || r.report.Unresolved != c.unresolved {
			t.Errorf("after %v: %v, %d unresolved", c.err, err, r.report.Unresolved)
		}
	}
}

// An unremovable source returns an error for each removal.
type unremovable struct {
	Source
	err error
}

func (u unremovable) remove(context.Context, *Letter, string) error { return u.err }

// A removable source counts the letters that it removed.
type removable struct {
	Source
	removed int
}

func (r *removable) remove(context.Context, *Letter, string) error {
	r.removed++
	return nil
}

// A letter that was sent is removed also if the journal cannot record that, for example on a full
// disk: the next run would send it again. Without its intent in the journal it is not sent.
func TestSentLetterLeavesOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := openJournal(path, "billing")
	assert.Must(t, err)
	defer j.File.Close()
	if j.File, err = os.Open(path); err != nil { // its writes fail
		t.Fatal(err)
	}
	defer j.File.Close()
	to, src := &transporttest.Fake{}, &removable{}
	r := &runner{src: src, o: Options{Sender: to}, anew: true, journal: j, limiter: rate.NewLimiter(1, 1),
		plan: plan{sent: map[exact]bool{}, away: map[key]bool{}, failed: map[string]bool{}}}
	l := from("orders", letter("a", 0))
	if err := r.sendAnew(t.Context(), l); err == nil || len(to.Calls("Send")) != 1 || src.removed != 1 {
		t.Errorf("%v: %d sent, %d removed; want the error of the journal, and the letter sent and removed", err, len(to.Calls("Send")), src.removed)
	}
	r.batch = []*Letter{l}
	if err := r.flush(t.Context()); err == nil || len(to.Calls("Send")) != 1 || src.removed != 1 {
		t.Errorf("%v: a letter without an intent in the journal was sent", err)
	}
}

// An unsynced file counts the writes that no Sync has followed.
type unsynced struct {
	filelock.File
	writes int
}

func (u *unsynced) Write(b []byte) (int, error) {
	u.writes++
	return u.File.Write(b)
}

func (u *unsynced) Sync() error {
	u.writes = 0
	return u.File.Sync()
}

// Events are on disk when write returns.
func TestEventsAreOnDisk(t *testing.T) {
	j, err := openJournal(filepath.Join(t.TempDir(), "journal"), "billing")
	assert.Must(t, err)
	defer j.Close()
	file := &unsynced{File: j.File}
	j.File = file
	assert.Must(t, j.write(Event{Event: eventIntent, MessageID: "a"}))
	assert.Equal(t, "writes without a sync", file.writes, 0)
}
