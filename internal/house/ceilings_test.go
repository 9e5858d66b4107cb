package house

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// The ceilings of the layout. They go down with the work, and up only for a new capability, by
// packages that the commit names.
var ceilings = map[string]struct{ packages, files, single int }{
	"the root module":      {packages: 73, files: 330, single: 12},
	"the whole repository": {packages: 83, files: 365, single: 15},
}

// A room is a package with code: a directory with a Go file that is no test.
type room struct {
	dir       string
	files     int
	lines     int
	importers map[string]bool // packages whose code imports it, also in nested modules
	pure      bool            // its comment claims pure functions, and it has tests
}

// rooms returns the packages with code, nested modules included or not.
func rooms(t *testing.T, nested bool) map[string]*room {
	t.Helper()
	list := map[string]*room{}
	modules := map[string]bool{}
	for _, name := range load(t, files) {
		if path.Base(name) == "go.mod" && name != "go.mod" {
			modules[path.Dir(name)] = true
		}
	}
	inNested := func(dir string) bool {
		for ; dir != "." && dir != ""; dir = path.Dir(dir) {
			if modules[dir] {
				return true
			}
		}
		return false
	}
	claims, tested := map[string]bool{}, map[string]bool{}
	for _, s := range load(t, sources) {
		if s.test() {
			tested[s.dir] = true
			continue
		}
		if !nested && inNested(s.dir) {
			continue
		}
		r := list[s.dir]
		if r == nil {
			r = &room{dir: s.dir, importers: map[string]bool{}}
			list[s.dir] = r
		}
		r.files++
		r.lines += len(s.lines)
		claims[s.dir] = claims[s.dir] || claimsPurity(s)
	}
	for _, s := range load(t, sources) {
		if s.test() || strings.HasPrefix(s.dir, "examples") { // examples are programs of users
			continue
		}
		for _, spec := range s.file.Imports {
			if p, ours := ourPath(spec); ours && p != s.dir && list[p] != nil {
				list[p].importers[s.dir] = true
			}
		}
	}
	for dir, r := range list {
		r.pure = claims[dir] && tested[dir]
	}
	return list
}

// TestCeilings bounds the packages with code, their files, and the packages that have a single
// importer and are no pure core. A boundary between packages is earned by a pure core with tests,
// by a dependency or protocol to isolate, or by two importers. With -v, or if a ceiling is
// exceeded, the test prints the ten smallest packages, the ten with the most files, and the ten
// smallest with a single importer.
func TestCeilings(t *testing.T) {
	atRoot(t)
	for name, most := range ceilings {
		list := slices.Collect(maps.Values(rooms(t, name == "the whole repository")))
		slices.SortFunc(list, func(a, b *room) int { return cmp.Or(cmp.Compare(a.lines, b.lines), strings.Compare(a.dir, b.dir)) })
		total := 0
		var single []*room
		for _, r := range list {
			total += r.files
			if len(r.importers) == 1 && !r.pure {
				single = append(single, r)
			}
		}
		byFiles := slices.SortedStableFunc(slices.Values(list), func(a, b *room) int { return cmp.Compare(b.files, a.files) })
		for _, c := range []struct {
			what       string
			have, most int
			worst      []*room
		}{
			{"packages with code", len(list), most.packages, list},
			{"files with code", total, most.files, byFiles},
			{"packages with one importer that are no pure core", len(single), most.single, single},
		} {
			text := fmt.Sprintf("%s has %d %s, the ceiling is %d:", name, c.have, c.what, c.most)
			for _, r := range c.worst[:min(10, len(c.worst))] {
				text += fmt.Sprintf("\n  %4d lines in %2d files: %s, for %s", r.lines, r.files, cmp.Or(r.dir, "the root"), strings.Join(slices.Sorted(maps.Keys(r.importers)), ", "))
			}
			if c.have > c.most {
				t.Errorf("%s\njoin packages or files, or name the new capability and its packages in the commit that raises the ceiling", text)
			} else {
				t.Log(text)
			}
		}
	}
}
