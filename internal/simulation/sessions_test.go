package simulation

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// promisesOfSessions are checked when all clients are closed.
var promisesOfSessions = []promise{
	{"no session is left within a bounded time after the end of the clients", sessionsEnd},
}

// sessionLimit is longer than a broker remembers the requests of a client.
const sessionLimit = 5 * time.Minute

// sessionsEnd waits until no broker has a session.
func sessionsEnd(w *world, broken func(string, ...any)) {
	for _, s := range w.sites {
		for began := w.now(); ; wait(w.t.Context(), 10*time.Second) {
			n, err := s.sessions()
			if err != nil {
				broken("broker %d: %v", s.number, err)
				break
			}
			if n == 0 {
				break
			}
			if w.now()-began > sessionLimit {
				broken("broker %d has %d sessions", s.number, n)
				break
			}
		}
	}
}

// sessions returns the sessions of a broker, as its metrics report them.
func (s *site) sessions() (n int, err error) {
	c := http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return s.DialHTTP(ctx, address)
	}}}
	defer c.CloseIdleConnections()
	response, err := c.Get(s.HTTPAddress() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	_, value, found := strings.Cut(string(text), "\ntidegate_sessions ")
	if !found {
		return 0, fmt.Errorf("the metrics have no sessions: %s", response.Status)
	}
	_, err = fmt.Sscan(value, &n)
	return n, err
}
