// Package console has the files of the web console and serves them. The console is a program in the
// browser over the HTTP API: the files contain no data, so they need no credentials.
//
// # Rules of the files
//
// The files are written by hand: ES modules without a framework, and no build step. They refer to
// each other by relative URLs and request nothing beyond the origin. Pages are selected by the
// fragment of the address, which also has the filter and the position.
//
//   - Names, reasons, properties and bodies are text of strangers. The function h of base.js makes
//     all elements and adds data as text nodes, with control and bidi characters as escapes.
//     Nothing parses markup, and no link is made from data.
//   - JSON bodies are shown by their tokens, so that numbers keep all digits.
//   - Unknown values are "–". Times are the broker's: now of base.js follows its responses.
//   - An action is shown if the rules of the session permit it (may of api.js); the broker decides.
//   - Every page is drawn by openPage of page.js, has a title, and shows the command that does the
//     same. An element with an action has the attributes data-action and data-subject.
//   - Each text is in en.js and in zh.js; names of states, limits and causes are in en-terms.js and
//     zh-terms.js. A page loads the texts of one language.
//   - Figures of topics and groups follow one stream for all tabs of a browser (follow of live.js).
//     Other data, and the order of a list, are requested less often. A page that is hidden or
//     paused requests nothing and draws nothing. An update changes only what differs.
//   - A list draws 200 rows at most. A search and an action on everything that matches are a series
//     of bounded requests.
//
// # Modules
//
//   - main: session, navigation, choice of the page, whose module is loaded when it is first shown
//   - base: elements, dialogs, numbers, durations, the broker's clock, settings of the browser
//   - api: requests, and the permissions of the session
//   - page: addresses, the loop that keeps a page current, commands, tables, limits in words
//   - parts: plots and searches
//   - body: the view of a body
//   - schedule: retry schedules and their calculator
//   - live: the stream of moments that all tabs share, and the samples for the charts, which begin
//     with the hour or day that the broker has kept
//   - overview, topics, groups, parked, letters, messages, settings: the pages of these subjects
//   - text: the language; en, zh, en-terms, zh-terms: the texts
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

//go:embed files
var embedded embed.FS

// Path is the path below which [Handler] serves the console.
const Path = "/console/"

// Handler returns the handler of all requests below [Path]. Goroutines may share it.
//
// The index, at Path, is never cached. All other files are below a directory whose name is a hash
// of all files, and are cached permanently. The files refer to each other by relative URLs, so they
// also work behind a proxy that adds a prefix to the path.
//
// The first request reads and compresses the files. At the start of a broker this would add 20 ms
// or more to 30.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { shared().ServeHTTP(w, r) })
}

var shared = sync.OnceValue(func() *handler {
	dir, err := fs.Sub(embedded, "files")
	if err != nil {
		panic(err) // embedded under this name
	}
	h, err := load(dir)
	if err != nil {
		panic(err) // a test loads the files
	}
	return h
})

// indexName is the file at Path itself.
const indexName = "index.html"

// source is the directory of the other files in the index; the index is served with the name of
// the hash in its place.
const source = `"files/`

// unread are empty lines of a script, those with only a comment, and the indentation. They are
// left out of the responses, because they are a fifth of the bytes. So no text may go over several
// lines.
var unread = regexp.MustCompile(`(?m)^[ \t]*(//.*)?\n|^[ \t]+`)

// padding is the space around the signs of a style, which is left out too.
var padding = regexp.MustCompile(`[ \t]*([{};])[ \t]*|(:)[ \t]+`)

// types are the content types of the files. Package mime would use the tables of the machine.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
}

// A handler has all responses in memory.
type handler struct {
	files map[string]file // by the path below Path
}

// A file is a response.
type file struct {
	contentType  string
	cacheControl string
	plain        []byte
	zipped       []byte // with gzip
}

// load reads all files of a directory.
func load(dir fs.FS) (*handler, error) {
	texts, hash := map[string][]byte{}, sha256.New()
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(dir, name)
		if path.Ext(name) == ".js" {
			text = unread.ReplaceAll(text, nil)
		} else if path.Ext(name) == ".css" {
			text = padding.ReplaceAll(text, []byte("$1$2"))
		}
		texts[name] = text
		// The walk is in lexical order. The lengths keep two files from being hashed like one.
		for _, part := range [][]byte{[]byte(name), text} {
			hash.Write([]byte(strconv.Itoa(len(part)) + ":"))
			hash.Write(part)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	version := hex.EncodeToString(hash.Sum(nil)[:8])
	h := &handler{files: map[string]file{}}
	for name, text := range texts {
		at, caching := version+"/"+name, "public, max-age=31536000, immutable"
		if name == indexName {
			at, caching = "", "no-store"
			text = bytes.ReplaceAll(text, []byte(source), []byte(`"`+version+`/`))
		}
		contentType, ok := types[path.Ext(name)]
		if !ok {
			return nil, fmt.Errorf("console file %s: the extension is unknown; add it to types", name)
		}
		h.files[at] = file{contentType: contentType, cacheControl: caching, plain: text, zipped: zip(text)}
	}
	return h, nil
}

func zip(text []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		panic(err) // the level is valid
	}
	_, _ = w.Write(text) // a bytes.Buffer does not fail
	_ = w.Close()
	return b.Bytes()
}

// security are the headers of every response. The policy permits only files of this origin, and no
// text that becomes code or markup.
var security = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY", // for browsers without frame-ancestors
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	for name, value := range security {
		header.Set(name, value)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "the console accepts GET and HEAD, not "+r.Method, http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == strings.TrimSuffix(Path, "/") {
		// A relative address: a proxy may have removed a prefix.
		header.Set("Location", path.Base(Path)+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	f, ok := h.files[strings.TrimPrefix(r.URL.Path, Path)]
	if !ok {
		header.Set("Cache-Control", "no-store")
		http.Error(w, "the console has no file "+strconv.QuoteToASCII(r.URL.Path), http.StatusNotFound)
		return
	}
	header.Set("Content-Type", f.contentType)
	header.Set("Cache-Control", f.cacheControl)
	header.Set("Vary", "Accept-Encoding")
	text := f.plain
	if acceptsGzip(r.Header.Values("Accept-Encoding")) {
		header.Set("Content-Encoding", "gzip")
		text = f.zipped
	}
	header.Set("Content-Length", strconv.Itoa(len(text)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(text) // it fails only if the client has gone
	}
}

// acceptsGzip reports whether a client that sends these headers reads gzip (RFC 9110 §12.5.3). A
// client that excludes gzip with q=0 gets plain text.
func acceptsGzip(headers []string) bool {
	for _, h := range headers {
		for entry := range strings.SplitSeq(h, ",") {
			coding, weight, _ := strings.Cut(entry, ";")
			if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
				weight = strings.ReplaceAll(weight, " ", "")
				return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
			}
		}
	}
	return false
}
