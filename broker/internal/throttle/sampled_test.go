package throttle

import (
	"math"
	"testing"
	"time"
)

// The rate is that of the last seconds if it is read often, and that since the last look if
// it is read at least once a minute.
func TestSampled(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type look struct {
		at    float64 // seconds after the start
		total int64
		want  float64
	}
	for name, looks := range map[string][]look{
		"first look":             {{0, 1000, 0}},
		"steady":                 {{0, 0, 0}, {1, 10, 10}, {2, 20, 10}, {7, 70, 10}, {13, 130, 10}, {40, 400, 10}, {99, 990, 10}},
		"each minute":            {{0, 0, 0}, {60, 600, 10}, {120, 600, 0}, {180, 1200, 10}},
		"a long pause":           {{0, 0, 0}, {10, 100, 10}, {3600, 36000, 0}, {3601, 36007, 7}},
		"burst is forgotten":     {{0, 0, 0}, {1, 1000, 1000}, {6, 1000, 1000. / 6}, {11, 1000, 1000. / 11}, {12, 1000, 0}},
		"same moment":            {{0, 5, 0}, {0, 5, 0}, {1, 6, 1}},
		"clock goes back":        {{100, 100, 0}, {50, 110, 0}, {51, 112, 2}},
		"counter of a new topic": {{0, 100, 0}, {1, 0, 0}, {2, 10, 0}},
	} {
		var s Sampled
		for i, l := range looks {
			if got := s.Rate(l.total, start.Add(time.Duration(l.at*float64(time.Second)))); math.Abs(got-l.want) > 1e-9 {
				t.Errorf("%s, look %d: %g, want %g", name, i, got, l.want)
			}
		}
	}
}
