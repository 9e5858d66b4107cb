package serve

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestSmallestMemoryLimit(t *testing.T) {
	failure := errors.New("no cgroup")
	unknown := func() (uint64, error) { return 0, failure }
	for _, c := range []struct {
		name   string
		limits []memlimit.Provider
		want   uint64
	}{
		{"the cgroup has less", []memlimit.Provider{memlimit.Limit(1), memlimit.Limit(2)}, 1},
		{"the machine has less", []memlimit.Provider{memlimit.Limit(3), memlimit.Limit(2)}, 2},
		{"there is no cgroup", []memlimit.Provider{unknown, memlimit.Limit(2)}, 2},
	} {
		if got, err := smallest(c.limits...); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
	assert.Is(t, "without any limit", assert.Err(smallest(unknown, unknown)), failure)
	if n, err := memory(); err != nil || n < 64<<20 {
		t.Errorf("this machine has %d bytes, %v", n, err)
	}
}
