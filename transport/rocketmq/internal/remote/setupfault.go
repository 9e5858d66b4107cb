package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate/transport/rocketmq/internal/failure"
)

const (
	// tlsProbeTimeout bounds the question whether a port that hung up expects TLS, and
	// tlsProbeGap is the least time between two.
	tlsProbeTimeout = time.Second
	tlsProbeGap     = 30 * time.Second
)

// A SetupFault is a mistake in the address or in Options.TLS, which no further attempt cures.
type SetupFault struct {
	Text     string
	Protocol bool // the server speaks another protocol: the error of gRPC, with its bytes, adds nothing
}

// webFault is the text of an address at which a server for web pages or APIs responds.
const webFault = "the server does not speak gRPC on this port but %s: it is a port for HTTP, or an HTTP proxy; give the gRPC port of the server (tidegate: 8081; RocketMQ: that of its proxy, 8081)"

// handshakeFault returns the fault of the set-up that a failed TLS handshake shows, or nil if it
// shows none: a connection can also break during a handshake.
func handshakeFault(err error) *SetupFault {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &SetupFault{Text: "the server's certificate is not trusted: " + failure.FirstLine(e.Err.Error()) +
			"; set Options.TLS with its issuer in RootCAs, and ServerName if the certificate has another name"}
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &SetupFault{Text: "the server speaks plain text on this port; leave Options.TLS nil, or give its TLS port"}
	}
	if text := err.Error(); strings.Contains(text, "no application protocol") || strings.Contains(text, "missing selected ALPN") {
		return &SetupFault{fmt.Sprintf(webFault, "TLS without HTTP/2"), true}
	}
	if alerted(err) {
		return &SetupFault{Text: "the server rejected the TLS handshake: " + failure.FirstLine(err.Error()) +
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

// A protocolError is the error of a server that speaks another protocol than HTTP/2.
type protocolError struct{ protocol string }

func (e protocolError) Error() string { return "the server speaks " + e.protocol }

// firstFault returns the result of the first read: nil if the server sent data of HTTP/2, errAlert
// if it is a TLS server that could not read the client's data, a protocolError if it speaks another
// protocol, and err otherwise. A page of a gateway without a server behind it (502 to 504) does not
// show the protocol of that server: nil.
func firstFault(b []byte, err error) error {
	switch {
	case len(b) >= 2 && b[0] == 0x15 && b[1] == 3:
		return errAlert
	case bytes.HasPrefix(b, []byte("HTTP/1")):
		if gateway.Match(b) {
			return nil
		}
		return protocolError{"HTTP/1"}
	case bytes.HasPrefix(b, []byte("AMQP")):
		return protocolError{"AMQP"}
	case len(b) > 0:
		return nil
	}
	return err
}

// gateway matches the first bytes of the page of a gateway that has no server, or whose server does
// not respond.
var gateway = regexp.MustCompile(`^HTTP/1\.[01] 50[234]`)

// lookAt notes a fault of the set-up, or its absence, by the first bytes of a
// connection to addr.
func (n numbering) lookAt(addr string, err error) {
	other, spoken := errors.AsType[protocolError](err)
	switch {
	case err == nil:
		n.link.Fault.Store(nil)
	case spoken:
		n.link.Fault.Store(&SetupFault{fmt.Sprintf(webFault, other.protocol), true})
	case n.secure:
		if f := handshakeFault(err); f != nil { // TLS 1.3 rejects a client's certificate this late
			n.link.Fault.Store(f)
		}
	case errors.Is(err, errAlert) || hungUp(err) && n.expectsTLS(addr):
		n.link.Fault.Store(&SetupFault{Text: "the server expects TLS on this port; set Options.TLS, or give its plain-text port"})
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

// WebPage returns the fault of an address whose response is that of a web server with HTTP/2, by
// the error of gRPC. It is nil if the error shows none, or if the address has worked before.
// Statuses from 500 on and those that ask for another attempt are no faults of the address.
func (l *Link) WebPage(err error) *SetupFault {
	m := webStatus.FindStringSubmatch(status.Convert(err).Message())
	if m == nil || l.worked.Load() {
		return nil
	}
	switch code, _ := strconv.Atoi(m[1]); { // the digits are a number
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return nil
	}
	return &SetupFault{fmt.Sprintf(webFault, "HTTP (status "+m[1]+")"), true}
}

// webStatus matches the text of grpc-go for a response that is not one of gRPC.
var webStatus = regexp.MustCompile(`^unexpected HTTP status code received from server: (\d{3})\b`)

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
