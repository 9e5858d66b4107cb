package server

import (
	"context"
	"net/http"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/internal/admission"
)

// Limits that tests reach.
const (
	MaxLive           = maxLive
	MaxWatched        = maxWatched
	MaxReported       = maxReported
	PackedBatchSize   = packedBatchSize
	MostParked        = mostParked
	LeastPlaces       = leastPlaces
	PlaceSize         = placeSize
	CertificatesCheck = certificatesCheck
	MaxLine           = maxLine
	AnswerTime        = answerTime

	TypeJSON   = typeJSON
	TypeNDJSON = typeNDJSON
	TypeBytes  = typeBytes
	TypeText   = typeText
)

// The requests and responses over HTTP.
type (
	AckRequest           = ackRequest
	AckResult            = ackResult
	ChangeRequest        = changeRequest
	ChangeResult         = changeResult
	DeadLetterRequest    = deadLetterRequest
	GroupList            = groupList
	GroupSummaries       = groupSummaries
	Live                 = liveLine
	Message              = jsonMessage
	NegativeAckRequest   = negativeAckRequest
	ParkedRedriveRequest = parkedRedriveRequest
	Problem              = problem
	RecallRequest        = recallRequest
	RecallResult         = recallResult
	ReceiveRequest       = httpReceiveRequest
	ReconsumeRequest     = reconsumeRequest
	ReconsumeResult      = reconsumeResult
	Results[T any]       = allResults[T]
	RetryRequest         = retryRequest
	RetryResult          = retryResult
	RewindRequest        = rewindRequest
	RewindResult         = rewindResult
	SendResult           = sendResult
	SnoozeRequest        = snoozeRequest
	TopicList            = topicList
	TopicSummaries       = topicSummaries
)

// Decode decodes a request, and Keys lists the keys of its type.
var (
	Decode = decodeJSON
	Keys   = jsonKeys
)

// Engine is the engine of the requests about messages. Tests replace some of its methods.
type Engine = messageEngine

// NewOn is New with another engine of the requests about messages.
func NewOn(b *broker.Broker, messages messageEngine, o Options) (*Server, error) {
	return newServer(b.Engine(), messages, o)
}

// WrapHTTP changes the handler of HTTP.
func (s *Server) WrapHTTP(wrap func(http.Handler) http.Handler) { s.http = wrap(s.mux()) }

// Doing returns a handler that executes f as an operation of the administration.
func (s *Server) Doing(f func(*http.Request) (any, error)) http.HandlerFunc {
	return s.run(route{"redriveDeadLetters", "POST", "/v1/groups/{group}/dead-letters/redrive", http.StatusOK, bodyInput, func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
		v, err := f(r)
		return http.StatusOK, v, err
	}})
}

// LimitWatches replaces the limit of watches.
func (s *Server) LimitWatches(n int64) { s.watches = session.NewLimit(n) }

// Drain begins the end of the server, as Shutdown does.
func (s *Server) Drain() { s.drain() }

// Parts are the parts of a server whose state no request returns.
type Parts struct {
	Engine   *engine.Engine
	Options  Options
	Gate     *auth.Gate
	Sessions *session.Clients
	Watches  *session.Limit
	Bodies   *admission.Budget
	Parked   *admission.Budget
	Places   *admission.Budget

	Slow    int64 // connections closed because their clients were too slow
	Streams int   // live streams under way
	Silent  int   // connections without a handshake
}

// Parts returns the parts of s.
func (s *Server) Parts() Parts {
	return Parts{
		Engine: s.engine, Options: s.o, Gate: s.gate, Sessions: s.sessions, Watches: s.watches,
		Bodies: s.bodies, Parked: s.parked, Places: s.places,
		Slow: s.bodies.Slow(), Streams: s.streams.count(), Silent: s.sniffer.Pending(),
	}
}

// Survey computes the state of all topics and groups, which requests share for a second.
func (s *Server) Survey() {
	s.surveys.Expire()
	_, _ = s.surveys.Get(context.Background())
}

// A Route is an operation over HTTP.
type Route struct {
	Op, Method, Path, Pattern string

	Audited bool // it has a record in the audit log
}

// Routes returns the operations of the API, and Pages those of the console.
func (s *Server) Routes() []Route { return listed(s.routes()) }

// Pages returns the operations of the console.
func (s *Server) Pages() []Route { return listed(s.pages()) }

func listed(routes []route) []Route {
	out := make([]Route, 0, len(routes))
	for _, rt := range routes {
		out = append(out, Route{rt.op, rt.method, rt.path, rt.pattern(), audited[rt.op] || rt.op == opLogout})
	}
	return out
}

// Unlisted returns the handler of a route that has no row in the table of permissions.
func (s *Server) Unlisted() http.HandlerFunc {
	return s.run(route{"new", "GET", "/new", http.StatusOK, noInput, func(http.ResponseWriter, *http.Request) (int, any, error) { return 200, nil, nil }})
}

// Shown returns the certificate that a handshake at a time gets, in DER.
func (c *Certificates) Shown(now time.Time) []byte {
	return c.current(now).config.Certificates[0].Certificate[0]
}
