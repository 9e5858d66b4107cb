package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/server/internal/tlssniff"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/connlimit"
)

// Requests and responses hold their memory in two budgets: bodies in one, receives that are parked
// in the other, so that neither shuts out the other.

const (
	// parkedSize is the approximate memory of a waiting receive in addition to its request:
	// goroutine, stream, timer and its entries in the engine.
	parkedSize = 20 << 10

	// mostParked is the most that a parked receive takes, with the largest request and headers.
	mostParked = parkedSize + 3*requests.MaxSmallRequest + maxHeaderSize

	// bodyPart and parkedPart are the budgets' parts of the memory that Go may use, settingsPart is
	// that of the settings of clients, and mostMemory bounds each where there is more than enough.
	bodyPart     = 4
	parkedPart   = 8
	settingsPart = 16
	mostMemory   = 1 << 30

	// unknownMemory is used as the memory for Go if there is no limit.
	unknownMemory = 1 << 30
)

// fitMemory fills in the defaults that depend on how much memory Go may use, and on the largest
// body that the broker takes, in bytes, and rejects options that do not fit together.
func (o *Options) fitMemory(memory int64, maxBody int) error {
	if memory == math.MaxInt64 {
		memory = unknownMemory
	}
	least := 12*int64(maxBody) + 16<<20
	setDefault(&o.MaxTransitBytes, max(min(memory/bodyPart, mostMemory), least))
	setDefault(&o.MaxParkedBytes, min(memory/parkedPart, mostMemory))
	if o.MaxTransitBytes < least {
		return fmt.Errorf("server options: MaxTransitBytes is %d; with bodies of up to %d bytes, give %d or more", o.MaxTransitBytes, maxBody, least)
	}
	if o.MaxParkedBytes < 2*mostParked {
		return fmt.Errorf("server options: MaxParkedBytes is %d; give %d or more", o.MaxParkedBytes, 2*mostParked)
	}
	most := requests.MostOf(o.MaxTransitBytes / 2)
	setDefault(&o.MaxReceiveSize, int(min(max(defaultMaxReceiveSize, int64(maxBody)+1<<20), most)))
	if int64(o.MaxReceiveSize) > most {
		return fmt.Errorf("server options: MaxReceiveSize is %d; give %d or less, because MaxTransitBytes is %d by default on this machine", o.MaxReceiveSize, most, o.MaxTransitBytes)
	}
	return nil
}

// settingsOf returns how many bytes the settings of all clients may have, of the memory that Go may
// use.
func settingsOf(memory int64) int { return int(min(memory/settingsPart, session.MaxSettingsBytes)) }

// memoryLimit returns how much memory Go may use, in bytes: see GOMEMLIMIT.
func memoryLimit() int64 { return debug.SetMemoryLimit(-1) }

// A flood of requests is bounded in three steps, of which the first two also hold for clients
// without credentials, since gRPC takes memory for a request before it can be authenticated:
//
//   - gRPC takes no more requests of one connection at a time than maxStreams, or half of the
//     places.
//   - Reading from a connection pauses while too many handlers have not begun, some of them its
//     own, and while its client cancels too many streams, see tlssniff.Link.
//   - A request whose handler begins takes a place of all connections' budget, and is rejected if
//     there is none. It has its place until gRPC has written the response, whether the handler has
//     returned or not, and the bytes of the response stay in the budget of bodies as long. So
//     responses that no client reads, of which HTTP/2 lets a client have any number, are bounded by
//     MaxParkedBytes/10 KiB, and their bytes by MaxTransitBytes.

const (
	// placeSize is the approximate memory of a request over gRPC outside the budgets of bodies and
	// of waiting receives: stream, headers, goroutine, and a small response that waits for the
	// client.
	placeSize = 10 << 10

	// leastPlaces is how many requests may be under way at least.
	leastPlaces = 1000
)

// placesOf returns the memory for requests over gRPC on all connections, in bytes: for twice as
// many as receives may wait, so that these leave places for other requests.
func placesOf(maxParked int64) int64 { return max(maxParked, leastPlaces*placeSize) }

// place takes the place of a request over gRPC whose handler begins. The caller calls ended when
// the handler ends. The error is a status of gRPC, which needs no place itself.
func (s *Server) place(ctx context.Context) (p *transit.Place, ended func(), err error) {
	var peer transit.Peer
	link, began := tlssniff.InfoOf(ctx).Link, time.Now()
	if link != nil {
		peer = link
	}
	link.Begun()
	ended = func() {
		if errors.Is(ctx.Err(), context.Canceled) && time.Since(began) < tlssniff.ResetTime {
			link.Reset()
		}
	}
	if ctx.Err() != nil {
		ended()
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	if p, err = s.places.Take(peer, placeSize); err != nil {
		return nil, nil, status.Error(codes.Unavailable, err.Error())
	}
	return p, ended, nil
}

// A placedStream keeps the place of the request until gRPC has written the response.
type placedStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // the stream's
	place *transit.Place
}

// Context implements grpc.ServerStream.
func (p *placedStream) Context() context.Context { return p.ctx }

// SendMsg implements grpc.ServerStream.
func (p *placedStream) SendMsg(m any) error {
	return p.ServerStream.SendMsg(&requests.Placed{Message: m, Place: p.place})
}

// opened is gRPC's tap: gRPC calls it for each stream before it starts a goroutine for it. It
// rejects none, because gRPC keeps the timers of the deadlines of those that a tap rejects. It
// counts those that gRPC will call a handler for.
func (s *Server) opened(ctx context.Context, info *tap.Info) (context.Context, error) {
	if ctx.Err() == nil && s.methods[info.FullMethodName] && len(info.Header["grpc-encoding"]) == 0 {
		tlssniff.InfoOf(ctx).Link.Opened()
	}
	return ctx, nil
}

// methodNames returns the full names of the RPCs of a service.
func methodNames(d *grpc.ServiceDesc) map[string]bool {
	names := map[string]bool{}
	for _, m := range d.Methods {
		names["/"+d.ServiceName+"/"+m.MethodName] = true
	}
	for _, m := range d.Streams {
		names["/"+d.ServiceName+"/"+m.StreamName] = true
	}
	return names
}

// connections is the server as its connections see it.
type connections struct{ s *Server }

// RefusedPlainText implements tlssniff.Host.
func (c connections) RefusedPlainText(at net.Addr) { c.s.gate.RefusedPlainText(at) }

// Ended implements tlssniff.Host. It takes back the memory of responses that gRPC has dropped with
// their connection.
func (c connections) Ended(l *tlssniff.Link) {
	c.s.bodies.Ended(l)
	c.s.places.Ended(l)
}

// holdForResponse reserves the memory of a request over gRPC for its response, until the response
// is written. response is its size in bytes. It returns an error with code 42900 if the response is
// much larger than the held memory, and no further memory is available.
func holdForResponse(ctx context.Context, h *transit.Hold, response int) error {
	need, held := smallResponse+int64(response), h.Bytes()
	if need > largerResponse*held {
		if err := h.Resize(need, false); err != nil {
			return err
		}
		held = need
	}
	transit.PlaceOf(ctx).TakeOver(h, min(need, held))
	return nil
}

const (
	// smallResponse is the memory of gRPC and the handler for each response, in bytes.
	smallResponse = 1 << 10

	// largerResponse is how many times larger than its request's memory a response may be without
	// memory of its own: a request that was executed is not rejected afterwards.
	largerResponse = 4
)

// hold returns an empty hold for a request over gRPC.
func hold(ctx context.Context, b *transit.Budget) transit.Hold {
	if link := tlssniff.InfoOf(ctx).Link; link != nil {
		return b.Hold(link, link)
	}
	return b.Hold(nil, nil)
}

// intake returns how the requests of an RPC are read. The caller has to release its hold.
func (s *Server) intake(ctx context.Context) *requests.Intake {
	return &requests.Intake{Hold: hold(ctx, s.bodies), MaxSend: s.o.MaxReceiveSize}
}

// park reserves the memory for a waiting receive. request is the size of its request in bytes.
func (s *Server) park(ctx context.Context, request int64) (transit.Hold, error) {
	h := hold(ctx, s.parked)
	size := parkedSize + request
	md, _ := metadata.FromIncomingContext(ctx)
	for k, values := range md {
		for _, v := range values {
			size += int64(len(k) + len(v))
		}
	}
	err := h.Resize(size, true)
	return h, err
}

// deliver sends a response that holds memory, and ends the connection if the client reads it more
// slowly than transit.Pace allows.
func deliver(in *requests.Intake, send func() error) error {
	size := in.Hold.Bytes()
	if err := in.Hold.Resize(size, true); err != nil {
		return err
	}
	defer in.Hold.Watch(size).Stop()
	return send()
}

// connKey is where the context of a request over HTTP has its connection.
type connKey struct{}

// ConnContext is for the field of that name of the net/http server that runs the server's Handler.
// With it the server can close the connections of clients that neither send nor read, when
// other clients need their memory, and idle connections when there are too many. The returned
// context is derived from ctx.
func (s *Server) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// limitOf returns the connection of a request over HTTP as the limit of connections counts it, nil
// without a limit.
func limitOf(r *http.Request) *connlimit.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return connlimit.Of(c)
}

// A link is the connection of a request over HTTP.
type link struct{ c net.Conn }

// End implements transit.Conn. The end of TLS would wait for the client.
func (l link) End() {
	if t, ok := l.c.(*tls.Conn); ok {
		_ = t.NetConn().Close()
		return
	}
	_ = l.c.Close()
}

// holdHTTP is hold for a request over HTTP.
func holdHTTP(r *http.Request, b *transit.Budget) transit.Hold {
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		return b.Hold(c, link{c})
	}
	return b.Hold(r.RemoteAddr, nil)
}

// parkHTTP is park for a request over HTTP.
func (s *Server) parkHTTP(r *http.Request) (transit.Hold, error) {
	h := holdHTTP(r, s.parked)
	err := h.Resize(parkedSize, true)
	return h, err
}
