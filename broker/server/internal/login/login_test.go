package login

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func constant(d Digest) func(string) (Digest, bool) {
	return func(string) (Digest, bool) { return d, true }
}

func idOf(t *testing.T, a, b string) ID {
	t.Helper()
	id, ok := IDOf(a, b)
	if !ok {
		t.Fatalf("%q and %q are no halves", a, b)
	}
	return id
}

// A session ends after 30 minutes without a use, after 12 hours, and when the digest of its key
// changes or its key is gone; a use before that postpones only the first.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uses    []time.Duration // since the login
		current func(string) (Digest, bool)
		want    bool // of the last use
	}{
		"at once":                {[]time.Duration{0}, nil, true},
		"idle":                   {[]time.Duration{30 * time.Minute}, nil, false},
		"almost idle":            {[]time.Duration{30*time.Minute - 1}, nil, true},
		"used":                   {[]time.Duration{29 * time.Minute, 58 * time.Minute, 87 * time.Minute}, nil, true},
		"idle after uses":        {[]time.Duration{29 * time.Minute, 60 * time.Minute}, nil, false},
		"another secret or rule": {[]time.Duration{time.Minute}, constant(Digest{2}), false},
		"no key":                 {[]time.Duration{time.Minute}, func(string) (Digest, bool) { return Digest{1}, false }, false},
	} {
		s := New()
		a, b, expires := s.Begin("key", Digest{1}, start)
		if !expires.Equal(start.Add(12 * time.Hour)) {
			t.Errorf("%s: expires %v", name, expires)
		}
		if c.current == nil {
			c.current = constant(Digest{1})
		}
		var key string
		var ok bool
		for _, d := range c.uses {
			key, _, ok = s.Use(idOf(t, a, b), c.current, start.Add(d))
		}
		if ok != c.want || ok && key != "key" {
			t.Errorf("%s: %q, %v; want %v", name, key, ok, c.want)
		}
		if _, _, again := s.Use(idOf(t, a, b), constant(Digest{1}), start.Add(c.uses[len(c.uses)-1])); again != c.want {
			t.Errorf("%s: an ended session can be used again", name)
		}
	}
	s := New()
	a, b, _ := s.Begin("key", Digest{1}, start)
	for d := time.Duration(0); d < 12*time.Hour; d += 20 * time.Minute {
		if _, _, ok := s.Use(idOf(t, a, b), constant(Digest{1}), start.Add(d)); !ok {
			t.Fatalf("it ended after %v", d)
		}
	}
	if _, _, ok := s.Use(idOf(t, a, b), constant(Digest{1}), start.Add(12*time.Hour)); ok {
		t.Error("it did not end after 12 hours")
	}
}

// A key has at most 20 sessions and the server 1000; the sessions that were idle longest end.
func TestSessionBounds(t *testing.T) {
	t.Parallel()
	s := New()
	var ids []ID
	for i := range 21 {
		if i == 20 { // the first is used again, so the second ends
			s.Use(ids[0], constant(Digest{}), start.Add(time.Minute))
		}
		a, b, _ := s.Begin("key", Digest{}, start.Add(time.Duration(i)*time.Second))
		ids = append(ids, idOf(t, a, b))
	}
	for i, id := range ids {
		if _, _, ok := s.Use(id, constant(Digest{}), start.Add(2*time.Minute)); ok != (i != 1) {
			t.Errorf("session %d of 21 can be used: %v", i, ok)
		}
	}
	for i := range 1100 {
		s.Begin(fmt.Sprint("key", i), Digest{}, start.Add(3*time.Minute))
	}
	if n := len(s.byID); n != 1000 {
		t.Errorf("%d sessions, want 1000", n)
	}
	s.Begin("key", Digest{}, start.Add(time.Hour))
	if n := len(s.byID); n != 1 {
		t.Errorf("%d sessions after all were idle, want the new one", n)
	}
}

// A session needs both halves, and the store has neither of them.
func TestSessionHalves(t *testing.T) {
	t.Parallel()
	s := New()
	a, b, _ := s.Begin("key", Digest{}, start)
	c, d, _ := s.Begin("key", Digest{}, start)
	for _, x := range [][2]string{{a, d}, {c, b}, {b, a}, {a, a}} {
		if _, _, ok := s.Use(idOf(t, x[0], x[1]), constant(Digest{}), start); ok {
			t.Errorf("%q opens a session", x)
		}
	}
	for _, x := range [][2]string{{"", ""}, {a, ""}, {"", a + b}, {a, b + "A"}, {a, "!"}, {a, b[:10]}} {
		if _, ok := IDOf(x[0], x[1]); ok {
			t.Errorf("%q are accepted as halves", x)
		}
	}
	x, _ := base64.RawURLEncoding.DecodeString(a)
	for id, v := range s.byID {
		if string(id[:16]) == string(x) || string(id[16:]) == string(x) || v.key != "key" {
			t.Errorf("the store has a half of the token")
		}
	}
	s.End(idOf(t, a, b))
	if _, _, ok := s.Use(idOf(t, a, b), constant(Digest{}), start); ok {
		t.Error("it was used after its end")
	}
}

// Five logins of an address can fail at once. After that one attempt a second begins, for any
// number of concurrent attempts, until 10 minutes have passed or an attempt succeeds.
func TestAttempts(t *testing.T) {
	t.Parallel()
	var a Attempts
	fail := func(n int, at time.Duration) {
		for range n {
			a.Failed("x", start.Add(at))
		}
	}
	delay := func(address string, at, want time.Duration, ok bool) {
		t.Helper()
		if got, gotOK := a.Delay(address, start.Add(at)); ok != gotOK || ok && got != want {
			t.Errorf("the delay of %s at %v is %v, %v; want %v, %v", address, at, got, gotOK, want, ok)
		}
	}
	fail(4, 0)
	delay("x", 0, 0, true)
	fail(1, 0)
	for i := range 10 {
		delay("x", 0, time.Duration(i+1)*time.Second, true)
	}
	delay("x", 0, 0, false)
	delay("x", 5*time.Second, 6*time.Second, true)
	delay("y", 0, 0, true)
	delay("x", time.Hour, 0, true)
	fail(5, 2*time.Hour)
	delay("x", 2*time.Hour, time.Second, true)
	a.Succeeded("x")
	delay("x", 2*time.Hour, 0, true)
	for i := range 2 * maxAddresses {
		a.Failed(fmt.Sprint(i), start)
	}
	if n := len(a.addresses); n > maxAddresses {
		t.Errorf("%d addresses, the limit is %d", n, maxAddresses)
	}
	a.Failed("late", start.Add(forgetAfter))
	if n := len(a.addresses); n != 1 {
		t.Errorf("%d addresses when all others are old, want one", n)
	}
}
