package main

import (
	"fmt"
	"slices"
	"strings"
)

// unknown is the end of a fault about a name that is none of known.
func unknown(name string, known []string) string {
	if n := nearest(name, known); n != "" {
		return fmt.Sprintf("did you mean %s?", n)
	}
	return "known are " + strings.Join(known, ", ")
}

// nearest returns the name that a mistyped one most likely stands for, or ""
// if it is far from all.
func nearest(name string, known []string) string {
	if len(name) > 100 {
		return "" // no typing error, and the distance costs its square
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

func keysOf[T any](rules []rule[T]) []string {
	keys := make([]string, len(rules))
	for i, r := range rules {
		keys[i] = r.key
	}
	return keys
}

// level returns the names that may stand directly below prefix: with
// "max_backlog.", messages and bytes.
func level(keys []string, prefix string) []string {
	var names []string
	for _, k := range keys {
		if rest, ok := strings.CutPrefix(k, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
