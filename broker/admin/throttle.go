package admin

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Throttle is a limit at which the broker rejects sends, with its current value.
type Throttle struct {
	Limit      string            `json:"limit"`             // for example "topic backlog messages"; openapi.yaml lists them
	Subject    string            `json:"subject,omitempty"` // the topic or group; empty for limits of the whole broker
	Topic      string            `json:"topic,omitempty"`   // the topic whose sends a limit of a group rejects
	Unit       string            `json:"unit"`              // of Value, Mark and Resume
	Value      int64             `json:"value"`             // current value
	Mark       int64             `json:"mark"`              // the limit itself
	Resume     int64             `json:"resume"`            // the value at which the broker accepts sends again
	Since      time.Time         `json:"since,omitzero"`    // start of the throttle; zero if the limit is not reached
	RetryAfter settings.Duration `json:"retry_after,omitempty"`
}

// A LimitState is a limit and its state.
type LimitState struct {
	Throttle
	On bool `json:"on"`
}

// A ThrottleState has all limits of a broker.
type ThrottleState struct {
	Throttles  []LimitState    `json:"throttles"`   // limits that reject sends
	NotReached []LimitState    `json:"not_reached"` // other limits that are set
	Limits     settings.Limits `json:"limits"`      // of the whole broker
}

// Throttles returns the limits that reject sends now, with their reasons, and the other limits.
func (c *Client) Throttles(ctx context.Context) (ThrottleState, error) {
	return get[ThrottleState](ctx, c, "Throttles", "", "/v1/throttle", nil)
}

// SetLimits replaces the limits of the whole broker until the broker stops or reloads its file.
func (c *Client) SetLimits(ctx context.Context, l settings.Limits) (ThrottleState, error) {
	return put[ThrottleState](ctx, c, "SetLimits", "", "/v1/throttle", l)
}
