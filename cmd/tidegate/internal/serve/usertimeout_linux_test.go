package serve

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A connection has the timeout of the socket that it came to.
func TestUserTimeoutIsInherited(t *testing.T) {
	lc := net.ListenConfig{Control: userTimeout}
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	client, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got int
	if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if got != int(pingTimeout.Milliseconds()) {
		t.Errorf("it is %d ms, want %v", got, pingTimeout)
	}
}
