package subscription

import (
	"testing"
	"time"
)

// A count has every event of the last 60 minutes, and none that is older than 65.
func TestLastHour(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 2, 30, 0, time.UTC)
	at := func(minutes float64) time.Time { return start.Add(time.Duration(minutes * float64(time.Minute))) }
	for name, c := range map[string]struct {
		events []float64 // minutes after start
		now    float64
		want   int64
	}{
		"none":                   {nil, 0, 0},
		"at once":                {[]float64{0, 0, 0}, 0, 3},
		"an hour later":          {[]float64{0, 0}, 60, 2},
		"more than an hour":      {[]float64{0, 0}, 65, 0},
		"some are too old":       {[]float64{0, 4, 30, 61, 66}, 67, 4},
		"a pause of days":        {[]float64{0, 1, 2, 10_000}, 10_001, 1},
		"a pause without events": {[]float64{0, 1, 2}, 10_000, 0},
		"clock goes back":        {[]float64{10, 3}, 4, 2},
	} {
		var h lastHour
		for _, m := range c.events {
			h.add(at(m))
		}
		for range 2 { // a look changes nothing
			if got := h.count(at(c.now)); got != c.want {
				t.Errorf("%s: %d, want %d", name, got, c.want)
			}
		}
	}
}
