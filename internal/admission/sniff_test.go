package admission

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/tidegate/tidegate"
)

type noHost struct{}

func (noHost) RefusedPlainText(net.Addr) {}
func (noHost) Ended(*Link)               {}

// Silent connections are bounded: the oldest makes room.
func TestPendingIsBounded(t *testing.T) {
	const most = 8
	p := &silentConns{most: most}
	first, other := net.Pipe()
	defer other.Close()
	if _, err := p.add(first); err != nil {
		t.Fatal(err)
	}
	var last silent
	for range most {
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		var err error
		if last, err = p.add(a); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.len(); n != most {
		t.Errorf("%d pending; want %d", n, most)
	}
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest is not closed: %v", err)
	}
	last.settle()
	last.settle()
	if n := p.len(); n != most-1 {
		t.Errorf("%d pending after one settled; want %d", n, most-1)
	}
	p.close()
	last.settle()
	if _, err := p.add(first); !errors.Is(err, tidegate.ErrClosed) {
		t.Errorf("add after close: %v", err)
	}
	if n := p.len(); n != 0 {
		t.Errorf("%d pending after close", n)
	}
}

// With any first bytes of a connection, the handshake ends and returns them again.
func FuzzSniff(f *testing.F) {
	for _, s := range []string{"", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00", "\x16", "\x16\x03\x01\x00\x05hello", "\x00"} {
		f.Add([]byte(s))
	}
	c, err := SelfSigned()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewCredentials(c, 1, false, noHost{})
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			client.Write(b)
			client.Close()
		}()
		go io.Copy(io.Discard, client) // the response of TLS
		conn, _, err := s.ServerHandshake(server)
		if err == nil {
			got, _ := io.ReadAll(conn)
			if string(got) != string(b) {
				t.Errorf("read %q; want %q", got, b)
			}
			conn.Close()
		}
		<-done
		if n := s.Pending(); n != 0 {
			t.Errorf("%d are still pending", n)
		}
	})
}
