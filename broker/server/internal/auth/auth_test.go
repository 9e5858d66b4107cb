package auth

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/assert"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func constant(d digest) func(string) (digest, bool) {
	return func(string) (digest, bool) { return d, true }
}

func idOf(t *testing.T, a, b string) SessionID {
	t.Helper()
	id, ok := SessionIDOf(a, b)
	assert.MustThat(t, ok, "%q and %q are no halves", a, b)
	return id
}

// A session ends after 30 minutes without a use, after 12 hours, and when the digest of its key
// changes or its key is gone; a use before that postpones only the first.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uses    []time.Duration // since the login
		current func(string) (digest, bool)
		want    bool // of the last use
	}{
		"at once":                {[]time.Duration{0}, nil, true},
		"idle":                   {[]time.Duration{30 * time.Minute}, nil, false},
		"almost idle":            {[]time.Duration{30*time.Minute - 1}, nil, true},
		"used":                   {[]time.Duration{29 * time.Minute, 58 * time.Minute, 87 * time.Minute}, nil, true},
		"idle after uses":        {[]time.Duration{29 * time.Minute, 60 * time.Minute}, nil, false},
		"another secret or rule": {[]time.Duration{time.Minute}, constant(digest{2}), false},
		"no key":                 {[]time.Duration{time.Minute}, func(string) (digest, bool) { return digest{1}, false }, false},
	} {
		s := NewSessions()
		a, b, expires := s.Begin("key", digest{1}, start)
		assert.That(t, expires.Equal(start.Add(12*time.Hour)), "%s: expires %v", name, expires)
		if c.current == nil {
			c.current = constant(digest{1})
		}
		var key string
		var ok bool
		for _, d := range c.uses {
			key, _, ok = s.Use(idOf(t, a, b), c.current, start.Add(d))
		}
		assert.That(t, ok == c.want && (!ok || key == "key"), "%s: %q, %v; want %v", name, key, ok, c.want)
		if _, _, again := s.Use(idOf(t, a, b), constant(digest{1}), start.Add(c.uses[len(c.uses)-1])); again != c.want {
			t.Errorf("%s: an ended session can be used again", name)
		}
	}
	s := NewSessions()
	a, b, _ := s.Begin("key", digest{1}, start)
	for d := time.Duration(0); d < 12*time.Hour; d += 20 * time.Minute {
		if _, _, ok := s.Use(idOf(t, a, b), constant(digest{1}), start.Add(d)); !ok {
			t.Fatalf("it ended after %v", d)
		}
	}
	if _, _, ok := s.Use(idOf(t, a, b), constant(digest{1}), start.Add(12*time.Hour)); ok {
		t.Error("it did not end after 12 hours")
	}
}

// A key has at most 20 sessions and the server 1000; the sessions that were idle longest end.
func TestSessionBounds(t *testing.T) {
	t.Parallel()
	s := NewSessions()
	var ids []SessionID
	for i := range 21 {
		if i == 20 { // the first is used again, so the second ends
			s.Use(ids[0], constant(digest{}), start.Add(time.Minute))
		}
		a, b, _ := s.Begin("key", digest{}, start.Add(time.Duration(i)*time.Second))
		ids = append(ids, idOf(t, a, b))
	}
	for i, id := range ids {
		if _, _, ok := s.Use(id, constant(digest{}), start.Add(2*time.Minute)); ok != (i != 1) {
			t.Errorf("session %d of 21 can be used: %v", i, ok)
		}
	}
	for i := range 1100 {
		s.Begin(fmt.Sprint("key", i), digest{}, start.Add(3*time.Minute))
	}
	assert.Equal(t, "sessions", len(s.byID), 1000)
	s.Begin("key", digest{}, start.Add(time.Hour))
	assert.Equal(t, "sessions after all were idle", len(s.byID), 1)
}

// A session needs both halves, and the store has neither of them.
func TestSessionHalves(t *testing.T) {
	t.Parallel()
	s := NewSessions()
	a, b, _ := s.Begin("key", digest{}, start)
	c, d, _ := s.Begin("key", digest{}, start)
	for _, x := range [][2]string{{a, d}, {c, b}, {b, a}, {a, a}} {
		if _, _, ok := s.Use(idOf(t, x[0], x[1]), constant(digest{}), start); ok {
			t.Errorf("%q opens a session", x)
		}
	}
	for _, x := range [][2]string{{"", ""}, {a, ""}, {"", a + b}, {a, b + "A"}, {a, "!"}, {a, b[:10]}} {
		if _, ok := SessionIDOf(x[0], x[1]); ok {
			t.Errorf("%q are accepted as halves", x)
		}
	}
	x, _ := base64.RawURLEncoding.DecodeString(a)
	for id, v := range s.byID {
		assert.That(t, string(id[:16]) != string(x) && string(id[16:]) != string(x) && v.key == "key", "the store has a half of the token")
	}
	s.End(idOf(t, a, b))
	if _, _, ok := s.Use(idOf(t, a, b), constant(digest{}), start); ok {
		t.Error("it was used after its end")
	}
}

// loginAttempts is one Attempts with the times of its test.
type loginAttempts struct {
	attempts
	t *testing.T
}

// judge makes an attempt and checks its wait; -1 means that it is rejected.
func (a *loginAttempts) judge(address, name string, right bool, at, want time.Duration) {
	a.t.Helper()
	got, ok := a.Judge(address, name, right, start.Add(at))
	if !ok {
		got = -1
	}
	assert.That(a.t, got == want, "%s from %s at %v, right: %t: a wait of %v, want %v", name, address, at, right, got, want)
}

const reject = time.Duration(-1)

// Five logins of an address with one name can fail at once. After that one attempt a second
// begins, for any number of concurrent attempts, until 10 minutes have passed or an attempt
// succeeds.
func TestAttempts(t *testing.T) {
	t.Parallel()
	a := loginAttempts{t: t}
	for range 5 {
		a.judge("x", "admin", false, 0, 0)
	}
	for i := range 10 {
		a.judge("x", "admin", false, 0, time.Duration(i+1)*time.Second)
	}
	a.judge("x", "admin", false, 0, reject)
	a.judge("x", "admin", true, 0, reject) // a right secret is no exception, or its response would reveal it
	a.judge("x", "admin", false, 5*time.Second, 6*time.Second)
	a.judge("x", "monitor", false, 5*time.Second, 0) // another name of the address
	a.judge("y", "admin", true, 5*time.Second, 0)    // another address
	a.judge("x", "admin", true, 5*time.Second, 7*time.Second)
	a.judge("x", "admin", true, 5*time.Second, 0)
	for range 5 {
		a.judge("x", "admin", false, 2*time.Hour, 0)
	}
	a.judge("x", "admin", false, 2*time.Hour, time.Second)
	a.judge("x", "admin", false, 3*time.Hour, 0)
}

// A right login of another name changes nothing.
func TestRightLoginOfAnotherName(t *testing.T) {
	t.Parallel()
	a := loginAttempts{t: t}
	for range 5 {
		a.judge("x", "admin", false, 0, 0)
		a.judge("x", "own", true, 0, 0)
	}
	a.judge("x", "admin", false, 0, time.Second)
	a.judge("x", "own", true, 0, 0)
	a.judge("x", "admin", false, 0, 2*time.Second)
}

// An address that guesses many names is bounded as a whole: each name that has not failed gets one
// guess, and all others together two a second. It does not delay a name that was not guessed.
func TestGuessesOfManyNames(t *testing.T) {
	t.Parallel()
	a := loginAttempts{t: t}
	judged := func(name string, at time.Duration) (n int) {
		for {
			if wait, ok := a.Judge("x", name, false, start.Add(at)); !ok {
				return n
			} else if n++; wait == 0 && n > 1000 {
				t.Fatalf("%s: the guesses are not bounded", name)
			}
		}
	}
	total := 0
	for i := range 1000 {
		total += judged(fmt.Sprint("key-", i), 0)
	}
	// 20 at once, one more for each name, and 10 s of two a second.
	if most := 20 + 1000 + 20; total > most {
		t.Errorf("%d guesses at once, want at most %d", total, most)
	}
	total = 0
	for s := range 60 {
		for i := range 1000 {
			total += judged(fmt.Sprint("key-", i), time.Minute+time.Duration(s)*time.Second)
		}
	}
	if most := 2*60 + 20; total > most {
		t.Errorf("%d guesses in a minute, want at most %d", total, most)
	}
	a.judge("x", "clean", true, 2*time.Minute, 0)
	a.judge("y", "key-1", true, 2*time.Minute, 0)
}

// Names and addresses take bounded memory.
func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	var a attempts
	for i := range 2 * maxEntries {
		a.Judge(fmt.Sprint(i), "", false, start)
	}
	if n, m := len(a.names.entries), len(a.addresses.entries); n > 10_000 || m > 10_000 {
		t.Errorf("%d names and %d addresses, the limit is 10 000", n, m)
	}
	a.Judge("late", "", false, start.Add(forgetAfter))
	if n, m := len(a.names.entries), len(a.addresses.entries); n != 1 || m != 1 {
		t.Errorf("%d names and %d addresses when all others are old, want one", n, m)
	}
}

// With one rejection each second, the log has the first five and then one every two seconds, by
// reason.
func TestRejectionLog(t *testing.T) {
	now := time.Unix(1000, 0)
	var l refusalLog
	for _, reason := range []access.Reason{access.NoCredentials, "other"} {
		logged, told := 0, 0
		for i := range 100 {
			if unlogged, log := l.take(reason, now.Add(time.Duration(i)*time.Second)); log {
				logged++
				told += unlogged
			}
		}
		if other := l.reasons[reason].other; logged != 54 || logged+told+other != 100 {
			t.Errorf("reason %v: %d logged, %d counted in these lines, %d not yet; want 54 of 100", reason, logged, told, other)
		}
	}
}
