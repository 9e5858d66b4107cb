package admin

import (
	"context"
	"time"
)

// A Throttle is a limit that refuses sends, or could.
type Throttle struct {
	Limit      string    `json:"limit"`             // for example "topic backlog messages"; openapi.yaml lists them
	Subject    string    `json:"subject,omitempty"` // the topic or group; empty for limits of the whole broker
	Topic      string    `json:"topic,omitempty"`   // the topic whose sends a group's limit refuses
	Unit       string    `json:"unit"`              // of Value, Mark and Resume
	Value      int64     `json:"value"`             // now
	Mark       int64     `json:"mark"`              // the limit itself
	Resume     int64     `json:"resume"`            // where sends are accepted again
	Since      time.Time `json:"since,omitzero"`    // zero if sends are not refused
	RetryAfter Duration  `json:"retry_after,omitempty"`
}

// A LimitState is a limit and whether it refuses sends.
type LimitState struct {
	Throttle
	On bool `json:"on"`
}

// A ThrottleState has all limits of a broker.
type ThrottleState struct {
	Throttles  []LimitState `json:"throttles"`   // that refuse sends
	NotReached []LimitState `json:"not_reached"` // the others that are set
	Limits     Limits       `json:"limits"`      // of the whole broker
}

// Limits are those of the whole broker. A PUT sets all of them: a field that is zero gets its
// default.
type Limits struct {
	MaxBacklog  Limit    `json:"max_backlog,omitzero"` // for topics that have none of their own
	ClientQuota Quota    `json:"client_quota,omitzero"`
	Pressure    Pressure `json:"pressure,omitzero"`
}

// A Quota is how fast one client may send. Zero means no limit.
type Quota struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`
	Burst             int     `json:"burst,omitempty"`
}

// Pressure has the limits by the state of the storage. A field that is zero has its default, -1 is
// no limit.
type Pressure struct {
	MinFreeDisk       int64    `json:"min_free_disk_bytes,omitempty"`
	MaxCompactionDebt int64    `json:"max_compaction_debt_bytes,omitempty"`
	MaxWriteStall     Duration `json:"max_write_stall,omitempty"`
	MaxColdReads      int64    `json:"max_cold_reads_bytes_per_second,omitempty"` // 0: no limit
	ColdDistance      int64    `json:"cold_distance_bytes,omitempty"`
}

// Throttles returns the limits that refuse sends now, with their reasons, and the other limits.
func (c *Client) Throttles(ctx context.Context) (ThrottleState, error) {
	return get[ThrottleState](ctx, c, "Throttles", "", "/v1/throttle", nil)
}

// SetLimits sets the limits of the whole broker, until the broker ends or reloads its file.
func (c *Client) SetLimits(ctx context.Context, l Limits) (ThrottleState, error) {
	return put[ThrottleState](ctx, c, "SetLimits", "", "/v1/throttle", l)
}
