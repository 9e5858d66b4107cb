package auth

import (
	"context"
	"crypto/x509"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wire"
)

// A Caller is the principal of a gRPC request.
type Caller struct {
	under *Regime
	who   access.Identity
	began time.Time // when its signature was to be fresh
}

// Under returns the rules that admitted the caller.
func (c Caller) Under() *Regime { return c.under }

// Authenticate returns the caller of a request from its headers alone. began is the start of the
// request. It rejects wrong credentials, missing credentials if every request needs them, and a
// caller without any permission for this RPC. This happens before the request is read, so its size
// does not matter.
func (g *Gate) Authenticate(ctx context.Context, began time.Time, op string) (c Caller, err error) {
	c = Caller{under: g.current.Load(), began: began}
	if c.under.policy == nil {
		return c, nil
	}
	from, _ := peer.FromContext(ctx)
	who, reason := identify(ctx, c.under.policy, from, began)
	c.who = who
	admission.LinkInfoOf(ctx).Link.Limit().Authenticated(reason == "" && !who.Anonymous())
	if first, ok := beforeBody[op]; ok {
		return c, g.judge(ctx, op, c, reason, first)
	}
	return c, g.judge(ctx, op, c, reason)
}

// Admit returns the client's ID if its caller has the permissions that the request needs.
func (g *Gate) Admit(ctx context.Context, op string, c Caller, req any) (client string, err error) {
	if g.current.Load() != c.under { // it changed while the request was read
		if c, err = g.Authenticate(ctx, c.began, op); err != nil {
			return "", err
		}
	}
	if c.under.policy == nil {
		return clientID(ctx, nil)
	}
	if err := g.judge(ctx, op, c, "", NeedsOfRPC(op, req)...); err != nil {
		return "", err
	}
	return clientID(ctx, &c.who)
}

// PermitRPC rejects an admitted request if its caller lacks a permission that the table of needs
// does not have, for example because a header asks for more.
func (g *Gate) PermitRPC(ctx context.Context, op string, needs ...access.Need) error {
	c, err := g.Authenticate(ctx, time.Now(), op)
	if err != nil || c.under.policy == nil {
		return err
	}
	return g.judge(ctx, op, c, "", needs...)
}

// judge returns nil if the caller may do all that is needed.
func (g *Gate) judge(ctx context.Context, op string, c Caller, reason access.Reason, needs ...access.Need) error {
	err := decide(c.under.policy, c.who, reason, needs)
	if err == nil {
		return nil
	}
	var at string
	if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
		at = from.Addr.String()
	}
	name := c.who.String()
	if err.reason.OfCredentials() {
		name = c.under.policy.ClaimedBy(requests.Header(ctx, wire.HeaderAuthorization))
	}
	g.deny(op, at, name, err)
	return err.answer
}

// A Sender is the client of a stream.
type Sender struct {
	gate  *Gate
	ctx   context.Context //nolint:containedctx // of the stream, whose headers have the credentials
	began time.Time
}

// Sender returns the client of a stream that began at a time.
func (g *Gate) Sender(ctx context.Context, began time.Time) Sender { return Sender{g, ctx, began} }

// MaySend reports whether the client may send to a topic by the rules that hold now.
func (s Sender) MaySend(topic string) bool {
	p := s.gate.policy()
	if p == nil {
		return true
	}
	from, _ := peer.FromContext(s.ctx)
	who, reason := identify(s.ctx, p, from, s.began)
	return reason == "" && p.Allows(who, access.ToSend(topic)) == nil
}

// identify returns the principal of a gRPC request: by its signature, or else by the client
// certificate of its connection. began is the start of the request.
func identify(ctx context.Context, p *access.Policy, from *peer.Peer, began time.Time) (access.Identity, access.Reason) {
	authorization := metadata.ValueFromIncomingContext(ctx, wire.HeaderAuthorization)
	dateTime := metadata.ValueFromIncomingContext(ctx, wire.HeaderDateTime)
	if len(authorization) > 1 || len(dateTime) > 1 {
		return access.Identity{}, access.Malformed // a proxy may have looked at another one
	}
	if len(authorization) == 1 {
		signed := ""
		if len(dateTime) == 1 {
			signed = dateTime[0]
		}
		if who, reason := p.Signature(authorization[0], signed, began); reason != "" || !who.Anonymous() {
			return who, reason
		}
	}
	if from != nil {
		info, _ := from.AuthInfo.(admission.LinkInfo)
		if verified, ok := info.AuthInfo.(credentials.TLSInfo); ok {
			return p.Certificate(certificateNames(verified.State.VerifiedChains)), ""
		}
	}
	return access.Identity{}, ""
}

// certificateNames returns all names of a verified client certificate.
func certificateNames(verified [][]*x509.Certificate) []string {
	if len(verified) == 0 || len(verified[0]) == 0 {
		return nil
	}
	c := verified[0][0]
	names := []string{c.Subject.CommonName}
	names = append(names, c.DNSNames...)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return append(names, c.EmailAddresses...)
}

// maxClientID is the maximum size of a client's ID in bytes. The server stores the ID.
const maxClientID = 255

// clientID returns the client's ID, which every request must have. With keys, an ID belongs to its
// key, so no client can use the ID of a client with another key. who is nil without keys.
func clientID(ctx context.Context, who *access.Identity) (string, error) {
	id := requests.Header(ctx, wire.HeaderClientID)
	switch {
	case strings.TrimSpace(id) == "":
		return "", refusal.New(protocol.CodeClientIDRequired, wire.HeaderClientID, "%s", "the header "+wire.HeaderClientID+" is missing or blank")
	case len(id) > maxClientID:
		return "", refusal.New(protocol.CodeClientIDRequired, wire.HeaderClientID,
			"the header %s has %d bytes; the limit is %d", wire.HeaderClientID, len(id), maxClientID)
	}
	return scoped(who, id), nil
}

// Origin returns the share of the server's memory that a client counts for: its key and the address
// of its connection, which can be empty. A whole network of IPv6 is one address, because one
// machine can have as many as it likes.
func (g *Gate) Origin(client, address string) string {
	key := ""
	if g.Keyed() {
		key, _, _ = strings.Cut(client, "/") // the client chose the rest
	}
	return key + "@" + network(address)
}

// Keyed reports whether an access key and a slash precede the IDs of clients.
func (g *Gate) Keyed() bool { return g.policy() != nil }

// network returns the IPv4 address, or the network of the IPv6 address, of an address with a port.
// It returns other texts as they are.
func network(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	if ip := at.Addr().Unmap(); ip.Is4() {
		return ip.String()
	}
	p, err := at.Addr().WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return p.String()
}

// scoped puts the key before a client's ID.
func scoped(who *access.Identity, id string) string {
	if who == nil {
		return id
	}
	return who.String() + "/" + id
}
