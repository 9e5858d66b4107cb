package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

const (
	// sessionTimeout is how long a client without a Telemetry stream and
	// without a word is remembered (RocketMQ's proxy: 120 s).
	sessionTimeout = 2 * time.Minute

	// sweepInterval is how often forgotten clients are looked for.
	sweepInterval = 30 * time.Second

	// maxSessions bounds the clients remembered at once.
	maxSessions = 100_000

	// maxKept bounds what is kept of the settings of all of them, in bytes: 2.6 KiB
	// for each of so many. Of a client with one topic it is a fifth of that.
	maxKept = 256 << 20
)

// Why a parked receive ends before its time.
var (
	errTerminated = errors.New("the client said that it ends")
	errDraining   = errors.New("the server ends")
	errNewRules   = errors.New("the access rules changed")
)

// endedHere reports whether a parked receive was ended by the server, so that
// it is answered as empty.
func endedHere(parked context.Context) bool {
	why := context.Cause(parked)
	return errors.Is(why, errTerminated) || errors.Is(why, errDraining) || errors.Is(why, errNewRules)
}

// A session is one client, by its ID.
type session struct {
	id      string
	seen    atomic.Int64            // the last sign of life, in ns since 1970
	profile atomic.Pointer[profile] // nil until its settings are known
	sent    atomic.Uint64           // the digest of what it was told last; 0 if nothing
	renews  atomic.Bool             // it received with auto_renew, which only push consumers do

	// guarded by sessions.mu
	streams map[*telemetry]struct{}
	polls   map[*poll]struct{}
	topics  []string // that it is in sessions.publishers for
	kept    int      // its part of sessions.kept
}

// push reports whether the client takes messages to handlers. Its settings may
// be lost with a server that ended, and come again only after minutes
// (RocketMQ's Go client: 5); until then its receives tell.
func (c *session) push() bool {
	if p := c.profile.Load(); p != nil {
		return p.push()
	}
	return c.renews.Load()
}

// A poll is one parked receive.
type poll struct{ cancel context.CancelCauseFunc }

// sessions are the clients that gave a sign of life of late.
type sessions struct {
	forget func(id string) // tells the engine that a client is gone

	mu       sync.Mutex
	byID     map[string]*session // guarded by mu
	timer    *time.Timer         // guarded by mu; runs while there are sessions
	draining bool                // guarded by mu: no poll may park any more
	closed   bool                // guarded by mu

	publishers map[string]map[*session]string // guarded by mu: of each topic, with the namespace that they name it in

	kept     int // guarded by mu: what is kept of the settings of all clients, in bytes
	keptMost int // the limit of it

	sweeping sync.WaitGroup // the timer, and what it runs
}

func newSessions(forget func(id string)) *sessions {
	return &sessions{forget: forget, byID: map[string]*session{}, publishers: map[string]map[*session]string{}, keptMost: maxKept}
}

// get returns the client's session, or nil, and takes the call as a sign of life.
func (r *sessions) get(id string) *session {
	r.mu.Lock()
	c := r.byID[id]
	r.mu.Unlock()
	if c != nil {
		c.seen.Store(time.Now().UnixNano())
	}
	return c
}

// push reports whether the client is known to take messages to handlers.
func (r *sessions) push(id string) bool {
	c := r.get(id)
	return c != nil && c.push()
}

// ensureLocked returns the client's session and makes one if there is none.
func (r *sessions) ensureLocked(id string) (*session, error) {
	c := r.byID[id]
	if c == nil {
		if len(r.byID) >= maxSessions {
			return nil, refusal.New(tidegate.CodeTooManyRequests, "clients",
				fmt.Sprintf("%v: %d clients are connected, which is the limit", tidegate.ErrThrottled, len(r.byID)))
		}
		c = &session{id: id}
		r.byID[id] = c
		r.armLocked()
	}
	c.seen.Store(time.Now().UnixNano())
	return c, nil
}

// attach adds a Telemetry stream to the client's session and sets its profile
// and the topics that it publishes.
func (r *sessions) attach(id string, t *telemetry, p *profile, publishes []*rmqpb.Resource) (*session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.ensureLocked(id)
	if err != nil {
		return nil, err
	}
	if r.kept-c.kept+len(p.settings)+len(publishes)*publicationSize > r.keptMost {
		return nil, refusal.New(tidegate.CodeTooManyRequests, "clients",
			fmt.Sprintf("%v: the settings of %d clients have %d MiB, which is the limit", tidegate.ErrThrottled, len(r.byID), r.keptMost>>20))
	}
	if c.streams == nil {
		c.streams = map[*telemetry]struct{}{}
	}
	c.streams[t] = struct{}{}
	c.profile.Store(p)
	r.retractLocked(c)
	r.keepLocked(c, len(p.settings))
	for _, topic := range publishes {
		r.publishLocked(c, topic)
	}
	return c, nil
}

// detach removes a Telemetry stream. What the client said stays known for a
// while: it may come back with another stream.
func (r *sessions) detach(id string, t *telemetry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil {
		delete(c.streams, t)
		c.seen.Store(time.Now().UnixNano())
	}
}

// park registers a receive of the client. The context that it returns ends
// with ctx, or when the client or the server ends; unpark must be called.
func (r *sessions) park(ctx context.Context, id string) (parked context.Context, c *session, unpark func(), err error) {
	p := &poll{}
	parked, p.cancel = context.WithCancelCause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, err = r.ensureLocked(id); err != nil {
		p.cancel(nil)
		return nil, nil, nil, err
	}
	if r.draining {
		p.cancel(errDraining)
	}
	if c.polls == nil {
		c.polls = map[*poll]struct{}{}
	}
	c.polls[p] = struct{}{}
	return parked, c, func() {
		p.cancel(nil)
		r.mu.Lock()
		delete(c.polls, p)
		r.mu.Unlock()
		c.seen.Store(time.Now().UnixNano())
	}, nil
}

// terminate forgets what the client said and ends its parked receives at once.
func (r *sessions) terminate(id string) {
	r.mu.Lock()
	var polls []*poll
	if c := r.byID[id]; c != nil {
		c.profile.Store(nil)
		r.retractLocked(c)
		for p := range c.polls {
			polls = append(polls, p)
		}
		if len(c.streams) == 0 {
			delete(r.byID, id)
		}
	}
	r.mu.Unlock()
	for _, p := range polls {
		p.cancel(errTerminated)
	}
	r.forget(id)
}

// pushGroup makes the Telemetry streams of a group's consumers send settings again.
func (r *sessions) pushGroup(group string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.byID {
		if p := c.profile.Load(); p != nil && p.group == group {
			c.resendLocked()
		}
	}
}

// pushAll makes the Telemetry streams of all consumers send settings again.
func (r *sessions) pushAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.byID {
		if p := c.profile.Load(); p != nil && p.group != "" {
			c.resendLocked()
		}
	}
}

// resend makes the client's Telemetry streams send settings again.
func (r *sessions) resend(c *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.resendLocked()
}

func (c *session) resendLocked() {
	for t := range c.streams {
		t.resend()
	}
}

// drain ends every parked receive, and every one that comes.
func (r *sessions) drain() {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	r.endPolls(errDraining)
}

// endPolls ends every parked receive.
func (r *sessions) endPolls(why error) {
	r.mu.Lock()
	var polls []*poll
	for _, c := range r.byID {
		for p := range c.polls {
			polls = append(polls, p)
		}
	}
	r.mu.Unlock()
	for _, p := range polls {
		p.cancel(why)
	}
}

// close stops the timer and returns when nothing of it runs.
func (r *sessions) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil && r.timer.Stop() {
		r.sweeping.Done()
	}
	r.timer = nil
	r.mu.Unlock()
	r.sweeping.Wait()
}

func (r *sessions) armLocked() {
	if r.timer != nil || r.closed {
		return
	}
	r.sweeping.Add(1)
	r.timer = time.AfterFunc(sweepInterval, func() {
		defer r.sweeping.Done()
		r.sweep(time.Now())
	})
}

// sweep drops the clients that gave no sign of life for sessionTimeout.
func (r *sessions) sweep(now time.Time) {
	var gone []string
	r.mu.Lock()
	for id, c := range r.byID {
		if len(c.streams) == 0 && len(c.polls) == 0 && now.UnixNano()-c.seen.Load() >= int64(sessionTimeout) {
			delete(r.byID, id)
			r.retractLocked(c)
			gone = append(gone, id)
		}
	}
	r.timer = nil
	if len(r.byID) > 0 {
		r.armLocked()
	}
	r.mu.Unlock()
	for _, id := range gone {
		r.forget(id)
	}
}

func (r *sessions) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}
