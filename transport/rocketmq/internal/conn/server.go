package conn

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sony/gobreaker/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

const (
	// keepaliveTime is above the 5 min that gRPC servers demand by default
	// between the pings of a client.
	keepaliveTime    = 6 * time.Minute
	keepaliveTimeout = 20 * time.Second

	// connectWait is the time that a consumer's call waits for a new connection, and the minimal
	// time between two attempts to connect for consumers.
	connectWait = time.Second
)

// A Server is a server that can be talked to. Goroutines share it.
type Server struct {
	Key  string // its addresses, joined by ";"
	PB   *rmqpb.Endpoints
	Link atomic.Pointer[Link]

	Combiner *Combiner // of the sends to the server

	accepted atomic.Uint32 // the operations, as bits, that the server has carried out with the client's credentials

	features atomic.Pointer[transport.Capabilities] // that any connection announced last; nil until the first response

	// Turn has capacity 1. The session that has put a value into it sends the next heartbeat for
	// all sessions with the server (see SharesHeartbeats). Turn guards Beat, the time of the last
	// one.
	Turn chan struct{}
	Beat time.Time

	born    time.Time
	Unused  int           // refreshes in a row in which nothing named it; guarded by the client's mutex
	gap     time.Duration // between knocks for calls that wait for a connection
	knocked atomic.Int64  // when the last knock was, by age; 0 before the first

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}] // fed by sends only
	Tripped atomic.Int64                               // the number of the trip by which it is not closed; 0 if it is
	probed  atomic.Int64                               // when a lane led to it to probe it, by age; 0 before the first
}

// NewServer returns the server at the addresses of pb, whose form in one text is key. Its first
// link is l. initial is the first backoff between attempts to connect. trips counts how often the
// breakers of all servers tripped.
func NewServer(key string, pb *rmqpb.Endpoints, l *Link, initial time.Duration, trips *atomic.Int64) *Server {
	e := &Server{Key: key, PB: pb, Turn: make(chan struct{}, 1), born: time.Now(), gap: knockGap(initial)}
	e.breaker = newBreaker(e, trips)
	e.Link.Store(l)
	return e
}

// age returns the time since the creation of the server, in ns, at least 1. The machine's clock may
// be set back meanwhile; this goes on.
func (e *Server) age(now time.Time) int64 { return max(int64(now.Sub(e.born)), 1) }

// The operations whose acceptance is remembered.
const (
	Sends  uint32 = 1 << iota // SendMessage
	Routes                    // QueryRoute
	Others
)

// Accepts notes that the server carried out an operation, and so accepted the credentials.
func (e *Server) Accepts(operation uint32) {
	if e.accepted.Load()&operation == 0 {
		e.accepted.Or(operation)
	}
}

// Lapse sets Lapsed in an error about the credentials if the server carried out the same operation
// with them before.
func (e *Server) Lapse(err *tidegate.Error, operation uint32) {
	if err.Code == tidegate.CodeUnauthorized && e.accepted.Load()&operation != 0 {
		err.Lapsed = true
	}
}

// API returns the stub over the current link.
func (e *Server) API() rmqpb.MessagingServiceClient { return e.Link.Load().API() }

// SendMessage makes the RPC over the current link. in is a *wire.Sending or a *wire.Sendings, which
// the generated stub does not take.
func (e *Server) SendMessage(ctx context.Context, in any, opts ...grpc.CallOption) (*rmqpb.SendMessageResponse, error) {
	out := new(rmqpb.SendMessageResponse)
	err := e.Link.Load().channel().conn.Invoke(ctx, rmqpb.MessagingService_SendMessage_FullMethodName, in, out, append(opts, grpc.StaticMethod())...)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ParseAddresses reads addresses, host:port, joined by ";" or ",".
func ParseAddresses(text string) (*rmqpb.Endpoints, error) {
	pb := new(rmqpb.Endpoints)
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == ',' }) {
		part = strings.TrimSpace(part)
		if strings.Contains(part, "://") {
			return nil, BadAddress(text, "%q is a URL; give host:port without a scheme", part)
		}
		host, port, err := net.SplitHostPort(part)
		if err != nil {
			return nil, BadAddress(text, "%q: %v; give host:port", part, err)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || host == "" {
			return nil, BadAddress(text, "%q: give host:port with a port of 1 to 65535", part)
		}
		scheme := schemeOf(host)
		if at := strings.IndexFunc(host, illegal); scheme == rmqpb.AddressScheme_DOMAIN_NAME && at >= 0 {
			r, _ := utf8.DecodeRuneInString(host[at:])
			return nil, BadAddress(text, "the host %q has the character %q; give a host name or an IP address", host, r)
		}
		if pb.Scheme != 0 && pb.Scheme != scheme {
			return nil, BadAddress(text, "the addresses of one server must have one kind, but %s and %s are given", pb.Scheme, scheme)
		}
		pb.Scheme = scheme
		pb.Addresses = append(pb.Addresses, &rmqpb.Address{Host: host, Port: int32(n)})
	}
	if len(pb.Addresses) == 0 {
		return nil, BadAddress(text, "the address is empty; give host:port, several joined by ';'")
	}
	return pb, nil
}

// illegal reports whether no host name has the character. Names in other scripts are permitted.
func illegal(r rune) bool {
	return r != '-' && r != '.' && r != '_' && !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsDigit(r)
}

// BadAddress returns the error of addresses that cannot be, which subject names.
func BadAddress(subject, format string, args ...any) error {
	return &tidegate.Error{Op: "rocketmq.New", Subject: subject, Code: tidegate.CodeIllegalAccessPoint, Message: fmt.Sprintf(format, args...)}
}

func schemeOf(host string) rmqpb.AddressScheme {
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return rmqpb.AddressScheme_DOMAIN_NAME
	case ip.Is4():
		return rmqpb.AddressScheme_IPv4
	}
	return rmqpb.AddressScheme_IPv6
}

// AddressesOf returns pb's addresses in the form host:port, and false if any
// of them is none.
func AddressesOf(pb *rmqpb.Endpoints) ([]string, bool) {
	var list []string
	for _, a := range pb.GetAddresses() {
		if a.GetHost() == "" || a.GetPort() < 1 || a.GetPort() > 65535 {
			return nil, false
		}
		list = append(list, net.JoinHostPort(a.GetHost(), strconv.Itoa(int(a.GetPort()))))
	}
	return list, len(list) > 0
}

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
		return &SetupFault{Text: "the server's certificate is not trusted: " + firstLine(e.Err.Error()) +
			"; set Options.TLS with its issuer in RootCAs, and ServerName if the certificate has another name"}
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return &SetupFault{Text: "the server speaks plain text on this port; leave Options.TLS nil, or give its TLS port"}
	}
	if text := err.Error(); strings.Contains(text, "no application protocol") || strings.Contains(text, "missing selected ALPN") {
		return &SetupFault{fmt.Sprintf(webFault, "TLS without HTTP/2"), true}
	}
	if alerted(err) {
		return &SetupFault{Text: "the server rejected the TLS handshake: " + firstLine(err.Error()) +
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
