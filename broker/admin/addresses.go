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
// ActiveMQ Artemis. A field that is nil is inherited from the next pattern that matches, or has its
// default. Where one of the first nine is set for a topic, all nine hold there in place of the
// group's settings.
type AddressSettings struct {
	// RedeliveryDelay is the time between a failed delivery and the next one. Default: 0.
	RedeliveryDelay *Milliseconds `json:"redelivery-delay,omitempty"`

	// RedeliveryDelayMultiplier is the factor from one delay to the next. Default: 1.
	RedeliveryDelayMultiplier *float64 `json:"redelivery-delay-multiplier,omitempty"`

	// RedeliveryCollisionAvoidanceFactor is the share of a delay that chance adds or removes.
	// Default: 0.
	RedeliveryCollisionAvoidanceFactor *float64 `json:"redelivery-collision-avoidance-factor,omitempty"`

	// MaxRedeliveryDelay bounds the delay. Default: 10 times RedeliveryDelay.
	MaxRedeliveryDelay *Milliseconds `json:"max-redelivery-delay,omitempty"`

	// MaxDeliveryAttempts is the number of deliveries; -1: no end. Default: 10.
	MaxDeliveryAttempts *int `json:"max-delivery-attempts,omitempty"`

	// DeadLetterAddress is the topic of messages that were given up. Default: none, they are
	// removed.
	DeadLetterAddress *string `json:"dead-letter-address,omitempty"`

	// AutoCreateDeadLetterResources gives each topic a dead-letter queue of its own. Default:
	// false.
	AutoCreateDeadLetterResources *bool `json:"auto-create-dead-letter-resources,omitempty"`

	// DeadLetterQueuePrefix begins the names of those queues. Default: "DLQ.".
	DeadLetterQueuePrefix *string `json:"dead-letter-queue-prefix,omitempty"`

	// DeadLetterQueueSuffix ends the names of those queues. Default: none.
	DeadLetterQueueSuffix *string `json:"dead-letter-queue-suffix,omitempty"`

	// PersistDeliveryCountBeforeDelivery syncs the attempt number to disk before a delivery.
	// Default: false.
	PersistDeliveryCountBeforeDelivery *bool `json:"persist-delivery-count-before-delivery,omitempty"`

	// AutoDeleteQueues deletes automatic dead-letter queues that are consumed. Default: true.
	AutoDeleteQueues *bool `json:"auto-delete-queues,omitempty"`

	// ExpiryDelay is the age from which a message expires; 0: none. Default: 0.
	ExpiryDelay *Milliseconds `json:"expiry-delay,omitempty"`

	// ExpiryAddress is the topic of expired messages. Default: none, they are removed.
	ExpiryAddress *string `json:"expiry-address,omitempty"`
}

// An AddressSetting is the settings of one pattern.
type AddressSetting struct {
	Match string `json:"match"`
	AddressSettings
}

// TopicAddressSettings are the settings of a topic, from all patterns that match it.
type TopicAddressSettings struct {
	// Topic is the name of the topic.
	Topic string `json:"topic"`

	// Matches are the patterns, by precedence.
	Matches []string `json:"matches"`

	AddressSettings
}

// AllAddressSettings returns the settings of all patterns, by precedence.
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

// PutAddressSettings sets the settings of a pattern, in place of those that it had: words joined by
// dots, where * stands for one word and # for any number of words.
func (c *Client) PutAddressSettings(ctx context.Context, match string, s AddressSettings) (AddressSetting, error) {
	return put[AddressSetting](ctx, c, "PutAddressSettings", match, escaped("address-settings", match), s)
}

// DeleteAddressSettings removes the settings of a pattern. The error matches tidegate.ErrNotFound
// if there are none.
func (c *Client) DeleteAddressSettings(ctx context.Context, match string) error {
	return c.remove(ctx, "DeleteAddressSettings", match, escaped("address-settings", match))
}

// TopicAddressSettings returns the settings that hold for a topic, which need not exist.
func (c *Client) TopicAddressSettings(ctx context.Context, topic string) (TopicAddressSettings, error) {
	return get[TopicAddressSettings](ctx, c, "TopicAddressSettings", topic, escaped("topics", topic, "address-settings"), nil)
}
