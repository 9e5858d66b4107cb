package house

import (
	"go/ast"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Each exported name is a permanent promise, so their number is bounded: by maxSDKNames for the
// packages that a program of producers and consumers imports, by maxBrokerNames for the broker, its
// server, its settings and their tools. Methods and fields do not count. Support for another system
// may raise maxSDKNames by its names, at most 60 in all. The 15 of transport/held and
// transport/amqp are within the first 270; transport.EndpointConfigurer, for failover between
// systems, and transport.Watcher, for consumers of many topics, raised the limit by one each.
// transporttest.Fake and FakeCall, for the tests of programs, raised it by two, and the kinds of
// transport.Verdict, in place of seven methods of a transport, by seven. The
// HTTP API of the command line and the console may raise maxBrokerNames by at most 60 in all: each
// route by its query and its page, the overview by 10. Three are those of package status for GET
// /v1/audit, and four those for GET /v1/clients. One is status.Clock, of the overview, and one
// status.DeadLetterEdit, of edited redrives.
const (
	maxSDKNames    = 267
	maxBrokerNames = 132
)

// TestExportedNames counts the exported names. With -v it prints them by package.
func TestExportedNames(t *testing.T) {
	atRoot(t)
	names := exportedNames(load(t, sources))
	var sdk, broker int
	for _, dir := range slices.Sorted(maps.Keys(names)) {
		if under(dir, "broker") {
			broker += len(names[dir])
		} else {
			sdk += len(names[dir])
		}
		slices.Sort(names[dir])
		t.Logf("%3d %q: %s", len(names[dir]), dir, strings.Join(names[dir], ", "))
	}
	t.Logf("%d names in the SDK, %d beside the broker", sdk, broker)
	for _, c := range []struct {
		what       string
		got, limit int
	}{{"SDK", sdk, maxSDKNames}, {"broker", broker, maxBrokerNames}} {
		if c.got > c.limit {
			t.Errorf("the %s exports %d names, the limit is %d: remove one that no user needs, or raise the limit with the reason", c.what, c.got, c.limit)
		}
	}
	// A count that misses a declaration would prove nothing.
	for dir, name := range map[string]string{"": "Message", "producer": "New", "transport": "ErrLaneChanged", "broker/settings": "MaxQueues"} {
		if !slices.Contains(names[dir], name) {
			t.Errorf("the count misses %s of package %q", name, dir)
		}
	}
}

var notAPI = []string{"mocks", "examples", "transport/rocketmq/interop"}

// exportedNames lists the names that importers of a package can use, by directory. Generated
// mocks, examples, commands and tests are not counted.
func exportedNames(list []source) map[string][]string {
	names := map[string][]string{}
	for _, s := range list {
		if s.test() || s.main() || slices.Contains(strings.Split(s.dir, "/"), "internal") || slices.ContainsFunc(notAPI, func(p string) bool { return under(s.dir, p) }) {
			continue
		}
		add := func(id *ast.Ident) {
			if id.IsExported() {
				names[s.dir] = append(names[s.dir], id.Name)
			}
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						add(spec.Name)
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							add(id)
						}
					}
				}
			}
		}
	}
	return names
}

// maxIndex is the length of the index of a package in lines: about one page. Package status has the
// types of the JSON of the HTTP API, about one a route, and is read by route.
const (
	maxIndex       = 45
	maxStatusIndex = 75
)

// TestIndexIsShort bounds the index that go doc prints for a package of the API.
func TestIndexIsShort(t *testing.T) {
	atRoot(t)
	for dir := range exportedNames(load(t, sources)) {
		out, err := exec.CommandContext(t.Context(), "go", "doc", "-short", "./"+dir).Output()
		if err != nil {
			t.Fatalf("go doc -short ./%s: %v", dir, err)
		}
		limit := maxIndex
		if dir == "broker/status" {
			limit = maxStatusIndex
		}
		if n := strings.Count(string(out), "\n"); n > limit || n == 0 {
			t.Errorf("the index of package %q has %d lines, the limit is %d", dir, n, limit)
		}
	}
}
