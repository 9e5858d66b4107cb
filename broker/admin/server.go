package admin

import "context"

// Healthy returns nil if the process of the broker runs and responds.
func (c *Client) Healthy(ctx context.Context) error {
	_, err := get[struct{}](ctx, c, "Healthy", "", "/healthz", nil)
	return err
}

// Ready returns nil if the broker's store works and the broker accepts requests, and otherwise an
// error with the reason. A throttle or a full disk is not an error.
func (c *Client) Ready(ctx context.Context) error {
	_, err := get[struct{}](ctx, c, "Ready", "", "/readyz", nil)
	return err
}

// Metrics returns the broker's metrics in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	text, err := get[[]byte](ctx, c, "Metrics", "", "/metrics", nil)
	return string(text), err
}

// OpenAPI returns the broker's description of its HTTP API, in YAML.
func (c *Client) OpenAPI(ctx context.Context) (string, error) {
	text, err := get[[]byte](ctx, c, "OpenAPI", "", "/v1/openapi.yaml", nil)
	return string(text), err
}
