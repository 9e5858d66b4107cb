package house

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

var (
	// A relative link: [text](path#fragment)
	mdLink = regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`)
	// A file: `cli/send.go`
	mdFile = regexp.MustCompile("`([\\w/]+\\.go)`")
	// A test, benchmark or fuzz target: `TestIt`
	mdTest = regexp.MustCompile("`((?:Test|Benchmark|Fuzz)[A-Z]\\w*)")
)

// TestDocumentsNameExistingThings requires that files, tests and benchmarks that a document names
// exist.
func TestDocumentsNameExistingThings(t *testing.T) {
	atRoot(t)
	tests := map[string]bool{}
	for _, s := range load(t, sources) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test() {
				tests[f.Name.Name] = true
			}
		}
	}
	for _, name := range load(t, files) {
		if path.Ext(name) != ".md" {
			continue
		}
		text := assert.Value(os.ReadFile(name))(t)
		for _, m := range mdLink.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(path.Join(path.Dir(name), m[1])); err != nil {
				t.Errorf("%s links %s, which does not exist", name, m[1])
			}
		}
		for _, m := range mdFile.FindAllStringSubmatch(string(text), -1) {
			_, beside := os.Stat(path.Join(path.Dir(name), m[1]))
			if _, err := os.Stat(m[1]); err != nil && beside != nil {
				t.Errorf("%s names %s, which does not exist", name, m[1])
			}
		}
		for _, m := range mdTest.FindAllStringSubmatch(string(text), -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which does not exist", name, m[1])
			}
		}
	}
}

// mapRow is a row of DESIGN.md's package map: | `package`, `package` | what a reader finds there |
var mapRow = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| .+ \\|$")

// maxMap is the length of the package map in lines: one screen.
const maxMap = 50

// TestPackageMap requires that DESIGN.md's package map has each row of importTable, which
// TestImportTable compares with the code, and packages that exist.
func TestPackageMap(t *testing.T) {
	atRoot(t)
	text := assert.Value(os.ReadFile("DESIGN.md"))(t)
	rows := mapRow.FindAllStringSubmatch(string(text), -1)
	if n := len(rows) + 2; n > maxMap {
		t.Errorf("DESIGN.md's package map has %d lines, the limit is %d: join rows", n, maxMap)
	}
	seen := map[string]bool{}
	for _, m := range rows {
		for name := range strings.SplitSeq(m[1], ", ") {
			key := strings.Trim(name, "`")
			if key == "tidegate" {
				key = ""
			}
			if info, err := os.Stat("./" + key); err != nil || !info.IsDir() || seen[key] {
				t.Errorf("DESIGN.md's package map has %s, which does not exist, or twice", name)
			}
			seen[key] = true
		}
	}
	for key := range importTable {
		if !seen[key] {
			t.Errorf("DESIGN.md's package map lacks %q", key)
		}
	}
}

// goFile is the name of a Go file in a package comment.
var goFile = regexp.MustCompile(`\w+\.go\b`)

// TestFileMaps requires that a package comment with a section "Files" names each file of its
// package, and no file that does not exist.
func TestFileMaps(t *testing.T) {
	atRoot(t)
	all := load(t, sources)
	for _, s := range all {
		_, files, ok := strings.Cut(s.file.Doc.Text(), "\n# Files\n")
		if !ok {
			continue
		}
		named := goFile.FindAllString(files, -1)
		for _, name := range named { // of the package, or of one below it
			if !slices.ContainsFunc(all, func(o source) bool {
				return path.Base(o.path) == name && (o.dir == s.dir || strings.HasPrefix(o.dir, s.dir+"/"))
			}) {
				t.Errorf("%s: the map names %s, which does not exist", s.path, name)
			}
		}
		for _, o := range all {
			if o.dir == s.dir && o.path != s.path && !o.test() && !slices.Contains(named, path.Base(o.path)) {
				t.Errorf("%s: the map lacks %s", s.path, path.Base(o.path))
			}
		}
	}
}

// conformance is the file that lists the external rules beside the tests that check them.
const conformance = "broker/CONFORMANCE.md"

// ruleSources are the documents whose rules the project follows. A section of the conformance
// file and the quotes in tests use these names.
var ruleSources = []string{
	"RocketMQ: consumption retry",
	"RocketMQ: sending retry and throttling",
	"TDMQ for Pulsar: retry and dead letters",
	"Artemis: undelivered messages",
}

// An externalRule is a sentence of a document, as a test quotes it.
type externalRule struct{ source, quote string }

var (
	// In a test's doc comment: RocketMQ: consumption retry: "the sentence"
	ruleQuote = regexp.MustCompile("(" + strings.Join(ruleSources, "|") + `): "([^"]+)"`)
	// In the conformance file: | the sentence | `broker` TestIt, TestThat |
	ruleRow  = regexp.MustCompile("^\\| (.+?) \\| (`.+) \\|$")
	ruleRef  = regexp.MustCompile("`([^`]+)` (Test\\w+|Fuzz\\w+)")
	testName = regexp.MustCompile(`\bTest\w+`)
)

// TestConformanceTable requires that each rule that a test quotes is listed beside that test,
// and that each test that is listed beside a rule quotes it. The observations on the real systems
// may only name tests that observe one of them.
func TestConformanceTable(t *testing.T) {
	atRoot(t)
	quoted := map[string]map[externalRule]bool{} // by "directory Test"
	observers := map[string]bool{}
	for _, s := range load(t, sources) {
		if !s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			observers[f.Name.Name] = observers[f.Name.Name] || path.Base(s.dir) == "interop"
			doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
			for _, m := range ruleQuote.FindAllStringSubmatch(doc, -1) {
				name := s.dir + " " + f.Name.Name
				if quoted[name] == nil {
					quoted[name] = map[externalRule]bool{}
				}
				quoted[name][externalRule{m[1], m[2]}] = true
			}
		}
	}
	text := assert.Value(os.ReadFile(conformance))(t)
	rows, source := map[string]int{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			source = heading
			continue
		}
		m := ruleRow.FindStringSubmatch(line)
		if m == nil || !slices.Contains(ruleSources, source) {
			continue
		}
		rows[source]++
		rule := externalRule{source, strings.ReplaceAll(m[1], `\|`, "|")}
		for _, ref := range ruleRef.FindAllStringSubmatch(m[2], -1) {
			name := ref[1] + " " + ref[2]
			if !quoted[name][rule] {
				t.Errorf("%s lists %s beside %s: %q; no such test quotes it", conformance, name, source, rule.quote)
			}
			delete(quoted[name], rule)
		}
		_, observation, _ := strings.Cut(m[2], " | ")
		for _, name := range testName.FindAllString(observation, -1) {
			assert.That(t, observers[name], "%s names %s as an observation of %s: %q; no package interop has such a test with a comment", conformance, name, source, rule.quote)
		}
	}
	for _, source := range ruleSources {
		assert.That(t, rows[source] != 0, "%s has no rows below the heading %q", conformance, source)
	}
	for name, rules := range quoted {
		for rule := range rules {
			t.Errorf("%s quotes %s: %q, which %s does not list beside that test", name, rule.source, rule.quote, conformance)
		}
	}
}
