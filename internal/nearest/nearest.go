// Package nearest suggests the correct name for a mistyped one.
package nearest

import (
	"fmt"
	"strings"
)

// maxName is the maximum length of a name to compare, in bytes. The time for a distance grows with
// the square of the length.
const maxName = 100

// Hint returns the end of the error text for an unknown name: "did you mean queues?", or the list
// of all known names.
func Hint(name string, known []string) string {
	if n := Name(name, known); n != "" {
		return fmt.Sprintf("did you mean %s?", n)
	}
	return "the names are " + strings.Join(known, ", ")
}

// Name returns the known name that is most similar to name, the first
// of several, or "" if none is similar. Case is ignored, and - equals _.
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

// distance returns the number of letters to change, add, remove or swap with the next
// one that turns a into b.
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
