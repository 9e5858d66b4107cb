package httpapi

import (
	"net/http"
	"net/url"
)

// RoundTrip sends a request to the broker, for any host in its URL. The credentials of the client
// replace those of the request. RoundTrip implements [http.RoundTripper] for programs that forward
// requests: it repeats nothing, and the body of the response is that of the broker.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL = &url.URL{Scheme: c.base.Scheme, Host: c.base.Host, Path: c.base.Path + r.URL.Path, RawQuery: r.URL.RawQuery}
	if r.URL.RawPath != "" {
		out.URL.RawPath = c.base.EscapedPath() + r.URL.EscapedPath()
	}
	out.Host = c.base.Host
	out.Header.Del("Authorization")
	return c.network.RoundTrip(c.signed(out))
}
