package serve

import (
	"reflect"
	"slices"

	"github.com/tidegate/tidegate/cmd/internal/declare"
)

// A candidate is one value that a source gives for a setting, overridden or not.
type candidate struct {
	row  int // index in settings.table
	at   any // pointer to the value
	from origin
}

// fromFile returns the candidates of the file; c has read nothing else yet.
func (c *config) fromFile() (all []candidate) {
	for i, row := range c.settings.table() {
		if at, ok := c.from[pathOf(row.key)]; ok {
			value := reflect.New(reflect.TypeOf(row.at).Elem())
			assign(value.Interface(), row.at)
			all = append(all, candidate{i, value.Interface(), at})
		}
	}
	return all
}

// override reads the values of the environment or of the flags into c and returns them as
// candidates. If a setting has several values, a list collects all of them; otherwise the last one
// counts.
func (c *config) override(layer values) (all []candidate, bad faults) {
	for i, row := range c.settings.table() {
		for n, g := range layer[row.key] {
			c.from[pathOf(row.key)] = g.from
			value := reflect.New(reflect.TypeOf(row.at).Elem())
			digits, err := declare.Digits(row.key, g.text)
			if err == nil {
				err = declare.Set(value.Elem(), digits)
			}
			if err != nil {
				bad = append(bad, faultf(g.from, "is %q: %v", g.text, err))
				continue
			}
			all = append(all, candidate{i, value.Interface(), g.from})
			if list, ok := row.at.(*[]string); ok && n > 0 {
				*list = slices.Concat(*list, value.Elem().Interface().([]string))
				continue
			}
			assign(row.at, value.Interface())
		}
	}
	return all, bad
}

// amongDefaults returns the error of settings that have the defaults except for the given values.
func amongDefaults(given ...candidate) error {
	s := defaultSettings()
	for _, g := range given {
		assign(s.table()[g.row].at, g.at)
	}
	return s.validate()
}

// blame returns the values that the broker or the server would reject. It checks each candidate
// among defaults, also an overridden one. A candidate that they reject there is accepted if it fits
// together with one other candidate: min_long_polling 30s needs a max_long_polling, possibly from
// another source. If the values that count are accepted one by one but not together, blame returns
// the first one without which the others are accepted.
func (c *config) blame(all []candidate) (bad faults) {
	var sound, suspects []candidate
	for _, g := range all {
		if amongDefaults(g) == nil {
			sound = append(sound, g)
			continue
		}
		suspects = append(suspects, g)
	}
	rows, blamed := c.settings.table(), false
	for _, g := range suspects {
		if slices.ContainsFunc(sound, func(s candidate) bool { return s.row != g.row && amongDefaults(g, s) == nil }) {
			continue
		}
		bad = append(bad, faultf(g.from, "is %q: %v", text(g.at), amongDefaults(g)))
		blamed = blamed || c.from[pathOf(rows[g.row].key)] == g.from
	}
	whole := c.settings.validate()
	if whole == nil || blamed {
		return bad
	}
	for i, row := range rows {
		others := *c.settings
		assign(others.table()[i].at, defaultSettings().table()[i].at)
		if at, ok := c.from[pathOf(row.key)]; ok && others.validate() == nil {
			return append(bad, faultf(at, "is %q: %v", text(row.at), whole))
		}
	}
	return append(bad, faultf(origin{File: c.file, Line: 1}, "the settings are invalid in combination: %v", whole))
}

// assign copies the value behind the pointer from to the variable behind the pointer to.
func assign(to, from any) { reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem()) }
