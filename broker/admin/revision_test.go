package admin_test

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// The client changes settings only if they have the revision that it read.
func TestIfRevision(t *testing.T) {
	e := open(t, server.Options{}, admin.Options{}, false)
	ctx := t.Context()
	topic, err := e.c.PutTopic(ctx, "orders", settings.Topic{})
	assert.Must(t, err)
	group, err := e.c.PutGroup(ctx, "billing", settings.Group{})
	assert.Must(t, err)
	if _, err := e.c.IfRevision(topic.Revision).PutTopic(ctx, "orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 1}}); err != nil {
		t.Error(err)
	}
	assert.NoError(t, assert.Err(e.c.IfRevision(group.Revision).PatchGroup(ctx, "billing", settings.Group{MaxAttempts: 3})))
	late := e.c.IfRevision(topic.Revision)
	_, put := late.PutTopic(ctx, "orders", settings.Topic{})
	late = e.c.IfRevision(group.Revision)
	_, putGroup := late.PutGroup(ctx, "billing", settings.Group{})
	_, patch := late.PatchGroup(ctx, "billing", settings.Group{MaxAttempts: 4})
	_, none := e.c.IfRevision("").PutGroup(ctx, "billing", settings.Group{})
	for call, err := range map[string]error{
		"PutTopic": put, "PutGroup": putGroup, "PatchGroup": patch, "an empty revision": none,
		"DeleteTopic": late.DeleteTopic(ctx, "orders"), "DeleteGroup": late.DeleteGroup(ctx, "billing"),
	} {
		e, ok := errors.AsType[*admin.Error](err)
		assert.That(t, ok && e.Status == 412 && e.Err.Code == 42800, "%s on an old revision: %v", call, err)
	}
	if _, err := late.Rewind(ctx, "billing", "orders", status.Position{Latest: true}); !errors.Is(err, tidegate.ErrInvalid) {
		t.Errorf("a change without revisions: %v", err)
	}
	now, err := late.Group(ctx, "billing")
	assert.That(t, err == nil && now.MaxAttempts == 3, "the group has %d attempts, %v; want 3", now.MaxAttempts, err)
	assert.NoError(t, e.c.IfRevision(now.Revision).DeleteGroup(ctx, "billing"))
}
