package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/routes"
)

const (
	// maxLive bounds the live streams at a time. A key can hold as many as it leaves free for
	// others, which is half of them if no other key has any.
	maxLive = 64

	maxWatched = 100 // names in one stream

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
	key := auth.NameOf(r)
	if err := s.streams.begin(key, s.gate.Restricts(r)); err != nil {
		return 0, nil, err
	}
	defer s.streams.end(key)
	place, err := s.parkHTTP(r)
	if err != nil {
		return 0, nil, err
	}
	defer place.Release()
	out := routes.NewLineWriter(w)
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

// liveStreams counts the live streams of each key. The zero value is empty.
type liveStreams struct {
	mu    sync.Mutex
	total int            // guarded by mu
	byKey map[string]int // guarded by mu: keys that have any
}

// begin counts a stream of a key. The error is 42900 if there is no place, or none for the key.
// Without access rules all clients are one.
func (l *liveStreams) begin(key string, shares bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := ""
	switch own := l.byKey[key]; {
	case l.total >= maxLive:
		text = fmt.Sprintf("there are %d live streams, which is the limit", maxLive)
	case shares && own >= maxLive-l.total-1:
		text = fmt.Sprintf("there are %d live streams, %d of them of this key, which is its share of %d", l.total, own, maxLive)
	}
	if text != "" {
		return &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: liveRetryAfter,
			Message: text + "; close one, or read GET /v1/overview from time to time"}
	}
	if l.byKey == nil {
		l.byKey = map[string]int{}
	}
	l.total++
	l.byKey[key]++
	return nil
}

func (l *liveStreams) end(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byKey[key]--; l.byKey[key] == 0 {
		delete(l.byKey, key)
	}
}

// count returns the number of streams.
func (l *liveStreams) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// writeLive writes the lines of one moment.
func (s *Server) writeLive(r *http.Request, out *routes.LineWriter, watch *routes.Watch) error {
	survey, err := s.surveys.Get(r.Context())
	if err != nil {
		return err
	}
	return routes.Write(out, watch.Lines(survey, s.gate.Observer(r), time.Now())...)
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
func (s *Server) watchOf(r *http.Request) (every time.Duration, w *routes.Watch, err error) {
	q := routes.QueryOf(r, "every", "topics", "groups")
	every = defaultEvery
	if text := q.Text("every"); text != "" {
		if every, err = time.ParseDuration(text); err != nil || every < minEvery || every > maxEvery {
			return 0, nil, refusal.New(tidegate.CodeBadRequest, "every", fmt.Sprintf("every is %.100q; give a duration from %v to %v, such as 2s", text, minEvery, maxEvery))
		}
	}
	w, err = namesOf(q)
	return every, w, err
}

// namesOf reads the topics and groups that a query names.
func namesOf(q *routes.Query) (*routes.Watch, error) {
	w := &routes.Watch{}
	for _, list := range []struct {
		key string
		to  *[]string
	}{{"topics", &w.Topics}, {"groups", &w.Groups}} {
		if text := q.Text(list.key); text != "" {
			*list.to = strings.Split(text, ",")
		}
	}
	if q.Err != nil {
		return nil, q.Err
	}
	if n := len(w.Topics) + len(w.Groups); n > maxWatched {
		return nil, refusal.New(tidegate.CodeBadRequest, "topics", fmt.Sprintf("the request names %d topics and groups; the limit is %d", n, maxWatched))
	}
	return w, nil
}
