package main

import (
	"slices"
	"strings"
)

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
