package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker"
)

// throttleState is the answer of /v1/throttle.
type throttleState struct {
	// Throttles refuse sends now; NotReached are the other limits that are set.
	Throttles  []broker.LimitState `json:"throttles"`
	NotReached []broker.LimitState `json:"not_reached"`

	// Limits are those of the whole broker, as PUT takes them.
	Limits broker.Limits `json:"limits"`
}

func (s *Server) getThrottle(http.ResponseWriter, *http.Request) (int, any, error) {
	a := throttleState{Throttles: []broker.LimitState{}, NotReached: []broker.LimitState{}, Limits: s.b.Limits()}
	for _, l := range s.b.Throttles() {
		if l.On {
			a.Throttles = append(a.Throttles, l)
		} else {
			a.NotReached = append(a.NotReached, l)
		}
	}
	return http.StatusOK, a, nil
}

// putThrottle sets the limits of the whole broker; those that are left out
// get their defaults.
func (s *Server) putThrottle(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var l broker.Limits
	if err := readJSON(w, r, &l); err != nil {
		return 0, nil, err
	}
	if err := s.b.SetLimits(l); err != nil {
		return 0, nil, err
	}
	return s.getThrottle(w, r)
}
