package address

import (
	"slices"
	"strings"
	"testing"
)

func parse(tb testing.TB, text string) Pattern {
	tb.Helper()
	p, err := Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// Artemis: undelivered messages: "Address wildcards can be used to configure redelivery delay for a
// set of addresses"
func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"orders", "orders", true},
		{"orders", "orders.eu", false},
		{"orders", "Orders", false},
		{"*", "orders", true},
		{"*", "orders.eu", false},
		{"#", "orders", true},
		{"#", "orders.eu.berlin", true},
		{"orders.*", "orders.eu", true},
		{"orders.*", "orders", false},
		{"orders.*", "orders.eu.berlin", false},
		{"orders.#", "orders", true}, // any number of words: none too
		{"orders.#", "orders.eu.berlin", true},
		{"orders.#", "ordersx", false},
		{"#.berlin", "orders.eu.berlin", true},
		{"#.berlin", "berlin", true},
		{"#.berlin", "berlin.eu", false},
		{"orders.#.berlin", "orders.berlin", true},
		{"orders.#.berlin", "orders.a.b.berlin", true},
		{"orders.#.berlin", "orders.a.berlin.b", false},
		{"#.a.#.b", "x.a.y.a.b", true},
		{"#.*", "a", true},
		{"#.*.*", "a", false},
	} {
		if got := parse(t, c.pattern).Match(c.name); got != c.want {
			t.Errorf("%q matches %q: %t, want %t", c.pattern, c.name, got, c.want)
		}
	}
}

func TestParseRejects(t *testing.T) {
	for pattern, want := range map[string]string{
		"": "empty", ".": "empty word", "a.": "empty word", ".a": "empty word", "a..b": "empty word", "a*": `"a*"`, "a.b#.c": `"b#"`, "##": `"##"`,
		"a b": "white space", "a/b": "slash", "a\x00": "control", "\xff": "UTF-8", strings.Repeat("a", 256): "256 bytes",
		"#.a.#.a.#.a.#.a.#.a.#.a.#.a.#.a.#": "9 words #", "#.#": "twice", "a.#.*.#": "twice",
	} {
		if _, err := Parse(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", pattern, err, want)
		}
	}
}

func TestMatchingIsMostSpecificFirst(t *testing.T) {
	var s Set[string]
	for _, p := range []string{"#", "orders.#", "*.eu", "orders.*", "orders.eu", "*.*", "#.eu", "orders.#.eu", "other"} {
		s = s.With(parse(t, p), p)
	}
	want := []string{"orders.eu", "orders.#.eu", "orders.*", "*.eu", "orders.#", "#.eu", "*.*", "#"}
	if got := s.Matching("orders.eu"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	s = s.Without(parse(t, "orders.eu")).Without(parse(t, "not.there")).With(parse(t, "#"), "changed")
	if got := s.Matching("a.b.c"); !slices.Equal(got, []string{"changed"}) {
		t.Errorf("%q", got)
	}
	if _, ok := s.Get(parse(t, "orders.eu")); ok {
		t.Error("the removed pattern still matches")
	}
}

// every returns all sequences of up to n of the words.
func every(words []string, n int) (out []string) {
	level := []string{""}
	for range n {
		var next []string
		for _, before := range level {
			for _, w := range words {
				next = append(next, strings.TrimPrefix(before+"."+w, "."))
			}
		}
		out = append(out, next...)
		level = next
	}
	return out
}

// If pattern a matches only a part of the names of pattern b, a goes before b. This holds for any
// two patterns.
func TestCompareFollowsSets(t *testing.T) {
	names := every([]string{"a", "b", "other"}, 5)
	var ps []Pattern
	var sets [][]bool
	for _, text := range every([]string{"a", "b", "*", "#"}, 3) {
		p, err := Parse(text)
		if err != nil {
			continue // '#' twice
		}
		set := make([]bool, len(names))
		for i, n := range names {
			set[i] = p.Match(n)
		}
		ps, sets = append(ps, p), append(sets, set)
	}
	for i := range ps {
		for j := range ps {
			if (Compare(ps[i], ps[j]) < 0) != (Compare(ps[j], ps[i]) > 0) || (Compare(ps[i], ps[j]) == 0) != (i == j) {
				t.Fatalf("%s and %s have no order", ps[i], ps[j])
			}
			within, smaller := true, false
			for k := range names {
				within = within && (!sets[i][k] || sets[j][k])
				smaller = smaller || !sets[i][k] && sets[j][k]
			}
			if within && smaller && Compare(ps[i], ps[j]) >= 0 {
				t.Errorf("%s matches less than %s, but does not go before it", ps[i], ps[j])
			}
		}
	}
}

// slowMatch is the definition.
func slowMatch(pattern, name []string) bool {
	switch {
	case len(pattern) == 0:
		return len(name) == 0
	case pattern[0] == "#":
		return slowMatch(pattern[1:], name) || len(name) > 0 && slowMatch(pattern, name[1:])
	}
	return len(name) > 0 && (pattern[0] == "*" || pattern[0] == name[0]) && slowMatch(pattern[1:], name[1:])
}

func FuzzMatch(f *testing.F) {
	f.Add("a.#.b.*.c.#", "a.b.c.b.b.c")
	f.Add("#", "")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p, err := Parse(pattern)
		if err != nil || len(name) > 24 {
			return
		}
		if p.String() != pattern {
			t.Errorf("%q became %q", pattern, p)
		}
		if got, want := p.Match(name), slowMatch(strings.Split(pattern, "."), strings.Split(name, ".")); got != want {
			t.Errorf("%q matches %q: %t, want %t", pattern, name, got, want)
		}
	})
}
