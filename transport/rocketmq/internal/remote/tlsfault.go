package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tidegate/tidegate/transport/rocketmq/internal/failure"
)

const (
	// tlsProbeTimeout bounds the question whether a port that hung up expects TLS, and
	// tlsProbeGap is the least time between two.
	tlsProbeTimeout = time.Second
	tlsProbeGap     = 30 * time.Second
)

// A TLSFault is a mistake in Options.TLS, which no further attempt cures.
type TLSFault struct{ Text string }

// handshakeFault returns the fault of Options.TLS that a failed TLS handshake shows, or nil if it
// shows none: a connection can also break during a handshake.
func handshakeFault(err error) *TLSFault {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &TLSFault{"the server's certificate is not trusted: " + failure.FirstLine(e.Err.Error()) +
			"; set Options.TLS with its issuer in RootCAs, and ServerName if the certificate has another name"}
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &TLSFault{"the server speaks plain text on this port; leave Options.TLS nil, or give its TLS port"}
	}
	if alerted(err) {
		return &TLSFault{"the server rejected the TLS handshake: " + failure.FirstLine(err.Error()) +
			"; set Options.TLS with the certificate and the TLS versions that it requires"}
	}
	return nil
}

// alerted reports whether the other side ended a handshake by a TLS alert.
func alerted(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error"
}

// firstRead looks at the first bytes of a network connection, by which a plain-text
// port and a TLS port differ.
type firstRead struct {
	net.Conn
	done atomic.Bool
	look func(err error) // called at most once
}

// Read reads, and has the result of the first call looked at.
func (c *firstRead) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.done.Load() && c.done.CompareAndSwap(false, true) {
		c.look(firstFault(b[:n], err))
	}
	return n, err
}

// Write writes, and has the result looked at if the other side hung up before the first call of
// Read had a result: a TLS port that resets the connection can fail either.
func (c *firstRead) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && hungUp(err) && c.done.CompareAndSwap(false, true) {
		c.look(err)
	}
	return n, err
}

var errAlert = errors.New("the server sent a TLS alert")

// firstFault returns the result of the first read: nil if the server sent data of its own, errAlert
// if it is a TLS server that could not read the client's data, and err otherwise.
func firstFault(b []byte, err error) error {
	switch {
	case len(b) >= 2 && b[0] == 0x15 && b[1] == 3:
		return errAlert
	case len(b) > 0:
		return nil
	}
	return err
}

// lookAt notes a fault of Options.TLS, or its absence, by the first bytes of a
// connection to addr.
func (n numbering) lookAt(addr string, err error) {
	switch {
	case err == nil:
		n.link.Fault.Store(nil)
	case n.secure:
		if f := handshakeFault(err); f != nil { // TLS 1.3 rejects a client's certificate this late
			n.link.Fault.Store(f)
		}
	case errors.Is(err, errAlert) || hungUp(err) && n.expectsTLS(addr):
		n.link.Fault.Store(&TLSFault{"the server expects TLS on this port; set Options.TLS, or give its plain-text port"})
	}
}

// hungUp reports whether the other side closed the connection, as a TLS server does
// when it reads plain text.
func hungUp(err error) bool {
	if errors.Is(err, io.EOF) {
		return true
	}
	text := err.Error()
	return !errors.Is(err, net.ErrClosed) && (strings.Contains(text, "connection reset") || strings.Contains(text, "broken pipe"))
}

// expectsTLS asks the server at addr, at most once in tlsProbeGap: a server that stops
// hangs up too.
func (n numbering) expectsTLS(addr string) bool {
	now, last := time.Now().UnixNano(), n.link.probed.Load()
	if last != 0 && time.Duration(now-last) < tlsProbeGap || !n.link.probed.CompareAndSwap(last, now) {
		return n.link.Fault.Load() != nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, tlsProbeTimeout)
	defer cancel()
	raw, err := n.dial(ctx, addr)
	if err != nil {
		return false
	}
	defer raw.Close()
	// Nothing is sent over it, so the certificate does not matter.
	err = tls.Client(raw, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	return err == nil || alerted(err)
}

// ClientHandshake makes the connection of a network connection, and notes faults of
// Options.TLS.
func (n numbering) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		n.link.Fault.Store(handshakeFault(err))
		return nil, nil, err
	}
	c := &Connection{AuthInfo: info, number: n.link.count.Add(1)}
	n.link.Saw(c)
	return &firstRead{Conn: conn, look: func(err error) { n.lookAt(authority, err) }}, c, nil
}
