package main

import (
	"bufio"
	"fmt"
	"math"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestMaxConnections(t *testing.T) {
	for files, want := range map[uint64]int{
		0: 65536, 1: 64, 256: 64, 1024: 256, 20_000: 5000, 1 << 20: 65536, math.MaxUint64: 65536,
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
	if err := conns[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := ask(2, time.Minute); err != nil {
		t.Errorf("the third connection, once the first had ended: %v", err)
	}
}
