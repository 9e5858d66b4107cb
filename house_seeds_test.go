package tidegate_test

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A seedRule is a sentence of a seed, as a test quotes it.
type seedRule struct{ seed, quote string }

var (
	// In a test's doc comment: Seed 000: "what it says"
	seedQuote = regexp.MustCompile(`Seed (\d{3}): "([^"]+)"`)
	// In DESIGN.md: | 000 | what it says | `broker` TestIt, TestThat |
	seedRow = regexp.MustCompile(`(?m)^\| (\d{3}) \| (.+?) \| (.+) \|$`)
	seedRef = regexp.MustCompile("`([^`]+)` (Test\\w+|Fuzz\\w+)")
)

// Every rule that a test quotes is in DESIGN.md's table of the seeds beside that
// test, and every row of the table names a test that quotes it.
func TestSeedTable(t *testing.T) {
	quoted := map[string]map[seedRule]bool{} // by "directory Test"
	for _, s := range load(t, sources) {
		if !s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
			for _, m := range seedQuote.FindAllStringSubmatch(doc, -1) {
				name := s.dir + " " + f.Name.Name
				if quoted[name] == nil {
					quoted[name] = map[seedRule]bool{}
				}
				quoted[name][seedRule{m[1], m[2]}] = true
			}
		}
	}
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, m := range seedRow.FindAllStringSubmatch(string(text), -1) {
		rule := seedRule{m[1], strings.ReplaceAll(m[2], `\|`, "|")}
		refs := seedRef.FindAllStringSubmatch(m[3], -1)
		rows++
		if len(refs) == 0 {
			t.Errorf("DESIGN.md names no test for seed %s: %q", rule.seed, rule.quote)
		}
		for _, ref := range refs {
			name := ref[1] + " " + ref[2]
			if !quoted[name][rule] {
				t.Errorf("DESIGN.md says that %s holds seed %s: %q; no such test quotes it", name, rule.seed, rule.quote)
			}
			delete(quoted[name], rule)
		}
	}
	if rows == 0 {
		t.Error("DESIGN.md has no table of the seeds")
	}
	for name, rules := range quoted {
		for rule := range rules {
			t.Errorf("%s quotes seed %s: %q, which DESIGN.md's table lacks beside it", name, rule.seed, rule.quote)
		}
	}
}
