package rocketmq

import (
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/remote"
)

// heartbeatsFeature is the feature of a client whose heartbeats count for all its sessions on the
// connection, and that sends its settings again when the server asks for them in the stream.
const heartbeatsFeature = "heartbeats"

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
		r.headers = []string{remote.FeaturesKey, heartbeatsFeature}
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
