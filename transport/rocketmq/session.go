package rocketmq

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
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
	lite  string // the ID of a consumer of lite topics, which is also a push consumer; else empty
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
	ep   *conn.Server
	role role
	id   conn.Identity
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
	watches  map[wire.Queue][]*watch // only while ready
	unsent   bool                    // topics changed after the last transmission
}

// session returns the session with the server for the role, and opens it if there is none. It adds
// the topic to the settings; a nil filter keeps the topic's current filter. The session remains
// until the caller calls release. The caller passes since to await.
func (c *Client) session(op string, ep *conn.Server, as role, topic string, f *rmqpb.FilterExpression) (s *session, since int, _ *tidegate.Error) {
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
func (c *Client) identity(as role) conn.Identity {
	if as.group == "" {
		return c.id
	}
	clientID := c.opts.ClientID + "@" + as.group
	switch {
	case as.lite != "":
		clientID += "@lite@" + as.lite
	case !as.push:
		clientID += "@simple"
	}
	return conn.NewIdentity(clientID, c.opts.Namespace, c.opts.Credentials.SessionToken)
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
	c.dropLiteLocked(s.role)
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
	case r.lite != "":
		return rmqpb.ClientType_LITE_PUSH_CONSUMER
	case r.push:
		return rmqpb.ClientType_PUSH_CONSUMER
	}
	return rmqpb.ClientType_SIMPLE_CONSUMER
}

// heartbeats sends a heartbeat when the session opens and then one in every interval. On a server
// that takes one heartbeat for all sessions of a connection, the sessions take turns.
//
// Liveness: a session that waits for its turn is woken by the end of another session's turn, by a
// change of its stream, and by its own end. A turn ends after at most an interval and a request.
func (s *session) heartbeats() {
	for {
		changed, open := s.untilReady()
		if !open {
			return
		}
		if !s.ep.SharesHeartbeats() {
			s.beat()
			if backoff.Sleep(s.ctx, s.c.opts.HeartbeatInterval) != nil {
				return
			}
			continue
		}
		select {
		case s.ep.Turn <- struct{}{}:
			s.takeTurn()
			<-s.ep.Turn
		case <-changed: // the next connection may lead to a server of another kind
		case <-s.ctx.Done():
		}
	}
}

// takeTurn sends a heartbeat for all sessions with the server when it is due.
func (s *session) takeTurn() {
	due := s.ep.Beat.Add(s.c.opts.HeartbeatInterval)
	if backoff.Sleep(s.ctx, time.Until(due)) != nil || !s.isReady() || !s.ep.SharesHeartbeats() {
		return
	}
	s.ep.Beat = time.Now()
	s.beat()
}

// beat sends a heartbeat.
func (s *session) beat() {
	r := request{ep: s.ep, id: s.id, op: "Heartbeat", subject: s.role.group}
	if s.ep.SharesHeartbeats() {
		r.headers = []string{wire.HeaderFeatures, wire.FeatureHeartbeats}
	}
	_, _, err := call(s.ctx, s.c, r, rmqpb.MessagingServiceClient.Heartbeat,
		&rmqpb.HeartbeatRequest{Group: s.groupResource(), ClientType: s.role.clientType()})
	if err != nil {
		s.c.opts.Logger.Debug("rocketmq: heartbeat failed", "endpoint", s.ep.Key, "group", s.role.group, "error", err)
		s.resendIf(err)
	}
}

// untilReady waits until the session is open. It returns false if the session has ended. changed is
// closed by the next change of the session.
func (s *session) untilReady() (changed <-chan struct{}, open bool) {
	for {
		s.mu.Lock()
		ready, changed := s.ready, s.changed
		s.mu.Unlock()
		if ready {
			return changed, s.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return nil, false
		}
	}
}

type telemetryStream = grpc.BidiStreamingClient[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]

// stream opens a Telemetry stream, sends the settings and serves the stream until it ends. It
// returns the error that ended the stream, or nil if the session is idle.
func (s *session) stream() *tidegate.Error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	limit := settingsTimeout + s.c.opts.RequestTimeout
	var late atomic.Bool
	patience := time.AfterFunc(limit, func() { // for the connection and the first response
		late.Store(true)
		cancel()
	})
	defer patience.Stop()

	err := s.serve(ctx, cancel, patience)
	switch {
	case s.ctx.Err() != nil:
		return closedError(opTelemetry, s.role.group)
	case late.Load() && !s.isReady():
		e := fail(opTelemetry, s.role.group, 0, "the server did not respond to the settings within "+limit.String())
		e.Endpoint, e.Err = s.ep.Key, tidegate.ErrUnavailable
		e.NotConnected = s.ep.Link.Load().Missing()
		return e
	}
	return err
}

func (s *session) serve(ctx context.Context, cancel context.CancelFunc, patience *time.Timer) *tidegate.Error {
	on := s.ep.Link.Load()
	st, err := on.API().Telemetry(s.c.headers.Outgoing(ctx, s.id, wire.HeaderFeatures, watchHeader(s.role.group != "")+", "+wire.FeatureHeartbeats))
	if err != nil {
		e := s.streamError(err)
		on.Lack(e, err)
		return e
	}
	commands := make(chan *rmqpb.TelemetryCommand)
	var recvErr error // valid once commands is closed
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before Wait
	wg.Go(func() {
		defer close(commands)
		for {
			cmd, err := st.Recv()
			if err != nil {
				recvErr = err
				return
			}
			select {
			case commands <- cmd:
			case <-ctx.Done():
				recvErr = ctx.Err()
				return
			}
		}
	})
	repeat := time.NewTicker(s.c.opts.SettingsSync)
	defer repeat.Stop()
	send := true
	for {
		if send {
			// An error of Send has no details. The error of Recv follows and has them.
			_ = st.Send(s.settingsCommand())
		}
		send = false
		select {
		case cmd, ok := <-commands:
			if !ok {
				return s.streamError(recvErr)
			}
			if stop, err := s.obey(on, st, cmd); stop {
				return err
			}
			if s.isReady() {
				patience.Stop()
			}
		case <-s.kick:
			s.mu.Lock()
			send = s.unsent
			s.mu.Unlock()
		case <-repeat.C:
			if s.retire() {
				return nil
			}
			send = true
		}
	}
}

func (s *session) streamError(err error) *tidegate.Error {
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the server ended the Telemetry stream")
	}
	if fault := s.ep.Link.Load().Misconfigured(); fault != nil && status.Code(err) == codes.Unavailable {
		return request{ep: s.ep, op: opTelemetry, subject: s.role.group}.setupError(fault, err)
	}
	e := conn.OfCall(s.ctx, opTelemetry, s.role.group, s.ep.Key, err, false, false)
	if s.role.lite != "" {
		conn.OfLite(e, status.Convert(err).Message())
	}
	return e
}

// obey executes a server's command. It reports whether the stream must end.
func (s *session) obey(on *conn.Link, st telemetryStream, cmd *rmqpb.TelemetryCommand) (stop bool, _ *tidegate.Error) {
	log := s.c.opts.Logger.With("endpoint", s.ep.Key, "group", s.role.group)
	if st := cmd.GetStatus(); st.GetCode() != 0 && !conn.Succeeded(st) {
		err := conn.OfStatus(opTelemetry, s.role.group, s.ep.Key, cmd.GetStatus(), nil)
		if !s.isReady() {
			return true, err
		}
		if err.Code == protocol.CodeUnrecognizedClientType && s.ep.SharesHeartbeats() {
			s.resendIf(err) // other servers may respond to the settings with the same code
			return false, nil
		}
		s.c.rejected.log(log, slog.LevelWarn, "rocketmq: the server rejected a command", "error", err)
		return false, nil
	}
	if queues := wire.ReadyQueues(cmd); len(queues) > 0 {
		s.wake(queues...)
		return false, nil
	}
	switch {
	case cmd.GetSettings() != nil:
		s.learn(st, cmd.GetSettings())
	case cmd.GetReconnectEndpointsCommand() != nil:
		s.c.reconnect(s.ep, on)
		e := fail(opTelemetry, s.role.group, 0, "the server asked for a new connection")
		e.Endpoint, e.Err = s.ep.Key, tidegate.ErrUnavailable
		return true, e
	case cmd.GetPrintThreadStackTraceCommand() != nil:
		// Servers must not read stack traces of the process. For a refusal the contract has this code.
		_ = st.Send(refusal(rmqpb.Code_NOT_IMPLEMENTED, &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ThreadStackTrace{
			ThreadStackTrace: &rmqpb.ThreadStackTrace{Nonce: cmd.GetPrintThreadStackTraceCommand().GetNonce()}}}))
	case cmd.GetVerifyMessageCommand() != nil:
		// The contract has no code for a client that does not consume such messages. RocketMQ shows
		// this one as "later", and other codes as no result.
		_ = st.Send(refusal(rmqpb.Code_FAILED_TO_CONSUME_MESSAGE, &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_VerifyMessageResult{
			VerifyMessageResult: &rmqpb.VerifyMessageResult{Nonce: cmd.GetVerifyMessageCommand().GetNonce()}}}))
	case cmd.GetRecoverOrphanedTransactionCommand() != nil:
		if err := s.c.asked(s.ep, cmd.GetRecoverOrphanedTransactionCommand()); err != nil {
			s.c.unchecked.log(log, slog.LevelWarn, "rocketmq: transaction check skipped; the server will repeat it", "error", err,
				"transaction_id", cmd.GetRecoverOrphanedTransactionCommand().GetTransactionId())
		}
	case cmd.GetNotifyUnsubscribeLiteCommand() != nil && s.role.lite != "":
		s.c.endLite(s.role, cmd.GetNotifyUnsubscribeLiteCommand().GetLiteTopic())
	default: // of a newer server
		log.Debug("rocketmq: unknown command ignored", "command", cmd.String())
	}
	return false, nil
}

// refusal returns the response to a command that the client does not execute.
func refusal(code rmqpb.Code, cmd *rmqpb.TelemetryCommand) *rmqpb.TelemetryCommand {
	cmd.Status = &rmqpb.Status{Code: code, Message: "not supported by this client"}
	return cmd
}

// learn stores the server's settings.
func (s *session) learn(st telemetryStream, settings *rmqpb.Settings) {
	// The header has arrived, because a response has. A stream without the header proves nothing:
	// the server may have pushed its settings before it read the client's.
	if header, err := st.Header(); err == nil && len(header.Get(wire.HeaderFeatures)) > 0 {
		p, _ := peer.FromContext(st.Context())
		s.ep.Learn(conn.ConnectionOf(p), header)
	}
	var back, opened bool
	s.update(func() {
		back, opened = s.lost, !s.ready
		s.ready, s.lost, s.settings = true, false, settings
	})
	if back {
		s.c.opts.Logger.Info("rocketmq: session restored", "endpoint", s.ep.Key, "group", s.role.group)
	}
	if opened && s.role.lite != "" {
		s.c.restoreLite(s)
	}
}

// ReceiveOrWatch implements transport.Watcher. There is no watch if the server cannot leave one or
// has reached its limit of watches, if r.Queue is AnyQueue and the topic has several servers, or if
// the session was lost in the meantime.
//
// Liveness: ready is closed when the server reports the queue, when the session's stream ends, when
// the topic gets other servers, and when the client is closed. A later call leaves the watch again.
func (c *Client) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	r.Wait = 0
	return c.receiveFrom(ctx, r, true, nil)
}

// A watch is one that a receive leaves on the server. The server has at most one for each queue and
// stream, which all receives of the queue share.
type watch struct {
	ready chan struct{} // closed under session.mu
	keep  func() bool   // stops the end of the watch with its ctx; guarded by session.mu
}

// watch returns a watch of a queue for a receive that is about to be sent. It ends with ctx, with
// unwatch, or when it is ready. It returns nil without a stream, because nothing could report it.
func (s *session) watch(ctx context.Context, of wire.Queue) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || s.ctx.Err() != nil {
		return nil
	}
	w := &watch{ready: make(chan struct{})}
	if s.watches == nil {
		s.watches = map[wire.Queue][]*watch{}
	}
	s.watches[of] = append(s.watches[of], w)
	w.keep = context.AfterFunc(ctx, func() { s.unwatch(of, w) })
	return w
}

// unwatch ends a watch that is not ready.
func (s *session) unwatch(of wire.Queue, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.keep()
	s.watches[of] = slices.DeleteFunc(s.watches[of], func(o *watch) bool { return o == w })
	if len(s.watches[of]) == 0 {
		delete(s.watches, of)
	}
}

// wake ends the watches of queues: they are ready.
func (s *session) wake(queues ...wire.Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range queues {
		s.wakeLocked(of)
	}
}

// wakeAllLocked ends all watches, because the server has lost them. mu is held.
func (s *session) wakeAllLocked() {
	for of := range s.watches {
		s.wakeLocked(of)
	}
}

func (s *session) wakeLocked(of wire.Queue) {
	for _, w := range s.watches[of] {
		close(w.ready)
		w.keep()
	}
	delete(s.watches, of)
}

// wakeTopic ends the watches of a topic that has other servers now: another server than that of a
// watch may have messages.
func (c *Client) wakeTopic(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sessions {
		s.mu.Lock()
		for of := range s.watches {
			if of.Topic == name {
				s.wakeLocked(of)
			}
		}
		s.mu.Unlock()
	}
}

// watchHeader returns the features of a Telemetry stream or a receive, with that of watches or
// without.
func watchHeader(watched bool) string {
	if watched {
		return wire.FeaturePacked + ", " + wire.FeatureWatch
	}
	return wire.FeaturePacked
}
