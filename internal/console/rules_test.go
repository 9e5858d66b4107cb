package console

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
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

// checkRules returns the broken rules of a directory of files.
func checkRules(t *testing.T, dir fs.FS) (broken []string) {
	t.Helper()
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			broken = append(broken, name+": too many lines")
		}
		for n, line := range strings.Split(string(text), "\n") {
			if path.Ext(name) == ".js" && strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			if path.Ext(name) == ".js" && strings.Count(line, "`")%2 != 0 {
				broken = append(broken, fmt.Sprintf("%s:%d: a text over several lines: %s", name, n+1, line))
			}
			for _, part := range exempt {
				line = strings.ReplaceAll(line, part, "")
			}
			for what, pattern := range forbidden {
				if pattern.MatchString(line) {
					broken = append(broken, fmt.Sprintf("%s:%d: %s: %s", name, n+1, what, line))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return broken
}

func TestFilesFollowTheRules(t *testing.T) {
	for _, broken := range checkRules(t, embedded) {
		t.Error(broken)
	}
}

// Each rule finds its construct, and the usual ways beside them pass.
func TestRulesFindTheirConstructs(t *testing.T) {
	for text, want := range map[string]string{
		"e.innerHTML = x":                             "markup from text",
		"e.insertAdjacentHTML('beforeend', x)":        "markup from text",
		"document.write(x)":                           "markup from text",
		"eval(x)":                                     "code from text",
		"setTimeout('f()', 1)":                        "code from text",
		"a.href = 'javascript:f()'":                   "code from text",
		`<p style="color: red">`:                      "a style attribute",
		"h('p', {style: 'color: red'})":               "a style attribute",
		"e.setAttribute('style', x)":                  "a style attribute",
		`<p onclick="f()">`:                           "an event attribute",
		"e.onclick = f":                               "an event attribute",
		"<script>f()</script>":                        "an inline script or style",
		"fetch('https://cdn.example/x.js')":           "an address beyond the origin",
		"background: url(//cdn.example/x.png)":        "an address beyond the origin",
		"@font-face { }":                              "a font or an import of CSS",
		"store.set('secret', form.secret)":            "storage of the secret",
		"const text = `one":                           "a text over several lines",
		"e.textContent = x":                           "",
		"e.style.setProperty('--share', n)":           "",
		"setTimeout(() => e.remove(), 10)":            "",
		"e.addEventListener('click', f)":              "",
		`<script type="module" src="files/x.js">`:     "",
		"const svgNS = 'http://www.w3.org/2000/svg';": "",
		"const only = x === 'style'":                  "",
		"// a comment may name innerHTML and eval(x)": "",
		"store.set('session', session.session)":       "",
	} {
		broken := checkRules(t, fstest.MapFS{"x.js": {Data: []byte(text)}})
		if want == "" && len(broken) > 0 || want != "" && (len(broken) == 0 || !strings.Contains(strings.Join(broken, " "), want)) {
			t.Errorf("%s: %q, want %q", text, broken, want)
		}
	}
	if got := checkRules(t, fstest.MapFS{"x.js": {Data: []byte(strings.Repeat("f()\n", maxLines+1))}}); len(got) != 1 {
		t.Errorf("a long file: %q", got)
	}
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
	if !ok {
		t.Errorf("there is no file %s", name)
	}
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
	if pages < 5 {
		t.Errorf("only %d modules of pages were found", pages)
	}
	t.Logf("%d bytes in %d files; the index with its files transfers %d bytes", all, len(h.files), first.bytes)
}
