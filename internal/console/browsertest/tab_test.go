package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds each wait for the browser. Only a fault makes a test wait as long.
const patience = 90 * time.Second

// A tab is a tab of the browser. It records everything that a page of the console must not do.
type tab struct {
	t      testing.TB
	ctx    context.Context
	end    context.CancelFunc // closes the tab
	origin string

	mu       sync.Mutex
	faults   []string // guarded by mu: violations of the policy, exceptions, console errors, foreign requests
	received int64    // guarded by mu: bytes of responses
	requests []string // guarded by mu: method and URL of each request to the API
}

// open opens a tab in a browser context of its own, with its own cookies and storage.
func open(t testing.TB, origin string) *tab {
	t.Helper()
	return openIn(t, browser, origin, chromedp.WithNewBrowserContext())
}

// beside opens another tab in the window of b, with the same cookies and storage.
func (b *tab) beside() *tab {
	b.t.Helper()
	return openIn(b.t, b.ctx, b.origin)
}

// violations records the actions that the policy of a page stops. It runs before any script of the
// page.
const violations = `window.violations = [];
document.addEventListener('securitypolicyviolation', e => window.violations.push(e.effectiveDirective + ' ' + e.blockedURI + ' ' + e.sourceFile + ':' + e.lineNumber));`

func openIn(t testing.TB, parent context.Context, origin string, o ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(parent, o...)
	t.Cleanup(end)
	b := &tab{t: t, ctx: ctx, end: end, origin: origin}
	if err := chromedp.Do(ctx); err != nil { // the first call creates the tab, whose life is that of ctx
		t.Fatal(err)
	}
	assert.Must(t, chromedp.Listen(ctx, b.listen))
	b.run(command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}),
		command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: violations}))
	return b
}

// command is an action that calls one command of the protocol.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			var text []string
			for _, a := range e.Args {
				text = append(text, string(a.Value)+a.Description)
			}
			b.faults = append(b.faults, "console.error: "+strings.Join(text, " "))
		}
	case *log.EventEntryAdded:
		// The browser logs each response with a status of 400 or more, which some tests want.
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			b.faults = append(b.faults, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		u := e.Request.URL
		if b.origin != "" && !strings.HasPrefix(u, b.origin+"/") && !strings.HasPrefix(u, "blob:"+b.origin+"/") && u != "about:blank" {
			b.faults = append(b.faults, "request beyond the origin: "+u)
		}
		if strings.Contains(u, "/v1/") {
			b.requests = append(b.requests, e.Request.Method+" "+u)
		}
	case *network.EventLoadingFinished:
		b.received += int64(e.EncodedDataLength)
	}
}

// run runs actions in the tab.
func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v; the page shows: %.500s", err, b.text())
	}
}

// text returns the text of the page, for errors.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + ' ' + document.body?.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// eval evaluates an expression, whose promise it awaits, and decodes the result into out.
func (b *tab) eval(expression string, out any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	raw, err := chromedp.Run(ctx, chromedp.Evaluate[[]byte](expression, chromedp.EvalAwaitPromise, chromedp.EvalAsValue))
	if err != nil {
		b.t.Fatalf("%s: %v; the page shows: %.500s", expression, err, b.text())
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(raw, out); err != nil {
		b.t.Fatalf("%s: %v in %s", expression, err, raw)
	}
}

// value evaluates an expression and returns its value.
func value[T any](b *tab, expression string) (v T) {
	b.t.Helper()
	b.eval(expression, &v)
	return v
}

// fill sets a field of the open dialog to a value of JavaScript.
func (b *tab) fill(name, value string) {
	b.t.Helper()
	input := fmt.Sprintf(`document.querySelector('dialog[open] [name=%q]')`, name)
	b.wait(input)
	b.eval(input+`.value = `+value+`; null`, nil)
}

// confirm confirms the open dialog, and waits until it is closed.
func (b *tab) confirm() {
	b.t.Helper()
	b.click("confirm", "")
	b.wait(`!document.querySelector('dialog')`)
}

// wait waits until an expression is true.
func (b *tab) wait(expression string) {
	b.t.Helper()
	if !b.becomes(expression, patience) {
		b.t.Fatalf("after %v this is not true: %s; faults: %q; the page shows: %.800s", patience, expression, b.recorded(), b.text())
	}
}

// becomes reports whether an expression becomes true within a time.
func (b *tab) becomes(expression string, within time.Duration) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.PollFunction[chromedp.Void]("() => !!("+expression+")", chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(0)))
	return err == nil
}

// load loads the console, or a page of it: "#/topics". It waits until the page has its data.
func (b *tab) load(fragment string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.origin + "/console/" + fragment))
	b.ready()
}

// visit goes to a page without loading the console again.
func (b *tab) visit(fragment string) {
	b.t.Helper()
	// A change of the fragment removes data-ready in its own task; here it is removed before.
	b.eval(fmt.Sprintf(`delete document.getElementById('main').dataset.ready; if (location.hash === %q) dispatchEvent(new Event('hashchange')); else location.hash = %q; null`, fragment, fragment), nil)
	b.ready()
}

func (b *tab) ready() {
	b.t.Helper()
	b.wait(`document.querySelector('main[data-page][data-ready]')`)
}

// is fails the test if another page is open, for example that of an unknown address.
func (b *tab) is(page string) {
	b.t.Helper()
	name := value[string](b, `document.getElementById('main').dataset.page`)
	if name != page {
		b.t.Errorf("%s is the page %q, want %q", b.where(), name, page)
	}
}

// recorded returns the forbidden actions of the page.
func (b *tab) recorded() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.faults...)
}

// clean fails the test if the page did something that it must not do, or has a link that leads away
// from the console.
func (b *tab) clean() {
	b.t.Helper()
	links := value[[]string](b, `[...document.querySelectorAll('a[href], area[href], [src], form[action]')].map((e) => e.getAttribute('href') ?? e.getAttribute('src') ?? e.getAttribute('action')).filter((to) => !/^#(\/|main$)/.test(to) && !/^[0-9a-f]{16}\//.test(to))`)
	for _, to := range links {
		b.t.Errorf("%s: a link to %q", b.where(), to)
	}
	stopped := value[[]string](b, `window.violations`)
	for _, v := range append(b.recorded(), stopped...) {
		b.t.Errorf("%s: %s", b.where(), v)
	}
}

func (b *tab) where() string {
	at := value[string](b, `location.href`)
	return at
}

// sent returns the requests to the API since the last call.
func (b *tab) sent() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.requests
	b.requests = nil
	return list
}

// transferred returns the bytes of responses since the last call.
func (b *tab) transferred() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.received
	b.received = 0
	return n
}

// signIn signs in by the form of the page.
func (b *tab) signIn(key string) {
	b.t.Helper()
	b.wait(`document.querySelector('main[data-page=sign-in] [name=secret]')`)
	b.run(
		chromedp.SetValue(chromedp.CSS(`[name=key]`), key),
		chromedp.SetValue(chromedp.CSS(`[name=secret]`), "sesame-"+key),
		chromedp.Click(chromedp.CSS(`[data-action=sign-in]`)),
	)
	b.wait(fmt.Sprintf(`document.querySelector('[data-session=%q]')`, key))
	b.ready()
}

// click clicks the first button of an action. subject may be empty.
func (b *tab) click(action, subject string) {
	b.t.Helper()
	selector := fmt.Sprintf(`[data-action=%q]`, action)
	if subject != "" {
		selector += fmt.Sprintf(`[data-subject=%q]`, subject)
	}
	b.wait(fmt.Sprintf(`document.querySelector(%q)`, selector))
	b.eval(fmt.Sprintf(`document.querySelector(%q).click()`, selector), nil)
}

// size sets the size of the window in CSS pixels.
func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.run(chromedp.EmulateViewport(width, height))
}

// dark turns the dark mode of the system on or off.
func (b *tab) dark(on bool) {
	b.t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	b.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}}))
}

// shoot writes a screenshot into the directory of -screenshots.
func (b *tab) shoot(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	png := assert.Value(chromedp.Run(b.ctx, chromedp.CaptureScreenshot()))(b.t)
	assert.Must(b.t, os.MkdirAll(*screenshots, 0o755))
	assert.Must(b.t, os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644))
}
