package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"

	"github.com/tidegate/tidegate/internal/assert"
)

// A fast broker must not accept a request after Close.
func TestRequestsAfterCloseHaveEnded(t *testing.T) {
	c := assert.Value(New("127.0.0.1:1", Options{Op: "test"}))(t)
	c.Close()
	for range 100 {
		ctx, stop := c.within(context.Background())
		cause := context.Cause(ctx)
		stop()
		if !errors.Is(cause, tidegate.ErrClosed) {
			t.Fatalf("the context of a request after Close: %v, want ErrClosed", cause)
		}
	}
}

// A proxy that requests credentials is a fault of the configuration; a proxy that cannot reach the
// broker is an outage.
func TestNotConnectedThroughAProxy(t *testing.T) {
	for status, want := range map[string]bool{
		"407 Proxy Authentication Required": false,
		"403 Forbidden":                     false,
		"502 Bad Gateway":                   true,
	} {
		c := assert.Value(New("https://broker.test", Options{Op: "test"}))(t)
		c.network.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.test:3128"})
		c.network.DialContext = func(context.Context, string, string) (net.Conn, error) {
			proxy, conn := net.Pipe()
			go func() {
				defer proxy.Close()
				if _, err := http.ReadRequest(bufio.NewReader(proxy)); err == nil {
					_, _ = fmt.Fprintf(proxy, "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n", status)
				}
			}()
			return conn, nil
		}
		err := c.Do(t.Context(), &Request{Op: "GetTopic", Method: "GET", Path: "/v1/topics/t"},
			func(Attempt) (time.Duration, bool) { return 0, false })
		if f, ok := errors.AsType[*Failure](err); !ok || f.Err.NotConnected != want {
			t.Errorf("%s: %#v, want NotConnected %t", status, err, want)
		}
		c.Close()
	}
}

// A loop over pages ends with the last page, for any number of pages. If the server repeats its
// cursors it ends with an error, within three rounds of the cycle.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 100, 10_000} {
		pages := 0
		err := Pages("", func(after string) (string, error) {
			if want := fmt.Sprint(pages); after != want && pages > 0 {
				t.Errorf("page %d is after %q", pages, after)
			}
			if pages++; pages == n {
				return "", nil
			}
			return fmt.Sprint(pages), nil
		})
		assert.That(t, err == nil && pages == n, "%d of %d pages, %v", pages, n, err)
	}
	for _, begin := range []int{0, 1, 5, 1000} {
		for _, cycle := range []int{1, 2, 3, 7, 100} {
			pages := 0
			err := Pages("from", func(string) (string, error) {
				n := pages
				if n > begin {
					n = begin + (n-begin)%cycle
				}
				if pages++; pages > 3*(begin+cycle)+3 {
					return "", nil
				}
				return fmt.Sprint(n), nil
			})
			if err == nil || !strings.Contains(err.Error(), "again") {
				t.Errorf("%d pages of a cycle of %d after %d: %v", pages, cycle, begin, err)
			}
		}
	}
	if err := Pages("from", func(string) (string, error) { return "from", nil }); err == nil {
		t.Error("the cursor that the loop began with is accepted")
	}
}
