package console

import (
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

var (
	entry   = regexp.MustCompile(`(?m)^ {2}'((?:[^'\\]|\\.)*)': '((?:[^'\\]|\\.)*)',$`)
	keyed   = regexp.MustCompile(`\bt\('((?:[^'\\]|\\.)*)'`)                      // t('key'), and t('prefix ' + name)
	literal = regexp.MustCompile(`'((?:[^'\\\n]|\\.)*)'`)                         // a key can also be a value: label: 'topics'
	braced  = regexp.MustCompile(`'\{([^}'\n]+)\}'`)                              // a default that is described: '{none}'
	prefix  = regexp.MustCompile("\\bt\\((?:'([a-z ]+ )' \\+|`([a-z ]+ )\\$\\{)") // t('state ' + s), t(`job ${kind}`)
	hole    = regexp.MustCompile(`\{\d\}`)
)

// Every text that a page shows is in both languages, with the same places for values, and none is
// left over.
func TestTexts(t *testing.T) {
	english, chinese := texts(t, "en"), texts(t, "zh")
	used, prefixes := map[string]bool{}, map[string]bool{}
	modules := assert.Value(fs.Glob(embedded, "files/*.js"))(t)
	for _, name := range modules {
		if tables[path.Base(name)] {
			continue
		}
		code := read(t, name)
		for _, m := range prefix.FindAllStringSubmatch(code, -1) {
			prefixes[m[1]+m[2]] = true
		}
		for _, m := range braced.FindAllStringSubmatch(code, -1) {
			used[m[1]] = true
		}
		for _, m := range keyed.FindAllStringSubmatch(code, -1) {
			if !strings.HasSuffix(m[1], " ") {
				used[m[1]] = true
			}
		}
		for _, m := range literal.FindAllStringSubmatch(code, -1) {
			if _, known := chinese[m[1]]; known {
				used[m[1]] = true
			}
		}
	}
	if len(used) < 100 || len(prefixes) < 3 {
		t.Fatalf("only %d keys and %d prefixes were found in the modules", len(used), len(prefixes))
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if _, ok := chinese[key]; !ok {
			t.Errorf("a module wants the text %q, which Chinese does not have", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(chinese)) {
		withPrefix := slices.ContainsFunc(slices.Collect(maps.Keys(prefixes)), func(p string) bool { return strings.HasPrefix(key, p) })
		if !used[key] && !withPrefix {
			t.Errorf("no module wants the text %q", key)
		}
		en, ok := english[key]
		if !ok {
			en = key
		}
		if a, b := holes(en), holes(chinese[key]); !slices.Equal(a, b) {
			t.Errorf("the text %q has the places %q in English and %q in Chinese", key, a, b)
		}
	}
	for key := range english {
		if _, ok := chinese[key]; !ok {
			t.Errorf("the text %q is in English and not in Chinese", key)
		}
	}
}

// tables are the files of texts.
var tables = map[string]bool{"en.js": true, "en-terms.js": true, "zh.js": true, "zh-terms.js": true}

// texts returns the texts of a language.
func texts(t *testing.T, language string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range entry.FindAllStringSubmatch(read(t, "files/"+language+".js")+read(t, "files/"+language+"-terms.js"), -1) {
		if _, twice := found[m[1]]; twice {
			t.Errorf("%s has %q twice", language, m[1])
		}
		found[m[1]] = m[2]
	}
	assert.MustThat(t, len(found) >= 100, "%s: only %d texts were found", language, len(found))
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := assert.Value(fs.ReadFile(embedded, name))(t)
	return string(text)
}

// holes are the places of a text, each once: both languages may repeat one.
func holes(text string) []string {
	return slices.Compact(slices.Sorted(slices.Values(hole.FindAllString(text, -1))))
}
