package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/gate"
	"github.com/tidegate/tidegate/broker/server/internal/login"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// login serves POST /v1/session.
func (s *Server) login(w http.ResponseWriter, r *http.Request) (int, any, error) {
	token, expires, err := s.gate.Login(w, r)
	if err != nil {
		return 0, nil, err
	}
	out := sessionOf(s.gate.Whoami(r))
	if out.Token = token; token != "" {
		out.Expires, out.Idle = expires, settings.Duration(login.Idle)
	}
	return http.StatusOK, out, nil
}

// whoami serves GET /v1/session.
func (s *Server) whoami(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusOK, sessionOf(s.gate.Whoami(r)), nil
}

// logout serves DELETE /v1/session.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) (int, any, error) {
	s.gate.Logout(w, r)
	return http.StatusNoContent, nil, nil
}

func sessionOf(w gate.Whoami) status.Session {
	out := status.Session{Key: w.Key, Restricted: w.Restricted, Rules: []status.Rule{}, Expires: w.Expires}
	if !w.Expires.IsZero() {
		out.Idle = settings.Duration(login.Idle)
	}
	for _, r := range w.Rules {
		rule := status.Rule{Topics: r.Topics, Groups: r.Groups}
		for _, a := range r.Actions {
			rule.Actions = append(rule.Actions, string(a))
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// enterLogin is enter for a login, which waits if earlier ones of its address failed.
func (s *Server) enterLogin(w http.ResponseWriter, r *http.Request, enter func() (*http.Request, error)) (*http.Request, error) {
	if err := s.gate.AwaitLogin(r); err != nil {
		return nil, err
	}
	in, err := enter()
	if err == nil && s.gate.Restricts(in) && !gate.Authenticated(in) {
		_, _, err = s.gate.Login(w, in) // which rejects it
	}
	s.gate.EndLogin(r, err)
	return in, err
}
