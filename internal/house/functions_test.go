package house

import (
	"cmp"
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// A field with a function hides who calls whom: the reader of the call does not see the callee, and
// the reader of the callee does not find the caller. In the engine and the server each such field
// had one callee, and most of them could be the type of the callee, an interface that names its
// part, an argument or a value. So their number is bounded by maxFunctionFields, and functionFields
// has the ones that remain with the reason for each. Lists of functions, named function types and
// the functions that end a context count too.
const maxFunctionFields = 12

var functionFields = map[string]string{
	"broker/internal/engine.lifetime.stop":       "ends a context",
	"broker/internal/engine.restoration.strays":  "writes that follow when all is read",
	"broker/internal/engine.taskConfig.Follow":   "as Step; one task needs it",
	"broker/internal/engine.taskConfig.Step":     "a task is a function; several are methods of one type",
	"broker/internal/store.PendingWrite.after":   "each writer of a batch has its own",
	"broker/internal/engine.Watch.ready":         "a callback as that of time.AfterFunc; the caller is the engine",
	"broker/server.Options.Intercept":            "of the user",
	"broker/server.Server.endLife":               "ends a context",
	"broker/server.route.serve":                  "the table of routes, as in net/http",
	"broker/server.rpc.do":                       "the table of RPCs, as in gRPC",
	"broker/server/internal/auth.Regime.end":     "ends a context",
	"broker/server/internal/session.poll.cancel": "ends a context",
}

// TestFunctionFields counts the fields of structs of the engine and the server that have functions.
// With -v it prints them.
func TestFunctionFields(t *testing.T) {
	atRoot(t)
	var list []source
	for _, s := range load(t, sources) {
		if !s.test() && (under(s.dir, "broker/internal") || under(s.dir, "broker/server")) {
			list = append(list, s)
		}
	}
	found := functionsIn(list)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		t.Logf("%s: %s", name, functionFields[name])
		if functionFields[name] == "" {
			t.Errorf("%s: %s has a function: give it the type that is called, an interface that names its part, or an argument; "+
				"if a function is right, add the field to functionFields with the reason", found[name], name)
		}
	}
	t.Logf("%d fields have functions", len(found))
	if len(found) > maxFunctionFields {
		t.Errorf("%d fields have functions, the limit is %d", len(found), maxFunctionFields)
	}
	for name := range functionFields {
		if found[name] == "" {
			t.Errorf("functionFields has %s, which does not exist or has no function any more", name)
		}
	}
}

// functionsIn returns the positions of all fields that have functions, by package, struct and name.
func functionsIn(list []source) map[string]string {
	named := map[string]bool{"context.CancelFunc": true, "context.CancelCauseFunc": true, "http.HandlerFunc": true}
	for _, s := range list {
		for _, d := range s.file.Decls {
			eachType(d, func(spec *ast.TypeSpec) {
				if hasFunction(spec.Type, s, nil) {
					named[s.file.Name.Name+"."+spec.Name.Name] = true
				}
			})
		}
	}
	found := map[string]string{}
	for _, s := range list {
		owner := map[ast.Node]string{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				owner[n.Type] = n.Name.Name
			case *ast.StructType:
				for _, f := range n.Fields.List {
					if !hasFunction(f.Type, s, named) {
						continue
					}
					name := s.dir + "." + cmp.Or(owner[n], "struct in "+s.path)
					at := fset.Position(f.Pos()).String()
					if len(f.Names) == 0 {
						found[name+" (embedded)"] = at
					}
					for _, id := range f.Names {
						found[name+"."+id.Name] = at
					}
				}
			}
			return true
		})
	}
	return found
}

func eachType(d ast.Decl, visit func(*ast.TypeSpec)) {
	if g, ok := d.(*ast.GenDecl); ok {
		for _, spec := range g.Specs {
			if spec, ok := spec.(*ast.TypeSpec); ok {
				visit(spec)
			}
		}
	}
}

// hasFunction reports whether a value of a type in a file is or lists functions. named has the
// named types that are. Structs and interfaces within the type do not count.
func hasFunction(typ ast.Expr, in source, named map[string]bool) (has bool) {
	ast.Inspect(typ, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType, *ast.InterfaceType:
			return false
		case *ast.FuncType:
			has = true
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				has = has || named[x.Name+"."+n.Sel.Name]
			}
			return false
		case *ast.Ident:
			has = has || named[in.file.Name.Name+"."+n.Name]
		}
		return !has
	})
	return has
}
