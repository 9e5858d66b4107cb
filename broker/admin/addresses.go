package admin

import (
	"context"

	"github.com/tidegate/tidegate/broker/settings"
)

// An AddressSetting has the settings of one pattern.
type AddressSetting struct {
	Match string `json:"match"`
	settings.Address
}

// TopicAddressSettings are the settings of a topic, from all patterns that match it.
type TopicAddressSettings struct {
	// Topic is the name of the topic.
	Topic string `json:"topic"`

	// Matches are the patterns in order of precedence.
	Matches []string `json:"matches"`

	settings.Address
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
func (c *Client) PutAddressSettings(ctx context.Context, match string, s settings.Address) (AddressSetting, error) {
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
