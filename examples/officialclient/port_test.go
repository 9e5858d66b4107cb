package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const portPage = "../../FROM-ROCKETMQ.md"

// Both programs of the page do the same on a broker of their own.
func TestPortedProgram(t *testing.T) {
	dir := t.TempDir()
	tidegate := filepath.Join(dir, "tidegate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", tidegate, "./cmd/tidegate").CombinedOutput(); err != nil {
		t.Fatalf("building tidegate: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "./port/...").CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}
	want := []string{
		"billed order 1 in EUR, attempt 1", "billed order 2 in EUR, attempt 1", "billed order 3 in EUR, attempt 2",
		"billed order 4 in EUR, attempt 1", "billed order 5 in EUR, attempt 1",
		"order 3 fails, attempt 1",
		"sent order 1", "sent order 2", "sent order 3", "sent order 4", "sent order 5",
	}
	config := filepath.Join(dir, "tidegate.yaml")
	if err := os.WriteFile(config, []byte("topics:\n  orders: {}\ngroups:\n  billing: {retry: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"before", "after"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			// The official client ends when its receives do.
			b := serve(t, tidegate, "--config", config, "--min-long-polling", "0", "--max-long-polling", "1s")
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, program), b.grpc)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir())
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("it took %v", time.Since(began).Round(time.Millisecond))
			var got []string
			for line := range strings.Lines(string(out)) {
				if line = strings.TrimSpace(line); slices.Contains(want, line) || strings.Contains(line, "order") {
					got = append(got, line)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("it printed\n%s", out)
			}
			b.stop()
		})
	}
}

// The page shows the steps of the programs word for word.
func TestPageShowsThePrograms(t *testing.T) {
	page := readText(t, portPage)
	for _, program := range []string{"before", "after"} {
		source := readText(t, filepath.Join("port", program, "main.go"))
		shown := regexp.MustCompile("(?s)<!-- "+program+": step (\\d) -->\n```go\n(.*?)```").FindAllStringSubmatch(page, -1)
		if len(shown) != 4 {
			t.Fatalf("the page has %d steps of %s, want 4", len(shown), program)
		}
		for i, s := range shown {
			if !strings.Contains(dedent(source), dedent(s[2])) || s[1] != string(rune('1'+i)) {
				t.Errorf("step %s of %s is not in its program:\n%s", s[1], program, s[2])
			}
		}
	}
}

func dedent(s string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(s, "") }

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page names every option and method that a program of the official client can use, and only
// names of tidegate that exist.
func TestPageIsComplete(t *testing.T) {
	page := readText(t, portPage)
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/apache/rocketmq-clients/golang/v5").Output()
	if err != nil {
		t.Fatal(err)
	}
	official := names(t, strings.TrimSpace(string(dir)), "rmq")
	option := regexp.MustCompile(`^rmq\.With|^rmq\.(Config|Producer|PushConsumer|SimpleConsumer|LitePushConsumer|Transaction|SendReceipt)\.|^rmq\.Message\.(Set|Add)|^rmq\.MessageView\.Get`)
	found := 0
	for name := range official {
		if !option.MatchString(name) || internalOptions[name] {
			continue
		}
		found++
		short := name[strings.LastIndex(name, ".")+1:]
		if !regexp.MustCompile(`\b` + short + `\b`).MatchString(page) {
			t.Errorf("the page lacks %s", name)
		}
	}
	if found < 50 {
		t.Errorf("%d names of the official client were found; the test reads its source wrongly", found)
	}
	ours := map[string]bool{}
	for dir, pkg := range map[string]string{
		"../..": "tidegate", "../../producer": "producer", "../../consumer": "consumer", "../../transport": "transport",
		"../../transport/rocketmq": "rocketmq", "../../ratelimit": "ratelimit", "../../transport/failover": "failover",
	} {
		for name := range names(t, dir, pkg) {
			ours[name] = true
		}
	}
	for _, m := range regexp.MustCompile(`\b(?:tidegate|producer|consumer|rocketmq|ratelimit|transport|failover)\.[A-Z]\w*(?:\.[A-Z]\w*)?`).FindAllString(page, -1) {
		if !ours[m] {
			t.Errorf("the page names %s, which tidegate does not have", m)
		}
	}
}

// internalOptions are for the client's own tests.
var internalOptions = map[string]bool{
	"rmq.WithClientFunc": true, "rmq.WithClientFuncForSimpleConsumer": true, "rmq.WithClientConnFunc": true,
	"rmq.WithRpcClientClientConnFunc": true, "rmq.WithContext": true,
	"rmq.MessageView.GetMessageCommon": true,
}

// names returns the exported names of the package in a directory: pkg.Name and pkg.Type.Member.
func names(t *testing.T, dir, pkg string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	add := func(parts ...string) {
		if ast.IsExported(parts[len(parts)-1]) {
			found[pkg+"."+strings.Join(parts, ".")] = true
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "_mock") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(d.Name.Name)
					continue
				}
				receiver := d.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				if id, ok := receiver.(*ast.Ident); ok {
					add(id.Name, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							add(n.Name)
						}
					case *ast.TypeSpec:
						add(s.Name.Name)
						var members *ast.FieldList
						switch u := s.Type.(type) {
						case *ast.StructType:
							members = u.Fields
						case *ast.InterfaceType:
							members = u.Methods
						}
						if members != nil {
							for _, m := range members.List {
								for _, n := range m.Names {
									add(s.Name.Name, n.Name)
								}
							}
						}
					}
				}
			}
		}
	}
	return found
}
