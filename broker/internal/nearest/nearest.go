// Package nearest finds the name that a mistyped one most likely stands for.
package nearest

import (
	"fmt"
	"strings"
)

// maxName is how long a name may be to be taken for a typing error, in bytes:
// the distance costs its square.
const maxName = 100

// Hint is the end of a fault about a name that is none of known: "did you
// mean queues?", or all that there are.
func Hint(name string, known []string) string {
	if n := Name(name, known); n != "" {
		return fmt.Sprintf("did you mean %s?", n)
	}
	return "known are " + strings.Join(known, ", ")
}

// Name returns the one of known that name most likely stands for, the first
// of several, or "" if it is far from all. Case does not count, nor do - and _ differ.
func Name(name string, known []string) string {
	if len(name) > maxName {
		return ""
	}
	plain := func(s string) []rune { return []rune(strings.ReplaceAll(strings.ToLower(s), "-", "_")) }
	best, at := "", 0
	for _, k := range known {
		d := distance(plain(name), plain(k))
		if limit := max(1, min(3, len(k)/2)); d <= limit && (best == "" || d < at) {
			best, at = k, d
		}
	}
	return best
}

// distance counts the letters to change, add, remove or swap with the next
// one to make b of a.
func distance(a, b []rune) int {
	before, last := []int(nil), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range a {
		row := []int{i + 1}
		for j := range b {
			d := last[j]
			if a[i] != b[j] {
				d = 1 + min(d, last[j+1], row[j])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, 1+before[j-1])
			}
			row = append(row, d)
		}
		before, last = last, row
	}
	return last[len(b)]
}
