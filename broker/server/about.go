package server

import (
	_ "embed" // for openapiYAML
	"fmt"
	"net/http"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/metrics"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/broker/server/internal/transit"
)

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
		return &routes.NotReady{Cause: err}
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
func (s *Server) budgets() map[string]*transit.Budget {
	return map[string]*transit.Budget{"requests": s.bodies, "waiting_receives": s.parked, "streams": s.places}
}
