package house

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The rules for comments and documents that a machine can check.

// maxCommentWidth is the longest comment line in columns. A tab counts as tabWidth columns.
const (
	maxCommentWidth = 100
	tabWidth        = 4
)

// unrevised are the directories whose text does not follow these rules yet. The list only shrinks:
// a directory without a violation must not be in it.
var unrevised []string

// maxDocumentWidth is the longest line of a Markdown file in columns, except for tables, code and
// long addresses. unwrapped are the files that do not follow this rule yet; the list only shrinks.
const maxDocumentWidth = 120

var unwrapped = []string{"README.md"}

// seedNumber is a name of an external document that no reader of this repository knows.
var seedNumber = regexp.MustCompile(`(?i)\bseeds? 00\d\b`)

// A violation is a place that breaks a rule of this file.
type violation struct {
	dir, place, rule string
}

func TestTextRules(t *testing.T) {
	atRoot(t)
	var found []violation
	for _, s := range load(t, sources) {
		if !s.generated {
			found = append(found, commentViolations(s)...)
		}
	}
	for _, name := range load(t, files) {
		if path.Ext(name) == ".md" || path.Ext(name) == ".yaml" || path.Ext(name) == ".yml" {
			found = append(found, documentViolations(t, name)...)
		}
	}
	used := map[string]bool{}
	for _, v := range found {
		used[v.dir] = true
		if !slices.Contains(unrevised, v.dir) {
			t.Errorf("%s: %s", v.place, v.rule)
		}
	}
	for _, dir := range unrevised {
		if !used[dir] {
			t.Errorf("%q follows the rules: remove it from unrevised", dir)
		}
	}
}

const seedRule = "names an external document by a number: use its name from " + conformance

func commentViolations(s source) (found []violation) {
	for _, group := range s.file.Comments {
		output := strings.HasPrefix(group.Text(), "Output:") // compared with the output of the example
		for _, c := range group.List {
			pos := fset.Position(c.Pos())
			for line := range strings.SplitSeq(c.Text, "\n") {
				if seedNumber.MatchString(line) {
					found = append(found, violation{s.dir, pos.String(), seedRule})
				}
			}
			// If the line has only the comment, the tabs before it are its only indentation.
			alone := !codeBefore(s, c)
			if width := utf8.RuneCountInString(c.Text) + (pos.Column-1)*tabWidth; alone && !output &&
				strings.HasPrefix(c.Text, "// ") && width > maxCommentWidth {
				found = append(found, violation{s.dir, pos.String(), "a comment line is wider than 100 columns: wrap it"})
			}
		}
	}
	return found
}

// codeBefore reports whether code stands before a comment on the same line.
func codeBefore(s source, c *ast.Comment) bool {
	return !strings.HasPrefix(strings.TrimLeft(s.line(fset.Position(c.Pos()).Line), "\t"), "//")
}

func documentViolations(t *testing.T, name string) (found []violation) {
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := path.Dir(name)
	if dir == "." {
		dir = ""
	}
	if seedNumber.Match(text) {
		found = append(found, violation{dir, name, seedRule})
	}
	if path.Ext(name) != ".md" || slices.Contains(unwrapped, name) {
		return found
	}
	code, n := false, 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		code = code != strings.HasPrefix(line, "```")
		if !code && utf8.RuneCountInString(line) > maxDocumentWidth && !strings.HasPrefix(line, "|") && !strings.Contains(line, "](http") {
			found = append(found, violation{dir, fmt.Sprintf("%s:%d", name, n), "a line is wider than 120 columns: wrap it"})
		}
	}
	return found
}

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
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
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

// maxOverview is the length of DESIGN.md in words. Details belong into the documents beside the
// code.
const maxOverview = 2200

func TestOverviewIsShort(t *testing.T) {
	atRoot(t)
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(text))); n > maxOverview {
		t.Errorf("DESIGN.md has %d words, the limit is %d: move details into the document beside the code", n, maxOverview)
	}
}

// TestTablesNameExistingPackages requires that each package that a table of this repository names
// exists, so that no rule outlives its package.
func TestTablesNameExistingPackages(t *testing.T) {
	atRoot(t)
	var named []string
	for key, r := range importTable {
		named = append(append(append(named, key), r.imports...), r.tests...)
	}
	named = append(append(append(named, notSDK...), testTools...), unrevised...)
	for _, p := range overHTTP {
		named = append(named, strings.TrimPrefix(p, "./"))
	}
	slices.Sort(named)
	for _, p := range slices.Compact(named) {
		if info, err := os.Stat("./" + p); p != "..." && (err != nil || !info.IsDir()) {
			t.Errorf("a table names package %q, which does not exist: remove the rule", p)
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
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
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
