package admin

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/broker/status"
)

// Parked returns a page of the parked and blocked message groups of a consumer group.
func (c *Client) Parked(ctx context.Context, group string, q status.ParkedQuery) (status.ParkedPage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "state", q.State)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.ParkedPage](ctx, c, "Parked", group, escaped("groups", group, "parked"), v)
}

// RedriveParked makes the messages of parked message groups ready again, in order. Their attempts
// count from 1 again.
func (c *Client) RedriveParked(ctx context.Context, group string, s status.ParkedSelection) (status.ParkedRedrive, error) {
	return post[status.ParkedRedrive](ctx, c, "RedriveParked", group, escaped("groups", group, "parked", "redrive"), s)
}

func set(v url.Values, key, value string) {
	if value != "" {
		v.Set(key, value)
	}
}

func setLimit(v url.Values, n int) {
	if n != 0 {
		v.Set("limit", strconv.Itoa(n))
	}
}

func moment(v url.Values, key string, t time.Time) {
	if !t.IsZero() {
		v.Set(key, t.Format(time.RFC3339Nano))
	}
}

func yes(v url.Values, key string, on bool) {
	if on {
		v.Set(key, "true")
	}
}
