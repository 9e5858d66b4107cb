package admission

import (
	"io"
	"net"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

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
	assert.Must(t, assert.Err(p.add(first)))
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
	assert.Equal(t, "pending", p.len(), most)
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest is not closed: %v", err)
	}
	last.settle()
	last.settle()
	assert.Equal(t, "pending after one settled", p.len(), most-1)
	p.close()
	last.settle()
	assert.Is(t, "add after close", assert.Err(p.add(first)), tidegate.ErrClosed)
	assert.Equal(t, "pending after close", p.len(), 0)
}

// With any first bytes of a connection, the handshake ends and returns them again.
func FuzzSniff(f *testing.F) {
	for _, s := range []string{"", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00", "\x16", "\x16\x03\x01\x00\x05hello", "\x00"} {
		f.Add([]byte(s))
	}
	c := assert.Value(SelfSigned())(f)
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
			assert.That(t, string(got) == string(b), "read %q; want %q", got, b)
			conn.Close()
		}
		<-done
		assert.Equal(t, "are still pending", s.Pending(), 0)
	})
}
