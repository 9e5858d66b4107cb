package admin

import "context"

// The types of topics.
const (
	TopicNormal      = "NORMAL"      // messages without order
	TopicFIFO        = "FIFO"        // messages with a message group, in its order
	TopicDelay       = "DELAY"       // messages with a delivery time
	TopicTransaction = "TRANSACTION" // transactional messages
)

// A TopicConfig has the settings of a topic. A PUT replaces all of them: a zero field has its
// default, also when the topic exists.
type TopicConfig struct {
	// Type is the kind of messages that the topic accepts. It cannot change. Default: TopicNormal.
	Type string `json:"type,omitempty"`

	// Queues is the number of queues, at most 1024. It can only grow. Default: 8.
	Queues int `json:"queues,omitempty"`

	// DuplicateWindow is the time for which the broker remembers message IDs. Within it a repeated
	// send is stored once. Negative means that duplicates are stored. Zero means the broker's
	// default.
	DuplicateWindow Duration `json:"duplicate_window,omitempty"`

	// MaxBacklog is the backlog at which the broker throttles sends. Zero means the limit of the
	// broker.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// MaxRate is the rate above which the broker throttles sends. Zero means no limit.
	MaxRate Rate `json:"max_rate,omitzero"`

	// Retention has the conditions for removing messages. Zero means after 72 hours, and never in
	// topics of dead letters.
	Retention Retention `json:"retention,omitzero"`

	// Transaction has the times of transaction checks in a topic of type TopicTransaction. Zero
	// means the settings of the broker.
	Transaction TransactionConfig `json:"transaction,omitzero"`
}

// A Limit is a bound of a backlog. A zero field means no limit.
type Limit struct {
	Messages int64    `json:"messages,omitempty"`
	Bytes    int64    `json:"bytes,omitempty"` // of bodies
	Age      Duration `json:"age,omitempty"`   // of the oldest message; at least 100 ms
}

// A Rate is the largest rate of a topic. A zero field means no limit.
type Rate struct {
	MessagesPerSecond float64 `json:"messages_per_second,omitempty"`
	BytesPerSecond    float64 `json:"bytes_per_second,omitempty"`
	Burst             int     `json:"burst,omitempty"` // messages at once after a pause; 0 means those of one second
}

// Retention has the conditions for removing messages, the oldest first.
type Retention struct {
	Time     Duration `json:"time,omitempty"`     // maximum age, consumed or not; negative means none
	Bytes    int64    `json:"bytes,omitempty"`    // maximum size of bodies, consumed or not; 0 means none
	Consumed bool     `json:"consumed,omitempty"` // remove messages once every group has consumed them
}

// A TransactionConfig has the times of checks of unresolved transactions. A zero field means the
// broker's setting.
type TransactionConfig struct {
	// Timeout is the age of a half message at the first check. Zero means the broker's.
	Timeout Duration `json:"timeout,omitempty"`

	// CheckInterval is the time between checks. Zero means the broker's.
	CheckInterval Duration `json:"check_interval,omitempty"`

	// CheckMax is the number of checks after which the broker ends a transaction; -1 means no
	// maximum. Zero means the broker's.
	CheckMax int `json:"check_max,omitempty"`
}

// A Topic is a topic with its settings and its state.
type Topic struct {
	TopicConfig

	Name            string    `json:"name"`
	AutoCreated     bool      `json:"auto_created,omitempty"` // an auto-created dead-letter queue; PutTopic makes it permanent
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
func (c *Client) PutTopic(ctx context.Context, name string, config TopicConfig) (Topic, error) {
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
