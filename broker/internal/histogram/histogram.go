// Package histogram has the histograms of the engine's metrics. They are those of Prometheus, which
// Pebble links in any case; no other package of the engine names it.
package histogram

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// A Histogram counts observations by size, without allocations. Goroutines may share it.
type Histogram struct {
	prometheus.Histogram
	unit    float64
	buckets int // that a snapshot shows as one
}

// Durations returns a histogram of times from 100 µs to 60 s, in seconds.
func Durations() Histogram {
	return of(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
}

// Sizes returns a histogram of counts from 1 to 4096.
func Sizes() Histogram { return of(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096) }

// Pebbles returns a histogram of Pebble, which counts nanoseconds in 100 buckets, as one of seconds
// in 20.
func Pebbles(h prometheus.Histogram) Histogram { return Histogram{h, float64(time.Second), 5} }

func of(bounds ...float64) Histogram {
	return Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "observed", Buckets: bounds}), 1, 1}
}

// A Snapshot is what a histogram had counted at one moment.
type Snapshot struct {
	Bounds []float64
	Counts []uint64 // by bucket, those of smaller buckets not included; one more than Bounds
	Sum    float64
}

// Snapshot returns what was counted so far.
func (h Histogram) Snapshot() Snapshot {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return Snapshot{}
	}
	all := m.GetHistogram()
	s := Snapshot{Sum: all.GetSampleSum() / h.unit}
	var below uint64
	for i, b := range all.GetBucket() { // which count those below them too
		if (i+1)%h.buckets == 0 && !math.IsInf(b.GetUpperBound(), 1) {
			s.Bounds = append(s.Bounds, b.GetUpperBound()/h.unit)
			s.Counts = append(s.Counts, b.GetCumulativeCount()-below)
			below = b.GetCumulativeCount()
		}
	}
	s.Counts = append(s.Counts, all.GetSampleCount()-below)
	return s
}
