package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/internal/address"
)

// MaxAddressSettings is how many patterns can have settings.
const MaxAddressSettings = 1024

// An AddressSetting is the settings of one pattern.
type AddressSetting struct {
	Match string `json:"match"`
	AddressSettings
}

// ValidateMatch returns an error if text is no address pattern: words joined by
// '.', of which '*' stands for one word and '#' for any number of them.
func ValidateMatch(text string) error {
	_, err := address.Parse(text)
	return err
}

func parseMatch(op, match string) (address.Pattern, error) {
	p, err := address.Parse(match)
	if err != nil {
		return p, fail.Setting(op, match, err)
	}
	return p, nil
}

// PutAddressSettings sets what holds for the topics that match matches, in
// place of what was set for the same pattern, and returns when that is on
// disk. It holds at once, also for messages under way: a delay that has begun
// stays as it is. 40000 for what is not legal, all faults at once.
func (b *Broker) PutAddressSettings(ctx context.Context, match string, s AddressSettings) (AddressSetting, error) {
	const op = "PutAddressSettings"
	p, err := address.Parse(match)
	if err = fail.Setting(op, match, errors.Join(err, s.Validate())); err != nil {
		return AddressSetting{}, err
	}
	v, err := json.Marshal(s)
	if err != nil {
		return AddressSetting{}, fail.Store(err)
	}
	err = b.changeAddressSettings(ctx, func(set address.Set[AddressSettings]) (address.Set[AddressSettings], func(*store.Batch), error) {
		n := 0
		set.All(func(address.Pattern, AddressSettings) { n++ })
		before, there := set.Get(p)
		if there && reflect.DeepEqual(before, s) {
			return set, nil, nil // nothing changes
		}
		if !there && n >= MaxAddressSettings {
			return set, nil, fail.New(tidegate.CodeBadRequest, match, "there are settings for %d patterns, which is the limit; delete some", n)
		}
		return set.With(p, s), func(w *store.Batch) { w.PutAddressSettings(match, v) }, nil
	})
	return AddressSetting{match, s}, fail.WithOp(op, err)
}

// DeleteAddressSettings removes what was set for a pattern, and returns when
// that is on disk; 40400 if nothing was.
func (b *Broker) DeleteAddressSettings(ctx context.Context, match string) error {
	const op = "DeleteAddressSettings"
	p, err := parseMatch(op, match)
	if err != nil {
		return err
	}
	return fail.WithOp(op, b.changeAddressSettings(ctx, func(set address.Set[AddressSettings]) (address.Set[AddressSettings], func(*store.Batch), error) {
		if _, there := set.Get(p); !there {
			return set, nil, noAddressSettings(match)
		}
		return set.Without(p), func(w *store.Batch) { w.DeleteAddressSettings(match) }, nil
	}))
}

func noAddressSettings(match string) error {
	return fail.New(tidegate.CodeNotFound, match, "there are no address settings for the pattern %q; PUT /v1/address-settings/{match} makes some", match)
}

func (b *Broker) changeAddressSettings(ctx context.Context, change func(address.Set[AddressSettings]) (address.Set[AddressSettings], func(*store.Batch), error)) error {
	if !b.begin() {
		return fail.Closed()
	}
	defer b.end()
	if err := b.lockAdmin(ctx); err != nil {
		return err
	}
	defer b.unlockAdmin()
	set, write, err := change(*b.addresses.Load())
	if err != nil || write == nil {
		return err
	}
	if err := b.store.Messages.Add(write, nil).Wait(); err != nil {
		return fail.Store(err)
	}
	b.mu.Lock()
	b.addresses.Store(&set)
	for _, t := range b.topics {
		t.SetAddress(b.addressPolicy(t.Name()))
	}
	b.mu.Unlock()
	b.watchers.tell("")
	return nil
}

// addressPolicy returns what holds for a topic.
func (b *Broker) addressPolicy(name string) *topic.AddressPolicy {
	return topic.NewAddressPolicy(b.merged(name))
}

func (b *Broker) merged(topic string) AddressSettings {
	var s AddressSettings
	for _, less := range b.addresses.Load().Matching(topic) {
		s = s.Over(less)
	}
	return s
}

// AddressSettings returns what was set for a pattern; 40400 if nothing was.
func (b *Broker) AddressSettings(match string) (AddressSetting, error) {
	p, err := parseMatch("AddressSettings", match)
	if err != nil {
		return AddressSetting{}, err
	}
	s, ok := b.addresses.Load().Get(p)
	if !ok {
		return AddressSetting{}, noAddressSettings(match)
	}
	return AddressSetting{match, s}, nil
}

// AllAddressSettings returns what was set, by precedence: where several
// patterns match a topic, each field comes from the first of them that has it. The
// one with more words that are no wildcard goes first, then the one that
// demands more words, then the one with fewer '#', then the one whose plain words stand
// further to the left.
func (b *Broker) AllAddressSettings() []AddressSetting {
	out := []AddressSetting{}
	b.addresses.Load().All(func(p address.Pattern, s AddressSettings) { out = append(out, AddressSetting{p.String(), s}) })
	return out
}

// TopicAddressSettings returns what holds for a topic, which need not exist:
// the settings of all patterns that match it, merged, and these patterns by precedence.
func (b *Broker) TopicAddressSettings(topic string) (AddressSettings, []string) {
	matches := []string{}
	b.addresses.Load().All(func(p address.Pattern, _ AddressSettings) {
		if p.Match(topic) {
			matches = append(matches, p.String())
		}
	})
	return b.merged(topic), slices.Clip(matches)
}

// recoverAddressSettings brings back what was set. Nothing else runs yet.
func (b *Broker) recoverAddressSettings() error {
	var set address.Set[AddressSettings]
	err := b.store.AddressSettings(func(match string, v []byte) error {
		p, err := address.Parse(match)
		var s AddressSettings
		if err == nil {
			err = json.Unmarshal(v, &s)
		}
		if err != nil {
			return fmt.Errorf("the address settings of %q: %w", strings.ToValidUTF8(match, "?"), err)
		}
		set = set.With(p, s)
		return nil
	})
	b.addresses.Store(&set)
	return err
}
