package server

import (
	"fmt"

	"github.com/tidegate/tidegate/broker/internal/access"
	"github.com/tidegate/tidegate/broker/server/internal/session"
)

// An AccessConfig says who may do what; see [Options].Access. The zero value restricts
// nothing; with a key or an anonymous rule in it, all that no rule allows is refused.
type AccessConfig = access.Config

// A Key is one identity of an [AccessConfig]: RocketMQ's access key, its
// secrets, the client certificates that stand for it, and what it may do.
type Key = access.Key

// A Rule allows some actions on the topics and groups whose names match its patterns.
type Rule = access.Rule

// An Action is what a [Rule] allows.
type Action = access.Action

// A Secret is a text that no print, log or encoder shows.
type Secret = access.Secret

// NewSecret hides text in a Secret.
func NewSecret(text string) Secret { return access.NewSecret(text) }

// The actions of rules.
const (
	ActionSend    = access.Send    // send to topics, and recall what was sent
	ActionReceive = access.Receive // receive from topics as groups, and settle it
	ActionObserve = access.Observe // read settings, backlogs and metrics
	ActionAdmin   = access.Admin   // make, change and delete topics and groups; includes ActionObserve
)

// DefaultMaxClockSkew is how far a signed time may be from the broker's.
const DefaultMaxClockSkew = access.DefaultMaxClockSkew

// SetAccess changes who may do what. It holds for requests that begin
// afterwards, and streams that are open are asked again: those that are not
// allowed any more end with 40100 or 40300, and waiting receives are answered as empty. Its
// error names all that is wrong with c, and no secret; then nothing changed.
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
