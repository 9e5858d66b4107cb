package serve

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pingTimeout is the time that the server waits for the response to a ping.
const pingTimeout = 20 * time.Second

// userTimeout lets TCP end a connection whose other side has acknowledged nothing
// for as long as a ping may take. gRPC sets this itself, but only on a connection that
// nothing is wrapped around; here each has it from the socket that listens (tcp(7)).
func userTimeout(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(pingTimeout.Milliseconds()))
	}); cerr != nil {
		return cerr
	}
	return err
}
