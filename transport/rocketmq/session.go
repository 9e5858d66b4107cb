package rocketmq

import (
	"context"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/readiness"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/headers"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
)

const (
	// settingsTimeout plus the request timeout is the longest wait for the response to a session's
	// first settings. A server that rejects the settings may never respond.
	settingsTimeout = 3 * time.Second

	// minReopen is the shortest wait before a lost session is reopened for a waiting caller, and
	// minPause the shortest wait in all other cases. A connection for a consumer's session has
	// minReopen to be established.
	minReopen = time.Second
	minPause  = 100 * time.Millisecond

	opTelemetry = "Telemetry"
)

// A role is the kind of client that a client ID identifies.
type role struct {
	group string // empty for producers
	push  bool   // push consumer: a timeout of its deliveries follows the retry schedule
}

// A sessionKey names a session.
type sessionKey struct {
	endpoint string
	role     role
}

// A session is a Telemetry stream, which is reopened when it is lost. Servers keep settings by
// client ID, and do not know a consumer without a session. Two goroutines, run and heartbeats, own
// the session. They end with the client or after a time without use, because an open session
// announces a live consumer to the server.
type session struct {
	c    *Client
	ep   *remote.Server
	role role
	id   headers.Identity
	ctx  context.Context //nolint:containedctx // ends with the client, or earlier after a time without use
	end  context.CancelFunc
	kick chan struct{} // of capacity 1; makes run look for changes

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when ready or failures change
	ready    bool          // the stream is open and the server has responded to the settings
	lost     bool          // the stream ended and has not been ready since
	settings *rmqpb.Settings
	failures int             // number of ended streams
	lastErr  *tidegate.Error // error of the last ended stream
	waiting  int             // callers in await
	users    int             // calls that use the session or wait for it
	usedAt   time.Time       // start or end of the last use
	held     time.Time       // until then a received delivery may need to be settled
	topics   map[string]namedTopic
	watches  map[readiness.Queue][]*watch // only while ready
	unsent   bool                         // topics changed after the last transmission
}

// session returns the session with the server for the role, and opens it if there is none. It adds
// the topic to the settings; a nil filter keeps the topic's current filter. The session remains
// until the caller calls release. The caller passes since to await.
func (c *Client) session(op string, ep *remote.Server, as role, topic string, f *rmqpb.FilterExpression) (s *session, since int, _ *tidegate.Error) {
	key := sessionKey{ep.Key, as}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, 0, closedError(op, topic)
	}
	s = c.sessions[key]
	if s == nil {
		s = &session{
			c: c, ep: ep, role: as, id: c.identity(as),
			kick: make(chan struct{}, 1), changed: make(chan struct{}),
			topics: map[string]namedTopic{}, users: 1,
		}
		s.ctx, s.end = context.WithCancel(c.ctx)
		s.name(topic, f)
		c.sessions[key] = s
		c.wg.Go(s.run)
		c.wg.Go(s.heartbeats)
		return s, 0, nil
	}
	since = s.use()
	s.name(topic, f)
	return s, since, nil
}

// identity returns the headers of a role. Each role has its own client ID, because servers keep
// settings by client ID.
func (c *Client) identity(as role) headers.Identity {
	if as.group == "" {
		return c.id
	}
	clientID := c.opts.ClientID + "@" + as.group
	if !as.push {
		clientID += "@simple"
	}
	return headers.NewIdentity(clientID, c.opts.Namespace, c.opts.Credentials.SessionToken)
}

// use adds a user of the session. It returns the number of failures so far.
func (s *session) use() (failures int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return s.failures
}

// release removes a user of the session.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.usedAt = time.Now()
}

// hold keeps the session open while deliveries that it received can be settled. When a session
// ends, servers release its deliveries or reject their settlement.
func (s *session) hold(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usedAt = time.Now()
	if until = until.Add(clocksAgree); until.After(s.held) {
		s.held = until
	}
}

// idle reports whether the session can end. mu is held.
func (s *session) idle(now time.Time) bool {
	return s.users == 0 && len(s.watches) == 0 && now.Sub(s.usedAt) >= 2*s.c.opts.SettingsSync && !now.Before(s.held)
}

// retire reports whether the stream can end because the session is idle. Later callers wait for the
// next stream.
func (s *session) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.idle(time.Now()) {
		return false
	}
	s.ready = false
	return true
}

// poke makes run look for changes.
func (s *session) poke() {
	select {
	case s.kick <- struct{}{}:
	default: // a signal is pending already
	}
}

func (s *session) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// wanted reports whether a caller waits for the session.
func (s *session) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting > 0
}

// await blocks until the session is open and returns the server's settings. It returns the error of
// the first attempt to open the session that failed after since.
func (s *session) await(ctx context.Context, since int, op, subject string) (*rmqpb.Settings, *tidegate.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return s.settings, nil
	}
	limit := settingsTimeout + s.c.opts.RequestTimeout
	timer := time.NewTimer(limit)
	defer timer.Stop()
	s.waiting++
	defer func() { s.waiting-- }()
	for !s.ready {
		if s.failures != since {
			e := *s.lastErr
			return nil, &e
		}
		changed := s.changed
		s.poke()
		var err *tidegate.Error
		s.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			err = fail(op, subject, 0, "the session did not open within "+limit.String())
			err.Endpoint, err.Err = s.ep.Key, tidegate.ErrUnavailable
			err.NotConnected = s.ep.Link.Load().Missing()
		case <-ctx.Done():
			err = &tidegate.Error{Op: op, Subject: subject, Endpoint: s.ep.Key, Err: context.Cause(ctx),
				NotConnected: s.ep.Link.Load().Missing()}
		case <-s.ctx.Done():
			err = closedError(op, subject)
		}
		s.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	return s.settings, nil
}

// update calls f under the lock and wakes the callers of await.
func (s *session) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// run keeps a stream open until the client is closed or the session has been idle for a while.
func (s *session) run() {
	defer s.end()
	for n := 0; s.ctx.Err() == nil; n++ {
		if s.role.group != "" && (n == 0 || s.wanted()) {
			s.ep.Knock(s.ctx)
		}
		err := s.stream()
		if err == nil { // the session is idle
			gone, last := s.c.leave(s)
			if last {
				s.c.sayGoodbye([]*session{s})
				gone = s.c.forget(s)
			}
			if gone {
				return
			}
			n = -1 // the session was used again in the meantime
			continue
		}
		s.update(func() {
			if s.ready {
				n = 0
			}
			s.ready, s.lost = false, true
			s.wakeAllLocked()
			s.failures++
			s.lastErr = err
		})
		if s.ctx.Err() != nil || s.c.forget(s) {
			return
		}
		s.c.opts.Logger.Warn("rocketmq: session lost", "endpoint", s.ep.Key, "group", s.role.group, "error", err)
		s.pause(max(s.c.opts.ConnectBackoff.Delay(n), minPause))
	}
}

// leave removes an idle session, unless it is the last one of its role. The caller has to send a
// termination before it removes the last one. Earlier sessions end without a termination: all
// sessions of a role share one client ID, and a server at another address may be the same server. A
// different server notices the missing heartbeats.
func (c *Client) leave(s *session) (gone, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.sessions {
		if key.role == s.role && key.endpoint != s.ep.Key {
			return c.forgetLocked(s), false
		}
	}
	return false, true
}

// forget removes the session if it is idle.
func (c *Client) forget(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgetLocked(s)
}

func (c *Client) forgetLocked(s *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.idle(time.Now()) {
		return false
	}
	delete(c.sessions, sessionKey{s.ep.Key, s.role})
	return true
}

// pause waits for d, or for minReopen if a caller waits for the session.
func (s *session) pause(d time.Duration) {
	begin := time.Now()
	for {
		if s.wanted() {
			d = min(d, minReopen)
		}
		left := d - time.Since(begin)
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-s.kick:
		case <-s.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// resendIf sends the settings again if err means that the server has lost them.
func (s *session) resendIf(err *tidegate.Error) {
	if err.Code != protocol.CodeUnrecognizedClientType {
		return
	}
	s.mu.Lock()
	s.unsent = true
	s.mu.Unlock()
	s.poke()
}

// groupResource returns the group's name, or nil for producers.
func (s *session) groupResource() *rmqpb.Resource {
	if s.role.group == "" {
		return nil
	}
	return s.c.resource(s.role.group)
}

func (r role) clientType() rmqpb.ClientType {
	switch {
	case r.group == "":
		return rmqpb.ClientType_PRODUCER
	case r.push:
		return rmqpb.ClientType_PUSH_CONSUMER
	}
	return rmqpb.ClientType_SIMPLE_CONSUMER
}
