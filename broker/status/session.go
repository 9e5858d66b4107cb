package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Session is the principal of a request with its permissions, so that a page can leave out
// actions that the broker would reject.
type Session struct {
	Key        string `json:"key,omitempty"` // name of the access key; empty for an anonymous request
	Restricted bool   `json:"restricted"`    // false if no keys are configured: then everything is allowed
	Rules      []Rule `json:"rules"`         // in effect for the request; empty if not Restricted

	// Token is the half of the session's token that a page keeps, only in the response to a login.
	Token string `json:"token,omitempty"`

	// Expires is the time at which the session ends at the latest. It also ends after Idle without
	// a request. Both are zero without a session.
	Expires time.Time         `json:"expires,omitzero"`
	Idle    settings.Duration `json:"idle,omitempty"`
}

// A Rule allows actions on topics and groups: "send", "receive", "observe" and "admin", which
// includes "observe". In names * matches any characters.
type Rule struct {
	Actions []string `json:"actions"`
	Topics  []string `json:"topics,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}
