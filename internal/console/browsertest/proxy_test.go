package browsertest

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/server"
)

// proxy starts a reverse proxy that removes a prefix of the path and has a host name of its own.
func proxy(t *testing.T, target, prefix, host string) string {
	t.Helper()
	to := assert.Value(url.Parse(target))(t)
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.SetXForwarded()
		r.Out.Host = host
	}, FlushInterval: -1}
	lis := assert.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, forward))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go web.Serve(lis) // it ends with Close
	t.Cleanup(func() { web.Close() })
	return "http://" + lis.Addr().String() + prefix
}

// The console works behind a proxy that removes a prefix of the path and rewrites the host, with
// the host in http_hosts.
func TestBehindPrefixProxy(t *testing.T) {
	s := start(t, siteOptions{server: server.Options{HTTPHosts: []string{"mq.example"}}})
	s.populate(1)
	b := open(t, proxy(t, s.url, "/team/mq", "mq.example"))
	b.load("")
	for _, p := range pages {
		b.visit(p.fragment)
		b.clean()
		faults := value[[]string](b, `[...document.querySelectorAll('[role=alert]')].filter((e) => !e.hidden).map((e) => e.textContent)`)
		for _, f := range faults {
			t.Errorf("%s: %s", p.fragment, f)
		}
	}
	// Without the last slash, as people type it.
	b.run(navigate(b.origin + "/console"))
	b.ready()
	b.clean()
}

// Without the host in http_hosts the broker rejects the data, and the page shows the remedy.
func TestBehindUnknownHost(t *testing.T) {
	s := start(t, siteOptions{})
	b := open(t, proxy(t, s.url, "/mq", "mq.example"))
	b.run(navigate(b.origin + "/console/"))
	b.wait(`document.querySelector('main').innerText.includes('--http-hosts')`)
}
