package broker

import (
	"context"
	"slices"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/address"
)

// ValidateMatch returns an error if text is not an address pattern: words joined by '.'. '*'
// matches one word and '#' any number of words.
func ValidateMatch(text string) error {
	_, err := address.Parse(text)
	return err
}

// PutAddressSettings replaces the settings of a pattern, and returns when this is on disk. The
// settings apply at once to the topics that match matches, also to messages in flight, except for
// delays that have begun. The error is 40000, with all faults, for an invalid pattern, for invalid
// settings, and if MaxAddressSettings is reached.
func (b *Broker) PutAddressSettings(ctx context.Context, match string, s settings.Address) (status.Address, error) {
	return b.putAddress(ctx, match, s, nil)
}

// DeleteAddressSettings removes the settings of a pattern, and returns when this is on disk. The
// error is 40400 if the pattern has none, and 40000 if it is invalid.
func (b *Broker) DeleteAddressSettings(ctx context.Context, match string) error {
	return b.catalog.DeleteAddress(ctx, match, nil)
}

// AddressSettings returns the settings of a pattern. The error is 40400 if the pattern has none,
// and 40000 if it is invalid.
func (b *Broker) AddressSettings(match string) (status.Address, error) {
	s, err := b.catalog.Address(match)
	if err != nil {
		return status.Address{}, err
	}
	return status.Address{Match: match, Address: s, Revision: revisionOf(&s)}, nil
}

// AllAddressSettings returns the settings of all patterns, by precedence. If several patterns match
// a topic, each field has the value of the first pattern that sets it. The order is:
//
//  1. more words that are no wildcard,
//  2. more words that must match,
//  3. fewer '#',
//  4. plain words further to the left.
func (b *Broker) AllAddressSettings() []status.Address {
	out := []status.Address{}
	b.catalog.Addresses().All(func(p address.Pattern, s settings.Address) {
		out = append(out, status.Address{Match: p.String(), Address: s})
	})
	return out
}

// TopicAddressSettings returns the merged settings of all patterns that match a topic, and these
// patterns by precedence. The topic need not exist.
func (b *Broker) TopicAddressSettings(topic string) status.TopicAddress {
	matches := []string{}
	b.catalog.Addresses().All(func(p address.Pattern, _ settings.Address) {
		if p.Match(topic) {
			matches = append(matches, p.String())
		}
	})
	return status.TopicAddress{Topic: topic, Matches: slices.Clip(matches), Address: b.catalog.AddressOf(topic)}
}
