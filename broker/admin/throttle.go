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

// SetLimits replaces the limits of the whole broker. They survive a restart of the broker. A limit
// whose value in the broker's configuration changes later has the configured value.
func (c *Client) SetLimits(ctx context.Context, l settings.Limits) (status.Throttles, error) {
	return put[status.Throttles](ctx, c, "SetLimits", "", "/v1/throttle", l)
}

// PatchLimits changes some limits of the whole broker. The JSON of patch is a merge patch (RFC
// 7396) of settings.Limits: limits that it does not name stay as they are, and null means the
// default. patch can be a settings.Limits, whose zero limits are not named, or a map.
func (c *Client) PatchLimits(ctx context.Context, patch any) (status.Throttles, error) {
	return call[status.Throttles](ctx, c, "PATCH", "PatchLimits", "", "/v1/throttle", patch)
}
