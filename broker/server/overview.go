package server

import (
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
	"github.com/tidegate/tidegate/broker/status"
)

// overview serves GET /v1/overview.
func (s *Server) overview(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	survey, err := s.surveys.Get(r.Context())
	if err != nil {
		return 0, nil, err
	}
	o := status.Overview{Version: s.o.Version, Started: survey.Opened, Now: time.Now(), Ready: true, Clients: int64(s.sessions.Len())}
	if err := s.notReady(); err != nil {
		o.Ready, o.NotReady = false, routes.ProblemOf(err).Detail
	}
	budgets := s.budgets()
	for _, use := range slices.Sorted(maps.Keys(budgets)) {
		b := budgets[use]
		o.Memory = append(o.Memory, status.MemoryUse{Use: use, Held: b.Held(), Limit: b.Limit(), Rejected: b.Refused()})
	}
	s.filler.Fill(&o, survey)
	return http.StatusOK, routes.Compact{Value: o}, nil
}

// history serves GET /v1/history.
func (s *Server) history(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	in := routes.QueryOf(r, "window", "topics", "groups")
	q := engine.HistoryQuery{Observer: s.gate.Observer(r)}
	window := in.Text("window")
	names, err := namesOf(in)
	if err != nil {
		return 0, nil, err
	}
	switch window {
	case "", "hour":
	case "day":
		q.Day = true
	default:
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "window", fmt.Sprintf("window is %.100q; give hour or day", window))
	}
	q.Topics, q.Groups = names.Topics, names.Groups
	h, err := s.engine.History(r.Context(), q)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, routes.Compact{Value: h}, nil
}

// module is the path of the module of this package.
const module = "github.com/tidegate/tidegate"

// moduleVersion returns the version of this module in the program, and "unknown" if the program
// does not have it.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
}
