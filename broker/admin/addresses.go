package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Milliseconds is a time.Duration that is a whole number of milliseconds in JSON.
type Milliseconds time.Duration

// MarshalJSON writes the number. A fraction of a millisecond is an error.
func (m Milliseconds) MarshalJSON() ([]byte, error) {
	if d := time.Duration(m); d%time.Millisecond != 0 {
		return nil, fmt.Errorf("%v has a fraction of a millisecond; give whole milliseconds", d)
	}
	return json.Marshal(time.Duration(m).Milliseconds())
}

// UnmarshalJSON reads the number.
func (m *Milliseconds) UnmarshalJSON(b []byte) error {
	var n int64
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	*m = Milliseconds(time.Duration(n) * time.Millisecond)
	return nil
}

// AddressSettings are the settings of the topics that a pattern matches, by the names of Apache
// ActiveMQ Artemis. A nil field is inherited from the next matching pattern, or has its default. If
// one of the first nine fields is set for a topic, all nine replace the settings of the consumer
// group there.
type AddressSettings struct {
	// RedeliveryDelay is the time between a failed delivery and the next delivery. Default: 0.
	RedeliveryDelay *Milliseconds `json:"redelivery-delay,omitempty"`

	// RedeliveryDelayMultiplier is the factor between consecutive delays. Default: 1.
	RedeliveryDelayMultiplier *float64 `json:"redelivery-delay-multiplier,omitempty"`

	// RedeliveryCollisionAvoidanceFactor is the share of a delay that is added or subtracted at
	// random. Default: 0.
	RedeliveryCollisionAvoidanceFactor *float64 `json:"redelivery-collision-avoidance-factor,omitempty"`

	// MaxRedeliveryDelay bounds the delay. Default: 10 times RedeliveryDelay.
	MaxRedeliveryDelay *Milliseconds `json:"max-redelivery-delay,omitempty"`

	// MaxDeliveryAttempts is the number of deliveries; -1 means no maximum. Default: 10.
	MaxDeliveryAttempts *int `json:"max-delivery-attempts,omitempty"`

	// DeadLetterAddress is the topic of messages after their last attempt. Default: none, the
	// messages are removed.
	DeadLetterAddress *string `json:"dead-letter-address,omitempty"`

	// AutoCreateDeadLetterResources creates a dead-letter queue for each topic. Default: false.
	AutoCreateDeadLetterResources *bool `json:"auto-create-dead-letter-resources,omitempty"`

	// DeadLetterQueuePrefix begins the names of those queues. Default: "DLQ.".
	DeadLetterQueuePrefix *string `json:"dead-letter-queue-prefix,omitempty"`

	// DeadLetterQueueSuffix ends the names of those queues. Default: none.
	DeadLetterQueueSuffix *string `json:"dead-letter-queue-suffix,omitempty"`

	// PersistDeliveryCountBeforeDelivery syncs the attempt number to disk before a delivery.
	// Default: false.
	PersistDeliveryCountBeforeDelivery *bool `json:"persist-delivery-count-before-delivery,omitempty"`

	// AutoDeleteQueues deletes auto-created dead-letter queues once they are consumed. Default:
	// true.
	AutoDeleteQueues *bool `json:"auto-delete-queues,omitempty"`

	// ExpiryDelay is the age at which a message expires; 0 means never. Default: 0.
	ExpiryDelay *Milliseconds `json:"expiry-delay,omitempty"`

	// ExpiryAddress is the topic of expired messages. Default: none, the messages are removed.
	ExpiryAddress *string `json:"expiry-address,omitempty"`
}

// An AddressSetting has the settings of one pattern.
type AddressSetting struct {
	Match string `json:"match"`
	AddressSettings
}

// TopicAddressSettings are the settings of a topic, from all patterns that match it.
type TopicAddressSettings struct {
	// Topic is the name of the topic.
	Topic string `json:"topic"`

	// Matches are the patterns in order of precedence.
	Matches []string `json:"matches"`

	AddressSettings
}

// AllAddressSettings returns the settings of all patterns in order of precedence.
func (c *Client) AllAddressSettings(ctx context.Context) ([]AddressSetting, error) {
	out, err := get[struct {
		Settings []AddressSetting `json:"address_settings"`
	}](ctx, c, "AllAddressSettings", "", "/v1/address-settings", nil)
	return out.Settings, err
}

// AddressSettings returns the settings of a pattern. The error matches tidegate.ErrNotFound if
// there are none.
func (c *Client) AddressSettings(ctx context.Context, match string) (AddressSetting, error) {
	return get[AddressSetting](ctx, c, "AddressSettings", match, escaped("address-settings", match), nil)
}

// PutAddressSettings replaces the settings of a pattern. A pattern has words joined by dots; *
// matches one word, and # any number of words.
func (c *Client) PutAddressSettings(ctx context.Context, match string, s AddressSettings) (AddressSetting, error) {
	return put[AddressSetting](ctx, c, "PutAddressSettings", match, escaped("address-settings", match), s)
}

// DeleteAddressSettings removes the settings of a pattern. The error matches tidegate.ErrNotFound
// if there are none.
func (c *Client) DeleteAddressSettings(ctx context.Context, match string) error {
	return c.remove(ctx, "DeleteAddressSettings", match, escaped("address-settings", match))
}

// TopicAddressSettings returns the settings in effect for a topic. The topic need not exist.
func (c *Client) TopicAddressSettings(ctx context.Context, topic string) (TopicAddressSettings, error) {
	return get[TopicAddressSettings](ctx, c, "TopicAddressSettings", topic, escaped("topics", topic, "address-settings"), nil)
}
