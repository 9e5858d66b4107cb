package catalog

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/allocated"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// The check of a group without a retry topic does not look at the other groups: creating n groups
// would take n² steps. A copy of their list would take at least 8 bytes for each. The bytes are
// those of the whole process, so the limit is half of that.
func TestCheckGroupIgnoresOtherGroups(t *testing.T) {
	const (
		groups = 10_000
		checks = 100
		limit  = groups * checks * 4
	)
	c, _ := open(t, vfs.NewMem())
	for i := range uint32(groups) {
		c.addGroup(topic.NewGroup(fmt.Sprint("other", i), i+1, settings.Group{}.WithDefaults()))
	}
	if got := allocated.Bytes(func() {
		for range checks {
			if err := c.CheckGroup("g", settings.Group{}); err != nil {
				t.Fatal(err)
			}
		}
	}); got > limit {
		t.Errorf("%d checks beside %d groups allocated %d bytes, want at most %d", checks, groups, got, limit)
	}
}
