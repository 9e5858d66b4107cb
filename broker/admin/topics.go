package admin

import (
	"context"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Topic is a topic with its settings and its state.
type Topic struct {
	settings.Topic

	Name            string    `json:"name"`
	AutoCreated     bool      `json:"auto_created,omitempty"` // an automatic dead letter queue of address settings; PutTopic makes it permanent
	StoredMessages  int64     `json:"stored_messages"`        // consumed or not
	StoredBytes     int64     `json:"stored_bytes"`
	HalfMessages    int64     `json:"half_messages,omitempty"`    // of unresolved transactions
	DelayedMessages int64     `json:"delayed_messages,omitempty"` // waiting for their delivery time; not part of the other numbers
	DelayedBytes    int64     `json:"delayed_bytes,omitempty"`
	Backlog         Backlog   `json:"backlog"`            // of the slowest group
	Throttle        *Throttle `json:"throttle,omitempty"` // the reason of rejected sends; nil if sends are accepted
	Groups          []string  `json:"groups,omitempty"`   // that have received from it
}

// A Backlog counts messages and the bytes of their bodies.
type Backlog struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

// Topics returns all topics, by name.
func (c *Client) Topics(ctx context.Context) ([]Topic, error) {
	out, err := get[struct {
		Topics []Topic `json:"topics"`
	}](ctx, c, "Topics", "", "/v1/topics", nil)
	return out.Topics, err
}

// Topic returns one topic. The error matches tidegate.ErrTopicNotFound if there is none.
func (c *Client) Topic(ctx context.Context, name string) (Topic, error) {
	return get[Topic](ctx, c, "Topic", name, escaped("topics", name), nil)
}

// PutTopic creates a topic, or replaces the settings of an existing one.
func (c *Client) PutTopic(ctx context.Context, name string, config settings.Topic) (Topic, error) {
	return put[Topic](ctx, c, "PutTopic", name, escaped("topics", name), config)
}

// DeleteTopic deletes a topic and its messages. The error matches tidegate.ErrTopicNotFound if
// there is none.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	return c.remove(ctx, "DeleteTopic", name, escaped("topics", name))
}

// PurgeTopic removes all messages of a topic, including in-flight, delayed and half messages. It
// returns their number.
func (c *Client) PurgeTopic(ctx context.Context, name string) (Backlog, error) {
	out, err := post[struct {
		Removed Backlog `json:"removed"`
	}](ctx, c, "PurgeTopic", name, escaped("topics", name, "purge"), nil)
	return out.Removed, err
}
