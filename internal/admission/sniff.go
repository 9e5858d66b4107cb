package admission

import (
	"container/list"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/tidegate/tidegate"
)

const (
	// tlsHandshake is the first byte of a TLS connection: the record type of
	// a ClientHello (RFC 8446 §5.1). HTTP/2 begins with 'P'.
	tlsHandshake = 0x16

	// prefaceSize is the size of the preface of an HTTP/2 client (RFC 9113 §3.4).
	prefaceSize = 24
)

// Credentials are gRPC's transport security for one port: TLS for clients that begin with a TLS
// handshake, plain text for other clients. gRPC calls them once for each connection, in a goroutine
// of its own and with the handshake deadline, so a silent client delays no other client.
type Credentials struct {
	tls, plain credentials.TransportCredentials
	requireTLS bool
	pending    *silentConns
	host       LinkHost
	crowd      crowd
}

// A LinkHost is the server that the connections are for.
type LinkHost interface {
	// RefusedPlainText is called with the client's address for each connection in plain text that
	// is rejected.
	RefusedPlainText(at net.Addr)

	// Ended is called once for each connection that gRPC closes.
	Ended(l *Link)
}

// NewCredentials returns credentials that use c for TLS. most is the maximum of connections whose
// clients have not sent enough; a further one closes the connection that has been silent longest.
// With requireTLS, connections in plain text are rejected.
func NewCredentials(c *tls.Config, most int, requireTLS bool, host LinkHost) *Credentials {
	return &Credentials{tls: credentials.NewTLS(c), plain: insecure.NewCredentials(), requireTLS: requireTLS, pending: &silentConns{most: most}, host: host}
}

// Close closes the connections whose clients have not sent enough, and each new one.
func (s *Credentials) Close() { s.pending.close() }

// Pending returns the number of connections whose clients have not sent enough to identify the
// protocol.
func (s *Credentials) Pending() int { return s.pending.len() }

// ServerHandshake implements credentials.TransportCredentials.
func (s *Credentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	silent, err := s.pending.add(raw)
	if err != nil {
		raw.Close()
		return nil, nil, err
	}
	conn := &peekedConn{Conn: raw}
	if _, err := io.ReadFull(raw, conn.first[:]); err != nil {
		silent.settle()
		raw.Close()
		return nil, nil, io.EOF // gRPC's error for a silent connection: not worth a log line
	}
	creds := s.plain
	switch {
	case conn.first[0] == tlsHandshake:
		creds = s.tls
	case s.requireTLS:
		silent.settle()
		s.host.RefusedPlainText(raw.RemoteAddr())
		raw.Close()
		return nil, nil, io.EOF // logged already, and not for each
	}
	out, info, err := creds.ServerHandshake(conn)
	if err != nil {
		silent.settle()
		raw.Close()
		return nil, nil, err
	}
	link := &Link{raw: raw, limit: ConnOf(raw), crowd: &s.crowd}
	return &greetedConn{Conn: out, left: prefaceSize, silent: silent, link: link, host: s.host}, LinkInfo{info, link}, nil
}

// LinkInfo is the information about a connection in the context of its requests.
type LinkInfo struct {
	credentials.AuthInfo // of the security protocol: a credentials.TLSInfo with TLS
	Link                 *Link
}

// LinkInfoOf returns the information about the connection of a request. The zero value means that
// nothing is known.
func LinkInfoOf(ctx context.Context) LinkInfo {
	if p, ok := peer.FromContext(ctx); ok {
		info, _ := p.AuthInfo.(LinkInfo)
		return info
	}
	return LinkInfo{}
}

// ClientHandshake implements credentials.TransportCredentials. A server makes none.
func (s *Credentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("server: these credentials are for a server only")
}

// Info implements credentials.TransportCredentials.
func (s *Credentials) Info() credentials.ProtocolInfo { return s.tls.Info() }

// Clone implements credentials.TransportCredentials.
func (s *Credentials) Clone() credentials.TransportCredentials { return s }

// OverrideServerName implements credentials.TransportCredentials: only clients have one.
func (s *Credentials) OverrideServerName(string) error { return nil }

// A peekedConn gives the first byte again.
type peekedConn struct {
	net.Conn
	first [1]byte
	read  bool
}

func (c *peekedConn) Read(b []byte) (int, error) {
	if c.read || len(b) == 0 {
		return c.Conn.Read(b)
	}
	c.read = true
	return copy(b, c.first[:]), nil
}

// A greetedConn ends the wait for a connection when the client has sent its HTTP/2 preface. Only
// the one reader of the transport calls Read.
type greetedConn struct {
	net.Conn
	left   int
	silent silent
	link   *Link
	host   LinkHost
}

func (c *greetedConn) Read(b []byte) (int, error) {
	c.link.wait()
	n, err := c.Conn.Read(b)
	if c.left > 0 {
		if c.left -= n; c.left <= 0 || err != nil {
			c.left = 0
			c.silent.settle()
		}
	}
	return n, err
}

func (c *greetedConn) Close() error {
	c.silent.settle()
	err := c.Conn.Close()
	if c.link.close() {
		c.host.Ended(c.link)
	}
	return err
}

// silentConns has the connections whose clients have not sent enough to identify the protocol, the
// oldest first.
type silentConns struct {
	most int // of them

	mu     sync.Mutex
	conns  list.List // of net.Conn
	closed bool
}

// A silent is a connection that is pending until settle is called.
type silent struct {
	in *silentConns
	at *list.Element
}

// settle can be called more than once.
func (s silent) settle() {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	if !s.in.closed {
		s.in.conns.Remove(s.at) // no effect if it is not there any more
	}
}

// add registers c.
func (p *silentConns) add(c net.Conn) (silent, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return silent{}, tidegate.ErrClosed
	}
	var oldest net.Conn
	if p.conns.Len() >= p.most {
		oldest = p.conns.Remove(p.conns.Front()).(net.Conn)
	}
	e := p.conns.PushBack(c)
	p.mu.Unlock()
	if oldest != nil {
		oldest.Close() // its reader fails, and the handshake with it
	}
	return silent{p, e}, nil
}

// close closes all that are pending, and every one that comes.
func (p *silentConns) close() {
	p.mu.Lock()
	p.closed = true
	var conns []net.Conn
	for e := p.conns.Front(); e != nil; e = e.Next() {
		conns = append(conns, e.Value.(net.Conn))
	}
	p.conns.Init()
	p.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// len returns how many are pending.
func (p *silentConns) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns.Len()
}

// SelfSigned makes a TLS configuration with a certificate of its own, for
// clients that speak TLS and verify nothing.
func SelfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create a TLS key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("create a TLS certificate: %w", err)
	}
	now := time.Now()
	cert := x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "localhost", Organization: []string{"tidegate, self-signed"}},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:    now.Add(-time.Hour), // clients' clocks differ
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &cert, &cert, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("create a TLS certificate: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		MinVersion:   tls.VersionTLS12,
	}, nil
}
