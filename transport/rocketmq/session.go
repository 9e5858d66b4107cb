package rocketmq

import (
	"context"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/headers"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

const (
	// settingsTimeout, with the request timeout on top, is how long a server
	// may take to answer a session's first settings. A server that does not
	// like them may never answer.
	settingsTimeout = 3 * time.Second

	// minReopen is how soon a lost session is opened again if somebody waits
	// for it, and minPause how soon in any case. A connection that a consumer's
	// session waits for is given minReopen to be made.
	minReopen = time.Second
	minPause  = 100 * time.Millisecond

	opTelemetry = "Telemetry"
)

// A role is what a client ID stands for to the server.
type role struct {
	group string // empty: producer
	push  bool   // of consumers: messages that time out go through the ladder
}

// A sessionKey names a session.
type sessionKey struct {
	endpoint string
	role     role
}

// A session is a Telemetry stream, opened again whenever it was lost: servers
// keep settings by client ID, and know no consumer without. Two goroutines own
// it, run and heartbeats, which end with the client, or when nobody has used
// the session for a while: to a server it is a consumer that lives.
type session struct {
	c    *Client
	ep   *remote.Server
	role role
	id   headers.Identity
	ctx  context.Context //nolint:containedctx // the client's, or ended earlier for want of use
	end  context.CancelFunc
	kick chan struct{} // of capacity 1: look what changed

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when ready or failures change
	ready    bool          // the stream is open and the settings were answered
	lost     bool          // it failed, and was not ready since
	settings *rmqpb.Settings
	failures int             // streams that ended
	lastErr  *tidegate.Error // of the last of them
	waiting  int             // callers
	users    int             // calls that need it, those that wait for it too
	usedAt   time.Time       // when the last of them ended or began
	held     time.Time       // until when what it received may be settled
	topics   map[string]namedTopic
	unsent   bool // topics changed since they were sent
}

// session returns the session with the server for the role, which it opens if
// there is none, and has it name the topic. A nil filter leaves the topic's
// filter as it is. The session stays until the caller has called its release.
// since is for its await.
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

// identity returns the headers of a role: servers keep settings by client ID,
// so that each role has one of its own.
func (c *Client) identity(as role) headers.Identity {
	if as.group == "" {
		return c.id
	}
	if id, ok := c.ids.Load(as); ok {
		return id.(headers.Identity)
	}
	clientID := c.opts.ClientID + "@" + as.group
	if !as.push {
		clientID += "@simple"
	}
	id, _ := c.ids.LoadOrStore(as, headers.NewIdentity(clientID, c.opts.Namespace, c.opts.Credentials.SessionToken))
	return id.(headers.Identity)
}

// use tells that a call needs the session, and returns how often that failed before.
func (s *session) use() (failures int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return s.failures
}

// release tells that a call no longer needs the session.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.usedAt = time.Now()
}

// hold keeps the session until deliveries that it received cannot be settled
// any more: servers take a consumer's end for theirs, or do not know whose they were.
func (s *session) hold(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usedAt = time.Now()
	if until = until.Add(clocksAgree); until.After(s.held) {
		s.held = until
	}
}

// idle reports whether nobody needs the session. mu is held.
func (s *session) idle(now time.Time) bool {
	return s.users == 0 && now.Sub(s.usedAt) >= 2*s.c.opts.SettingsSync && !now.Before(s.held)
}

// retire reports whether the stream is to end because nobody needs the session.
// Who comes now waits for the next stream.
func (s *session) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.idle(time.Now()) {
		return false
	}
	s.ready = false
	return true
}

// poke makes run look what changed.
func (s *session) poke() {
	select {
	case s.kick <- struct{}{}:
	default: // it is about to look
	}
}

func (s *session) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// wanted reports whether somebody waits for the session.
func (s *session) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting > 0
}

// await returns the server's settings as soon as the session is open, or why
// the first attempt to open it failed that ended since the caller had the session.
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
		case <-ctx.Done():
			err = &tidegate.Error{Op: op, Subject: subject, Endpoint: s.ep.Key, Err: context.Cause(ctx)}
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

// update changes what await looks at.
func (s *session) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// run keeps a stream open until the client is closed, or nobody has needed the
// session for a while.
func (s *session) run() {
	defer s.end()
	for n := 0; s.ctx.Err() == nil; n++ {
		if s.role.group != "" && (n == 0 || s.wanted()) {
			s.ep.Knock(s.ctx)
		}
		err := s.stream()
		if err == nil { // retired
			gone, last := s.c.leave(s)
			if last {
				s.c.sayGoodbye([]*session{s})
				gone = s.c.forget(s)
			}
			if gone {
				return
			}
			n = -1 // somebody came meanwhile
			continue
		}
		s.update(func() {
			if s.ready {
				n = 0
			}
			s.ready, s.lost = false, true
			s.failures++
			s.lastErr = err
		})
		if s.ctx.Err() != nil || s.c.forget(s) {
			return
		}
		s.c.opts.Logger.Warn("rocketmq: session lost", "endpoint", s.ep.Key, "group", s.role.group, "err", err)
		s.pause(max(s.c.opts.ConnectBackoff.Delay(n), minPause))
	}
}

// leave forgets a session that retired, unless it is the last of its role, which has
// to say good-bye before. It may be said then only: the role has one client ID, and
// what has another address, as after a move, may be the same server. A server that is
// another one finds out by the heartbeats that do not come any more.
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

// forget removes a session if nobody needs it.
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
	c.ids.Delete(s.role) // made again if it is needed
	return true
}

// pause waits for d, or for minReopen if somebody waits for the session.
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

// heartbeats sends one when the session opens and then one every interval.
func (s *session) heartbeats() {
	for s.untilReady() {
		_, _, err := call(s.ctx, s.c, request{ep: s.ep, id: s.id, op: "Heartbeat", subject: s.role.group},
			rmqpb.MessagingServiceClient.Heartbeat,
			&rmqpb.HeartbeatRequest{Group: s.groupResource(), ClientType: s.role.clientType()})
		if err != nil {
			s.c.opts.Logger.Debug("rocketmq: heartbeat failed", "endpoint", s.ep.Key, "group", s.role.group, "err", err)
			s.resendIf(err)
		}
		if backoff.Sleep(s.ctx, s.c.opts.HeartbeatInterval) != nil {
			return
		}
	}
}

// resendIf sends the settings again if err says that the server lost them.
func (s *session) resendIf(err *tidegate.Error) {
	if err.Code != tidegate.CodeUnrecognizedClientType {
		return
	}
	s.mu.Lock()
	s.unsent = true
	s.mu.Unlock()
	s.poke()
}

// untilReady waits until the session is open, and returns false if it ended.
func (s *session) untilReady() bool {
	for {
		s.mu.Lock()
		ready, changed := s.ready, s.changed
		s.mu.Unlock()
		if ready {
			return s.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return false
		}
	}
}

// groupResource returns the group's name, nil for producers.
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
