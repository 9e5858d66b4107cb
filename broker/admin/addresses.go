package admin

import (
	"context"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// AllAddressSettings returns the settings of all patterns in order of precedence.
func (c *Client) AllAddressSettings(ctx context.Context) ([]status.Address, error) {
	out, err := get[struct {
		Settings []status.Address `json:"address_settings"`
	}](ctx, c, "AllAddressSettings", "", "/v1/address-settings", nil)
	return out.Settings, err
}

// AddressSettings returns the settings of a pattern. The error matches tidegate.ErrNotFound if
// there are none.
func (c *Client) AddressSettings(ctx context.Context, match string) (status.Address, error) {
	return get[status.Address](ctx, c, "AddressSettings", match, escaped("address-settings", match), nil)
}

// PutAddressSettings replaces the settings of a pattern. A pattern has words joined by dots; *
// matches one word, and # any number of words.
func (c *Client) PutAddressSettings(ctx context.Context, match string, s settings.Address) (status.Address, error) {
	return put[status.Address](ctx, c, "PutAddressSettings", match, escaped("address-settings", match), s)
}

// DeleteAddressSettings removes the settings of a pattern. The error matches tidegate.ErrNotFound
// if there are none.
func (c *Client) DeleteAddressSettings(ctx context.Context, match string) error {
	return c.remove(ctx, "DeleteAddressSettings", match, escaped("address-settings", match))
}

// TopicAddressSettings returns the settings in effect for a topic. The topic need not exist.
func (c *Client) TopicAddressSettings(ctx context.Context, topic string) (status.TopicAddress, error) {
	return get[status.TopicAddress](ctx, c, "TopicAddressSettings", topic, escaped("topics", topic, "address-settings"), nil)
}
