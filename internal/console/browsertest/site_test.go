package browsertest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A site is a broker with its HTTP address.
type site struct {
	*broker.Broker
	t      testing.TB
	server *server.Server
	web    *http.Server
	url    string // http://127.0.0.1:PORT
	addr   string
}

// siteOptions are the options of a site. The zero value is a broker in memory without keys.
type siteOptions struct {
	broker broker.Options
	server server.Options
	addr   string // Empty: a free port.
	wrap   func(http.Handler) http.Handler
}

// start starts a broker, which ends with the test.
func start(t testing.TB, o siteOptions) *site {
	t.Helper()
	s := launch(t, o)
	t.Cleanup(s.kill)
	return s
}

// launch is start for a broker that the test itself kills.
func launch(t testing.TB, o siteOptions) *site {
	t.Helper()
	o.broker.MinInvisibleDuration = 1
	b := assert.Value(broker.Open(o.broker))(t)
	srv := assert.Value(server.New(b, o.server))(t)
	if o.addr == "" {
		o.addr = "127.0.0.1:0"
	}
	lis := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", o.addr))(t)
	h := srv.Handler()
	if o.wrap != nil {
		h = o.wrap(h)
	}
	s := &site{Broker: b, t: t, server: srv, web: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ConnContext: srv.ConnContext}, url: "http://" + lis.Addr().String(), addr: lis.Addr().String()}
	go s.web.Serve(lis) // it ends with kill
	return s
}

// kill ends the broker at once. A second call does nothing.
func (s *site) kill() {
	_ = s.web.Close()
	_ = s.server.Close()
	_ = s.Close()
}

// topic creates a topic, and group a group.
func (s *site) topic(name string, c settings.Topic) {
	s.t.Helper()
	assert.Must(s.t, assert.Err(s.PutTopic(context.Background(), name, c)))
}

func (s *site) group(name string, c settings.Group) {
	s.t.Helper()
	assert.Must(s.t, assert.Err(s.PutGroup(context.Background(), name, c)))
}

// sent numbers the messages of all sites.
var sent atomic.Int64

// send stores messages, and gives IDs to those without one.
func (s *site) send(msgs ...*tidegate.Message) {
	s.t.Helper()
	for _, m := range msgs {
		if m.ID == "" {
			m.ID = fmt.Sprintf("%032X", sent.Add(1))
		}
	}
	for len(msgs) > 0 {
		n := min(len(msgs), 500)
		for _, r := range s.Send(context.Background(), msgs[:n]) {
			assert.Must(s.t, r.Err)
		}
		msgs = msgs[n:]
	}
}

// take receives up to n messages without waiting long.
func (s *site) take(group, topic string, n int) []*tidegate.Delivery {
	s.t.Helper()
	var all []*tidegate.Delivery
	for len(all) < n {
		ds, err := s.Receive(context.Background(), transport.ReceiveRequest{
			Group: group, Topic: topic, Max: min(n-len(all), 32), InvisibleDuration: time.Hour, Wait: 50 * time.Millisecond, Queue: transport.AnyQueue,
		})
		assert.Must(s.t, err)
		if len(ds) == 0 {
			break
		}
		all = append(all, ds...)
	}
	return all
}

// bury sends n messages to the topic and makes them dead letters of the group.
func (s *site) bury(group, topic string, n int, reason func(i int) string, message func(i int) *tidegate.Message) {
	s.t.Helper()
	msgs := make([]*tidegate.Message, n)
	for i := range msgs {
		msgs[i] = message(i)
	}
	s.send(msgs...)
	for i, d := range s.take(group, topic, n) {
		if _, err := s.Settle(context.Background(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: reason(i)}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// letter creates the topic of a message and the group g, of which the message is the only dead
// letter.
func (s *site) letter(m *tidegate.Message) {
	s.t.Helper()
	s.topic(m.Topic, settings.Topic{Queues: 1})
	s.group("g", settings.Group{})
	s.bury("g", m.Topic, 1, func(int) string { return "no such account" }, func(int) *tidegate.Message { return m })
}

// populate creates n topics and a tenth as many groups, at least one of each if n > 0, with
// messages, retries, parked message groups and dead letters in the first ones.
func (s *site) populate(n int) {
	s.t.Helper()
	if n == 0 {
		return
	}
	s.topic("normal", settings.Topic{Queues: 4})
	s.group("g", settings.Group{MaxAttempts: 3})
	for i := 1; i < n; i++ {
		s.topic(fmt.Sprintf("orders-%05d", i), settings.Topic{Queues: 1})
	}
	for i := range n / 10 {
		s.group(fmt.Sprintf("billing-%04d", i), settings.Group{})
	}
	s.bury("g", "normal", 5, func(i int) string { return fmt.Sprintf("no such account %d", 1000+i) },
		func(i int) *tidegate.Message {
			return &tidegate.Message{Topic: "normal", Body: fmt.Appendf(nil, `{"account":%d,"total":12345678901234567890.10}`, 1000+i), Keys: []string{fmt.Sprint("key-", i)}, Tag: "paid", Properties: map[string]string{"region": "eu-central"}}
		})
	var more []*tidegate.Message
	for i := range 40 {
		more = append(more, &tidegate.Message{Topic: "normal", Body: []byte(strings.Repeat("x", 100+i)), Properties: map[string]string{"n": fmt.Sprint(i)}})
	}
	s.send(more...)
	for i, d := range s.take("g", "normal", 10) {
		if i%2 == 0 {
			if _, err := s.Settle(context.Background(), d, transport.Verdict{Kind: transport.Retry, Delay: transport.BySchedule, Reason: "connection refused"}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

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

var (
	chromium    = flag.String("chromium", "", "path of a Chromium; without one nothing is tested")
	screenshots = flag.String("screenshots", "", "directory for screenshots of all pages")
)

// browser is the one process that all tests share; each test has tabs of its own.
var browser context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	if *chromium == "" {
		fmt.Println("without -chromium there is no browser: nothing is tested")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	o := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(*chromium),
		chromedp.NoSandbox, // the tests may run as root, and load only their own pages
		chromedp.WindowSize(1280, 900),
		chromedp.Flag("enable-precise-memory-info", true),
		chromedp.Flag("js-flags", "--expose-gc"),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("force-prefers-reduced-motion", true),
		chromedp.Env("LANG=en_US.UTF-8"),
	)
	alloc, endAlloc := chromedp.NewExecAllocator(context.Background(), o...)
	defer endAlloc()
	ctx, end := chromedp.NewContext(alloc)
	defer end()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Println("Chromium does not start:", err)
		return 1
	}
	browser = ctx //nolint:fatcontext // of all tests
	return m.Run()
}
