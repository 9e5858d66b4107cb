package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// After SIGTERM the process rejects new HTTP requests and completes those under way. It does so
// even while a gRPC client that does not read delays the end of the gRPC server.
func TestStopEndsBothAtOnce(t *testing.T) {
	p := start(t, "--topic", "orders", "--stop-timeout", "4s")
	dial := func(address string) net.Conn {
		t.Helper()
		c := assert.Value(net.Dial("tcp", address))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	silent := dial(p.grpc)
	if _, err := io.WriteString(silent, grpcHello); err != nil { // and no more
		t.Fatal(err)
	}
	if _, err := io.ReadFull(silent, make([]byte, 9)); err != nil { // it is a connection of gRPC's by now
		t.Fatal(err)
	}
	under, body := dial(p.http), `{"id":"m","body":"eA=="}`
	fmt.Fprintf(under, "POST /v1/topics/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	answers := bufio.NewReader(under)
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	assert.Must(t, assert.Err(answers.ReadString('\n')))
	assert.Must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.await(t, 0, "broker stopping")
	for late := time.Now().Add(30 * time.Second); ; {
		c, err := net.Dial("tcp", p.http)
		if err != nil {
			break
		}
		c.Close()
		assert.MustThat(t, !time.Now().After(late), "it still takes connections")
	}
	assert.Must(t, assert.Err(io.WriteString(under, body)))
	resp, err := http.ReadResponse(answers, nil)
	assert.MustThat(t, err == nil, "a request under way got no response: %v", err)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || err != nil || !strings.Contains(string(text), `"m"`) {
		t.Errorf("%s %s, %v", resp.Status, text, err)
	}
	silent.Close()
	if code := p.stop(); code != 0 {
		t.Errorf("code %d\n%s", code, p.stderr.String())
	}
	if lines := p.stderr.String(); strings.Count(lines, "broker stopped") != 1 {
		t.Errorf("the last line does not report that it has stopped:\n%s", lines)
	}
}

// A process that is stopped during its start ends with code 0 and is never ready.
func TestStopDuringStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, topics := range []string{"", "a,b,c,d"} {
		args := []string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}
		if topics != "" {
			args = append(args, "--topic", topics)
		}
		var stdout, stderr strings.Builder
		if code := run(ctx, args, &stdout, &stderr); code != 0 || stdout.Len() > 0 || strings.Contains(stderr.String(), "cancel") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", topics, code, stdout.String(), stderr.String())
		}
	}
}
