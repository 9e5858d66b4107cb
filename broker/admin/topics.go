package admin

import "context"

// The types of topics.
const (
	TopicNormal      = "NORMAL"      // messages without order
	TopicFIFO        = "FIFO"        // messages with a message group, in its order
	TopicDelay       = "DELAY"       // messages with a delivery time
	TopicTransaction = "TRANSACTION" // transactional messages
)

// A TopicConfig has the settings of a topic. A PUT sets all of them: a field that is zero gets
// the default, also in a change.
type TopicConfig struct {
	// Type is the kind of messages that the topic takes. It cannot change. Default: TopicNormal.
	Type string `json:"type,omitempty"`

	// Queues is the number of queues, at most 1024. It can only grow. Default: 8.
	Queues int `json:"queues,omitempty"`

	// DuplicateWindow is how long message IDs are remembered, so that a repeated send is stored
	// once. Negative: duplicates are stored. Zero means the broker's default.
	DuplicateWindow Duration `json:"duplicate_window,omitempty"`

	// MaxBacklog is the backlog at which sends are throttled. Zero means the limit of the broker.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// MaxRate is the rate above which sends are throttled. Zero means no limit.
	MaxRate Rate `json:"max_rate,omitzero"`

	// Retention says when messages are removed. Zero means after 72 hours; in topics of dead
	// letters never.
	Retention Retention `json:"retention,omitzero"`

	// Transaction says when producers are asked about the transactions of a topic of type
	// TopicTransaction. Zero means the settings of the broker.
	Transaction TransactionConfig `json:"transaction,omitzero"`
}

// A Limit is a bound of a backlog. A field that is zero is no limit.
type Limit struct {
	Messages int64    `json:"messages,omitempty"`
	Bytes    int64    `json:"bytes,omitempty"` // of bodies
	Age      Duration `json:"age,omitempty"`   // of the oldest message; at least 100 ms
}

// A Rate is how fast a topic takes messages. A field that is zero is no limit.
type Rate struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`
	BytesPerSecond    float64 `json:"bytes_per_second,omitempty"`
	Burst             int     `json:"burst,omitempty"` // messages at once after a pause; 0: those of one second
}

// Retention says when messages are removed, the oldest first.
type Retention struct {
	Time     Duration `json:"time,omitempty"`     // after it, consumed or not; negative: never
	Bytes    int64    `json:"bytes,omitempty"`    // bodies above it, consumed or not; 0: no limit
	Consumed bool     `json:"consumed,omitempty"` // once every group has consumed them
}

// A TransactionConfig says when producers are asked about unresolved transactions. A field that is
// zero is as the settings of the broker have it.
type TransactionConfig struct {
	// Timeout is the age of a half message at the first check. Zero means the broker's.
	Timeout Duration `json:"timeout,omitempty"`

	// CheckInterval is the time between checks. Zero means the broker's.
	CheckInterval Duration `json:"check_interval,omitempty"`

	// CheckMax is the number of checks after which a transaction is given up; -1: no end.
	// Zero means the broker's.
	CheckMax int `json:"check_max,omitempty"`
}

// A Topic is a topic with its settings and its state.
type Topic struct {
	TopicConfig

	Name            string    `json:"name"`
	AutoCreated     bool      `json:"auto_created,omitempty"` // an automatic dead-letter queue, which deletes itself; PutTopic makes it stay
	StoredMessages  int64     `json:"stored_messages"`        // consumed or not
	StoredBytes     int64     `json:"stored_bytes"`
	HalfMessages    int64     `json:"half_messages,omitempty"`    // that wait for the end of their transaction
	DelayedMessages int64     `json:"delayed_messages,omitempty"` // that wait for their delivery time; in no other number
	DelayedBytes    int64     `json:"delayed_bytes,omitempty"`
	Backlog         Backlog   `json:"backlog"`            // of the slowest group
	Throttle        *Throttle `json:"throttle,omitempty"` // why sends are refused; nil: they are not
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

// PutTopic creates a topic, or gives an existing one these settings.
func (c *Client) PutTopic(ctx context.Context, name string, config TopicConfig) (Topic, error) {
	return put[Topic](ctx, c, "PutTopic", name, escaped("topics", name), config)
}

// DeleteTopic deletes a topic and its messages. The error matches tidegate.ErrTopicNotFound if
// there is none.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	return c.remove(ctx, "DeleteTopic", name, escaped("topics", name))
}

// PurgeTopic removes every message of a topic, also those in flight, delayed and half ones, and
// returns how many there were.
func (c *Client) PurgeTopic(ctx context.Context, name string) (Backlog, error) {
	out, err := post[struct {
		Removed Backlog `json:"removed"`
	}](ctx, c, "PurgeTopic", name, escaped("topics", name, "purge"), nil)
	return out.Removed, err
}
