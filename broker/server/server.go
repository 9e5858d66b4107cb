package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/metrics"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/server/internal/tlssniff"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	// idleTimeout is the time after which a connection without requests is closed, as in RocketMQ's
	// proxy. A Telemetry stream keeps it open.
	idleTimeout = 2 * time.Minute

	// pingAfter and pingTimeout detect clients that disappeared without closing their connection.
	// In the program, TCP also ends such connections after pingTimeout.
	pingAfter   = time.Minute
	pingTimeout = 20 * time.Second

	// minClientPing is the shortest interval of a client's pings. RocketMQ's Java client sends one
	// every 300 s, and gRPC permits no less than 10 s.
	minClientPing = 5 * time.Second

	// writeBuffer holds a whole receive of 1 KiB messages; gRPC's default does not.
	writeBuffer = 128 << 10

	// connWindow is the number of bytes that a client can send on a connection before the server
	// reads them. It is fixed, like requests.StreamWindow, because gRPC would otherwise measure the
	// connection with pings.
	connWindow = 4 << 20

	// patience is the time for which a request or response can wait for its client while others
	// need its memory.
	patience = time.Second

	// readBuffer is the number of bytes that gRPC reads from a connection at once. gRPC starts a
	// goroutine for each request in them, and a request has at least about 50 bytes.
	readBuffer = 8 << 10

	// maxStreams bounds the requests in progress on one connection. Most of them are waiting
	// receives: RocketMQ's clients have one for each queue of each topic, all on one connection.
	// The bound suffices for 1000 topics of 8 queues, and for other requests.
	maxStreams = 10_000

	// streamWorkers is the number of goroutines that serve one request after the other, so that
	// their stacks do not grow again for each request; that takes 5 % of the time of sends and
	// acknowledgements. While all of them are busy, for example with waiting receives, a request
	// gets a goroutine of its own.
	streamWorkers = 64

	// maxHeaderSize bounds the headers of one request, in bytes.
	maxHeaderSize = 64 << 10
)

// A Server serves gRPC and HTTP for one engine. Goroutines may share it.
type Server struct {
	engine    *engine.Engine
	messages  routes.Engine // of requests about messages: engine, except in tests
	o         Options
	log       *slog.Logger
	advertise *rmqpb.Endpoints // nil: the client's own
	maxBody   int              // bytes
	sessions  *session.Clients
	watches   *session.Limit // of all Telemetry streams
	sniffer   *tlssniff.Credentials
	requests  *metrics.Requests
	grpc      *grpc.Server
	http      http.Handler
	gate      *auth.Gate
	methods   map[string]bool // full names of the RPCs

	bodies *transit.Budget // of requests and responses under way
	parked *transit.Budget // of receives that wait for messages
	places *transit.Budget // of requests over gRPC, from their headers on

	surveys *routes.Shared // of all topics and groups
	filler  routes.Filler  // of overviews
	streams liveStreams
	records routes.Ring

	failure atomic.Pointer[storeFailure] // the last; nil: none

	drainOnce sync.Once
	draining  chan struct{}   // closed when the server begins to end
	life      context.Context //nolint:containedctx // the server's own, not a request's: it ends right after draining
	endLife   context.CancelFunc
	wg        sync.WaitGroup // goroutines besides gRPC's own
}

// New returns a server for b. The error lists every invalid option with its value.
func New(b *broker.Broker, o Options) (*Server, error) {
	if b == nil {
		return nil, errors.New("server: the broker is nil")
	}
	return newServer(b.Engine(), b.Engine(), o)
}

func newServer(e *engine.Engine, messages routes.Engine, o Options) (*Server, error) {
	o, advertise, err := o.check()
	if err != nil {
		return nil, err
	}
	if o.TLS == nil {
		if o.TLS, err = tlssniff.SelfSigned(); err != nil {
			return nil, err
		}
	}
	wants, err := e.ProducerSettings(context.Background(), "") // of any topic; not a request's
	if err != nil {
		return nil, fmt.Errorf("server: read the settings of the engine: %w", err)
	}
	if err := o.fitMemory(memoryLimit(), wants.MaxBodySize); err != nil {
		return nil, err
	}
	s := &Server{
		engine:    e,
		messages:  messages,
		o:         o,
		log:       o.Logger,
		advertise: advertise,
		maxBody:   wants.MaxBodySize,
		draining:  make(chan struct{}),
		requests:  metrics.NewRequests(),
		gate:      auth.NewGate(o.Logger, o.hosts()),
		sessions:  session.New(settingsOf(memoryLimit()), e),
		watches:   session.NewLimit(o.MaxParkedBytes / session.WatchSize),
		bodies:    transit.New("memory for requests and responses", o.MaxTransitBytes, patience),
		parked:    transit.New("memory for waiting receives", o.MaxParkedBytes, 0),
		places:    transit.New("memory for requests under way", placesOf(o.MaxParkedBytes), 0),
		methods:   methodNames(&description),
	}
	s.surveys = routes.NewShared(e, s.sessions)
	if err := s.SetAccess(o.Access); err != nil {
		return nil, fmt.Errorf("server options: %w", err)
	}
	s.sniffer = tlssniff.New(o.TLS, o.MaxSilentConnections, o.RequireTLS, connections{s})
	s.life, s.endLife = context.WithCancel(context.Background()) // the server's own
	s.grpc = grpc.NewServer(
		grpc.Creds(s.sniffer),
		grpc.StreamInterceptor(s.requests.Stream),
		grpc.InTapHandle(s.opened),
		grpc.ConnectionTimeout(o.HandshakeTimeout),
		grpc.MaxConcurrentStreams(uint32(min(s.places.Largest()/placeSize, maxStreams))), //nolint:gosec // maxStreams fits
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxHeaderListSize(maxHeaderSize),
		grpc.WaitForHandlers(true),
		grpc.ForceServerCodecV2(requests.Codec{}),
		experimental.BufferPool(wire.Pool),
		grpc.WriteBufferSize(writeBuffer),
		grpc.ReadBufferSize(readBuffer),
		grpc.StaticStreamWindowSize(requests.StreamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
	)
	s.grpc.RegisterService(&description, s)
	s.http = s.mux()
	e.Attach(attached{s})
	return s, nil
}

// Serve serves gRPC on lis. It blocks until Shutdown or Close, and then returns nil, or until lis
// fails. It closes lis. After Shutdown or Close it returns tidegate.ErrClosed at once. It can be
// called for several listeners.
func (s *Server) Serve(lis net.Listener) error {
	err := s.grpc.Serve(lis)
	switch {
	case errors.Is(err, grpc.ErrServerStopped):
		lis.Close()
		return tidegate.ErrClosed
	case err != nil:
		return fmt.Errorf("serve gRPC on %s: %w", lis.Addr(), err)
	}
	return nil
}

// Handler returns the handler of all HTTP requests, which the package comment lists. The
// caller runs it in a net/http server. When Shutdown or Close begins, receives return and streams
// end; shut the net/http server down before the Server, or both at the same time.
func (s *Server) Handler() http.Handler { return s.http }

// Shutdown ends the server gracefully: waiting receives return no messages, Telemetry streams end,
// and requests in progress complete. If ctx ends first, Shutdown ends the rest as Close does and
// returns the cause of ctx. It returns when no request runs any more. Further calls, also after
// Close, have no effect.
func (s *Server) Shutdown(ctx context.Context) error {
	s.drain()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
		err = fmt.Errorf("shut down: requests in progress were aborted: %w", context.Cause(ctx))
	}
	s.awaitHandlers()
	return err
}

// Close ends the server at once: it closes the connections, and requests in progress get no
// response. It returns when no request runs any more. Further calls have no effect.
func (s *Server) Close() error {
	s.drain()
	s.grpc.Stop()
	s.awaitHandlers()
	return nil
}

// drain ends everything that only waits.
func (s *Server) drain() {
	s.drainOnce.Do(func() {
		close(s.draining)
		s.endLife()
		s.engine.Detach(attached{s})
		s.sniffer.Close()
		s.sessions.Drain()
	})
}

func (s *Server) awaitHandlers() {
	s.wg.Wait()
	s.sessions.Close()
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}
