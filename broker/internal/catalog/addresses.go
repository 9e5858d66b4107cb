package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/address"
)

// MaxAddresses is the maximum number of patterns with settings.
const MaxAddresses = 1024

// PutAddress replaces the settings of a pattern. It returns when this is on disk. The settings
// apply at once to the topics that the pattern matches. The error is 40000 for an invalid pattern,
// for invalid settings, and if MaxAddresses is reached. may is as in PutTopic.
func (c *Catalog) PutAddress(ctx context.Context, match string, s settings.Address, may func(now *settings.Address) error) error {
	const op = "PutAddressSettings"
	p, err := address.Parse(match)
	if err = refusal.Setting(op, match, errors.Join(err, s.Validate())); err != nil {
		return err
	}
	v, err := json.Marshal(s)
	if err != nil {
		return refusal.Store(err)
	}
	return refusal.WithOp(op, c.changeAddresses(ctx, func(set address.Set[settings.Address]) (address.Set[settings.Address], func(*store.Batch), error) {
		n := 0
		set.All(func(address.Pattern, settings.Address) { n++ })
		before, there := set.Get(p)
		if may != nil {
			now := &before
			if !there {
				now = nil
			}
			if err := may(now); err != nil {
				return set, nil, err
			}
		}
		if there && reflect.DeepEqual(before, s) {
			return set, nil, nil // nothing changes
		}
		if !there && n >= MaxAddresses {
			return set, nil, refusal.New(tidegate.CodeBadRequest, match, "%d patterns have address settings, which is the limit; delete some", n)
		}
		return set.With(p, s), func(w *store.Batch) { w.PutAddressSettings(match, v) }, nil
	}))
}

// DeleteAddress removes the settings of a pattern. It returns when this is on disk. The error is
// 40400 if the pattern has no settings, and 40000 if it is invalid. may is as in DeleteTopic.
func (c *Catalog) DeleteAddress(ctx context.Context, match string, may func(now *settings.Address) error) error {
	const op = "DeleteAddressSettings"
	p, err := parseMatch(op, match)
	if err != nil {
		return err
	}
	return refusal.WithOp(op, c.changeAddresses(ctx, func(set address.Set[settings.Address]) (address.Set[settings.Address], func(*store.Batch), error) {
		now, there := set.Get(p)
		if !there {
			return set, nil, noAddress(match)
		}
		if may != nil {
			if err := may(&now); err != nil {
				return set, nil, err
			}
		}
		return set.Without(p), func(w *store.Batch) { w.DeleteAddressSettings(match) }, nil
	}))
}

// Address returns the settings of a pattern. The errors are those of DeleteAddress.
func (c *Catalog) Address(match string) (settings.Address, error) {
	p, err := parseMatch("AddressSettings", match)
	if err != nil {
		return settings.Address{}, err
	}
	s, ok := c.addresses.Load().Get(p)
	if !ok {
		return settings.Address{}, noAddress(match)
	}
	return s, nil
}

// Addresses returns the settings of all patterns.
func (c *Catalog) Addresses() *address.Set[settings.Address] { return c.addresses.Load() }

// AddressOf returns the merged settings of all patterns that match a topic. The topic need not
// exist.
func (c *Catalog) AddressOf(topic string) settings.Address {
	var s settings.Address
	for _, less := range c.addresses.Load().Matching(topic) {
		s = s.Over(less)
	}
	return s
}

// addressPolicy returns the effects of the address settings on a topic.
func (c *Catalog) addressPolicy(name string) *topic.AddressPolicy {
	return topic.NewAddressPolicy(c.AddressOf(name))
}

func parseMatch(op, match string) (address.Pattern, error) {
	p, err := address.Parse(match)
	if err != nil {
		return p, refusal.Setting(op, match, err)
	}
	return p, nil
}

func noAddress(match string) error {
	return refusal.New(tidegate.CodeNotFound, match, "the pattern %q has no address settings; create them with PUT /v1/address-settings/{match}", match)
}

// changeAddresses replaces the settings of all patterns by the result of change, after the returned
// write. Without a write, or with an error, nothing changes.
func (c *Catalog) changeAddresses(ctx context.Context, change func(address.Set[settings.Address]) (address.Set[settings.Address], func(*store.Batch), error)) error {
	if !c.config.Env.Calls.Begin() {
		return refusal.Closed()
	}
	defer c.config.Env.Calls.End()
	if err := c.LockAdmin(ctx); err != nil {
		return err
	}
	defer c.UnlockAdmin()
	set, write, err := change(*c.addresses.Load())
	if err != nil || write == nil {
		return err
	}
	if err := c.config.Store.Messages.Add(write, nil).Wait(); err != nil {
		return refusal.Store(err)
	}
	c.mu.Lock()
	c.addresses.Store(&set)
	for _, t := range c.topics {
		t.SetAddress(c.addressPolicy(t.Name()))
	}
	c.mu.Unlock()
	c.config.Servers.ConsumerSettingsChanged("")
	return nil
}

// recoverAddresses restores the address settings. Nothing else runs yet.
func (c *Catalog) recoverAddresses() error {
	var set address.Set[settings.Address]
	err := c.config.Store.AddressSettings(func(match string, v []byte) error {
		p, err := address.Parse(match)
		var s settings.Address
		if err == nil {
			err = json.Unmarshal(v, &s)
		}
		if err != nil {
			return fmt.Errorf("the address settings of %q: %w", strings.ToValidUTF8(match, "?"), err)
		}
		set = set.With(p, s)
		return nil
	})
	c.addresses.Store(&set)
	return err
}
