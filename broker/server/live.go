package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/overview"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
)

const (
	// maxLive bounds the live streams at a time, and maxWatched the names in one.
	maxLive    = 32
	maxWatched = 100

	defaultEvery       = 2 * time.Second
	minEvery, maxEvery = time.Second, time.Minute
	liveRetryAfter     = 10 * time.Second
)

// live serves GET /v1/live until the client disconnects, the server stops, or the rules reject it.
// Streams of the same interval have their lines at the same moments, so that they share a survey.
func (s *Server) live(w http.ResponseWriter, r *http.Request) (int, any, error) {
	every, watch, err := s.watchOf(r)
	if err != nil {
		return 0, nil, err
	}
	if s.streams.Add(1) > maxLive {
		s.streams.Add(-1)
		return 0, nil, &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: liveRetryAfter,
			Message: fmt.Sprintf("there are %d live streams, which is the limit; close one, or read GET /v1/overview from time to time", maxLive)}
	}
	defer s.streams.Add(-1)
	place, err := s.parkHTTP(r)
	if err != nil {
		return 0, nil, err
	}
	defer place.Release()
	out := web.NewLineWriter(w)
	for {
		rules := s.gate.Regime().Over()
		err := s.gate.Recheck(r)
		if err == nil {
			err = s.writeLive(r, out, watch)
		}
		if err != nil {
			if !out.Begun() || r.Context().Err() != nil {
				return 0, nil, err
			}
			return 0, nil, out.End(err)
		}
		if !s.awaitTick(r.Context(), rules, every) {
			return 0, nil, nil
		}
	}
}

// writeLive writes the lines of one moment.
func (s *Server) writeLive(r *http.Request, out *web.LineWriter, watch *overview.Watch) error {
	survey, err := s.surveys.Get(r.Context())
	if err != nil {
		return err
	}
	return web.Write(out, watch.Lines(survey, s.gate.Observer(r), time.Now())...)
}

// awaitTick waits until the next multiple of a duration, or until other rules hold. It returns
// false if the stream is to end.
func (s *Server) awaitTick(ctx, rules context.Context, every time.Duration) bool {
	now := time.Now()
	t := time.NewTimer(now.Truncate(every).Add(every).Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-rules.Done():
		return true
	case <-s.draining:
	case <-ctx.Done():
	}
	return false
}

// watchOf reads the query.
func (s *Server) watchOf(r *http.Request) (every time.Duration, w *overview.Watch, err error) {
	q := web.QueryOf(r, "every", "topics", "groups")
	w = &overview.Watch{}
	every = defaultEvery
	if text := q.Text("every"); text != "" {
		if every, err = time.ParseDuration(text); err != nil || every < minEvery || every > maxEvery {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "every", fmt.Sprintf("every is %.100q; give a duration from %v to %v, such as 2s", text, minEvery, maxEvery))
		}
	}
	for _, list := range []struct {
		key string
		to  *[]string
	}{{"topics", &w.Topics}, {"groups", &w.Groups}} {
		if text := q.Text(list.key); text != "" {
			*list.to = strings.Split(text, ",")
		}
	}
	if q.Err != nil {
		return 0, nil, q.Err
	}
	if n := len(w.Topics) + len(w.Groups); n > maxWatched {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "topics", fmt.Sprintf("the request names %d topics and groups; the limit is %d", n, maxWatched))
	}
	return every, w, nil
}
