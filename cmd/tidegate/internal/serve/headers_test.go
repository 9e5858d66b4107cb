package serve

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// The server closes the connection of a client that sends its headers one byte at a time after 10
// s. It closes that of a client with larger headers after 64 KiB.
func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		s := adminServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
		go s.Serve(lis)
		defer s.Close()

		slow := lis.dial()
		began := time.Now()
		go io.Copy(io.Discard, slow)
		for err := error(nil); err == nil; time.Sleep(time.Second) {
			_, err = slow.Write([]byte("G"))
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("a client without a complete header was cut off after %v", took)
		}

		large := lis.dial()
		go io.Copy(io.Discard, large)
		sent := 0
		_, err := large.Write([]byte("GET / HTTP/1.1\r\nHost: h\r\nX: "))
		for ; err == nil && sent < 1<<20; sent += 1 << 10 {
			_, err = large.Write(make([]byte, 1<<10))
		}
		if sent > 96<<10 { // net/http reads a buffer more
			t.Errorf("%d KiB of headers were read", sent>>10)
		}
	})
}

// A pipeListener accepts connections in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
