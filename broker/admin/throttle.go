package admin

import (
	"context"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// Throttles returns the limits that reject sends now, with their reasons, and the other limits.
func (c *Client) Throttles(ctx context.Context) (status.Throttles, error) {
	return get[status.Throttles](ctx, c, "Throttles", "", "/v1/throttle", nil)
}

// SetLimits replaces the limits of the whole broker until the broker stops or reloads its file.
func (c *Client) SetLimits(ctx context.Context, l settings.Limits) (status.Throttles, error) {
	return put[status.Throttles](ctx, c, "SetLimits", "", "/v1/throttle", l)
}
