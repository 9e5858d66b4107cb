package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
)

// rawConn connects to the server as nothing but a connection.
func (x *webEnv) rawConn() net.Conn {
	x.t.Helper()
	c, err := x.client.Transport.(*http.Transport).DialContext(x.t.Context(), "", "")
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { c.Close() })
	return c
}

// A client that waits for our go-ahead, as curl does above 1 MiB, gets a stream like any other one.
func TestHTTPSendStreamAfterExpect(t *testing.T) {
	for name, c := range map[string]struct {
		chunks []string // of the body
		lines  int      // of the response
	}{
		"lines":   {[]string{`{"id":"1","body":"eA=="}` + "\n", `{"id":"2","body":"eA=="}` + "\n"}, 2},
		"nothing": {nil, 0},
		"alive":   {[]string{"\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := startWeb(t, server.Options{})
				conn := x.rawConn()
				fmt.Fprintf(conn, "POST /v1/topics/normal/messages HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
				in := bufio.NewReader(conn)
				if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
					t.Fatalf("%q, %v", line, err)
				}
				if line, err := in.ReadString('\n'); err != nil || line != "\r\n" {
					t.Fatalf("%q, %v", line, err)
				}
				go func() {
					for _, text := range c.chunks {
						fmt.Fprintf(conn, "%x\r\n%s\r\n", len(text), text)
						time.Sleep(time.Minute) // the stream lasts
					}
					io.WriteString(conn, "0\r\n\r\n")
				}()
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != server.TypeNDJSON || resp.Header.Get("X-Content-Type-Options") != "nosniff" ||
					err != nil || strings.Count(string(text), "\n") != c.lines {
					t.Errorf("%s %v %q, %v", resp.Status, resp.Header, text, err)
				}
				synctest.Wait()
				_, metrics := scrapedBy(t, x.s)
				if want := `tidegate_http_answers_total{operation="sendMessages",status="200"} 1`; !strings.Contains(metrics, want+"\n") {
					t.Errorf("no %s", want)
				}
				if strings.Contains(metrics, `tidegate_http_duration_seconds_count{operation="sendMessages"}`) {
					t.Error("a stream has a duration: it lasts as long as the client wants")
				}
				if strings.Contains(metrics, `"cut"`) {
					t.Error("a complete response is counted as cut off")
				}
			})
		})
	}
}

// A body that does not arrive in time can be sent again: its content is not at fault.
func TestHTTPSlowBody(t *testing.T) {
	for name, path := range map[string]string{
		"send": "POST /v1/topics/normal/messages", "administration": "PUT /v1/topics/other",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := startWeb(t, server.Options{})
				conn, began := x.rawConn(), time.Now()
				fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{", path)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				var p server.Problem
				decode(t, text, &p)
				x.problem(path, resp.StatusCode, p, 408, 40800, "did not arrive within 30s")
				if took := time.Since(began); took != 30*time.Second {
					t.Errorf("response after %v", took)
				}
			})
		})
	}
}
