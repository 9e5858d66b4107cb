package house

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// realSleeps are the functions that may sleep in real time outside a bubble
// of testing/synctest, as "directory.function", each with the reason why
// neither a bubble nor waiting for the thing itself will do.
var realSleeps = map[string]string{
	"internal/endtoend.BenchmarkIdleSDK": "it measures the CPU time of idle processes in real time",
}

func TestPackageComments(t *testing.T) {
	atRoot(t)
	name, doc := map[string]string{}, map[string]string{}
	for _, s := range load(t, sources) {
		if !s.test() {
			name[s.dir] = s.file.Name.Name
			doc[s.dir] += s.file.Doc.Text()
		}
	}
	for dir, pkg := range name {
		switch {
		case doc[dir] == "":
			t.Errorf("package %q has no doc comment: describe above its package clause its purpose and where to start", dir)
		case pkg != "main" && !strings.Contains("\n"+doc[dir], "\nPackage "+pkg+" "):
			t.Errorf("the doc comment of package %q does not begin with %q", dir, "Package "+pkg+" ")
		}
	}
}

func TestExportedIdentifiersAreDocumented(t *testing.T) {
	atRoot(t)
	for _, s := range load(t, sources) {
		if s.test() || s.generated || s.main() || slices.Contains(strings.Split(s.dir, "/"), "internal") {
			continue
		}
		undocumented := func(n *ast.Ident, docs ...*ast.CommentGroup) {
			for _, d := range docs {
				if d.Text() != "" {
					return
				}
			}
			if n.IsExported() {
				t.Errorf("%s: %s has no doc comment: describe the behaviour that a caller can rely on", fset.Position(n.Pos()), n.Name)
			}
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || ast.IsExported(receiver(d)) {
					undocumented(d.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						undocumented(spec.Name, d.Doc, spec.Doc, spec.Comment)
						if spec.Name.IsExported() {
							eachMember(spec, undocumented)
						}
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							undocumented(n, d.Doc, spec.Doc, spec.Comment)
						}
					}
				}
			}
		}
	}
}

// eachMember visits the members of a type that need comments of their own. These are the fields of
// options, whose comments name unit and default, and the methods of an interface that has several.
// The comment of any other type may cover its members. A member without a comment shares that of
// the line above, so that one comment can explain related members.
func eachMember(spec *ast.TypeSpec, visit func(*ast.Ident, ...*ast.CommentGroup)) {
	var members []*ast.Field
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		for _, suffix := range []string{"Options", "Config", "Settings"} {
			if strings.HasSuffix(spec.Name.Name, suffix) {
				members = typ.Fields.List
			}
		}
	case *ast.InterfaceType:
		if len(typ.Methods.List) > 1 {
			members = typ.Methods.List
		}
	}
	var above []*ast.CommentGroup
	end := 0
	for _, m := range members {
		docs := []*ast.CommentGroup{m.Doc, m.Comment}
		if m.Doc == nil && m.Comment == nil && fset.Position(m.Pos()).Line == end+1 {
			docs = above
		}
		above, end = docs, fset.Position(m.End()).Line
		for _, n := range m.Names {
			visit(n, docs...)
		}
	}
}

// receiver is the name of the type that a method belongs to.
func receiver(d *ast.FuncDecl) string {
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
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

// streams are the files of the command line that have the streams of the process, and the ways past
// the filter of a cli.writer, with the reason.
var streams = map[string]string{
	"cmd/internal/cli/app.go":               "gives the streams of the process to the commands",
	"cmd/internal/cli/completion.go":        "cobra's script; cobra writes to the output of the app",
	"cmd/internal/cli/deadletters.go":       "the outputs of the programs of --exec",
	"cmd/internal/cli/execute.go":           "cobra's help; cobra writes to the output of the app",
	"cmd/internal/cli/group.go":             "the line of a number that counts",
	"cmd/internal/cli/lines.go":             "the standard error of the programs of --exec-lines",
	"cmd/internal/cli/receive.go":           "--raw and --format print bodies as they are",
	"cmd/internal/cli/result.go":            "the line of a number that counts",
	"cmd/internal/cli/terminal.go":          "the filter itself; draws screens, of filtered lines",
	"cmd/internal/cli/top.go":               "enters and leaves the screen",
	"cmd/internal/cli/watch.go":             "enters and leaves the screen",
	"cmd/internal/cli/work.go":              "the outputs of the programs of --exec",
	"cmd/tidegate/internal/release/main.go": "a tool of the release",
}

// Texts of others cannot control the terminal: the commands write to the streams of their app,
// which are terminal.Writers. Each further way is listed. JSON has one encoder, which escapes the
// characters that JSON need not escape.
func TestOneWayToTheTerminal(t *testing.T) {
	atRoot(t)
	unused := maps.Clone(streams)
	for _, s := range load(t, sources) {
		if s.test() || !strings.HasPrefix(s.path, "cmd/") {
			continue
		}
		for n := range ast.Preorder(s.file) {
			found := ""
			for _, way := range [][2]string{
				{"os", "Stdout"}, {"os", "Stderr"}, {"fmt", "Print"}, {"fmt", "Printf"}, {"fmt", "Println"},
				{"log", "Print"}, {"log", "Printf"}, {"log", "Println"}, {"log", "Fatal"}, {"log", "Fatalf"}, {"slog", "Default"}, {"slog", "Info"}, {"slog", "Warn"}, {"slog", "Error"},
			} {
				if selects(n, way[0], way[1]) {
					found = way[0] + "." + way[1]
				}
			}
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if slices.Contains([]string{"OutOrStdout", "OutOrStderr", "ErrOrStderr", "PrintErr", "PrintErrf", "PrintErrln"}, n.Sel.Name) {
					found = n.Sel.Name
				}
			case *ast.Ident: // of package cli
				if strings.HasPrefix(s.path, "cmd/internal/cli/") && (n.Name == "unfiltered" || n.Name == "control") {
					found = n.Name
				}
			}
			if found == "" {
				continue
			}
			if delete(unused, s.path); streams[s.path] == "" {
				t.Errorf("%s: %s goes around the filter of the terminal: write to the Out or Err of the app (or enter the file in streams with the reason)", fset.Position(n.Pos()), found)
			}
		}
		for n := range ast.Preorder(s.file) {
			if selects(n, "json", "NewEncoder") && s.path != "cmd/internal/output/table.go" && s.path != "cmd/internal/cli/carryjournal.go" {
				t.Errorf("%s: a JSON encoder that does not escape all characters that control a terminal: use output.Encode or output.Line", fset.Position(n.Pos()))
			}
		}
	}
	for path := range unused {
		t.Errorf("streams names %s, which uses none of them", path)
	}
}

// Time passes in bubbles only. A sleep outside one makes a test slow, or
// wrong on a slow machine; in a library it outlives the caller's context.
func TestSleepsAreVirtual(t *testing.T) {
	atRoot(t)
	packages := map[string][]source{}
	for _, s := range load(t, sources) {
		switch {
		case s.test() || s.testTool():
			packages[s.dir] = append(packages[s.dir], s)
		case !s.main():
			for n := range ast.Preorder(s.file) {
				if selects(n, "time", "Sleep") {
					t.Errorf("%s: time.Sleep in a library: wait with a timer and ctx.Done, or backoff.Sleep", fset.Position(n.Pos()))
				}
			}
		}
	}
	unused := maps.Clone(realSleeps)
	for dir, list := range packages {
		for _, sleep := range sleepsOutsideBubbles(list) {
			key := dir + "." + sleep.within
			if realSleeps[key] == "" {
				t.Errorf("%s: a real sleep: wait for the thing itself, or run in synctest.Test (or enter %q in realSleeps with the reason)",
					fset.Position(sleep.pos), key)
			}
			delete(unused, key)
		}
	}
	for key := range unused {
		t.Errorf("realSleeps names %s, which does not sleep", key)
	}
}

// A mention is an identifier in a function body, inside the arguments of a
// call that runs them in a bubble or not.
type mention struct {
	pos      token.Pos
	within   string // the top-level function
	inBubble bool
}

// sleepsOutsideBubbles finds the calls of time.Sleep in a package's tests that
// are neither in a bubble nor in a function that is mentioned only in bubbles.
// It goes by names, which is enough for tests: two methods of one name count
// as one function.
func sleepsOutsideBubbles(list []source) []mention {
	funcs, wrappers := map[string]bool{}, map[string]bool{}
	each := func(f func(*ast.FuncDecl)) {
		for _, s := range list {
			for _, d := range s.file.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
					f(d)
				}
			}
		}
	}
	for known := -1; known < len(wrappers); { // until no wrapper of a wrapper is left
		known = len(wrappers)
		each(func(d *ast.FuncDecl) {
			funcs[d.Name.Name] = true
			if wrapsBubble(d, wrappers) {
				wrappers[d.Name.Name] = true
			}
		})
	}
	var sleeps []mention
	mentions := map[string][]mention{}
	each(func(d *ast.FuncDecl) {
		var walk func(n ast.Node, inBubble bool)
		walk = func(n ast.Node, inBubble bool) {
			ast.Inspect(n, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if startsBubble(n, wrappers) {
						walk(n.Fun, inBubble)
						for _, arg := range n.Args {
							walk(arg, true)
						}
						return false
					}
				case *ast.SelectorExpr:
					if selects(n, "time", "Sleep") {
						sleeps = append(sleeps, mention{n.Pos(), d.Name.Name, inBubble})
					}
				case *ast.Ident:
					if funcs[n.Name] {
						mentions[n.Name] = append(mentions[n.Name], mention{n.Pos(), d.Name.Name, inBubble})
					}
				}
				return true
			})
		}
		walk(d.Body, false)
	})

	// Begin with the assumption that every function runs in bubbles only. Remove the functions that
	// are called elsewhere, until there are no more.
	virtual := map[string]bool{}
	for name := range mentions {
		virtual[name] = true
	}
	outside := func(m mention) bool { return !m.inBubble && !virtual[m.within] }
	for struck := true; struck; {
		struck = false
		for name := range virtual {
			if slices.ContainsFunc(mentions[name], outside) {
				delete(virtual, name)
				struck = true
			}
		}
	}
	return slices.DeleteFunc(sleeps, func(m mention) bool { return !outside(m) })
}

// startsBubble reports whether a call runs its arguments in a bubble.
func startsBubble(n *ast.CallExpr, wrappers map[string]bool) bool {
	callee, ok := n.Fun.(*ast.Ident)
	return selects(n.Fun, "synctest", "Test") || selects(n.Fun, "assert", "Bubble") || selects(n.Fun, "brokertest", "Run") || ok && wrappers[callee.Name]
}

// wrapsBubble reports whether a function runs its function argument in a bubble.
func wrapsBubble(d *ast.FuncDecl, wrappers map[string]bool) bool {
	given := map[string]bool{}
	for _, p := range d.Type.Params.List {
		if _, ok := p.Type.(*ast.FuncType); ok {
			for _, n := range p.Names {
				given[n.Name] = true
			}
		}
	}
	for n := range ast.Preorder(d.Body) {
		call, ok := n.(*ast.CallExpr)
		if !ok || !startsBubble(call, wrappers) {
			continue
		}
		for _, arg := range call.Args {
			for n := range ast.Preorder(arg) {
				if id, ok := n.(*ast.Ident); ok && given[id.Name] {
					return true
				}
			}
		}
	}
	return false
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

// typedErrors are the directories with functions that return a concrete error type, and why the
// functions do not return error. A nil pointer in an error variable is not a nil error, so their
// callers assign a result to an error only after a comparison with nil.
var typedErrors = map[string]string{
	"":                                 "it is never nil",
	"broker/server/internal/auth":      "the callers encode its code and its delay; nil admits the request",
	"broker/internal/refusal":          "the callers encode its code and its delay",
	"internal/httpapi":                 "it is never nil, and the callers add the operation",
	"producer":                         "a SendError gets its attempts and its reason from the callers",
	"ratelimit":                        "the exported methods add the subject",
	"transport/amqp":                   "the callers read MaybeStored and NotConnected",
	"transport/amqp/internal/convert":  "as transport/amqp",
	"transport/held":                   "as transport/amqp",
	"transport/rest":                   "it is never nil",
	"transport/rocketmq":               "the callers read Code, MaybeStored and NotConnected",
	"transport/rocketmq/internal/conn": "as transport/rocketmq",
}

// TestErrorsAreInterfaces finds functions that return a concrete error type without a reason.
func TestErrorsAreInterfaces(t *testing.T) {
	atRoot(t)
	found := map[string]bool{}
	for _, s := range load(t, sources) {
		if s.test() || s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Type.Results == nil {
				continue
			}
			last := f.Type.Results.List[len(f.Type.Results.List)-1].Type
			star, ok := last.(*ast.StarExpr)
			if !ok {
				continue
			}
			name := ""
			switch x := star.X.(type) {
			case *ast.Ident:
				name = x.Name
			case *ast.SelectorExpr:
				name = x.Sel.Name
			}
			if !strings.HasSuffix(name, "Error") {
				continue
			}
			found[s.dir] = true
			if typedErrors[s.dir] == "" {
				t.Errorf("%s: %s returns *%s: return error, or give the reason in typedErrors", s.path, f.Name.Name, name)
			}
		}
	}
	for dir := range typedErrors {
		if !found[dir] {
			t.Errorf("no function of %q returns a concrete error type: remove its reason", dir)
		}
	}
}
