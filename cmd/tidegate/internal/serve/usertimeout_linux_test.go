package serve

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tidegate/tidegate/internal/assert"
)

// A connection has the timeout of the socket that it came to.
func TestUserTimeoutIsInherited(t *testing.T) {
	lc := net.ListenConfig{Control: userTimeout}
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.Must(t, err)
	defer lis.Close()
	client := assert.Value(net.Dial("tcp", lis.Addr().String()))(t)
	defer client.Close()
	c := assert.Value(lis.Accept())(t)
	defer c.Close()
	raw := assert.Value(c.(*net.TCPConn).SyscallConn())(t)
	var got int
	if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	assert.That(t, got == int(pingTimeout.Milliseconds()), "it is %d ms, want %v", got, pingTimeout)
}
