package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/assert"
)

// Each list of problems has its count, and at most ten rows.
func TestFill(t *testing.T) {
	t.Parallel()
	s := &engine.Survey{At: time.Unix(1, 0)}
	for i := range int64(30) {
		held := &status.Holding{Client: "c", Messages: 1, Since: s.At.Add(-time.Duration(i) * 10 * time.Second)}
		s.Groups = append(s.Groups, status.GroupSummary{Group: string(rune('a' + i)), Parked: i % 3, UndeliveredMS: i * 5000, DeadLettersStored: i / 29, Held: held})
		s.Throttles = append(s.Throttles, status.LimitState{On: true})
	}
	var o status.Overview
	var f listFiller
	f.Fill(&o, &engine.Survey{}) // of another moment
	assert.That(t, o.Wrong.Parked.Count == 0, "without groups: %+v", o.Wrong)
	for range 2 {
		f.Fill(&o, s)
	}
	w := o.Wrong
	assert.That(t, w.Throttles.Count == 30 && len(w.Throttles.First) == 10, "throttles %+v", w.Throttles)
	assert.That(t, w.Parked.Count == 20 && len(w.Parked.First) == 10 && w.Parked.First[0].Parked == 2, "parked %+v", w.Parked)
	if w.Behind.Count != 18 || w.Behind.First[0].UndeliveredMS != 145_000 { // from 60 s on
		t.Errorf("behind %+v", w.Behind)
	}
	retried := status.GroupSummary{Group: "retried", Ready: 1, OldestMS: 200_000} // its message was delivered before
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{retried}}); o.Wrong.Behind.Count != 1 {
		t.Errorf("without a consumer: behind %+v", o.Wrong.Behind)
	}
	blocked := status.GroupSummary{Group: "blocked", BlockedGroups: 2, Blocked: 7}
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{retried, blocked}}); o.Wrong.Blocked.Count != 1 || o.Wrong.Blocked.First[0] != blocked {
		t.Errorf("blocked %+v", o.Wrong.Blocked)
	}
	waits, works := retried, retried
	waits.Waiting, works.Inflight = 1, 1
	if f.Fill(&o, &engine.Survey{Groups: []status.GroupSummary{waits, works, {OldestMS: 200_000}}}); o.Wrong.Behind.Count != 0 {
		t.Errorf("with a consumer, or without a ready message: behind %+v", o.Wrong.Behind)
	}
	if w.Held.Count != 24 || w.Held.First[0].Group != string(rune('a'+29)) { // from 60 s on
		t.Errorf("held %+v", w.Held)
	}
	assert.That(t, w.DeadLetters.Count == 1 && len(w.DeadLetters.First) == 1, "dead letters %+v", w.DeadLetters)
	if top := o.Top.Groups["waiting_retry"]; top == nil || len(top) != 0 {
		t.Errorf("the top of counters that are 0 is %v, want an empty list", top)
	}
}

// A fakeOverviewEngine computes surveys.
type fakeOverviewEngine func() *engine.Survey

func (e fakeOverviewEngine) Survey() *engine.Survey { return e() }

// clientCounts have the numbers of clientCounts by group.
type clientCounts map[string]int64

func (c clientCounts) CountGroups() map[string]int64 { return c }

// A survey has the number of clients of each group.
func TestSharedCountsClients(t *testing.T) {
	t.Parallel()
	s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
		return &engine.Survey{Groups: []status.GroupSummary{{Group: "a", Topic: "s"}, {Group: "a", Topic: "t"}, {Group: "b", Topic: "t"}}}
	}), clientCounts{"a": 2, "c": 1})
	v := assert.Value(s.Get(t.Context()))(t)
	if g := v.Groups; g[0].Clients != 2 || g[1].Clients != 2 || g[2].Clients != 0 {
		t.Errorf("the groups are %+v", g)
	}
}

// All calls within a second share one survey, also the calls during its computation; without
// callers there is none.
func TestSharedOncePerSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
			n++
			at := time.Now()
			time.Sleep(100 * time.Millisecond)
			return &engine.Survey{At: at}
		}), clientCounts{})
		for range 50 {
			go func() {
				for range 10 {
					if v, err := s.Get(t.Context()); err != nil || time.Since(v.At) > maxAge+100*time.Millisecond {
						t.Errorf("a survey of %v, %v", v, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n != 2 { // at 0 and at 1 s
			t.Errorf("%d surveys, want 2", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		go func() { _, _ = s.Get(t.Context()) }()
		synctest.Wait()
		assert.Is(t, "a caller that gave up got", assert.Err(s.Get(ctx)), context.DeadlineExceeded)
		time.Sleep(time.Second)
	})
}

// After a panic of the engine the next caller computes the survey.
func TestSharedAfterPanic(t *testing.T) {
	t.Parallel()
	first := true
	s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
		if first {
			first = false
			panic("test")
		}
		return &engine.Survey{At: time.Now()}
	}), clientCounts{})
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Get(t.Context())
		t.Error("the panic was swallowed")
	}()
	if v, err := s.Get(t.Context()); v == nil || err != nil {
		t.Errorf("after a panic: %v, %v", v, err)
	}
}

// After a change the next caller gets a new survey, also if one is under way that began before it.
func TestSharedExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int64
		s := newSharedSurvey(fakeOverviewEngine(func() *engine.Survey {
			seen := changes.Load()
			time.Sleep(100 * time.Millisecond)
			return &engine.Survey{At: time.Now(), Totals: status.Totals{Topics: seen}}
		}), clientCounts{})
		expect := func(when string, want int) {
			t.Helper()
			if v, err := s.Get(t.Context()); err != nil || v.Totals.Topics != int64(want) {
				t.Errorf("%s: %+v, %v; want %d topics", when, v, err, want)
			}
		}
		expect("at first", 0)
		changes.Add(1)
		expect("within a second", 0)
		s.Expire()
		expect("after a change", 1)
		s.Expire()
		go func() { _, _ = s.Get(t.Context()) }()
		time.Sleep(50 * time.Millisecond)
		changes.Add(1)
		s.Expire()
		expect("after a change during a survey", 2)
		expect("after it", 2)
	})
}

// The pages of a list have the rows of a sort of all wanted rows, once and in order. This holds for
// each order, condition and size of a page.
func TestSelectPages(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		rows := make([]status.GroupSummary, r.IntN(60))
		for i := range rows {
			rows[i] = status.GroupSummary{Group: fmt.Sprintf("g-%02d", i/3), Topic: fmt.Sprintf("t.%d", i%3), Ready: r.Int64N(5)}
		}
		q := summaryQuery{Limit: 1 + r.IntN(20), Descending: r.IntN(2) == 0}
		var wanted func(*status.GroupSummary) bool
		var value func(*status.GroupSummary) float64
		if r.IntN(3) > 0 {
			value = groupValues["ready"]
		}
		if r.IntN(2) == 0 {
			wanted = func(g *status.GroupSummary) bool { return g.Ready != 2 }
		}
		want := slices.Clone(rows)
		if wanted != nil {
			want = slices.DeleteFunc(want, func(g status.GroupSummary) bool { return g.Ready == 2 })
		}
		switch {
		case value != nil && q.Descending:
			slices.SortStableFunc(want, func(x, y status.GroupSummary) int { return int(y.Ready - x.Ready) })
		case value != nil:
			slices.SortStableFunc(want, func(x, y status.GroupSummary) int { return int(x.Ready - y.Ready) })
		case q.Descending:
			slices.SortFunc(want, func(x, y status.GroupSummary) int {
				return strings.Compare(y.Group+"/"+y.Topic, x.Group+"/"+x.Topic)
			})
		}
		got := []status.GroupSummary{}
		for more := true; more; more = q.After != "" {
			page, ok := selectPage(rows, wanted, value, q)
			if !ok || page.Total != int64(len(want)) || len(page.Rows) > q.Limit {
				t.Fatalf("a page of %d: %+v, %v", q.Limit, page, ok)
			}
			got, q.After = append(got, page.Rows...), page.Next
		}
		assert.MustThat(t, slices.Equal(got, want), "%+v\nhas the pages\n%+v, want\n%+v", q, got, want)
	}
	if _, ok := selectPage([]status.TopicSummary{{}}, nil, nil, summaryQuery{Limit: 1, After: "no cursor"}); ok {
		t.Error("an invalid cursor was accepted")
	}
}

// Each state selects the rows of its name.
func TestStates(t *testing.T) {
	t.Parallel()
	busy := status.Backlog{Messages: 1}
	topics := map[string][2]status.TopicSummary{ // one that has the state, and one that has not
		"throttled": {{Throttle: &status.Throttle{}}, {Backlog: busy}},
		"backlog":   {{Backlog: busy}, {Stored: busy}},
		"delayed":   {{Delayed: busy}, {Stored: busy}},
		"empty":     {{Name: "t"}, {Half: 1}},
	}
	for state, f := range topicStates {
		if c := topics[state]; !f(&c[0]) || f(&c[1]) {
			t.Errorf("topics of state %s: %v, %v", state, f(&c[0]), f(&c[1]))
		}
	}
	groups := map[string][2]status.GroupSummary{
		"backlog": {{Backlog: busy}, {Parked: 1}},
		"behind":  {{UndeliveredMS: 60_000}, {UndeliveredMS: 59_999, OldestMS: 1e9}},
		"retry":   {{WaitingRetry: 1}, {Inflight: 1}},
		"parked":  {{Parked: 1}, {Backlog: busy}},
		"blocked": {{BlockedGroups: 1}, {Backlog: busy, Parked: 1}},
		"held":    {{Held: &status.Holding{Since: time.Now().Add(-time.Minute)}}, {Inflight: 1, Held: &status.Holding{Since: time.Now()}}},
		"dead":    {{DeadLettersStored: 1}, {DeadLetters: 1, DeadLettersHour: 1}},
		"idle":    {{Backlog: busy}, {Backlog: busy, Waiting: 1}},
	}
	for state, f := range groupStates {
		if c := groups[state]; !f(&c[0]) || f(&c[1]) {
			t.Errorf("groups of state %s: %v, %v", state, f(&c[0]), f(&c[1]))
		}
	}
}

// The header If-Match as in RFC 9110, 13.1.1. The revision is "a"; code 0 means that the change may
// happen.
func TestIfMatch(t *testing.T) {
	for name, c := range map[string]struct {
		header []string
		now    string
		code   int
	}{
		"none":             {nil, "a", 0},
		"the same":         {[]string{`"a"`}, "a", 0},
		"another":          {[]string{`"b"`}, "a", 42800},
		"a list":           {[]string{`"b", "a"`}, "a", 0},
		"two headers":      {[]string{`"b"`, `"a"`}, "a", 0},
		"weak":             {[]string{`W/"a"`}, "a", 42800}, // never equal in a strong comparison
		"any":              {[]string{"*"}, "a", 0},
		"any, nothing":     {[]string{"*"}, "", 42800},
		"nothing":          {[]string{`"a"`}, "", 42800},
		"empty, nothing":   {[]string{`""`}, "", 42800},
		"none, nothing":    {nil, "", 0},
		"without quotes":   {[]string{"a"}, "a", 40000},
		"a quote in a tag": {[]string{`"a""`}, "a", 40000},
		"one quote":        {[]string{`"`}, "a", 40000},
		"empty":            {[]string{""}, "a", 40000},
		"any in a list":    {[]string{`"a", *`}, "a", 40000},
	} {
		r := httptest.NewRequest("PUT", "/v1/topics/orders", nil)
		r.Header["If-Match"] = c.header
		may, err := ifMatch(r, "topic", "orders")
		if err == nil && may != nil {
			err = may(c.now)
		}
		code := 0
		if err != nil {
			code = int(refusal.CodeOf(err))
		}
		assert.That(t, code == c.code, "%s: %v, want code %d", name, err, c.code)
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// filled returns a ring to which n records were added, one a second; the subject is its number,
// from 1.
func filled(n int) *auditRing {
	g := &auditRing{}
	for i := 1; i <= n; i++ {
		g.Add(&status.AuditRecord{
			Time: epoch.Add(time.Duration(i) * time.Second), Key: fmt.Sprint("key-", i%2), Operation: fmt.Sprint("op-", i%3), Subject: fmt.Sprint(i),
		})
	}
	return g
}

// all returns the subjects of all pages of a query.
func all(t *testing.T, g *auditRing, q status.AuditQuery) (subjects []string) {
	t.Helper()
	for {
		page := assert.Value(g.Page(&q))(t)
		assert.MustThat(t, q.Limit <= 0 || len(page.Records) <= q.Limit, "a page of %d has %d records", q.Limit, len(page.Records))
		for _, r := range page.Records {
			subjects = append(subjects, r.Subject)
		}
		if q.After = page.Next; q.After == "" {
			return subjects
		}
	}
}

func numbers(from, down, step int) (out []string) {
	for i := from; i >= down; i -= step {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// Pages of any size have each record that is kept once, the newest first.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, 9, auditCapacity - 1, auditCapacity, auditCapacity + 1, 2*auditCapacity + 7} {
		want := numbers(n, max(1, n-9_999), 1) // 10 000 records are kept
		g := filled(n)
		for _, limit := range []int{0, 1000, 7} {
			if got := all(t, g, status.AuditQuery{Limit: limit}); !slices.Equal(got, want) {
				t.Errorf("%d records in pages of %d: %d came, want %d", n, limit, len(got), len(want))
			}
		}
	}
}

// A record that is added between two pages does not move the other records. A record that leaves
// the ring is missing.
func TestPagesWhileRecordsArrive(t *testing.T) {
	g := filled(10)
	page := assert.Value(g.Page(&status.AuditQuery{Limit: 4}))(t)
	g.Add(&status.AuditRecord{Subject: "new"})
	if got, want := all(t, g, status.AuditQuery{After: page.Next}), numbers(6, 1, 1); !slices.Equal(got, want) {
		t.Errorf("after a new record the second page has %v, want %v", got, want)
	}
	for i := range 2 * auditCapacity {
		g.Add(&status.AuditRecord{Key: fmt.Sprint("key-", i%2), Subject: "new"})
	}
	if got := all(t, g, status.AuditQuery{After: page.Next}); got != nil {
		t.Errorf("the ring still has %v", got)
	}
}

// A key with many records removes its own ones only, the oldest first.
func TestKeysHaveShares(t *testing.T) {
	g := &auditRing{}
	add := func(key string, n int) {
		for range n {
			g.Add(&status.AuditRecord{Key: key, Subject: fmt.Sprint(g.added + 1)})
		}
	}
	count := func(key string) int { return len(all(t, g, status.AuditQuery{Key: key, Limit: 1000})) }
	expect := func(step string, want map[string]int) {
		t.Helper()
		sum := 0
		for key, n := range want {
			if got := count(key); got != n {
				t.Errorf("%s: %s has %d records, want %d", step, key, got, n)
			}
			sum += n
		}
		if n := len(all(t, g, status.AuditQuery{Limit: 1000})); n != sum || n > 10_000 {
			t.Errorf("%s: %d records, want %d", step, n, sum)
		}
	}
	add("admin", 30)
	add("attacker", 25_000)
	expect("an attack", map[string]int{"admin": 30, "attacker": 9970})
	if got := all(t, g, status.AuditQuery{Key: "attacker", Limit: 1000}); got[0] != "25030" || got[len(got)-1] != "15061" {
		t.Errorf("the records of the attacker are %s to %s, want the newest", got[0], got[len(got)-1])
	}
	assert.Slices(t, "the administrator has", all(t, g, status.AuditQuery{Key: "admin"}), numbers(30, 1, 1))
	add("admin", 6000)
	expect("work after it", map[string]int{"admin": 5000, "attacker": 5000})
	add("third", 100)
	assert.Equal(t, "a third key has records", count("third"), 100)
	assert.Equal(t, "keys", len(g.byKey), 3)
}

func TestBounds(t *testing.T) {
	g := &auditRing{}
	g.Add(&status.AuditRecord{Result: strings.Repeat("\u00e9", 1000), Query: strings.Repeat("x", 256)})
	page := assert.Value(g.Page(&status.AuditQuery{}))(t)
	r := page.Records[0]
	if len(r.Result) > 256 || len(r.Result) < 250 || !utf8.ValidString(r.Result) || !strings.HasSuffix(r.Result, "\u00e9...") || len(r.Query) != 256 {
		t.Errorf("a result of %d bytes: %q; a query of %d", len(r.Result), r.Result, len(r.Query))
	}
	for _, q := range []status.AuditQuery{{Limit: -1}, {Limit: 1001}, {After: "x"}, {After: "0"}, {After: "-1"}} {
		if _, err := g.Page(&q); err == nil || refusal.CodeOf(err) != 40000 {
			t.Errorf("%+v: %v, want code 40000", q, err)
		}
	}
}

// However a query is, it is a message or a rejection that names the parameter.
func FuzzHTTPQuery(f *testing.F) {
	f.Add("id=a&key=b&key=c&property.x=y&deliver_after=1s")
	f.Add("tag=a&tag=b")
	f.Add("deliver_at=&=&property.")
	f.Fuzz(func(t *testing.T, query string) {
		r := assert.Value(http.NewRequest("POST", "http://h/?", nil))(t)
		r.URL.RawQuery = query
		values := r.URL.Query()
		if _, err := messageOfQuery(values); err != nil {
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || values[e.Subject] == nil {
				t.Errorf("%q: %v", query, err)
			}
		}
	})
}

// A LineReader returns the lines of a text, in any pieces, except those that are too long.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "\n", "a\nb", "a\r\n\n\nb\n", strings.Repeat("x", 21) + "\ny", strings.Repeat("x", 20) + "\r\ny"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
			var got, want []string
			for line := range strings.Lines(text) {
				if line = strings.TrimRight(line, "\r\n"); len(line) > 20 {
					line = "too long"
				}
				want = append(want, line)
			}
			l := newLines(t, r, 20)
			for {
				line, err := l.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if errors.Is(err, errLineTooLong) {
					line, err = []byte("too long"), nil
				}
				assert.Must(t, err)
				got = append(got, string(line))
			}
			assert.That(t, slices.Equal(got, want) && l.Number == len(want), "%q: lines %q, want %q", text, got, want)
		}
		l := newLines(t, io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)), 20)
		n := 0
		for {
			if _, err := l.Next(); errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			n++
		}
		assert.That(t, n == strings.Count(text, "\n"), "%q, cut off there, has %d lines", text, n)
	})
}

// A long line costs no more than its limit.
func TestLongLine(t *testing.T) {
	l := newLines(t, io.MultiReader(io.LimitReader(endless{}, 100<<20), strings.NewReader("\nb")), 1<<10)
	if _, err := l.Next(); !errors.Is(err, errLineTooLong) || cap(l.buf) > 1<<20 {
		t.Errorf("%v, %d bytes kept", err, cap(l.buf))
	}
	if line, err := l.Next(); err != nil || string(line) != "b" {
		t.Errorf("%q, %v", line, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func newLines(t *testing.T, r io.Reader, limit int) *lineReader {
	t.Helper()
	l := assert.Value(newLineReader(r, limit, admission.HoldOf(t.Context())))(t)
	return l
}

// A text that has a key twice is not decoded to a message. The case of letters counts.
func TestDecodeRejectsKeysTwice(t *testing.T) {
	many := func(last string) string {
		var b strings.Builder
		for i := range 40 {
			fmt.Fprintf(&b, `"k%d":"",`, i)
		}
		return `{"properties":{` + b.String() + last + `:""}}`
	}
	for text, want := range map[string]string{
		`{"messages":[{"tag":"a","properties":{"x":"1"}}],"messages":[{"body":"eA=="}]}`: `key "messages" is repeated; give it once`,
		`{"tag":"a","tag":"a"}`:                           `key "tag" is repeated`,
		`{"tag":"a","TAG":"b"}`:                           `key "TAG" is unknown: did you mean tag?`,
		`{"tag":"a","t\u0061g":"b"}`:                      `key "tag" is repeated`,
		`{"keys":["a"],"key\u017f":["b"]}`:                `key "keyſ" is unknown: did you mean keys?`,
		`{"messages":[{},{"id":"a","id":"b"}]}`:           `key "id" is repeated in messages[1]`,
		`{"properties":{"a":"1","b":"","a":"2"}}`:         `key "a" is repeated in properties`,
		`{"properties":{"a":"1"},"properties":{}}`:        `key "properties" is repeated`,
		`{"properties":null,"properties":{}}`:             `key "properties" is repeated`,
		many(`"k39"`):                                     `key "k39" is repeated in properties`,
		many(`"k\u0033"`):                                 `key "k3" is repeated in properties`,
		many(`"K3"`):                                      "",
		`{"properties":{"a":"1","A":"2","ä":"Ä"}}`:        "",
		`{"properties":{"tag":"1","id":"2"},"tag":""}`:    "",
		`{"messages":[{"id":"a"},{"id":"a"}],"tag":"id"}`: "",
		`{"keys":["a","a","keys"],"tag":"keys"}`:          "",
		`{"Tag":"a"}`:                                     `key "Tag" is unknown: did you mean tag?`,
	} {
		err := decodeJSON([]byte(text), new(struct {
			jsonMessage
			Messages []jsonMessage `json:"messages"`
		}))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%.90s: %v, want %q", text, err, want)
		}
	}
}

// A text without a repeated key is not rejected for it, and the reverse.
func FuzzKeysTwice(f *testing.F) {
	for _, s := range []string{`{"a":"1","A":"2"}`, `{"a":"","\u0061":""}`, `{"é":"","\u00e9":""}`, `{"\\":"","\u005c":""}`, `{"a":"\"","b":"}{,"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var v map[string]string
		if json.Unmarshal(raw, &v) != nil || len(v) == 0 {
			return
		}
		n := 0
		d := json.NewDecoder(bytes.NewReader(raw))
		for {
			token, err := d.Token()
			if err != nil {
				break
			}
			if _, text := token.(string); text || token == nil {
				n++
			}
		}
		err := decodeJSON(raw, &v)
		if twice := n != 2*len(v); err == nil == twice || err != nil && !twice {
			if !strings.Contains(fmt.Sprint(err), "not UTF-8") && !strings.Contains(fmt.Sprint(err), "surrogate") {
				t.Errorf("%q: %v, %d texts in %d members", raw, err, n, len(v))
			}
		}
	})
}

// Millions of empty messages are found before they are decoded.
func TestCrowdedJSON(t *testing.T) {
	list := func(n int, of string) string { return "[" + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + "]" }
	for text, want := range map[string]int{
		`{"messages":` + list(3, "{}") + `}`:           -1,
		`{"messages":` + list(4, "{}") + `}`:           12,
		`{"m":[{},{"keys":` + list(4, `""`) + `}]}`:    17,
		`{"a":1,"b":2,"c":3}`:                          -1,
		`{"a":1,"b":2,"c":3,"d":4}`:                    0,
		`{"a":",,,,\",,,,\\","b":"[,,,,"}`:             -1,
		`{"a":"\\",` + `"b":` + list(4, "1") + `}`:     14,
		`{"a":"no end \",,,,,`:                         -1,
		`{"a":"no end \`:                               -1,
		`]]],,,,`:                                      -1,
		`,,,,`:                                         -1,
		strings.Repeat("[", maxNesting+2) + `1,2,3,4,`: -1,
	} {
		if got := crowded([]byte(text), 3); got != want {
			t.Errorf("%.60s: %d, want %d", text, got, want)
		}
	}
	raw := []byte(`{"messages":` + list(5_000_000, "{}") + `}`)
	var err error
	if n := assert.AllocatedBytes(func() {
		err = decodeJSON(raw, new(struct {
			Messages []jsonMessage `json:"messages"`
		}))
	}); n > 1<<20 {
		t.Errorf("5 000 000 messages cost %d bytes", n)
	}
	if refusal.CodeOf(err) != tidegate.CodeBadRequest || !strings.Contains(err.Error(), "16384") || !strings.Contains(err.Error(), "byte 12") {
		t.Errorf("5 000 000 messages: %v", err)
	}
}

// A decoder also finds faults other than lists or objects with too many members.
func FuzzCrowded(f *testing.F) {
	for _, s := range []string{`[1,2,3,4]`, `["\"",[]]`, `[[1,2],[3,4,5]]`, `[["\\",",,,,"],"[,,,"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		const most = 2
		got := crowded(raw, most)
		var v any
		if json.Unmarshal(raw, &v) != nil || bytes.IndexByte(raw, '{') >= 0 {
			return // the keys of an object may repeat
		}
		if want := overfull(v, most); (got >= 0) != want {
			t.Errorf("%q: %d, want %v", raw, got, want)
		}
	})
}

func overfull(v any, most int) bool {
	list, _ := v.([]any)
	for _, x := range list {
		if overfull(x, most) {
			return true
		}
	}
	return len(list) > most
}

// The status over HTTP is that of the code where HTTP means the same by it.
func TestProblemStatus(t *testing.T) {
	for code, want := range map[tidegate.Code]int{
		40000: 400, 40018: 400, 40100: 401, 40200: 402, 40300: 403, 40402: 404, 40800: 408, 41301: 413, 42800: 412, 42900: 429, 42901: 429, 43101: 431,
		50001: 500, 50100: 501, 50401: 504,
		50500: 501, 50501: 501, 50502: 501, // HTTP's 505 is about HTTP itself
		60000: 500, 20001: 500,
	} {
		p := problemOf(&tidegate.Error{Code: code, Message: "x"})
		if p.Status != want || p.Code != int(code) {
			t.Errorf("code %d: status %d, code %d; want status %d", code, p.Status, p.Code, want)
		}
		if wait := p.RetryAfter; (wait != 0) != (want == 429) {
			t.Errorf("code %d: Retry-After %v", code, wait)
		}
	}
	if p := problemOf(&tidegate.Error{Code: 42900, RetryAfter: time.Minute}); p.RetryAfter != settings.Duration(time.Minute) {
		t.Errorf("an estimate of 1m is returned as %v", p.RetryAfter)
	}
}

// An error of readiness names its cause and matches it.
func TestNotReady(t *testing.T) {
	cause := errors.New("the log is broken")
	err := error(&notReady{cause})
	assert.That(t, err.Error() == "not ready: the log is broken" && errors.Is(err, cause), "%v", err)
	assert.Equal(t, "problem", problemOf(err).Status, 503)
}
