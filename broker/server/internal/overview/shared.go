package overview

import (
	"context"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/serving"
)

// MaxAge is the age at which a survey is computed anew.
const MaxAge = time.Second

// An Engine computes surveys, without the clients.
type Engine interface{ Survey() *serving.Survey }

// Clients has the number of clients of each group.
type Clients interface{ CountGroups() map[string]int64 }

// A Shared has the last survey. Goroutines may share it. It has no goroutine and no timer: without
// callers it costs nothing.
type Shared struct {
	engine  Engine
	clients Clients

	mu   sync.Mutex
	last *serving.Survey // guarded by mu; nil before the first
	old  bool            // guarded by mu: the survey under way may lack a change
	next chan struct{}   // guarded by mu: closed when the survey under way has ended; nil if there is none
}

// NewShared returns a Shared of the surveys of an engine.
func NewShared(e Engine, c Clients) *Shared { return &Shared{engine: e, clients: c} }

// Get returns a survey that is younger than MaxAge. One caller computes it, and the others wait
// for it. The error is the cause of ctx if ctx ends first.
func (s *Shared) Get(ctx context.Context) (*serving.Survey, error) {
	for {
		fresh, next := s.begin()
		switch {
		case fresh != nil:
			return fresh, nil
		case next == nil:
			return s.compute(), nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Expire makes the next caller of Get compute a survey: after a change that a client may look for,
// for example a new topic.
func (s *Shared) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.old = nil, s.next != nil
}

// begin returns a survey that is young enough, or the end of the one under way. If it returns
// neither, the caller calls compute.
func (s *Shared) begin() (fresh *serving.Survey, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && time.Since(s.last.At) < MaxAge {
		return s.last, nil
	}
	if s.next != nil {
		return nil, s.next
	}
	s.next = make(chan struct{})
	return nil, nil
}

// compute computes a survey. After a panic of the engine the next caller computes one.
func (s *Shared) compute() (computed *serving.Survey) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last = computed; s.old {
			s.last, s.old = nil, false
		}
		close(s.next)
		s.next = nil
	}()
	return s.survey()
}

// survey returns the engine's survey, with the number of clients of each group.
func (s *Shared) survey() *serving.Survey {
	out, clients := s.engine.Survey(), s.clients.CountGroups()
	for i := range out.Groups {
		out.Groups[i].Clients = clients[out.Groups[i].Group]
	}
	return out
}
