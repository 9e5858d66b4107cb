package catalog

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
)

// The check of a group without a retry topic does not look at the other groups: creating n groups
// would take n² steps.
func TestCheckGroupIgnoresOtherGroups(t *testing.T) {
	c, _ := open(t, vfs.NewMem())
	allocations := func() float64 {
		return testing.AllocsPerRun(100, func() {
			if err := c.CheckGroup("g", settings.Group{}); err != nil {
				t.Error(err)
			}
		})
	}
	before := allocations()
	for i := range uint32(1000) {
		c.addGroup(topic.NewGroup(fmt.Sprint("other", i), i+1, settings.Group{}.WithDefaults()))
	}
	if got := allocations(); got != before {
		t.Errorf("%v allocations beside 1000 groups, and %v without", got, before)
	}
}
