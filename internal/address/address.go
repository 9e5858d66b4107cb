// Package address matches names against address patterns (Artemis: undelivered messages): words
// joined by '.', '*' for exactly one word, '#' for any number of words, including none. It is pure.
package address

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLength is the most bytes of a pattern.
const MaxLength = 255

// maxMany is the most '#' in a pattern. The limit keeps the time of a match proportional to the
// lengths of pattern and name.
const maxMany = 8

const (
	one  = "*" // exactly one word
	many = "#" // any number of words
)

// A Pattern is a parsed address pattern. It does not change, so goroutines may share it. Create one
// with [Parse].
type Pattern struct {
	text  string
	words []string
	rank  [3]int // see Compare
}

// Parse parses a pattern. The error explains why the pattern is not valid, and the valid form.
func Parse(text string) (Pattern, error) {
	p := Pattern{text: text, words: strings.Split(text, ".")}
	switch {
	case text == "":
		return Pattern{}, fmt.Errorf("the pattern is empty; give words joined by '.', with * for one word and # for any number of words")
	case len(text) > MaxLength:
		return Pattern{}, fmt.Errorf("the pattern has %d bytes; the limit is %d", len(text), MaxLength)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '/' }):
		return Pattern{}, fmt.Errorf("the pattern %q has white space, a slash, a control character or bytes that are not UTF-8; remove them", text)
	}
	manies, run := 0, 0 // of '#', and of those since the last plain word
	for _, w := range p.words {
		switch {
		case w == "":
			return Pattern{}, fmt.Errorf("the pattern %q has an empty word; give a word between two dots, and no dot at the ends", text)
		case w == many:
			if run++; run > 1 { // or one set of names would have patterns of several ranks
				return Pattern{}, fmt.Errorf("the pattern %q has # twice without a plain word in between; give one #", text)
			}
			manies++
		case w == one:
			p.rank[1]++
		case strings.ContainsAny(w, one+many):
			return Pattern{}, fmt.Errorf("the pattern %q has the word %q, but * and # replace whole words; give them alone between dots", text, w)
		default:
			run = 0
			p.rank[0]++
			p.rank[1]++
		}
	}
	if manies > maxMany {
		return Pattern{}, fmt.Errorf("the pattern %q has %d words #; the limit is %d", text, manies, maxMany)
	}
	p.rank[2] = -manies
	return p, nil
}

// String returns the text that was parsed.
func (p Pattern) String() string { return p.text }

// Match reports whether the pattern matches the name.
func (p Pattern) Match(name string) bool { return p.match(strings.Split(name, ".")) }

// match matches like a glob. On a mismatch it goes back to the last '#' only, which then takes one
// word more.
func (p Pattern) match(name []string) bool {
	i, n := 0, 0
	backTo, backName := -1, 0
	for n < len(name) {
		switch {
		case i < len(p.words) && p.words[i] == many:
			backTo, backName = i, n
			i++
		case i < len(p.words) && (p.words[i] == one || p.words[i] == name[n]):
			i++
			n++
		case backTo >= 0:
			backName++
			i, n = backTo+1, backName
		default:
			return false
		}
	}
	for i < len(p.words) && p.words[i] == many {
		i++
	}
	return i == len(p.words)
}

// Compare orders patterns by precedence and is negative if a goes before b. It compares in this
// order:
//
//  1. the number of words that are no wildcard: more goes first,
//  2. the least number of words in a name that matches: more goes first,
//  3. the number of '#': fewer goes first,
//  4. the position of the plain words: further to the left goes first,
//  5. the text.
//
// So a pattern goes before every other pattern that matches all of its names.
func Compare(a, b Pattern) int { return cmp.Or(CompareRank(a, b), strings.Compare(a.text, b.text)) }

// CompareRank is [Compare] without the comparison by text, so it is zero for some different
// patterns, such as "a.*" and "b.*".
func CompareRank(a, b Pattern) int {
	for i := range a.rank {
		if c := cmp.Compare(b.rank[i], a.rank[i]); c != 0 {
			return c
		}
	}
	return slices.CompareFunc(a.words, b.words, func(x, y string) int { return cmp.Compare(weight(y), weight(x)) })
}

func weight(word string) int {
	switch word {
	case many:
		return 0
	case one:
		return 1
	}
	return 2
}

// A Set is values by pattern. It does not change: With and Without return
// another one. The zero value is empty.
type Set[T any] struct {
	entries []entry[T] // by Compare
}

type entry[T any] struct {
	pattern Pattern
	value   T
}

// With returns the set with the value of a pattern added or replaced.
func (s Set[T]) With(p Pattern, v T) Set[T] {
	i, there := s.find(p)
	out := slices.Clone(s.entries)
	if there {
		out[i].value = v
		return Set[T]{out}
	}
	return Set[T]{slices.Insert(out, i, entry[T]{p, v})}
}

// Without returns the set without a pattern.
func (s Set[T]) Without(p Pattern) Set[T] {
	i, there := s.find(p)
	if !there {
		return s
	}
	return Set[T]{slices.Delete(slices.Clone(s.entries), i, i+1)}
}

func (s Set[T]) find(p Pattern) (int, bool) {
	return slices.BinarySearchFunc(s.entries, p, func(e entry[T], p Pattern) int { return Compare(e.pattern, p) })
}

// Get returns the value of exactly that pattern, and false if it has none.
func (s Set[T]) Get(p Pattern) (v T, ok bool) {
	if i, there := s.find(p); there {
		return s.entries[i].value, true
	}
	return v, false
}

// All calls f with every pattern and its value, in the order of [Compare].
func (s Set[T]) All(f func(Pattern, T)) {
	for _, e := range s.entries {
		f(e.pattern, e.value)
	}
}

// Matching returns the values of the patterns that match the name, the most
// specific first.
func (s Set[T]) Matching(name string) []T {
	var out []T
	words := strings.Split(name, ".")
	for _, e := range s.entries {
		if e.pattern.match(words) {
			out = append(out, e.value)
		}
	}
	return out
}
