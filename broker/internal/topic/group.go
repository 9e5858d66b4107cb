package topic

import (
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/history"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Group is a running consumer group. Several goroutines can call its methods at the same time.
type Group struct {
	// Recorded is the place of the group in the history of rates and backlogs.
	Recorded history.Track

	id        uint32
	name      string
	settings  atomic.Pointer[settings.Group]
	automatic atomic.Bool
	deleted   atomic.Bool
}

// NewGroup returns a group. id is its number in stored records.
func NewGroup(name string, id uint32, s settings.Group) *Group {
	g := &Group{id: id, name: name}
	g.settings.Store(&s)
	return g
}

// ID returns the number of the group in stored records.
func (g *Group) ID() uint32 { return g.id }

// Name returns the name of the group.
func (g *Group) Name() string { return g.name }

// Settings returns the settings of the group. The caller must not change them.
func (g *Group) Settings() *settings.Group { return g.settings.Load() }

// SetSettings replaces the settings.
func (g *Group) SetSettings(s settings.Group) { g.settings.Store(&s) }

// Automatic reports whether the first receive created the group, and no explicit request.
func (g *Group) Automatic() bool { return g.automatic.Load() }

// SetAutomatic sets the result of Automatic, and returns the result before.
func (g *Group) SetAutomatic(automatic bool) (before bool) { return g.automatic.Swap(automatic) }

// Deleted reports whether the group was deleted. Within the message log's Add the result is exact.
func (g *Group) Deleted() bool { return g.deleted.Load() }

// Delete marks the group as deleted. Only called within the message log's Add.
func (g *Group) Delete() { g.deleted.Store(true) }

// StartsLate reports whether the group begins at the end of a topic. The result is false for topics
// of dead letters and for the group's own retry topics.
func (g *Group) StartsLate(t *Topic) bool {
	c := g.Settings()
	if c.Start != settings.StartLatest || IsDeadLetter(t.Name()) || t.Automatic() {
		return false
	}
	_, retry := c.RetryTopic.Original(t.Name(), g.name)
	return !retry
}
