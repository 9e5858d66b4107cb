// Package server serves the engine of package broker over gRPC and HTTP. The gRPC service is
// apache.rocketmq.v2.MessagingService, for the official clients of RocketMQ 5 and for tidegate's
// SDK. HTTP with JSON carries messages and the administration.
//
// [New] creates a [Server]. [Server.Serve] serves gRPC on a listener, plain text and TLS on the
// same port. [Server.Handler] serves HTTP in any net/http server. The caller owns the engine: close
// the server first, then the engine.
//
// # Responses over gRPC
//
// The result of a request is in the status of its response, with RocketMQ's codes; the gRPC status
// is then OK. Another gRPC status means that there is no response: the broker is closed, or the
// client cancelled the call. A Telemetry stream that the broker rejects ends with its reason twice:
// a command with the status, and a gRPC status with the same text, because official clients show
// the latter. A client of a type that the broker does not serve, such as PULL_CONSUMER, gets
// NOT_IMPLEMENTED; its receives are rejected until it sends other settings. A throttled response
// has code 42900 and a text that begins with "530 TOO_MANY_REQUESTS". If the engine can estimate
// the time to wait, the trailer grpc-retry-pushback-ms has it in milliseconds.
//
// # Clients
//
// The server serves clients of the types PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER and
// LITE_PUSH_CONSUMER, as RocketMQ 5.5 does; others get NOT_IMPLEMENTED at their start. A
// LITE_PUSH_CONSUMER receives from the lite topics of its SyncLiteSubscription requests. Its client
// ID identifies it, and the settings that it gets have the maximum of its lite topics and of the
// length of their names. A NotifyUnsubscribeLiteCommand on its Telemetry stream reports a lite topic
// that it has no more. The server ignores the version of a set, and the lite topic in requests about
// a delivery, which the receipt handle identifies.
//
// # Extensions of the protocol
//
// The response header x-tidegate-features lists the extensions to the protocol of RocketMQ 5.2:
//
//   - "batch": each message of a SendMessage keeps its own ID, tag and properties, and has its own
//     entry in the response.
//   - "topics": the messages of a SendMessage with the request header x-tidegate-features: topics
//     can have different topics. Instead of grpc-retry-pushback-ms its response has the trailer
//     x-tidegate-pushback-topics: the milliseconds for each run of messages with the same topic,
//     joined by commas, 0 for none. A server with [Options].Intercept does not announce it.
//   - "pushback": throttled responses have the trailer grpc-retry-pushback-ms.
//   - "suspend": a ChangeInvisibleDuration with suspend never counts as a failure.
//   - "deadletter": a repeated ForwardMessageToDeadLetterQueue creates no second copy. The dead
//     letter has the text of the request header x-tidegate-reason.
//   - "retry": the ChangeInvisibleDuration with which a push consumer reports a failure creates no
//     second dead letter when it is repeated, and its reason is recorded in the same way. With the
//     request header x-tidegate-ladder: true the broker's retry interval applies instead of the
//     duration. The trailer x-tidegate-retry of the response has the milliseconds until the next
//     delivery, or "dead-letter" or "parked"; "dead-letter" includes the removal by address
//     settings. The response to ForwardMessageToDeadLetterQueue has the same trailer.
//   - "snooze": with the request header x-tidegate-snooze: true, ChangeInvisibleDuration ends the
//     delivery and does not count its attempt.
//   - "reconsume": with the request header x-tidegate-reconsume, ChangeInvisibleDuration ends a
//     failed delivery. "next", "level=3" and "delay" store the message in the group's retry topic;
//     "negative" delivers it again. The invisible duration is the delay of "delay" and "negative".
//     The response has the trailer x-tidegate-retry.
//   - "packed": a ReceiveMessage with the request header x-tidegate-features: packed gets many
//     messages in one frame, in a field that RocketMQ's protocol does not have. The last frame has
//     the status.
//   - "stream": a ReceiveMessage with the request header x-tidegate-features: packed, stream goes on
//     after its first messages, until it has sent half of its batch size or bytes, or its wait is
//     over. A part of the messages ends with a frame that has the time of delivery and the
//     microseconds since the request arrived, in a field that RocketMQ's protocol does not have. The
//     last frame has the status. The repetition has the request header x-tidegate-arrived with the
//     number of parts that arrived. A server with [Options].Intercept does not stream.
//   - "brief": the response to an AckMessage with the request header x-tidegate-features: brief has
//     no entries if all of them succeeded.
//   - "watch": a ReceiveMessage with the request header x-tidegate-features: watch does not wait,
//     if the client has a Telemetry stream with the same header. If it has taken all messages that
//     it could take, its response has the trailer x-tidegate-watched: true. Then the stream reports
//     once that another receive may find a message: a command has the topic and the queue of the
//     request in a field that RocketMQ's protocol does not have. The stream also reports when the
//     access rules, the group or its topics change. Beyond a limit of watches, receives wait.
//
// Two request headers need no feature. x-tidegate-max-bytes bounds the total size of the bodies in
// a ReceiveMessage; the first message can be larger. x-tidegate-repeat marks the repetition of a
// ChangeInvisibleDuration whose response was lost (broker.Broker.Extend).
//
// # HTTP
//
// GET /v1/openapi.yaml describes all routes and fields. Messages:
//
//	POST /v1/topics/{topic}/messages                   sends a message, many ({"messages":[...]}), or a stream of NDJSON;
//	                                                   a body of text or bytes is the message's body, with the other fields in the query
//	POST /v1/topics/{topic}/recall                     cancels a delayed message
//	POST /v1/groups/{group}/topics/{topic}/receive     receives up to 32 messages with a long poll, or a stream of NDJSON
//	PUT, PATCH, DELETE /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}
//	                                                   the lite topics of a consumer, from which its receives get messages
//	GET /v1/groups/{group}/topics/{topic}/lite-consumers/{consumer}/ended
//	                                                   the lite topics that it loses, as a stream of NDJSON
//	POST /v1/groups/{group}/acknowledge                acknowledges messages ({"handles":[...]})
//	POST /v1/groups/{group}/change-invisible-duration  extends a delivery, or returns the message to the queue
//	POST /v1/groups/{group}/snooze                     postpones a message without counting an attempt
//	POST /v1/groups/{group}/retry                      reports a failure: retry after a time, or after the group's interval
//	POST /v1/groups/{group}/dead-letter                makes the message a dead letter
//	POST /v1/groups/{group}/reconsume-later            acknowledges the message and stores it in the group's retry topic
//	POST /v1/groups/{group}/negative-acknowledge       delivers the same message again after the group's negative_ack.delay
//
// Administration and monitoring:
//
//	PUT, GET, DELETE /v1/topics/{topic}                a topic, as settings.Topic; GET /v1/topics lists all
//	GET /v1/topics/{topic}/messages                    lists stored messages without delivering them
//	GET /v1/topics/{topic}/messages/{id}               where a message is, for each group
//	POST /v1/topics/{topic}/purge                      removes all messages
//	GET /v1/topics/{topic}/lite-topics                 lists the lite topics below a topic
//	DELETE /v1/topics/{topic}/lite-topics/{lite_topic} removes one with its messages
//	PUT, PATCH, GET, DELETE /v1/groups/{group}         a group, as settings.Group; GET /v1/groups lists all
//	POST /v1/groups/{group}/rewind                     moves the group to an offset, a time, the beginning or the end
//	GET /v1/groups/{group}/parked                      lists message groups that are parked
//	POST /v1/groups/{group}/parked/redrive             redrives them
//	GET, DELETE /v1/groups/{group}/dead-letters        lists or removes the dead letters that the query selects
//	GET /v1/topics/{topic}/queues                      the offsets and times of each queue
//	GET /v1/groups/{group}/topics/{topic}/queues       the progress of the group in each queue
//	GET /v1/groups/{group}/topics/{topic}/leases       lists the unfinished messages of the group in the topic
//	GET /v1/groups/{group}/topics/{topic}/schedule     counts them by the time until they are due
//	GET /v1/groups/{group}/failures                    lists the latest failures of deliveries
//	GET /v1/groups/{group}/dead-letters/classes        counts them by the causes of their failures
//	POST /v1/groups/{group}/dead-letters/redrive       sends them back
//	PUT, GET, DELETE /v1/address-settings/{match}      settings.Address; GET /v1/address-settings lists all
//	GET /v1/topics/{topic}/address-settings            the address settings in effect for a topic
//	PUT, PATCH, GET /v1/throttle                       settings.Limits, and which of them reject sends now
//	POST /v1/snapshot                                  a consistent copy of the data directory, below Options.SnapshotDir
//	GET /healthz                                       the process responds
//	GET /readyz                                        the store works, and the server accepts requests; a throttle or a full disk is no error
//	POST, GET, DELETE /v1/session                      a session of a page in a browser: login, permissions, logout
//	GET /v1/overview                                   the state as a whole, the highest backlogs, and the present problems
//	GET /v1/clients                                    the connected clients
//	GET /v1/audit                                      the latest changes, with their principals and results
//	GET /v1/live                                       the same as a stream of NDJSON, for topics and groups that the request names
//	GET /v1/history                                    the rates and backlogs of the last hour or day
//	GET /metrics                                       metrics for Prometheus; see broker/server/monitoring
//
// The web console at /console/ is a set of static files that use these routes; [Options].NoConsole
// turns it off.
//
// The server rejects an unexpected query or body, and JSON with a duplicate key.
//
// Errors are application/problem+json (RFC 9457) with the members code and reply_code, and
// retry_after and maybe_stored if they apply. A throttled request gets status 429, reply_code 530
// and Retry-After, which is 10 s if the engine cannot estimate the time. The status of a request
// with many items is:
//
//   - 200 if all items succeeded
//   - 207 with a result for each item if some failed
//   - the status of the failure if all items failed with the same code
//
// Invalid JSON fails the whole request; the error has the path of the field. A send without a
// response can be repeated with the same id, and is stored once.
//
// The server responds to each line of a stream of sends when the message is stored. Clients must
// read the responses while they send. Empty lines are heartbeats in both directions: each side
// sends one at least every two minutes, and the other one skips it. A line with an error and
// without a number ends the stream. Streams and waiting receives end when the client disconnects or
// the server begins to stop. Messages that the client did not get are ready again at once.
//
// # Access
//
// With keys or anonymous rules in [Options].Access, every request needs credentials or an anonymous
// rule that allows it. The paths /healthz, /readyz and /v1/openapi.yaml and the files of the
// console need neither. The client signs the request like RocketMQ 5 (authorization,
// x-mq-date-time), uses Basic authentication over HTTP, or has a client certificate
// ([Certificates]). The server rejects a request that no [Rule] allows with 40300, and wrong or
// missing credentials with 40100. It ignores x-mq-session-token.
// After [Server.SetAccess] an open stream continues only if the new rules allow it.
//
// Over HTTP, pages of other origins cannot change anything. A request without credentials that
// arrives in plain text at a loopback address must be for an IP address, localhost, the host of
// [Options].Advertise or one of [Options].HTTPHosts, as a protection against DNS rebinding.
// [Options].AnyHost permits other hosts.
//
// # Limits
//
// One request has at most 1000 messages or acknowledgements. Each message has at most 64 KiB in
// addition to its body. The size of a request is at most:
//
//   - sends: [Options].MaxReceiveSize
//   - acknowledgements: 1000 KiB
//   - other requests over gRPC: 64 KiB
//
// Namespaces, hosts and attempt IDs have at most 255 bytes. The server rejects larger values with
// 40000, 40001, 41300 or 43101, larger settings with gRPC's InvalidArgument, and requests above
// MaxReceiveSize with gRPC's ResourceExhausted.
//
// # Not supported
//
// The server rejects PullMessage, GetOffset, QueryOffset and UpdateOffset (offsets kept by clients)
// and lite topics with a status that names the reason. Half messages and the ends of transactions
// are not available over HTTP, because a check needs a Telemetry stream.
//
// # Files
//
// For readers of the code. A request over gRPC passes server.go, intercept.go, and send.go or
// receive.go; one over HTTP passes routes.go and a file of handlers. Both end in package engine.
//
//   - server.go: [Server]: New, Serve, Shutdown; health, readiness, metrics, the list of clients
//   - options.go: [Options], [Certificates], access keys
//   - intercept.go: the table of the RPCs; rpc.serve, the steps of a request over gRPC:
//     authenticate, read, admit, carry out; answer, the status of a failure; the budgets of memory;
//     [Options].Intercept
//   - send.go: SendMessage and EndTransaction
//   - receive.go: ReceiveMessage and the settlements of deliveries
//   - telemetry.go: Telemetry, routes, assignments, heartbeats, recalls
//   - lite.go: consumers of lite topics, over gRPC and HTTP
//   - routes.go: the table of routes; run, the steps of a request over HTTP; live, audit, history
//   - http_handlers.go: the parts that handlers share; the JSON of a message; audit records
//   - http_body.go, http_problem.go: bodies and lines of JSON; errors, queries and revisions
//   - http_messages.go, http_settle.go: messages: browse, trace, rewind, parked groups, send,
//     receive; settlements
//   - http_settings.go, http_deadletters.go, http_overview.go: the administration
//   - internal/requests: limits, checks, headers and statuses of gRPC; internal/session: clients
//     and their streams; internal/auth: who may do what; internal/metrics: Prometheus
package server

import (
	"context"
	_ "embed" // for openapiYAML
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/metrics"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/admission"
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
	messages  messageEngine // of requests about messages: engine, except in tests
	o         Options
	log       *slog.Logger
	advertise *rmqpb.Endpoints // nil: the client's own
	maxBody   int              // bytes
	sessions  *session.Clients
	watches   *session.Limit // of all Telemetry streams
	sniffer   *admission.Credentials
	requests  *metrics.Requests
	grpc      *grpc.Server
	http      http.Handler
	gate      *auth.Gate
	methods   map[string]bool // full names of the RPCs

	bodies *admission.Budget // of requests and responses under way
	parked *admission.Budget // of receives that wait for messages
	places *admission.Budget // of requests over gRPC, from their headers on

	surveys *sharedSurvey // of all topics and groups
	filler  listFiller    // of overviews
	streams liveStreams
	records auditRing

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

func newServer(e *engine.Engine, messages messageEngine, o Options) (*Server, error) {
	o, advertise, err := o.check()
	if err != nil {
		return nil, err
	}
	if o.TLS == nil {
		if o.TLS, err = admission.SelfSigned(); err != nil {
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
		bodies:    admission.NewBudget("memory for requests and responses", o.MaxTransitBytes, patience),
		parked:    admission.NewBudget("memory for waiting receives", o.MaxParkedBytes, 0),
		places:    admission.NewBudget("memory for requests under way", placesOf(o.MaxParkedBytes), 0),
		methods:   methodNames(&description),
	}
	s.surveys = newSharedSurvey(e, s.sessions)
	if err := s.SetAccess(o.Access); err != nil {
		return nil, fmt.Errorf("server options: %w", err)
	}
	s.sniffer = admission.NewCredentials(o.TLS, o.MaxSilentConnections, o.RequireTLS, connections{s})
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

//go:embed openapi.yaml
var openapiYAML []byte

// openapi returns the description of the HTTP API.
func (s *Server) openapi(w http.ResponseWriter, _ *http.Request) (int, any, error) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err := w.Write(openapiYAML)
	return 0, nil, err
}

type state struct {
	Status string `json:"status"`
}

func (s *Server) healthz(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, state{"ok"}, nil
}

// unreadyFor is how long GET /readyz responds with 503 after the store failed to read or write. The
// state ends without a request: a client or load balancer that stays away would otherwise never end
// it.
const unreadyFor = 30 * time.Second

// storeFailed records that a request failed because the store could not read or write.
func (s *Server) storeFailed(cause error) { s.failure.Store(&storeFailure{cause, time.Now()}) }

// A storeFailure is the last failed read or write of the store that a request met.
type storeFailure struct {
	cause error
	at    time.Time
}

// recentFailure returns the error of the last failed read or write if it is recent. The engine's
// Healthy knows only failures that end all writes.
func (s *Server) recentFailure() error {
	f := s.failure.Load()
	if f == nil || time.Since(f.at) >= unreadyFor {
		return nil
	}
	return &tidegate.Error{
		Code: tidegate.CodeInternalServerError, Err: f.cause,
		Message: fmt.Sprintf("a request failed %v ago, because the broker could not read or write its data", time.Since(f.at).Round(time.Second)),
	}
}

func (s *Server) readyz(http.ResponseWriter, *http.Request) (int, any, error) {
	if err := s.notReady(); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, state{"ready"}, nil
}

// notReady returns why the server cannot serve requests now, and nil if it can.
func (s *Server) notReady() error {
	err := s.engine.Healthy()
	if err == nil && s.isDraining() {
		err = tidegate.ErrClosed
	}
	if err == nil {
		err = s.recentFailure()
	}
	if err != nil {
		return &notReady{Cause: err}
	}
	return nil
}

// metered is a server as package metrics sees it.
type metered struct {
	*engine.Engine
	s *Server
}

// Serving implements metrics.Source.
func (m metered) Serving() bool { return !m.s.isDraining() }

// Clients implements metrics.Source.
func (m metered) Clients() int { return m.s.sessions.Len() }

// metricsHandler serves GET /metrics.
func (s *Server) metricsHandler() http.Handler {
	return metrics.Handler(metered{s.engine, s}, s.log, s.requests, s.gate.Refusals(), metrics.Transit(s.budgets()))
}

// budgets are the bounds of the memory, by use.
func (s *Server) budgets() map[string]*admission.Budget {
	return map[string]*admission.Budget{"requests": s.bodies, "waiting_receives": s.parked, "streams": s.places}
}

// The sizes of a page of clients.
const (
	defaultClients = 100
	maxClients     = 1000
)

// listClients serves GET /v1/clients.
func (s *Server) listClients(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	query, err := clientQuery(r)
	if err != nil {
		return 0, nil, err
	}
	page := s.sessions.Page(&session.Listing{ClientQuery: query, Keyed: s.gate.Keyed()}, s.gate.Observer(r))
	return http.StatusOK, compact{Value: page}, nil
}

// clientQuery reads the query of a page of clients.
func clientQuery(r *http.Request) (out status.ClientQuery, err error) {
	q := queryOf(r, "match", "kind", "group", "topic", "language", "version", "outdated", "idle", "after", "limit")
	out = status.ClientQuery{
		Match: q.Text("match"), Kind: q.Text("kind"), Group: q.Text("group"), Topic: q.Text("topic"),
		Language: q.Text("language"), Version: q.Text("version"), Outdated: q.Yes("outdated"), After: q.Text("after"), Limit: q.Number("limit"),
	}
	bad := func(name, format string, args ...any) (status.ClientQuery, error) {
		return out, refusal.New(tidegate.CodeBadRequest, name, format, args...)
	}
	idle := q.Text("idle")
	if q.Err != nil {
		return out, q.Err
	}
	if _, err := path.Match(out.Match, ""); err != nil {
		return bad("match", "match is %.100q: %v; give an ID with *, ? and [a-z]", out.Match, err)
	}
	if out.Kind != "" && !slices.Contains(session.Kinds, out.Kind) {
		return bad("kind", "kind is %.100q; give one of %s", out.Kind, strings.Join(session.Kinds, ", "))
	}
	if idle != "" {
		if out.Idle, err = time.ParseDuration(idle); err != nil || out.Idle < 0 {
			return bad("idle", "idle is %.100q; give a duration such as 30s", idle)
		}
	}
	if out.Limit < 0 || out.Limit > maxClients {
		return bad("limit", "limit is %d; give 1 to %d, or leave it out for %d", out.Limit, maxClients, defaultClients)
	}
	if out.Limit == 0 {
		out.Limit = defaultClients
	}
	return out, nil
}
