package console

import (
	"bytes"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The bounds of the console: a page must load fast, and one person must be able to read its code.
const (
	maxCompressed = 45_000 // bytes that any page transfers from a cold cache, in each language
	maxLines      = 500    // of one file
)

// forbidden are constructs that the content security policy stops, or that treat data as markup or
// code. The policy is enforced by the browser; this rule finds them before a browser does.
var forbidden = map[string]*regexp.Regexp{
	"markup from text":             regexp.MustCompile(`\b(innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|setHTMLUnsafe|parseHTMLUnsafe|srcdoc)\b|document\.write`),
	"code from text":               regexp.MustCompile(`\beval\s*\(|\bnew Function\b|\bFunction\s*\(|javascript:|\bset(Timeout|Interval)\s*\(\s*['"` + "`]"),
	"a style attribute":            regexp.MustCompile(`<[^>]*\sstyle\s*=|\bstyle\s*[:=]\s*['"` + "`]|setAttribute\\(\\s*['\"]style"),
	"an event attribute":           regexp.MustCompile(`<[^>]*\son[a-z]+\s*=|setAttribute\(\s*['"]on|\.on(click|load|error|message|submit|change|input|key\w+)\s*=`),
	"an inline script or style":    regexp.MustCompile(`<script(?:[^>]*\ssrc=)?[^>]*>[^<]|<style`),
	"an address beyond the origin": regexp.MustCompile(`['"(=]\s*(https?:)?//[a-z]`),
	"a font or an import of CSS":   regexp.MustCompile(`@font-face|@import`),
	"storage of the secret":        regexp.MustCompile(`(?i)(store\.set|setItem)\(\s*['"]\w*(secret|password)`),
}

// exempt are places of which a person has decided that they are harmless.
var exempt = []string{`'http://www.w3.org/2000/svg'`, `"http://www.w3.org/2000/svg"`}

func TestFilesFollowTheRules(t *testing.T) {
	err := fs.WalkDir(embedded, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(embedded, name)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, the limit is %d", name, n, maxLines)
		}
		for n, line := range strings.Split(string(text), "\n") {
			if path.Ext(name) == ".js" && strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			if path.Ext(name) == ".js" && strings.Count(line, "`")%2 != 0 {
				t.Errorf("%s:%d: a text over several lines: %s", name, n+1, line)
			}
			for _, part := range exempt {
				line = strings.ReplaceAll(line, part, "")
			}
			for what, pattern := range forbidden {
				assert.That(t, !pattern.MatchString(line), "%s:%d: %s: %s", name, n+1, what, line)
			}
		}
		return nil
	})
	assert.Must(t, err)
}

var staticImports = regexp.MustCompile(`(?m)^(?:import|export)\b[^'"]*?['"]\./([^'"]+)['"]`)

// transfer is the number of bytes that a browser with an empty cache transfers for some files.
type transfer struct {
	byName map[string]file
	seen   map[string]bool
	bytes  int
}

// load adds a file and each script that it imports, also indirectly.
func (n *transfer) load(t *testing.T, name string) {
	t.Helper()
	if n.seen[name] {
		return
	}
	n.seen[name] = true
	f, ok := n.byName[name]
	assert.That(t, ok, "there is no file %s", name)
	n.bytes += len(f.zipped)
	if path.Ext(name) == ".js" {
		for _, m := range staticImports.FindAllStringSubmatch(string(f.plain), -1) {
			n.load(t, m[1])
		}
	}
}

// No page transfers more than the bound from a cold cache: the index with its files, the module of
// the page, and the texts of a language.
func TestSize(t *testing.T) {
	h := shared()
	byName, all := map[string]file{}, 0
	for at, f := range h.files {
		byName[path.Base(at)] = f
		all += len(f.zipped)
	}
	first := transfer{byName, map[string]bool{}, len(h.files[""].zipped)}
	for _, m := range versioned.FindAllString(string(h.files[""].plain), -1) {
		first.load(t, path.Base(strings.Trim(m, `"`)))
	}
	pages := 0
	for name := range byName {
		if path.Ext(name) != ".js" || first.seen[name] || tables[name] {
			continue
		}
		pages++
		for _, language := range []string{"en.js", "zh.js"} {
			page := transfer{byName, maps.Clone(first.seen), first.bytes}
			page.load(t, language)
			page.load(t, name)
			if page.bytes > maxCompressed {
				t.Errorf("a page of %s with %s transfers %d bytes, the limit is %d", name, language, page.bytes, maxCompressed)
			}
			t.Logf("a page of %s with %s transfers %d bytes", name, language, page.bytes)
		}
	}
	assert.That(t, pages >= 5, "only %d modules of pages were found", pages)
	t.Logf("%d bytes in %d files; the index with its files transfers %d bytes", all, len(h.files), first.bytes)
}
