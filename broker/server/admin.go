package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
)

// maxAdminBody bounds a request of the HTTP admin, in bytes.
const maxAdminBody = 64 << 10

// An endpoint is one handler of the admin: it returns the status and what to
// write as JSON (nil: nothing), or an error, which becomes a problem.
type endpoint func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)

// admin returns the HTTP admin.
func (s *Server) admin() http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, methods map[string]endpoint) {
		for method, h := range methods {
			mux.HandleFunc(method+" "+path, s.run(h))
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { writeNotAllowed(w, r, methods) })
	}
	handle("/v1/topics", map[string]endpoint{"GET": s.listTopics})
	handle("/v1/topics/{topic}", map[string]endpoint{"GET": s.getTopic, "PUT": s.putTopic, "DELETE": s.deleteTopic})
	handle("/v1/groups", map[string]endpoint{"GET": s.listGroups})
	handle("/v1/groups/{group}", map[string]endpoint{"GET": s.getGroup, "PUT": s.putGroup, "DELETE": s.deleteGroup})
	handle("/healthz", map[string]endpoint{"GET": s.healthz})
	handle("/readyz", map[string]endpoint{"GET": s.readyz})
	mux.Handle("GET /metrics", s.metricsHandler())
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		writeNotAllowed(w, r, map[string]endpoint{"GET": nil})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, problem{Status: http.StatusNotFound, Detail: fmt.Sprintf(
			"there is nothing at %.200q; there are /v1/topics, /v1/topics/{topic}, /v1/groups, /v1/groups/{group}, /healthz, /readyz and /metrics", r.URL.Path)})
	})
	return mux
}

// run makes a handler that writes what h returns and survives a panic of it.
func (s *Server) run(h endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, body, err := func() (status int, body any, err error) {
			defer s.recovered(r.Method+" "+r.URL.Path, &err)
			return h(w, r)
		}()
		switch {
		case err != nil:
			if codeOf(err) == tidegate.CodeInternalServerError {
				s.log.ErrorContext(r.Context(), "admin request failed", "method", r.Method, "path", r.URL.Path, "error", err)
			}
			writeProblem(w, problemOf(err))
		case body == nil:
			w.WriteHeader(status)
		default:
			writeJSON(w, status, "application/json", body)
		}
	}
}

func (s *Server) listTopics(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Topics []broker.Topic `json:"topics"`
	}{notNil(s.b.Topics())}, nil
}

func (s *Server) getTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := s.b.Topic(r.PathValue("topic"))
	return http.StatusOK, t, err
}

func (s *Server) putTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	var c broker.TopicConfig
	if err := readJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	_, missing := s.b.TopicSettings(name)
	t, err := s.b.PutTopic(r.Context(), name, c)
	return putStatus(missing), t, err
}

func (s *Server) deleteTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.b.DeleteTopic(r.Context(), r.PathValue("topic"))
}

func (s *Server) listGroups(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Groups []broker.Group `json:"groups"`
	}{notNil(s.b.Groups())}, nil
}

func (s *Server) getGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	g, err := s.b.Group(r.PathValue("group"))
	return http.StatusOK, g, err
}

func (s *Server) putGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	var c broker.GroupConfig
	if err := readJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	_, missing := s.b.Group(name)
	g, err := s.b.PutGroup(r.Context(), name, c)
	if err == nil {
		s.sessions.pushGroup(name) // consumers follow a change at once
	}
	return putStatus(missing), g, err
}

func (s *Server) deleteGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, s.b.DeleteGroup(r.Context(), r.PathValue("group"))
}

type state struct {
	Status string `json:"status"`
}

func (s *Server) healthz(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, state{"ok"}, nil
}

func (s *Server) readyz(http.ResponseWriter, *http.Request) (int, any, error) {
	err := s.b.Healthy()
	if err == nil && s.isDraining() {
		err = tidegate.ErrClosed
	}
	if err != nil {
		return 0, nil, &notReady{err}
	}
	return http.StatusOK, state{"ready"}, nil
}

func putStatus(missing error) int {
	if missing != nil {
		return http.StatusCreated
	}
	return http.StatusOK
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{} // [] in JSON, not null
	}
	return s
}

// readJSON reads the request's body into v: one JSON object whose keys are all
// known. No body stands for an empty object.
func readJSON[T any](w http.ResponseWriter, r *http.Request, v *T) error {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return refuse(tidegate.CodePayloadTooLarge, "body", fmt.Sprintf("the body has more than %d bytes, which is the limit", tooLarge.Limit))
	} else if err != nil {
		return refuse(tidegate.CodeBadRequest, "body", "the body could not be read: "+err.Error())
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil
	}
	bad := func(format string, args ...any) error {
		return refuse(tidegate.CodeBadRequest, "body", "the body: "+fmt.Sprintf(format, args...))
	}
	if raw[0] != '{' {
		return bad("it is not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		text := err.Error()
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return bad("key %q is a %s, which does not fit", e.Field, e.Value)
		}
		if key, ok := strings.CutPrefix(text, "json: unknown field "); ok {
			return bad("key %s is unknown; there are %s", key, jsonKeys[T]())
		}
		return bad("%s", strings.TrimPrefix(text, "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return bad("something follows the JSON object")
	}
	return nil
}
