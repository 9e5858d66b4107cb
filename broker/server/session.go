package server

import (
	"net/http"

	"github.com/tidegate/tidegate/broker/server/internal/auth"
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
		out.Expires, out.Idle = expires, settings.Duration(auth.Idle)
	}
	return http.StatusOK, out, nil
}

// whoami serves GET /v1/session.
func (s *Server) whoami(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusOK, sessionOf(s.gate.Whoami(r)), nil
}

// logout serves DELETE /v1/session. A request without a session changes nothing, so it is no record
// of the audit.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) (int, any, error) {
	if s.gate.Logout(w, r) {
		s.audit(r, opLogout, nil, nil)
	}
	return http.StatusNoContent, nil, nil
}

func sessionOf(w auth.Whoami) status.Session {
	out := status.Session{Key: w.Key, Restricted: w.Restricted, Rules: []status.Rule{}, Expires: w.Expires}
	if !w.Expires.IsZero() {
		out.Idle = settings.Duration(auth.Idle)
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

// enterLogin is enter for a login, whose response waits if earlier ones failed.
func (s *Server) enterLogin(w http.ResponseWriter, r *http.Request, enter func() (*http.Request, error)) (*http.Request, error) {
	in, err := enter()
	if err == nil && s.gate.Restricts(in) && !auth.Authenticated(in) {
		_, _, err = s.gate.Login(w, in) // which rejects it
	}
	if err := s.gate.PaceLogin(r, err); err != nil {
		w.Header().Del("Www-Authenticate") // it would reveal that the secret is wrong
		return nil, err
	}
	if err == nil {
		err = s.gate.StillAllowed(in) // the key may have changed during the wait
	}
	return in, err
}
