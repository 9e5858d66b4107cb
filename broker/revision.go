package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// revised are the settings that have a revision.
type revised interface {
	settings.Topic | settings.Group | settings.Address | settings.Limits
}

// revisionOf returns a text that is equal for equal settings, also after a restart, and "" for nil.
func revisionOf[S revised](s *S) string {
	if s == nil {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil { // only a programming mistake; conditions then fail
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// onRevision converts a condition on a revision to one on settings.
func onRevision[S revised](may func(revision string) error) func(now *S) error {
	if may == nil {
		return nil
	}
	return func(now *S) error { return may(revisionOf(now)) }
}

// describeOne is describe with the revision, which costs too much for lists.
func (b *Broker) describeOne(t *engine.Topic) status.Topic {
	d := b.describe(t)
	d.Revision = revisionOf(&d.Topic)
	return d
}

// describeOneGroup is describeOne for a group.
func (b *Broker) describeOneGroup(g *engine.Group) status.Group {
	d := b.describeGroup(g, new(int64(engine.MaxLook)))
	d.Revision = revisionOf(&d.Group)
	return d
}

// PutTopicIf is PutTopic on a condition. It calls may with the revision of the settings, "" if
// there is no such topic, while no other change of settings is under way; may must not wait. If may
// returns an error, PutTopicIf returns it and changes nothing. Nil means that there is no
// condition.
func (b served) PutTopicIf(ctx context.Context, name string, c settings.Topic, may func(revision string) error) (status.Topic, error) {
	return b.putTopic(ctx, name, c, may)
}

// DeleteTopicIf is DeleteTopic on a condition, as in PutTopicIf. It does not call may if there is
// no such topic.
func (b served) DeleteTopicIf(ctx context.Context, name string, may func(revision string) error) error {
	return b.catalog.DeleteTopic(ctx, name, onRevision[settings.Topic](may))
}

// PutGroupIf is PutGroup on a condition, as in PutTopicIf.
func (b served) PutGroupIf(ctx context.Context, name string, c settings.Group, may func(revision string) error) (status.Group, error) {
	return b.putGroup(ctx, name, c, may)
}

// PatchGroupIf is PatchGroup on a condition, as in PutTopicIf, which holds before change is called.
// It does not call may if there is no such group.
func (b served) PatchGroupIf(ctx context.Context, name string, change func(*settings.Group) error, may func(revision string) error) (status.Group, error) {
	return b.PatchGroup(ctx, name, func(c *settings.Group) error {
		if may != nil {
			if err := may(revisionOf(c)); err != nil {
				return err
			}
		}
		return change(c)
	})
}

// DeleteGroupIf is DeleteGroup on a condition, as in DeleteTopicIf.
func (b served) DeleteGroupIf(ctx context.Context, name string, may func(revision string) error) error {
	return b.catalog.DeleteGroup(ctx, name, onRevision[settings.Group](may))
}

// PutAddressSettingsIf is PutAddressSettings on a condition, as in PutTopicIf.
func (b served) PutAddressSettingsIf(ctx context.Context, match string, s settings.Address, may func(revision string) error) (status.Address, error) {
	return b.putAddress(ctx, match, s, may)
}

// DeleteAddressSettingsIf is DeleteAddressSettings on a condition, as in DeleteTopicIf.
func (b served) DeleteAddressSettingsIf(ctx context.Context, match string, may func(revision string) error) error {
	return b.catalog.DeleteAddress(ctx, match, onRevision[settings.Address](may))
}

// PatchLimitsIf is PatchLimits on a condition, as in PatchGroupIf.
func (b served) PatchLimitsIf(ctx context.Context, change func(*settings.Limits) error, may func(revision string) error) error {
	return b.PatchLimits(ctx, func(l *settings.Limits) error {
		if may != nil {
			if err := may(revisionOf(l)); err != nil {
				return err
			}
		}
		return change(l)
	})
}

// LimitsRevision returns the limits of the whole broker and their revision.
func (b served) LimitsRevision() (l settings.Limits, revision string) {
	l = b.Limits()
	revision = revisionOf(&l)
	return l, revision
}

func (b *Broker) putAddress(ctx context.Context, match string, s settings.Address, may func(revision string) error) (status.Address, error) {
	if err := b.catalog.PutAddress(ctx, match, s, onRevision[settings.Address](may)); err != nil {
		return status.Address{}, err
	}
	return status.Address{Match: match, Address: s, Revision: revisionOf(&s)}, nil
}

func (b *Broker) putTopic(ctx context.Context, name string, c settings.Topic, may func(revision string) error) (status.Topic, error) {
	t, err := b.catalog.PutTopic(ctx, name, c, onRevision[settings.Topic](may))
	if err != nil {
		return status.Topic{}, err
	}
	return b.describeOne(t), nil
}

func (b *Broker) putGroup(ctx context.Context, name string, c settings.Group, may func(revision string) error) (status.Group, error) {
	g, err := b.catalog.PutGroup(ctx, name, c, onRevision[settings.Group](may))
	if err != nil {
		return status.Group{}, err
	}
	return b.describeOneGroup(g), nil
}
