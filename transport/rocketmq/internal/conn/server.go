package conn

import (
	"bytes"
	"cmp"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
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
	if err.Is(tidegate.ErrUnauthorized) && e.accepted.Load()&operation != 0 {
		err.Lapsed = true
	}
}

// API returns the stub over the current link.
func (e *Server) API() rmqpb.MessagingServiceClient { return e.Link.Load().API() }

// SendMessage makes the RPC over the current link. in is a *wire.Sending or wire.Sendings, which
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

// Each server has a circuit breaker that only sends feed. One failure excludes the
// server: sends without a message group go to others. After ExcludeFor one of them at
// a time probes the server, and its success admits the server again. At most half of
// a topic's servers are excluded at once, those that failed first; a message group
// always stays with its server.
const (
	ExcludeFor = 5 * time.Second

	// ProbeGap is the least time between two lanes to a server to be probed. The
	// breaker decides which of them probes.
	ProbeGap = time.Second
)

var errFailing, errNothing = errors.New("the server failed"), errors.New("the send does not show the state of the server")

// newBreaker returns the breaker of e. trips counts the trips of all breakers.
func newBreaker(e *Server, trips *atomic.Int64) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     ExcludeFor,
		ReadyToTrip: func(gobreaker.Counts) bool { return true },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
		OnStateChange: func(_ string, from, to gobreaker.State) { // under the breaker's lock
			switch {
			case from == gobreaker.StateClosed:
				e.Tripped.Store(trips.Add(1))
			case to == gobreaker.StateClosed:
				e.Tripped.Store(0)
			}
		},
	})
}

// Begin asks the server's breaker for a send. The send reports its result to done;
// nil if the breaker does not want it.
func (e *Server) Begin() (done func(Verdict)) {
	report, err := e.breaker.Allow()
	if err != nil {
		return nil
	}
	return func(v Verdict) {
		switch v {
		case Healthy:
			report(nil)
		case failing:
			report(errFailing)
		case Nothing:
			report(errNothing)
		}
	}
}

// MayProbe reports whether a lane may lead to the excluded server, to probe it.
func (e *Server) MayProbe(now time.Time) bool {
	if e.breaker.State() != gobreaker.StateHalfOpen {
		return false
	}
	if c := e.breaker.Counts(); c.Requests > c.TotalExclusions {
		return false // another send probes
	}
	at, last := e.age(now), e.probed.Load()
	return (last == 0 || time.Duration(at-last) >= ProbeGap) && e.probed.CompareAndSwap(last, at)
}

// patience is the least time without a response that counts as a failure when the
// caller's own deadline ends a send.
const patience = 250 * time.Millisecond

// A Verdict is the information of a send about its server.
type Verdict int

const (
	Nothing Verdict = iota
	Healthy
	failing
)

// VerdictOf returns the state of the server that the result of a send shows:
//
//	accepted, throttled                      healthy: the server does its work
//	transient: no response, 5xxxx            failing
//	permanent: the message or the set-up     nothing
//	not sent, or the client was closed       nothing
//	cancelled by the caller                  nothing, since it was not waited for
//	the caller's deadline                    failing after patience, else nothing
//
// A caller that gives up on the server, as a producer does after an attempt's share
// of the time, has a cause that matches ErrUnavailable: failing. cause is that of the
// caller's ctx, nil if it has not ended, and took the time of the request.
func VerdictOf(err *tidegate.Error, cause error, took time.Duration) Verdict {
	switch {
	case err == nil:
		return Healthy
	case errors.Is(err, transport.ErrLaneChanged), errors.Is(err, tidegate.ErrClosed):
		return Nothing
	}
	switch class := tidegate.Classify(err); {
	case class == tidegate.ClassThrottled:
		return Healthy
	case class != tidegate.ClassTransient:
		return Nothing
	case err.Code != 0 || cause == nil || errors.Is(cause, tidegate.ErrUnavailable):
		return failing
	case errors.Is(cause, context.DeadlineExceeded) && took >= patience:
		return failing
	}
	return Nothing
}

// parsePushback parses the trailer's values by the rules of gRFC A6. Without a value the server
// requests nothing (0). A negative value, a value that is not an int32, and several values forbid
// another attempt (-1).
func parsePushback(values []string) time.Duration {
	if len(values) == 0 {
		return 0
	}
	ms, err := strconv.ParseInt(values[0], 10, 32)
	if err != nil || ms < 0 || len(values) > 1 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// Succeeded reports whether a status is one of success: OK, or another code of 2xxxx that a newer
// server sends.
func Succeeded(st *rmqpb.Status) bool { return st.GetCode()/10000 == 2 }

// Divided reports whether a status refers to those of the entries of a response: MULTIPLE_RESULTS,
// or another code of 300xx.
func Divided(st *rmqpb.Status) bool { return st.GetCode()/100 == 300 }

// OfStatus makes the error of a status that is not one of success. It keeps the first line of the
// server's text: RocketMQ adds links and stacks.
//
// ILLEGAL_POLLING_TIME is about the request if its polling time is wrong, but a proxy that was
// paused also responds with it, to requests whose deadline passed meanwhile. The code becomes
// REQUEST_TIMEOUT, because another attempt may succeed.
func OfStatus(op, subject, endpoint string, st *rmqpb.Status, trailer metadata.MD) *tidegate.Error {
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Code: tidegate.Code(st.GetCode()), Message: firstLine(st.GetMessage())}
	switch e.Code {
	case 0:
		e.Code = tidegate.CodeInternalServerError
		e.Message = "the response has no status code" + prefixed(": ", e.Message)
	case protocol.CodeIllegalPollingTime:
		if strings.Contains(e.Message, "deadline") {
			e.Code, e.Message = protocol.CodeRequestTimeout, "40018 ILLEGAL_POLLING_TIME: "+e.Message
		}
	case tidegate.CodeInternalServerError:
		e.NotConnected = brokerless.MatchString(e.Message)
		if op == recall {
			ofRecall(e)
		}
	}
	OfLite(e, e.Message)
	if e.Is(tidegate.ErrThrottled) {
		e.RetryAfter = parsePushback(trailer.Get(wire.TrailerPushBack))
	}
	return e
}

// OfLite corrects the code of RocketMQ's errors about lite topics, which it recognizes by the text
// of the server, and adds the remedy.
func OfLite(e *tidegate.Error, text string) {
	switch {
	case strings.Contains(text, "Client type is not consumer"): // before 5.5.0
		e.Code, e.Err, e.Message = tidegate.CodeNotImplemented, nil, optional["SyncLiteSubscription"]
	case strings.Contains(text, "LiteSubscriptionService"), strings.Contains(text, ".popLiteMessage("):
		e.Code, e.Message = tidegate.CodeNotImplemented, "the proxy runs in the mode local, in which RocketMQ has no lite topics; run the proxy in the mode cluster"
	case strings.Contains(text, "cannot use LITE mode"):
		e.Message += "; create the group with its parent topic in the attribute lite.bind.topic"
	case strings.Contains(text, "LiteQuotaException"):
		e.Message += "; end subscriptions, or raise maxLiteSubscriptionCount of the broker"
	case e.Code == protocol.CodeLiteTopicQuotaExceeded && strings.Contains(text, "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"):
		e.Message += "; wait until lite topics expire (lite.topic.expiration of the parent), or raise maxLmqConsumeQueueNum of the broker"
	}
}

// brokerless matches the texts of a RocketMQ proxy that has no connection to the broker of a
// request, or does not know the broker any more. RocketMQ has no code of its own for them. They are
// those of RemotingConnectException, of ClusterMessageService and of DefaultMQProducerImpl; each is
// thrown before the request is written to a broker. "send request to … failed" is not one of them:
// it may be thrown after a part was written.
var brokerless = regexp.MustCompile(`^(?:[\w.$]+(?:Exception|Error): )*(?:connect to <?[^\s<>]+>? failed(?:$|[\s,.;])|cannot find broker \S|The broker\[[^\]]*\] not exist)`)

// ofRecall corrects the code of a failed recall. RocketMQ responds with 50001 to recalls that can
// never succeed.
func ofRecall(e *tidegate.Error) {
	text := e.Message
	switch {
	case strings.Contains(text, "operation is forbidden"):
		e.Code = tidegate.CodeForbidden
		e.Message += "; set recallMessageEnable=true in the configuration of the broker"
	case strings.Contains(text, "recall handle is invalid"), strings.Contains(text, "topic not match"):
		e.Code = tidegate.CodeBadRequest
		e.Message += "; give the topic and the Receipt.RecallHandle of a message with a delivery time"
	case strings.Contains(text, "timestamp invalid"):
		e.Code = tidegate.CodeNotFound
		e.Message += "; the delivery time is over, or beyond the maximum of the broker"
	case strings.Contains(text, "the topic[") && strings.Contains(text, "not exist"):
		e.Code = tidegate.CodeTopicNotFound
	}
}

// maxText bounds a server's text in an error, in bytes.
const maxText = 512

// firstLine returns the first line of a server's text, bounded.
func firstLine(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	if len(line) <= maxText {
		if more {
			line = strings.TrimRight(line, " ,;:")
		}
		return line
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + "…"
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// MaybeStored reports whether a message may be stored, or a delivery settled, although a status
// became e: a server with an internal failure may have done it (RocketMQ 5.2: 50401 is stored,
// 50400 and 50001 may be; a tidegate broker: 50001 if the state of its disk is unknown). So may a
// server whose code is of no known range. A rejection (4xxxx, and the permanent codes of 5xxxx) has
// stored nothing.
func MaybeStored(e *tidegate.Error) bool {
	return !e.NotConnected && e.Code/10000 != 4 && tidegate.Classify(e) == tidegate.ClassTransient
}

// OfCall returns the error of a failed gRPC call. sent means that the request changes something and
// had a connection, so that a server may have carried it out. ctx is the caller's.
//
//	gRPC status         becomes
//	Canceled            ErrClosed if the client is closed; the cause of ctx if that ended; else code 0
//	DeadlineExceeded    the cause of ctx if that ended; else code 0
//	Unauthenticated     40100
//	PermissionDenied    40300
//	ResourceExhausted   41300 if a message is larger than one side allows; else code 0: HTTP/2 asks for calm
//	InvalidArgument     40000, OutOfRange too
//	Unimplemented       50100 for features that some servers lack; else code 0: something before the server responds
//	all others          code 0
//
// Code 0 without a cause of the caller's matches tidegate.ErrUnavailable.
func OfCall(ctx context.Context, op, subject, endpoint string, err error, sent, closed bool) *tidegate.Error {
	st := status.Convert(err)
	if text := firstLine(st.Message()); text != st.Message() {
		err = status.Error(st.Code(), text)
	}
	e := &tidegate.Error{Op: op, Subject: subject, Endpoint: endpoint, Err: err}
	ended := st.Code() == codes.Canceled || st.Code() == codes.DeadlineExceeded
	switch cause := causeOf(ctx, st.Code()); {
	case ended && cause != nil:
		e.Err = fmt.Errorf("%w: %w", cause, err)
	case closed:
		e.Err = fmt.Errorf("%w: %w", tidegate.ErrClosed, err)
	default:
		switch e.Code = codeOf(op, st); e.Code {
		case 0:
			e.Err = fmt.Errorf("%w: %w", tidegate.ErrUnavailable, err)
		case tidegate.CodeNotImplemented:
			e.Message = optional[op]
		}
	}
	e.MaybeStored = sent && e.Code == 0
	return e
}

// causeOf returns the cause of the end of the caller's ctx, or nil if it has not ended. A server
// also observes the deadline, and its response can arrive a moment before the local clock reaches
// it. causeOf waits for this moment, because before it ctx has no cause.
func causeOf(ctx context.Context, code codes.Code) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	const moment = 5 * time.Millisecond
	if at, ok := ctx.Deadline(); ok && code == codes.DeadlineExceeded && time.Until(at) < moment {
		return cmp.Or(backoff.Sleep(ctx, moment), context.DeadlineExceeded)
	}
	return nil
}

const recall = "RecallMessage"

// optional has the RPCs that not every server has, and the text of the error on such a server.
var optional = map[string]string{
	recall:                 "the server cannot recall messages; RocketMQ can from 5.3.0 on, with recallMessageEnable=true",
	"SyncLiteSubscription": "the server has no lite topics; RocketMQ has them from 5.5.0 on, with enableLmq=true and enableMultiDispatch=true",
}

func codeOf(op string, st *status.Status) tidegate.Code {
	switch st.Code() {
	case codes.Unauthenticated:
		return tidegate.CodeUnauthorized
	case codes.PermissionDenied:
		return tidegate.CodeForbidden
	case codes.ResourceExhausted:
		if tooLarge(st.Message()) {
			return protocol.CodePayloadTooLarge
		}
	case codes.InvalidArgument, codes.OutOfRange:
		return tidegate.CodeBadRequest
	case codes.Unimplemented:
		if optional[op] != "" {
			return tidegate.CodeNotImplemented
		}
	}
	return 0
}

// tooLarge reports whether gRPC rejected a message for its size. It has no code for
// that, so only its texts differ: the first is that of grpc-go, the second of grpc-java.
func tooLarge(text string) bool {
	return strings.Contains(text, "larger than max") || strings.Contains(text, "exceeds maximum size")
}
