package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// Failure.Earlier reports that an attempt before the last one may have taken effect, also if many
// harmless attempts follow it.
func TestEarlierAttempts(t *testing.T) {
	const lost, throttled = 0, 429
	for _, tt := range []struct {
		name      string
		responses []int // statuses; lost means that the connection ends without a response
		earlier   bool
	}{
		{"one throttled attempt", []int{throttled}, false},
		{"one lost response", []int{lost}, false},
		{"throttled attempts", []int{throttled, throttled, throttled}, false},
		{"a lost response before the last attempt", []int{lost, throttled}, true},
		{"a lost response before two attempts", []int{lost, throttled, throttled}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			attempt := 0
			dial := func(context.Context, string) (net.Conn, error) {
				status := tt.responses[min(attempt, len(tt.responses)-1)]
				attempt++
				server, client := net.Pipe()
				go func() {
					defer server.Close()
					if _, err := http.ReadRequest(bufio.NewReader(server)); err == nil && status != lost {
						_, _ = fmt.Fprintf(server, "HTTP/1.1 %d Status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
					}
				}()
				return client, nil
			}
			c, err := New("broker.test", Options{Op: "test", Dialer: dial})
			assert.Must(t, err)
			defer c.Close()
			err = c.Do(t.Context(), &Request{Op: "PutTopic", Method: "POST", Path: "/v1/topics/t", MaxResponse: 1000},
				func(a Attempt) (time.Duration, bool) { return 0, a.Number < len(tt.responses) })
			if f, ok := errors.AsType[*Failure](err); !ok || f.Earlier != tt.earlier || f.Attempts != len(tt.responses) {
				t.Errorf("%#v, want Earlier %t after %d attempts", err, tt.earlier, len(tt.responses))
			}
		})
	}
}
