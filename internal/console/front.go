package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A Front serves the console on this machine for a broker elsewhere. It forwards the API with the
// credentials of a context, so only the browser of its user may use it. Goroutines may share it.
type Front struct {
	broker   http.RoundTripper
	readOnly bool
	port     string
	mux      *http.ServeMux
	origins  *http.CrossOriginProtection

	mu      sync.Mutex
	token   [sha256.Size]byte // guarded by mu: the hash of the one-time token
	fresh   bool              // guarded by mu: the token was not used yet
	session [sha256.Size]byte // guarded by mu: the hash of both halves
	open    bool              // guarded by mu: there is a session
}

// NewFront returns a Front and its one-time token. broker sends requests to the broker with
// credentials. port is the local port, which the Host header must have. readOnly forwards only GET
// and HEAD.
func NewFront(broker http.RoundTripper, port string, readOnly bool) (front *Front, token string) {
	token = random()
	f := &Front{broker: broker, port: port, readOnly: readOnly, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(), token: sha256.Sum256([]byte(token)), fresh: true}
	f.mux.Handle(Path, Handler())
	f.mux.Handle("GET /{$}", http.RedirectHandler(Path, http.StatusSeeOther))
	f.mux.HandleFunc("POST /v1/session", f.begin)
	f.mux.HandleFunc("GET /v1/session", f.only(f.whoami))
	f.mux.HandleFunc("DELETE /v1/session", f.only(f.end))
	f.mux.HandleFunc("/v1/", f.only((&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { strip(r.Out.Header) },
		Transport:      broker,
		FlushInterval:  -1, // a stream of lines
		ModifyResponse: func(r *http.Response) error { r.Header.Del("Set-Cookie"); return nil },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			problem(w, http.StatusBadGateway, "the broker does not respond: "+err.Error())
		},
	}).ServeHTTP))
	return f, token
}

// strip removes the headers of the browser's connection to this program: the broker would compare
// the origin with its own host.
func strip(h http.Header) {
	for _, name := range []string{"Cookie", "Origin", "Referer", "X-Tidegate-Session", "Authorization"} {
		h.Del(name)
	}
	for name := range h {
		if strings.HasPrefix(name, "Sec-") {
			h.Del(name)
		}
	}
}

// ServeHTTP implements http.Handler.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A page of the web can make its own name point at this machine (DNS rebinding).
	if host, port, err := net.SplitHostPort(r.Host); err != nil || port != f.port || host != "127.0.0.1" && host != "localhost" {
		problem(w, http.StatusForbidden, fmt.Sprintf("the Host header is %.200q; open http://127.0.0.1:%s%s", r.Host, f.port, Path))
		return
	}
	if err := f.origins.Check(r); err != nil {
		problem(w, http.StatusForbidden, "a web page of another origin may not use this console")
		return
	}
	f.mux.ServeHTTP(w, r)
}

// headerSession is the header with the half of a session that a page keeps.
const headerSession = "X-Tidegate-Session"

// cookie is the name of the cookie with the other half. All ports of a host share their cookies.
func (f *Front) cookie() string { return "tidegate-" + f.port }

// begin exchanges the one-time token for a session in two halves: one in a cookie, which no script
// can read, and one in the response, which no other local program receives.
func (f *Front) begin(w http.ResponseWriter, r *http.Request) {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash := sha256.Sum256([]byte(given))
	a, b := random(), random()
	f.mu.Lock()
	ok = ok && f.fresh && subtle.ConstantTimeCompare(hash[:], f.token[:]) == 1
	if ok {
		f.fresh, f.open, f.session = false, true, sha256.Sum256([]byte(a+b))
	}
	f.mu.Unlock()
	if !ok {
		problem(w, http.StatusUnauthorized, "the link of tidegate console works once; stop the command and start it again")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: f.cookie(), Value: a, HttpOnly: true, SameSite: http.SameSiteStrictMode, Path: "/v1"}) //nolint:gosec // plain text on this machine
	f.describe(w, r, b)
}

// only lets the session's requests pass. A cookie alone is never enough, so no other page can send
// a request in its name.
func (f *Front) only(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		half := ""
		if c, err := r.Cookie(f.cookie()); err == nil {
			half = c.Value
		}
		hash := sha256.Sum256([]byte(half + r.Header.Get(headerSession)))
		f.mu.Lock()
		ok := f.open && subtle.ConstantTimeCompare(hash[:], f.session[:]) == 1
		f.mu.Unlock()
		switch {
		case !ok:
			problem(w, http.StatusUnauthorized, "this browser has no session; open the link that tidegate console printed")
		case f.readOnly && r.Method != http.MethodGet && r.Method != http.MethodHead && r.URL.Path != "/v1/session":
			problem(w, http.StatusForbidden, "tidegate console --read-only forwards only GET")
		default:
			h(w, r)
		}
	}
}

func (f *Front) whoami(w http.ResponseWriter, r *http.Request) { f.describe(w, r, "") }

func (f *Front) end(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	f.open = false
	f.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// maxWhoami bounds the description of a principal in bytes.
const maxWhoami = 1 << 20

// describe responds with the broker's description of the context's principal. half is the half of a
// new session, or empty.
func (f *Front) describe(w http.ResponseWriter, r *http.Request, half string) {
	who, status, err := f.ask(r.Context())
	if err != nil {
		problem(w, status, err.Error())
		return
	}
	if half != "" {
		who["token"] = half
	}
	if f.readOnly {
		who["read_only"] = true
	}
	respond(w, http.StatusOK, "application/json", who)
}

// ask asks the broker for the context's principal. A broker without that route decides by its
// responses alone.
func (f *Front) ask(ctx context.Context) (map[string]any, int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://broker/v1/session", http.NoBody)
	if err != nil {
		return nil, http.StatusInternalServerError, err
	}
	resp, err := f.broker.RoundTrip(r)
	if err != nil {
		return nil, http.StatusBadGateway, fmt.Errorf("the broker does not respond: %w", err)
	}
	defer resp.Body.Close()
	who := map[string]any{}
	switch err := json.NewDecoder(io.LimitReader(resp.Body, maxWhoami)).Decode(&who); {
	case resp.StatusCode == http.StatusNotFound:
		return map[string]any{"restricted": false}, http.StatusOK, nil
	case resp.StatusCode != http.StatusOK:
		return nil, resp.StatusCode, fmt.Errorf("the broker rejects the credentials of the context: %v", who["detail"])
	case err != nil:
		return nil, http.StatusBadGateway, fmt.Errorf("the broker's response is not JSON: %w", err)
	}
	return who, http.StatusOK, nil
}

func problem(w http.ResponseWriter, status int, detail string) {
	respond(w, status, "application/problem+json", map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail})
}

func respond(w http.ResponseWriter, status int, contentType string, body any) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // it fails only if the browser has gone
}

// random returns 32 random bytes as text.
func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// FrontOptions are the choices of [RunFront].
type FrontOptions struct {
	Name     string    // of the broker, for the user
	Port     uint16    // of 127.0.0.1; 0 for a free one
	ReadOnly bool      // forward only GET and HEAD
	Open     bool      // open the browser
	Out, Err io.Writer // for the link, and for notes
	JSON     bool      // print the link as JSON
}

// announce prints the link.
func (o FrontOptions) announce(url string) error {
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(map[string]string{"url": url, "broker": o.Name})
	}
	_, err := fmt.Fprintf(o.Err, "The console of %q. The link works once; Ctrl-C ends the console.\n", o.Name)
	if err == nil {
		_, err = fmt.Fprintln(o.Out, url)
	}
	return err
}

// RunFront serves the console of a broker until ctx ends, which is no error. It prints the link. A
// browser that does not open is only a note, because the link is printed.
func RunFront(ctx context.Context, broker http.RoundTripper, o FrontOptions) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	_, port, _ := net.SplitHostPort(lis.Addr().String()) // a TCP address has a port
	f, token := NewFront(broker, port, o.ReadOnly)
	url := "http://" + lis.Addr().String() + Path + "#token=" + token
	web := &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(lis) }()
	if err = o.announce(url); err == nil && o.Open {
		remove, opened := browse(ctx, url)
		defer remove()
		if opened != nil {
			_, err = fmt.Fprintf(o.Err, "--open: %v; open the printed link yourself\n", opened)
		}
	}
	if err == nil {
		select {
		case err = <-ended:
			return err
		case <-ctx.Done():
		}
	}
	err = errors.Join(err, web.Close())
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// browse opens a URL in the browser of the user. Other users can see the arguments of programs, so
// the URL with its token is in a file that only this user can read. remove removes the file, also
// after an error.
func browse(ctx context.Context, url string) (remove func(), err error) {
	file, err := os.CreateTemp("", "tidegate-console-*.html")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.Remove(file.Name()) }
	_, err = fmt.Fprintf(file, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=%s\">\n", html.EscapeString(url))
	if err := errors.Join(err, file.Close()); err != nil {
		return remove, err
	}
	name, args := "xdg-open", []string{file.Name()}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", file.Name()}
	}
	return remove, exec.CommandContext(ctx, name, args...).Run()
}
