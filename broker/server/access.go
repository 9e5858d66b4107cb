package server

import (
	"context"
	"fmt"

	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/internal/access"
)

// An AccessConfig has the permissions of clients; see [Options].Access. The zero value allows
// everything. With a key or an anonymous rule, the server rejects each request that no rule allows.
type AccessConfig = access.Config

// A Key is one identity of an [AccessConfig]: RocketMQ's access key, its secrets, the equivalent
// client certificates, and its permissions.
type Key = access.Key

// A Rule allows some actions on the topics and groups whose names match its patterns.
type Rule = access.Rule

// An Action is a permission of a [Rule].
type Action = access.Action

// A Secret is a text that package fmt, logs and encoders do not show.
type Secret = access.Secret

// NewSecret hides text in a Secret.
func NewSecret(text string) Secret { return access.NewSecret(text) }

// The actions of rules.
const (
	ActionSend    = access.Send    // send to topics, and recall delayed messages
	ActionReceive = access.Receive // receive from topics as groups, and settle the deliveries
	ActionObserve = access.Observe // read settings, backlogs and metrics
	ActionAdmin   = access.Admin   // create, change and delete topics and groups; includes ActionObserve
)

// DefaultMaxClockSkew is how far a signed time may be from the broker's.
const DefaultMaxClockSkew = access.DefaultMaxClockSkew

// SetAccess replaces the permissions. They apply to all requests that begin afterwards, and to open
// streams: a stream without permission ends with 40100 or 40300, and waiting receives end without
// messages. The error names all faults of c, and no secret. With an error nothing changes.
func (s *Server) SetAccess(c AccessConfig) error {
	var p *access.Policy
	if c.On() {
		var err error
		if p, err = access.New(c); err != nil {
			return fmt.Errorf("access: %w", err)
		}
	}
	s.gate.Begin(p)
	s.sessions.EndPolls(session.ErrNewRules)
	return nil
}

// origin returns a function that returns the origin of a client's request, for package session.
func (s *Server) origin(ctx context.Context, client string) func() string {
	return func() string { return s.gate.Origin(client, requests.PeerAddress(ctx)) }
}
