package console

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// The bounds of the console: a page that loads fast and that one person can read.
const (
	maxServed     = 152_000 // bytes of all files in one language as they are served, without compression
	maxCompressed = 45_000  // bytes that the first load transfers, in English
	maxLines      = 500     // of one file
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

// A first load transfers the index, the style, and each script that main.js imports, also
// indirectly. What a page imports later does not count.
func TestSize(t *testing.T) {
	h, _ := Handler().(*handler)
	byName, served := map[string]file{}, 0
	for at, f := range h.files {
		byName[path.Base(at)] = f
		if path.Base(at) != "zh.js" { // the texts of text.js in the other language
			served += len(f.plain)
		}
	}
	if served > maxServed {
		t.Errorf("the files have %d bytes, the limit is %d", served, maxServed)
	}
	first := len(h.files[""].zipped)
	seen := map[string]bool{}
	var load func(name string)
	load = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		f, ok := byName[name]
		if !ok {
			t.Errorf("there is no file %s", name)
		}
		first += len(f.zipped)
		if path.Ext(name) == ".js" {
			for _, m := range staticImports.FindAllStringSubmatch(string(f.plain), -1) {
				load(m[1])
			}
		}
	}
	for _, m := range versioned.FindAllString(string(h.files[""].plain), -1) {
		load(path.Base(strings.Trim(m, `"`)))
	}
	if first > maxCompressed {
		t.Errorf("the first load transfers %d bytes, the limit is %d", first, maxCompressed)
	}
	t.Logf("%d bytes in %d files; the first load transfers %d bytes of %d files", served, len(h.files), first, len(seen)+1)
}
