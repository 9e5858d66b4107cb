package admin

import (
	"context"
	"time"
)

// A Throttle is a limit at which the broker rejects sends, with its current value.
type Throttle struct {
	Limit      string    `json:"limit"`             // for example "topic backlog messages"; openapi.yaml lists them
	Subject    string    `json:"subject,omitempty"` // the topic or group; empty for limits of the whole broker
	Topic      string    `json:"topic,omitempty"`   // the topic whose sends a limit of a group rejects
	Unit       string    `json:"unit"`              // of Value, Mark and Resume
	Value      int64     `json:"value"`             // current value
	Mark       int64     `json:"mark"`              // the limit itself
	Resume     int64     `json:"resume"`            // the value at which the broker accepts sends again
	Since      time.Time `json:"since,omitzero"`    // start of the throttle; zero if the limit is not reached
	RetryAfter Duration  `json:"retry_after,omitempty"`
}

// A LimitState is a limit and its state.
type LimitState struct {
	Throttle
	On bool `json:"on"`
}

// A ThrottleState has all limits of a broker.
type ThrottleState struct {
	Throttles  []LimitState `json:"throttles"`   // limits that reject sends
	NotReached []LimitState `json:"not_reached"` // other limits that are set
	Limits     Limits       `json:"limits"`      // of the whole broker
}

// Limits are the limits of the whole broker. A PUT replaces all of them: a zero field has its
// default.
type Limits struct {
	MaxBacklog  Limit    `json:"max_backlog,omitzero"` // for topics without a limit of their own
	ClientQuota Quota    `json:"client_quota,omitzero"`
	Pressure    Pressure `json:"pressure,omitzero"`
}

// A Quota is the send rate of one client. Zero means no limit.
type Quota struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`
	Burst             int     `json:"burst,omitempty"`
}

// Pressure has the limits of the storage's state. A zero field has its default; -1 means no limit.
type Pressure struct {
	MinFreeDisk       int64    `json:"min_free_disk_bytes,omitempty"`
	MaxCompactionDebt int64    `json:"max_compaction_debt_bytes,omitempty"`
	MaxWriteStall     Duration `json:"max_write_stall,omitempty"`
	MaxColdReads      int64    `json:"max_cold_reads_bytes_per_second,omitempty"` // 0 means no limit
	ColdDistance      int64    `json:"cold_distance_bytes,omitempty"`
}

// Throttles returns the limits that reject sends now, with their reasons, and the other limits.
func (c *Client) Throttles(ctx context.Context) (ThrottleState, error) {
	return get[ThrottleState](ctx, c, "Throttles", "", "/v1/throttle", nil)
}

// SetLimits replaces the limits of the whole broker until the broker stops or reloads its file.
func (c *Client) SetLimits(ctx context.Context, l Limits) (ThrottleState, error) {
	return put[ThrottleState](ctx, c, "SetLimits", "", "/v1/throttle", l)
}
