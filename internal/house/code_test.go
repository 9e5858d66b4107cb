package house

import (
	"cmp"
	"fmt"
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMembersAreDocumented requires a comment for each field of options, whose comment names unit
// and default, and for each method of an interface that has several. A member without a comment
// shares that of the line above, so that one comment can explain related members. The linter
// requires the comments of packages, types and functions.
func TestMembersAreDocumented(t *testing.T) {
	atRoot(t)
	for _, s := range load(t, sources) {
		if s.test() || s.generated || s.main() || slices.Contains(strings.Split(s.dir, "/"), "internal") {
			continue
		}
		for n := range ast.Preorder(s.file) {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				continue
			}
			documented, end := false, 0
			for _, m := range members(spec) {
				own := m.Doc != nil || m.Comment != nil
				documented = own || documented && fset.Position(m.Pos()).Line == end+1
				end = fset.Position(m.End()).Line
				for _, id := range m.Names {
					if id.IsExported() && !documented {
						t.Errorf("%s: %s.%s has no comment: name its unit and its default, or what a caller can rely on", fset.Position(id.Pos()), spec.Name, id.Name)
					}
				}
			}
		}
	}
}

// members are the members of a type that need comments.
func members(spec *ast.TypeSpec) []*ast.Field {
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		for _, suffix := range []string{"Options", "Config", "Settings"} {
			if strings.HasSuffix(spec.Name.Name, suffix) {
				return typ.Fields.List
			}
		}
	case *ast.InterfaceType:
		if len(typ.Methods.List) > 1 {
			return typ.Methods.List
		}
	}
	return nil
}

// A root context in library code is cut off from its caller's deadline and cancellation, so the
// line, or the comment above it, names the lifetime of the context.
func TestRootContextsHaveAReason(t *testing.T) {
	atRoot(t)
	for _, s := range load(t, sources) {
		if s.test() || s.main() {
			continue
		}
		commented := map[int]bool{}
		for _, c := range s.file.Comments {
			commented[fset.Position(c.End()).Line] = true
		}
		for n := range ast.Preorder(s.file) {
			if line := fset.Position(n.Pos()).Line; (selects(n, "context", "Background") || selects(n, "context", "TODO")) &&
				!commented[line] && !commented[line-1] {
				t.Errorf("%s: a root context without a reason: use the caller's ctx, or give the reason on this line or above it", fset.Position(n.Pos()))
			}
		}
	}
}

func selects(n ast.Node, pkg, name string) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func TestNoSkips(t *testing.T) {
	atRoot(t)
	for _, s := range load(t, sources) {
		for n := range ast.Preorder(s.file) {
			for _, tb := range []string{"t", "b", "f", "tb"} {
				if selects(n, tb, "Skip") || selects(n, tb, "Skipf") || selects(n, tb, "SkipNow") {
					t.Errorf("%s: a skipped test passes for no reason: make it run everywhere or remove it", fset.Position(n.Pos()))
				}
			}
		}
	}
}

// Time passes in bubbles only. A sleep outside one makes a test slow, or wrong on a slow machine, so
// only the tests of a package that has bubbles sleep. In a library a sleep outlives the caller's
// context.
func TestSleepsAreVirtual(t *testing.T) {
	atRoot(t)
	sleeps, bubbles := map[string]ast.Node{}, map[string]bool{}
	for _, s := range load(t, sources) {
		tests := s.test() || s.testTool()
		for n := range ast.Preorder(s.file) {
			switch {
			case selects(n, "synctest", "Test"), selects(n, "assert", "Bubble"), selects(n, "brokertest", "Run"):
				bubbles[s.dir] = true
			case !selects(n, "time", "Sleep"):
			case tests:
				sleeps[s.dir] = n
			case !s.main():
				t.Errorf("%s: time.Sleep in a library: wait with a timer and ctx.Done, or backoff.Sleep", fset.Position(n.Pos()))
			}
		}
	}
	for dir, n := range sleeps {
		if !bubbles[dir] {
			t.Errorf("%s: a real sleep: wait for the thing itself, or run in synctest.Test", fset.Position(n.Pos()))
		}
	}
}

// TestClassesAreListed compares the packages that decide by a class of errors with the list beside
// tidegate.Class.
func TestClassesAreListed(t *testing.T) {
	atRoot(t)
	uses, list := map[string]bool{}, ""
	for _, s := range load(t, sources) {
		if s.path == "errors.go" {
			list = strings.Join(s.lines, "\n")
		}
		isClass := func(n ast.Node) bool {
			found := false
			ast.Inspect(n, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Class") {
					pkg, ok := sel.X.(*ast.Ident)
					found = found || ok && pkg.Name == "tidegate" && sel.Sel.Name != "Class" && sel.Sel.Name != "ClassOK"
				}
				return true
			})
			return found
		}
		if !s.test() && !s.testTool() && !under(s.dir, "examples") && isClass(s.file) {
			uses[s.dir] = true
		}
	}
	if len(uses) == 0 {
		t.Fatal("no package decides by class")
	}
	for dir := range uses {
		if !strings.Contains(list, dir) && !under(dir, "transport/amqp") && !under(dir, "transport/pulsar") {
			t.Errorf("package %q decides by tidegate.Class: name it in the list in errors.go", dir)
		}
	}
}

// pureClaim is the sentence in the first paragraph of a package comment that is checked.
var pureClaim = regexp.MustCompile(`(?i)\bpure (functions?|decisions?|rules?|code|logic)\b|\bis pure\b|(without|no) (a )?clock, lock`)

// impure are the imports, and clock the functions of package time, that a pure package has none of:
// locks, I/O and the time of the machine.
var (
	impure = []string{"sync", "sync/atomic", "os", "net", "net/http", "io/fs", "path/filepath", "google.golang.org/grpc"}
	clock  = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}
)

// claimsPurity reports whether a file has the comment of a package that claims pure functions.
func claimsPurity(s source) bool {
	if s.file.Doc == nil {
		return false
	}
	first, _, _ := strings.Cut(s.file.Doc.Text(), "\n\n") // later paragraphs speak of other packages too
	return pureClaim.MatchString(strings.Join(strings.Fields(first), " "))
}

// TestPurePackages requires that a package whose comment claims pure functions has no lock, no I/O
// and no clock.
func TestPurePackages(t *testing.T) {
	atRoot(t)
	list := load(t, sources)
	pure := map[string]bool{}
	for _, s := range list {
		if !s.test() && claimsPurity(s) {
			pure[s.dir] = true
		}
	}
	if len(pure) < 3 {
		t.Errorf("%d packages claim to be pure: this test no longer sees them", len(pure))
	}
	for _, s := range list {
		if !pure[s.dir] || s.test() {
			continue
		}
		for _, spec := range s.file.Imports {
			if p := strings.Trim(spec.Path.Value, `"`); slices.Contains(impure, p) {
				t.Errorf("%s: package %q calls itself pure and imports %s: move the import, or correct the comment", fset.Position(spec.Pos()), s.dir, p)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			for _, f := range clock {
				if selects(n, "time", f) {
					t.Errorf("%s: package %q calls itself pure and uses time.%s: pass the time as an argument, or correct the comment", fset.Position(n.Pos()), s.dir, f)
				}
			}
			return true
		})
	}
}

// The ceilings of the layout. They go down with the work, and up only for a new capability, by
// packages that the commit names.
var ceilings = map[string]struct{ packages, files, single int }{
	"the root module":      {packages: 78, files: 347, single: 12},
	"the whole repository": {packages: 91, files: 396, single: 16},
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
