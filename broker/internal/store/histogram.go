package store

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
	buckets int // number of buckets that a snapshot merges into one
}

// DurationHistogram returns a histogram of durations, in seconds, with buckets from 100 µs to 60 s.
func DurationHistogram() Histogram {
	return of(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
}

// SizeHistogram returns a histogram of counts, with buckets from 1 to 4096.
func SizeHistogram() Histogram { return of(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096) }

// PebbleHistogram returns a histogram of Pebble as one of seconds in 20 buckets. The histograms of
// Pebble have nanoseconds in 100 buckets.
func PebbleHistogram(h prometheus.Histogram) Histogram { return Histogram{h, float64(time.Second), 5} }

func of(bounds ...float64) Histogram {
	return Histogram{prometheus.NewHistogram(prometheus.HistogramOpts{Name: "observed", Buckets: bounds}), 1, 1}
}

// A HistogramSnapshot is the content of a histogram at one moment.
type HistogramSnapshot struct {
	Bounds []float64
	Counts []uint64 // per bucket, not cumulative; one more than Bounds
	Sum    float64
}

// Snapshot returns the current content. It is empty if Prometheus returns an error.
func (h Histogram) Snapshot() HistogramSnapshot {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		return HistogramSnapshot{}
	}
	all := m.GetHistogram()
	s := HistogramSnapshot{Sum: all.GetSampleSum() / h.unit}
	var below uint64
	for i, b := range all.GetBucket() { // the counts are cumulative
		if (i+1)%h.buckets == 0 && !math.IsInf(b.GetUpperBound(), 1) {
			s.Bounds = append(s.Bounds, b.GetUpperBound()/h.unit)
			s.Counts = append(s.Counts, b.GetCumulativeCount()-below)
			below = b.GetCumulativeCount()
		}
	}
	s.Counts = append(s.Counts, all.GetSampleCount()-below)
	return s
}
