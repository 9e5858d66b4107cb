package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/tidegate/tidegate/broker"
)

// show writes a configuration as a file that says the same, with a comment
// that tells where each value came from.
func (c config) show(w io.Writer) {
	width := 0
	for _, r := range settingRules {
		width = max(width, len(r.key)+2+len(value(r, &c.settings.value)))
	}
	above := ""
	for _, r := range settingRules {
		key := r.key
		if outer, inner, nested := strings.Cut(r.key, "."); nested {
			if outer != above {
				fmt.Fprintf(w, "%s:\n", outer)
			}
			key, above = "  "+inner, outer
		}
		fmt.Fprintf(w, "%-*s  # %s\n", width, key+": "+value(r, &c.settings.value), c.settings.from[r.key].comment())
	}
	c.access.show(w) // access is the last of them
	showAll(w, "topics", topicRules, c.topics)
	showAll(w, "groups", groupRules, c.groups)
	showAll(w, "address_settings", addressRules, c.addresses)
}

func showAll[T any](w io.Writer, what string, rules []rule[T], all map[string]section[T]) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "%s:\n", what)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		fmt.Fprintf(w, "  %s:  # %s\n", quoted(name), s.at.comment())
		above := ""
		for _, r := range rules {
			indent, key := "    ", r.key
			if outer, inner, nested := strings.Cut(r.key, "."); nested {
				if outer != above {
					fmt.Fprintf(w, "    %s:\n", outer)
				}
				indent, key, above = "      ", inner, outer
			}
			if _, ok := s.from[r.key]; !ok && r.keeps != "" {
				fmt.Fprintf(w, "%s# %s: %s\n", indent, key, r.keeps)
				continue
			}
			comment := s.from[r.key].comment()
			if _, ok := s.from[r.key]; !ok && r.inherits != "" {
				comment += ": " + r.inherits
			}
			fmt.Fprintf(w, "%s%s: %s  # %s\n", indent, key, value(r, &s.value), comment)
		}
	}
}

// value is a field as YAML.
func value[T any](r rule[T], v *T) string {
	if r.reset == nil {
		return quoted(r.text(v))
	}
	var items []string
	for item := range strings.SplitSeq(r.text(v), ",") {
		if item != "" {
			items = append(items, quoted(item))
		}
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// A plain text means itself in YAML, wherever it stands.
var plain = regexp.MustCompile(`^[A-Za-z0-9]([\w.:/-]*[A-Za-z0-9])?( [A-Za-z0-9]([\w.:/-]*[A-Za-z0-9])?)*$|^-[0-9]+[a-z]*$`)

// quoted returns s as YAML.
func quoted(s string) string {
	if plain.MatchString(s) && !strings.EqualFold(s, "null") {
		return s
	}
	return fmt.Sprintf("%q", s)
}

// differing returns the keys in which two values differ.
func differing[T any](rules []rule[T], a, b T) []string {
	var keys []string
	for _, r := range rules {
		if r.text(&a) != r.text(&b) {
			keys = append(keys, r.key)
		}
	}
	return keys
}

// change splits the way from running settings to wanted ones: next is what
// can run at once, applied are its keys that differ from before, and restart
// those that it lacks.
func change(running, wanted settings) (next settings, applied, restart []string) {
	next = running
	for _, r := range settingRules {
		switch {
		case r.text(&running) == r.text(&wanted):
		case !r.live:
			restart = append(restart, r.key)
		default:
			if r.reset != nil {
				r.reset(&next)
			}
			if err := r.set(&next, r.text(&wanted)); err == nil { // it was legal in wanted
				applied = append(applied, r.key)
			}
		}
	}
	return next, applied, restart
}

// topicsToPut returns the topics as they shall be: those declared, and those
// of the list that are not declared and not there yet. there tells the
// settings of a topic that exists.
func (c config) topicsToPut(there func(name string) (broker.TopicConfig, bool)) map[string]broker.TopicConfig {
	put := map[string]broker.TopicConfig{}
	for name, s := range c.topics {
		put[name] = s.value
	}
	for _, t := range c.settings.value.topics {
		name, kind, _ := strings.Cut(t, ":")
		d, isDeclared := c.topics[name]
		_, exists := there(name)
		switch {
		case isDeclared && d.value.Type == "" && !exists:
			d.value.Type = broker.TopicType(kind)
			put[name] = d.value
		case !isDeclared && !exists:
			put[name] = broker.TopicConfig{Type: broker.TopicType(kind)}
		}
	}
	return put
}
