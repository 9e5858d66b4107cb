package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// atRoot makes the root of the repository the working directory of a test. It is not the work of a
// TestMain: go test does not see a change of the directory there, and would then take results from
// its cache although files have changed.
func atRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}

const module = "github.com/tidegate/tidegate"

// A row lists the packages of this module that its packages may import: "" is the root, "..." is
// all. A package belongs to the row with the longest path above it; the root's row is for the root
// alone. It may always import the packages of its own row. Tests may also import testTools and the
// row's packages for tests.
type row struct{ imports, tests []string }

var testTools = []string{"mocks", "transport/transporttest", "broker/brokertest", "broker/settings", "broker/status", "internal/assert", "internal/model"}

var importTable = map[string]row{
	"":          {tests: []string{"..."}},
	"backoff":   {},
	"ratelimit": {imports: []string{""}},
	"transport": {imports: []string{"", "backoff"}},
	"transport/rocketmq": {
		imports: []string{"", "transport", "backoff", "internal/guard", "internal/rmqpb", "internal/wire"},
		tests:   []string{"broker", "broker/server", "producer"}, // the example
	},
	"transport/rocketmq/interop":         {imports: []string{"internal/javaserver"}, tests: []string{"..."}}, // programs of users, on two servers, and the runner of one of them
	"transport/rocketmq/interop/compare": {imports: []string{"", "backoff", "consumer", "producer", "transport/rocketmq", "transport/rocketmq/interop"}, tests: []string{"broker", "broker/server"}},
	"transport/amqp": { // a nested module; only its program that starts a server imports an internal package of this one
		imports: []string{"", "transport", "transport/held", "internal/javaserver"},
		tests:   []string{"backoff", "producer", "consumer", "internal/amqppeer", "internal/servertest"}, // on a real server and on a peer
	},
	"transport/pulsar": { // as transport/amqp
		imports: []string{"", "transport", "transport/held", "internal/javaserver"},
		tests:   []string{"backoff", "producer", "consumer", "internal/servertest"}, // on a real server
	},
	"transport/rest": {
		imports: []string{"", "transport", "backoff", "internal/guard", "internal/httpapi"},
		tests:   []string{"broker", "broker/server", "producer", "consumer"}, // over a broker
	},
	"transport/failover": {
		imports: []string{"", "transport"},
		tests:   []string{"backoff", "broker", "broker/server", "transport/rocketmq"}, // over two brokers
	},
	"transport/held": {
		imports: []string{"", "transport", "internal/guard"},
		tests:   []string{"backoff", "consumer"}, // over a Table
	},
	"transport/transporttest": { // the suite creates topics and groups with their settings
		imports: []string{"", "transport", "backoff", "broker/settings"},
		tests:   []string{"producer", "consumer"}, // of the Fake
	},
	"producer": {imports: []string{"", "transport", "backoff", "ratelimit", "internal/filelock", "internal/guard", "internal/tally", "internal/wallclock"}},
	"consumer": {imports: []string{"", "transport", "backoff", "ratelimit", "internal/address", "internal/guard", "internal/tally"}},
	"oteltidegate": {
		imports: []string{"", "producer", "consumer", "transport"},
		tests:   []string{"broker", "broker/server", "broker/brokertest"}, // a trace goes through the broker
	},
	"consumer/deadletter": { // an exception of the SDK: it reads dead letters by admin.Client, which its users pass
		imports: []string{"", "transport", "backoff", "ratelimit", "broker/admin", "broker/status", "internal/filelock", "internal/httpapi"},
		tests:   []string{"broker", "broker/server", "transport/rest"}, // over a broker
	},
	"broker":          {imports: []string{"", "transport", "backoff", "ratelimit", "internal/address", "internal/tally", "internal/wallclock", "broker/settings", "broker/status"}, tests: []string{"producer"}}, // the example
	"broker/settings": {imports: []string{"", "backoff"}},
	"broker/status":   {imports: []string{"", "broker/settings"}},
	"broker/server": {
		imports: []string{"", "backoff", "transport", "broker", "broker/settings", "broker/status", "internal/httpapi", "internal/rmqpb", "internal/wire", "internal/access", "internal/admission", "internal/console", "internal/nearest"},
		tests:   []string{"transport/rocketmq", "transport/rest", "broker/admin", "internal/endtoend"}, // over the clients, and gRPC calls without an SDK
	},
	"broker/brokertest": {
		imports: []string{"", "broker", "broker/server", "broker/settings", "broker/status", "consumer", "transport", "transport/rocketmq"},
		tests:   []string{"..."}, // with the SDK's producers and consumers
	},
	"internal/endtoend":   {imports: []string{"..."}}, // tests only, and their set-up
	"internal/simulation": {imports: []string{"..."}}, // tests only
	"broker/admin":        {imports: []string{"", "backoff", "broker/settings", "broker/status", "internal/httpapi"}, tests: []string{"broker", "broker/server", "transport"}},
	"internal/httpapi":    {imports: []string{""}},                                                         // under the clients of HTTP, and its types in the server
	"internal/address":    {},                                                                              // patterns of broker and consumer
	"internal/filelock":   {},                                                                              // journals and spools, which one process writes
	"internal/guard":      {imports: []string{"backoff"}},                                                  // calls of the program's functions
	"internal/tally":      {},                                                                              // log lines of broker and consumer
	"internal/wallclock":  {},                                                                              // whether the wall clock can be trusted, for broker and spool
	"internal/rmqpb":      {tests: []string{""}},                                                           // the generated protocol
	"internal/wire":       {imports: []string{"", "transport", "internal/rmqpb"}},                          // its codec, for transport/rocketmq and broker/server
	"internal/access":     {},                                                                              // access keys of broker/server and the program
	"internal/admission":  {imports: []string{""}},                                                         // connections and memory of broker/server and the program
	"internal/nearest":    {},                                                                              // "did you mean" of broker/server and the program
	"internal/amqppeer":   {},                                                                              // tests only: a server of AMQP
	"internal/javaserver": {},                                                                              // real servers, for tests and the programs that start them
	"internal/model":      {},                                                                              // tests only: random models
	"internal/servertest": {imports: []string{"", "consumer", "producer", "transport", "internal/assert"}}, // tests only: on real servers
	"internal/assert":     {},                                                                              // tests only: checks in one line
	"internal/house":      {},                                                                              // tests only

	"internal/console": { // the files of the web console, for broker/server and the program
		tests: []string{"", "internal/httpapi"},
	},
	"internal/console/browsertest": { // a nested module: tests only, in a browser
		tests: []string{"", "broker", "broker/server", "producer", "transport", "transport/rocketmq", "internal/console", "internal/httpapi"},
	},

	"cmd":      {imports: []string{"..."}},
	"mocks":    {imports: []string{"", "transport"}, tests: []string{"producer"}}, // the example
	"examples": {imports: []string{"..."}},
}

// notSDK are the packages that may depend on heavyweights. A package that is not below one of these
// belongs to the SDK.
var notSDK = []string{
	"broker", "cmd", "mocks", "examples",
	"oteltidegate",                     // imported only by programs that report to OpenTelemetry
	"producer/spool", "consumer/inbox", // imported only by programs that use a local disk
	"transport/transporttest", "internal/endtoend", "internal/assert", "internal/model", // imported only by tests
	"transport/rocketmq/interop",         // tests, and a program in a module of its own
	"internal/console/browsertest",       // tests, in a module of their own
	"transport/amqp", "transport/pulsar", // modules of their own, which this one does not see
	"internal/servertest", "internal/javaserver",
	"internal/rmqpb/internal",
}

// heavyweights may not be linked into a program that imports only the SDK.
var heavyweights = []string{"github.com/cockroachdb", "go.etcd.io/bbolt", "github.com/prometheus", "go.yaml.in/yaml", "go.uber.org/mock", "go.opentelemetry.io", "github.com/Azure/go-amqp", "github.com/apache/pulsar-client-go", "testing"}

// maxLines bounds one file. A file is a subject, mostly of 150 to 800 lines.
const maxLines = 1200

// A source is one Go file of the repository, nested modules included.
type source struct {
	path, dir string // relative to the root, with slashes; the root's dir is ""
	file      *ast.File
	lines     []string
	generated bool
}

func (s source) test() bool     { return strings.HasSuffix(s.path, "_test.go") }
func (s source) testTool() bool { return strings.HasSuffix(s.dir, "test") } // transporttest, brokertest
func (s source) main() bool     { return s.file.Name.Name == "main" }

var fset = token.NewFileSet()

var files = sync.OnceValues(func() ([]string, error) {
	var list []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		name = filepath.ToSlash(name)
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir() && (name == ".git" || ignored(name)):
			return fs.SkipDir
		case d.Type().IsRegular() && !ignored(name):
			list = append(list, name)
		}
		return nil
	})
	return list, err
})

var sources = sync.OnceValues(func() ([]source, error) {
	names, err := files()
	if err != nil {
		return nil, err
	}
	var list []source
	for _, name := range names {
		if path.Ext(name) != ".go" || strings.Contains(name, "testdata/") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		dir := path.Dir(name)
		if dir == "." {
			dir = ""
		}
		list = append(list, source{name, dir, f, strings.Split(string(text), "\n"), ast.IsGenerated(f)})
	}
	return list, nil
})

func load[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	return assert.Value(f())(t)
}

// ignored reports whether .gitignore names a path. It supports only the forms that our .gitignore
// uses: a name or a *-pattern, anchored by / or not.
func ignored(name string) bool {
	for _, pattern := range gitignore() {
		subject := path.Base(name)
		if anchored, ok := strings.CutPrefix(pattern, "/"); ok {
			pattern, subject = anchored, name
		}
		if ok, _ := path.Match(pattern, subject); ok {
			return true
		}
	}
	return false
}

var gitignore = sync.OnceValue(func() []string {
	text, _ := os.ReadFile(".gitignore") // without one, nothing is ignored
	return slices.DeleteFunc(strings.Fields(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(string(text), "")), func(s string) bool {
		return s == ""
	})
})

// rowOf is the row of the package at a path relative to the module. The constants of the protocol
// belong to the root's row: they are the part of its words that programs do not need.
func rowOf(pkg string) (string, bool) {
	if pkg == "internal/protocol" {
		return "", true
	}
	for p := pkg; ; p = path.Dir(p) {
		if p == "." {
			return "", false
		}
		if _, ok := importTable[p]; ok {
			return p, p != "" || pkg == ""
		}
	}
}

func TestImportTable(t *testing.T) {
	atRoot(t)
	used := map[string]bool{}
	for _, s := range load(t, sources) {
		key, ok := rowOf(s.dir)
		if !ok {
			t.Errorf("%s: package %q is in no row of importTable: find it a place below a package that is, or give it a row", s.path, s.dir)
			continue
		}
		r := importTable[key]
		allowed := r.imports
		if s.test() {
			allowed = slices.Concat(r.imports, testTools, r.tests)
		}
		for _, spec := range s.file.Imports {
			imported, ours := ourPath(spec)
			if !ours {
				continue
			}
			target, _ := rowOf(imported)
			if !s.test() {
				used[key+" "+target] = true
			}
			if target != key && !slices.Contains(allowed, target) && !slices.Contains(allowed, "...") {
				t.Errorf("%s: package %q may not import %q, only %q (\"\" is the root): pass the dependency as an argument or an interface, or move the code",
					fset.Position(spec.Pos()), s.dir, imported, allowed)
			}
		}
	}
	for key, r := range importTable {
		for _, target := range r.imports {
			if target != "..." && !used[key+" "+target] {
				t.Errorf("importTable lets %q import %q, but no code does: remove it", key, target)
			}
		}
	}
}

func ourPath(spec *ast.ImportSpec) (relative string, ours bool) {
	p := strings.Trim(spec.Path.Value, `"`)
	if p == module {
		return "", true
	}
	return strings.CutPrefix(p, module+"/")
}

func TestSDKLinksNoHeavyweights(t *testing.T) {
	atRoot(t)
	var sdk []string
	for _, s := range load(t, sources) {
		if !s.test() && !s.main() && !slices.ContainsFunc(notSDK, func(p string) bool { return under(s.dir, p) }) {
			sdk = append(sdk, "./"+s.dir)
		}
	}
	sdk = slices.Compact(slices.Sorted(slices.Values(sdk)))
	for _, importer := range dependents(t, heavyweights, sdk...) {
		t.Errorf("the SDK would link %s: move that into a package that its users choose to import", importer)
	}
	// A check that finds nothing anywhere would prove nothing.
	if len(dependents(t, heavyweights, "./broker")) == 0 {
		t.Errorf("the broker seems to link none of %q: this test no longer sees them", heavyweights)
	}
}

// overHTTP are the packages that need no more than HTTP. A program with these alone links neither
// the storage engine nor gRPC.
var overHTTP = []string{"./broker/admin", "./broker/settings", "./broker/status", "./transport/rest"}

func TestHTTPClientsLinkNoGRPC(t *testing.T) {
	atRoot(t)
	grpc := append(slices.Clone(heavyweights), "google.golang.org")
	for _, importer := range dependents(t, grpc, overHTTP...) {
		t.Errorf("%q would link %s: they are to need HTTP alone", overHTTP, importer)
	}
	if len(dependents(t, grpc, "./transport/rocketmq")) == 0 {
		t.Errorf("transport/rocketmq seems to link none of %q: this test no longer sees them", grpc)
	}
}

// The client commands of the program do not need the engine, so that a build with them alone is
// possible.
func TestClientCommandsLinkNoEngine(t *testing.T) {
	atRoot(t)
	engine := []string{"github.com/cockroachdb", "github.com/prometheus", module + "/broker/server"}
	for _, importer := range dependents(t, engine, "./cmd/internal/cli") {
		t.Errorf("the client commands would link %s", importer)
	}
	if len(dependents(t, engine, "./cmd/tidegate")) == 0 {
		t.Errorf("the program seems to link none of %q: this test no longer sees them", engine)
	}
}

// dependents lists the packages, and the packages that they import, that import one of
// heavyweights.
func dependents(t *testing.T, heavyweights []string, packages ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-json=ImportPath,Imports,Standard"}, packages...)...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var found []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for _, imported := range p.Imports {
			heavy := func(prefix string) bool { return under(imported, prefix) && !under(p.ImportPath, prefix) }
			if !p.Standard && slices.ContainsFunc(heavyweights, heavy) {
				found = append(found, imported+" (through "+p.ImportPath+")")
			}
		}
	}
}

func under(p, prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }

// A replace in go.mod has no effect in the builds of users. Their builds then have other versions
// than our tests. A nested module may point at the other modules of this repository.
func TestNoReplace(t *testing.T) {
	atRoot(t)
	for _, name := range load(t, files) {
		if path.Base(name) != "go.mod" {
			continue
		}
		out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", name).Output()
		assert.MustThat(t, err == nil, "go mod edit -json %s: %v", name, err)
		var mod struct {
			Replace []struct{ Old, New struct{ Path string } }
		}
		assert.Must(t, json.Unmarshal(out, &mod))
		for _, r := range mod.Replace {
			dir := path.Join(path.Dir(name), r.New.Path)
			if name == "go.mod" || r.Old.Path != path.Join(module, dir) || !slices.Contains(load(t, files), path.Join(dir, "go.mod")) {
				t.Errorf("%s: replace %s => %s: require a version that is published", name, r.Old.Path, r.New.Path)
			}
		}
	}
}

func TestFileLength(t *testing.T) {
	atRoot(t)
	for _, s := range load(t, sources) {
		if n := len(s.lines) - 1; !s.generated && n > maxLines { // a file ends with a line break
			t.Errorf("%s has %d lines, the limit is %d: split it by concern", s.path, n, maxLines)
		}
	}
}

var machinePath = regexp.MustCompile("(?:^|[\\s\"'`=(:])(/(?:home|root|work|Users)/[\\w.-]+)")

func TestNoMachinePaths(t *testing.T) {
	atRoot(t)
	for _, name := range load(t, files) {
		if name == ".git" {
			continue // of a linked work tree: git's own file names the repository
		}
		text := assert.Value(os.ReadFile(name))(t)
		if bytes.IndexByte(text, 0) >= 0 {
			continue // not text
		}
		for _, m := range machinePath.FindAllSubmatchIndex(text, -1) {
			line := 1 + bytes.Count(text[:m[2]], []byte("\n"))
			t.Errorf("%s:%d: %s is a path of one machine: use a relative path, t.TempDir() or a flag", name, line, text[m[2]:m[3]])
		}
	}
}
