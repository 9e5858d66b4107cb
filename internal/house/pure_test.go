package house

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pureClaim is the sentence in the first paragraph of a package comment that is checked.
var pureClaim = regexp.MustCompile(`(?i)\bpure (functions?|decisions?|rules?|code|logic)\b|\bis pure\b|(without|no) (a )?clock, lock`)

// impure are the imports, and clock the functions of package time, that a pure package has none of:
// locks, I/O and the time of the machine.
var (
	impure = []string{"sync", "sync/atomic", "os", "net", "net/http", "io/fs", "path/filepath", "google.golang.org/grpc"}
	clock  = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}
)

// claimsPurity reports whether a file has the comment of a package that claims pure functions.
func claimsPurity(s source) bool {
	if s.file.Doc == nil {
		return false
	}
	first, _, _ := strings.Cut(s.file.Doc.Text(), "\n\n") // later paragraphs speak of other packages too
	return pureClaim.MatchString(strings.Join(strings.Fields(first), " "))
}

// TestPurePackages requires that a package whose comment claims pure functions has no lock, no I/O
// and no clock.
func TestPurePackages(t *testing.T) {
	atRoot(t)
	list := load(t, sources)
	pure := map[string]bool{}
	for _, s := range list {
		if !s.test() && claimsPurity(s) {
			pure[s.dir] = true
		}
	}
	if len(pure) < 3 {
		t.Errorf("%d packages claim to be pure: this test no longer sees them", len(pure))
	}
	for _, s := range list {
		if !pure[s.dir] || s.test() {
			continue
		}
		for _, spec := range s.file.Imports {
			if p := strings.Trim(spec.Path.Value, `"`); slices.Contains(impure, p) {
				t.Errorf("%s: package %q calls itself pure and imports %s: move the import, or correct the comment", fset.Position(spec.Pos()), s.dir, p)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			for _, f := range clock {
				if selects(n, "time", f) {
					t.Errorf("%s: package %q calls itself pure and uses time.%s: pass the time as an argument, or correct the comment", fset.Position(n.Pos()), s.dir, f)
				}
			}
			return true
		})
	}
}
