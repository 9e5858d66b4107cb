package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// probeTimeout bounds a probe. The health check of the image has a longer one.
const probeTimeout = 2 * time.Second

// probe asks the broker that listens on an address of this machine whether it is ready, with TLS if
// the port speaks TLS. It trusts any certificate, because the broker is a process of this machine
// and the response is no secret. A broker that requires a certificate of clients does not tell
// whether it is ready: probe then returns nil, because the broker works as far as the handshake.
func probe(ctx context.Context, listen string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("probe of %s: %w; give the address with --http HOST:PORT", listen, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	address := net.JoinHostPort(host, port)
	status, text, err := readyz(ctx, "http://"+address)
	if err != nil || status == http.StatusBadRequest && strings.Contains(text, "HTTPS server") {
		status, text, err = readyz(ctx, "https://"+address)
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "tls: certificate required"):
		return nil
	case err != nil:
		return fmt.Errorf("probe of %s: %w", address, err)
	case status != http.StatusOK:
		return fmt.Errorf("probe of %s: the broker is not ready: status %d: %s", address, status, strings.TrimSpace(text))
	}
	return nil
}

// readyz makes one request, and returns its status and the beginning of the response.
func readyz(ctx context.Context, url string) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", http.NoBody)
	if err != nil {
		return 0, "", err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see probe
	}}
	resp, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return resp.StatusCode, string(body), errors.Join(err, resp.Body.Close())
}
