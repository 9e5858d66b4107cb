package waiting

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate/cmd/internal/output"
)

const (
	// lookAfter is the time without a response after which a look tries to connect.
	lookAfter = time.Second

	// lookFor bounds each attempt of a look to connect.
	lookFor = time.Second
)

// A Look prints one line if a server that has not responded for a time accepts no connection.
type Look struct {
	Out     io.Writer
	Noted   *sync.Once // prints the line; the looks of a command share it
	Address func() string
	Bound   time.Duration // of the request; 0 for none
	Dial    func(ctx context.Context, address string) error
}

// Watch returns the fault of the connection, or nil if ctx ends before it is known, or if the
// server accepts connections. The addresses of a server are separated by semicolons.
func (l *Look) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(lookAfter):
	}
	all := l.Address()
	if all == "" {
		return nil
	}
	var fault error
	for address := range strings.SplitSeq(all, ";") {
		bounded, cancel := context.WithTimeout(ctx, lookFor)
		err := l.Dial(bounded, address)
		cancel()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		fault = err
	}
	bound := ""
	if l.Bound > 0 {
		bound = fmt.Sprintf(" for %v (--timeout)", l.Bound)
	}
	l.Noted.Do(func() {
		fmt.Fprintf(l.Out, "not connected to %s: %s; trying again%s, Ctrl-C ends it\n", output.Safe(all), output.Safe(fault.Error()), bound)
	})
	return fault
}

// Dial tries to connect by TCP. It returns nil if a proxy of the environment connects to the
// address instead.
func Dial(ctx context.Context, address string) error {
	for _, scheme := range []string{"http", "https"} {
		if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: scheme, Host: address}}); err != nil || proxy != nil {
			return nil //nolint:nilerr // the request has the error of the proxy
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
