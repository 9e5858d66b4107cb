package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
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

// Who opens connections without end takes no file from the store: those beyond
// the limit wait, and are answered once another one has ended.
func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	p := start(t, "--max-connections", "2")
	var conns []net.Conn
	ask := func(i int, within time.Duration) error {
		if err := conns[i].SetReadDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conns[i]), nil)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	for range 3 {
		c, err := net.Dial("tcp", p.http)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		conns = append(conns, c)
		if i := len(conns) - 1; i < 2 {
			if err := ask(i, time.Minute); err != nil {
				t.Fatalf("connection %d: %v", i+1, err)
			}
		}
	}
	if err := ask(2, 100*time.Millisecond); err == nil {
		t.Fatal("a third connection was answered beside two others")
	}
	if line := p.stderr.await(t, 0, "max_connections=2"); !strings.Contains(line, p.http) || !strings.Contains(line, "raise max_connections") {
		t.Errorf("it says %s", line)
	}
	if err := conns[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := ask(2, time.Minute); err != nil {
		t.Errorf("the third connection, once the first had ended: %v", err)
	}
}

// Who opens connections and is silent, and does so again and again, keeps nobody
// out: they are let in, and closed for who comes after them.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	p := start(t, "--max-connections", "4")
	for range 4 {
		c, err := net.Dial("tcp", p.grpc)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	c, err := net.Dial("tcp", p.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(server.DefaultHandshakeTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	// The preface and empty SETTINGS; the server's SETTINGS come.
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	var frame [9]byte
	if _, err := io.ReadFull(c, frame[:]); err != nil || frame[3] != 4 {
		t.Errorf("beside four silent connections of four: %v, frame %x", err, frame)
	}
}

// That an address is full is logged when it is so, and not for each connection.
func TestFullAddressIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		l := &counted{Listener: endless{}, most: 2, logger: slog.New(slog.NewTextHandler(&text, nil))}
		var conns []net.Conn
		accept := func(want int) {
			t.Helper()
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			if got := strings.Count(text.String(), "raise max_connections"); got != want {
				t.Errorf("it was logged %d times, want %d", got, want)
			}
		}
		end := func(i int) {
			conns[i].Close()
			conns[i].Close() // counts once
		}
		accept(0)
		accept(1)
		end(0)
		accept(1)
		end(1)
		time.Sleep(fullInterval)
		accept(2)
		end(2)
		end(3)
		time.Sleep(fullInterval)
		accept(2) // one alone
	})
}

// An endless listener always has another connection.
type endless struct{ net.Listener }

func (endless) Accept() (net.Conn, error) {
	c, _ := net.Pipe()
	return c, nil
}

func (endless) Addr() net.Addr { return &net.TCPAddr{} }
