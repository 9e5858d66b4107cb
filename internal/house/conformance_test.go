package house

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

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
	ruleRow = regexp.MustCompile("^\\| (.+?) \\| (`.+) \\|$")
	ruleRef = regexp.MustCompile("`([^`]+)` (Test\\w+|Fuzz\\w+)")
)

// TestConformanceTable requires that each rule that a test quotes is listed beside that test,
// and that each test that is listed beside a rule quotes it.
func TestConformanceTable(t *testing.T) {
	atRoot(t)
	quoted := map[string]map[externalRule]bool{} // by "directory Test"
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
