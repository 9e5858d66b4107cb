package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Changes lists the settings that differ, a line each with the old and the new value.
func Changes(before, after any) string {
	old, now := map[string]string{}, map[string]string{}
	var order []string
	note := func(into map[string]string, settings any) {
		for _, f := range SettingFields(settings) {
			into[f.Name] = fmt.Sprint(f.Value)
			if !slices.Contains(order, f.Name) {
				order = append(order, f.Name)
			}
		}
	}
	note(old, before)
	note(now, after)
	var b strings.Builder
	for _, key := range order {
		if old[key] != now[key] {
			fmt.Fprintf(&b, "%s: %s -> %s\n", key, cmp.Or(old[key], "default"), cmp.Or(now[key], "default"))
		}
	}
	return b.String()
}
