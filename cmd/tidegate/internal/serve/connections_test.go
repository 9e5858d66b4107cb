package serve

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func TestMaxConnections(t *testing.T) {
	for files, want := range map[uint64]int{
		0: 65536, 1: 16, 64: 16, 100: 25, 256: 64, 1024: 256, 20_000: 5000, 1 << 20: 65536, math.MaxUint64: 65536,
	} {
		if got := maxConnections(files); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
}

// Half of the connections may be silent, at least one, and never more than the server's own limit.
func TestMostSilent(t *testing.T) {
	for most, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 256: 128, 1 << 30: 1024} {
		if got := mostSilent(most); got != want {
			t.Errorf("%d of %d connections may be silent, want %d", got, most, want)
		}
	}
}

// idleAttack opens n connections, writes hello on each, reads the response and keeps them open.
func idleAttack(t *testing.T, address string, n int, hello string, answered func(*bufio.Reader) error) {
	t.Helper()
	for i := range n {
		c := assert.Value(net.Dial("tcp", address))(t)
		t.Cleanup(func() { c.Close() })
		assert.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		assert.Must(t, assert.Err(io.WriteString(c, hello)), "connection %d", i+1)
		assert.Must(t, answered(bufio.NewReader(c)), "connection %d got no response", i+1)
	}
}

const (
	httpHello = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	grpcHello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
)

func httpAnswered(r *bufio.Reader) error {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func grpcAnswered(r *bufio.Reader) error {
	var frame [9]byte
	if _, err := io.ReadFull(r, frame[:]); err != nil {
		return err
	}
	if frame[3] != 4 { // SETTINGS
		return fmt.Errorf("frame %x", frame)
	}
	return nil
}

// Clients that make one request on each connection and keep it open do not lock out other clients,
// with and without keys. The server closes the longest idle connection for each new one. It keeps
// the connections of authenticated clients and those with a request under way.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	const most = 4
	for _, keys := range []bool{false, true} {
		t.Run(fmt.Sprintf("keys=%t", keys), func(t *testing.T) {
			args := []string{"--max-connections", strconv.Itoa(most), "--topic", "orders"}
			options := rocketmq.Options{}
			if keys {
				file := filepath.Join(t.TempDir(), "tidegate.yaml")
				if err := os.WriteFile(file, []byte("access:\n  keys:\n    app:\n      secret: sesame\n      allow:\n      - {actions: [send, receive], topics: [orders], groups: ['*']}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", file)
				options.Credentials = tidegate.Credentials{AccessKey: "app", SecretKey: "sesame"}
			}
			p := start(t, args...)

			stays := resident(t, p, keys)
			idleAttack(t, p.http, 2*most, httpHello, httpAnswered)
			idleAttack(t, p.grpc, 2*most, grpcHello, grpcAnswered)

			canary := assert.Value(rocketmq.New(p.grpc, options))(t)
			defer canary.Close()
			ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), time.Minute)
			defer cancel()
			if err := canary.Send(ctx, []*tidegate.Message{{Topic: "orders", ID: "1", Body: []byte("canary")}})[0].Err; err != nil {
				t.Errorf("over gRPC, beside %d idle connections of %d: %v", 2*most, most, err)
			}
			if line := p.await(t, 0, "max_connections=4"); !strings.Contains(line, "raise max_connections") {
				t.Errorf("the log has %s", line)
			}
			stays()
		})
	}
}

// resident opens a connection to the HTTP address that no other connection may replace. With keys
// it is an idle connection of an authenticated client, without keys one with a receive that waits
// for a message. The returned function fails the test if the connection was replaced.
func resident(t *testing.T, p *process, keys bool) (stays func()) {
	t.Helper()
	c := assert.Value(net.Dial("tcp", p.http))(t)
	t.Cleanup(func() { c.Close() })
	assert.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	r := bufio.NewReader(c)
	body, more := `{"wait":"20s"}`, "Content-Type: application/json\r\n"
	if keys {
		body = "{}"
		more += "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("app:sesame")) + "\r\n"
	}
	ask := func() {
		t.Helper()
		if _, err := fmt.Fprintf(c, "POST /v1/groups/g/topics/orders/receive HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", more, len(body), body); err != nil {
			t.Fatalf("the connection that was there before: %v", err)
		}
	}
	answer := func() {
		t.Helper()
		resp, err := http.ReadResponse(r, nil)
		assert.Must(t, err, "the connection that was there before was closed")
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", resp.Status, text, err)
		}
	}
	ask()
	if keys {
		answer()
	}
	return func() {
		if keys {
			ask()
		}
		answer()
	}
}

// While every connection has a request under way, new ones wait until one ends.
func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	p := start(t, "--max-connections", "2", "--topic", "orders")
	var conns []net.Conn
	const receive = "POST /v1/groups/g/topics/orders/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/x-ndjson\r\nContent-Length: 2\r\n\r\n{}"
	for _, hello := range []string{receive, receive, httpHello} {
		c := assert.Value(net.Dial("tcp", p.http))(t)
		defer c.Close()
		assert.Must(t, assert.Err(io.WriteString(c, hello)))
		conns = append(conns, c)
		if hello == receive {
			if line, err := bufio.NewReader(c).ReadString('\n'); line != "HTTP/1.1 200 OK\r\n" || err != nil {
				t.Fatalf("a stream begins with %q, %v", line, err)
			}
		}
	}
	answered := make(chan error, 1)
	go func() { answered <- httpAnswered(bufio.NewReader(conns[2])) }()
	if line := p.await(t, 0, "max_connections=2"); !strings.Contains(line, p.http) || !strings.Contains(line, "waited=1") {
		t.Errorf("the log has %s", line)
	}
	select {
	case err := <-answered:
		t.Errorf("a third connection got a response beside two with requests under way: %v", err)
	default:
	}
	assert.Must(t, conns[0].Close())
	assert.NoError(t, <-answered, "the third connection, once the first had ended")
}

// Clients that open silent connections again and again do not lock out other clients: the server
// accepts such connections, and closes them for later ones.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	p := start(t, "--max-connections", "4")
	for range 4 {
		c := assert.Value(net.Dial("tcp", p.grpc))(t)
		defer c.Close()
	}
	idleAttack(t, p.grpc, 1, grpcHello, grpcAnswered)
}

// A full address is logged once in a while, and not for each connection.
func TestFullAddressIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		l := fullLog{logger: slog.New(slog.NewTextHandler(&text, nil)), address: "here", most: 2, lines: rate.Sometimes{Interval: fullInterval}}
		for _, step := range []struct {
			waits  bool
			after  time.Duration
			logged string
		}{
			{false, 0, "address=here max_connections=2 closed=1 waited=0"},
			{true, 0, ""},
			{false, fullInterval - 1, ""},
			{false, 1, "closed=2 waited=1"},
			{true, fullInterval, "closed=0 waited=1"},
		} {
			time.Sleep(step.after)
			text.Reset()
			l.note(step.waits)
			if got := text.String(); (got != "") != (step.logged != "") || !strings.Contains(got, step.logged) {
				t.Errorf("%+v: logged %q", step, got)
			}
		}
	})
}
