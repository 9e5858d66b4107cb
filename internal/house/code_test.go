package house

import (
	"go/ast"
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
		if !strings.Contains(list, dir) && !under(dir, "transport/amqp") {
			t.Errorf("package %q decides by tidegate.Class: name it in the list in errors.go", dir)
		}
	}
}
