package simulation

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// interfaceMethods returns the methods of all exported interfaces of package transport.
func interfaceMethods(t *testing.T) (names []string) {
	t.Helper()
	files := assert.Value(filepath.Glob("../../transport/*.go"))(t)
	for _, name := range files {
		f := assert.Value(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			if i, ok := spec.Type.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					for _, id := range m.Names { // none: an embedded interface
						names = append(names, id.Name)
					}
				}
			}
			return true
		})
	}
	assert.MustThat(t, len(names) >= 15, "package transport has only the methods %v", names)
	return names
}

// several is a transport over several endpoints.
type several struct {
	fullTransport
	transport.EndpointConfigurer
}

// The counting transport forwards and counts each method of the interfaces of package transport,
// and an endpoint keeps its optional interfaces behind it.
func TestCountedForwardsEveryMethod(t *testing.T) {
	for _, name := range interfaceMethods(t) {
		m := &meter{w: &world{}}
		// A nil transport panics when the call reaches it.
		f := reflect.ValueOf(countedLanes{counted{several{}, m}, nil}).MethodByName(name)
		if !f.IsValid() {
			t.Errorf("the counting transport does not have %s, so the SDK would not use it in the simulation", name)
			continue
		}
		args := make([]reflect.Value, f.Type().NumIn())
		for i := range args {
			args[i] = reflect.Zero(f.Type().In(i))
		}
		reached := func() (reached bool) {
			defer func() { reached = recover() != nil }()
			if f.Type().IsVariadic() {
				f.CallSlice(args)
			} else {
				f.Call(args)
			}
			return false
		}()
		assert.That(t, reached, "%s is not forwarded", name)
		quiet := name == "Capabilities" || name == "EndpointSettings" // they send no request
		if counted := m.total(name) == 1; !counted && !quiet {
			t.Errorf("%s is not counted", name)
		}
	}
}
