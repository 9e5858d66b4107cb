package remote

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"google.golang.org/grpc"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/combine"
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

	Combiner *combine.Combiner // of the sends to the server

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

// New returns the server at the addresses of pb, whose form in one text is key. Its first
// link is l. initial is the first backoff between attempts to connect. trips counts how often the
// breakers of all servers tripped.
func New(key string, pb *rmqpb.Endpoints, l *Link, initial time.Duration, trips *atomic.Int64) *Server {
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
