package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidegate/tidegate/broker/server/internal/transit"
)

// Transit returns the metrics of the memory for requests and responses: one budget by the name of
// each use.
func Transit(budgets map[string]*transit.Budget) prometheus.Collector {
	return transitCollector(budgets)
}

type transitCollector map[string]*transit.Budget

var (
	useLabels           = []string{"use"} // "requests", "waiting_receives" or "streams"
	descTransitHeld     = prometheus.NewDesc("tidegate_transit_held_bytes", "Memory that requests and responses hold, by use.", useLabels, nil)
	descTransitLimit    = prometheus.NewDesc("tidegate_transit_limit_bytes", "Memory limit of requests and responses, by use.", useLabels, nil)
	descTransitRefusals = prometheus.NewDesc("tidegate_transit_refusals_total", "Requests rejected because the memory limit was reached, by use.", useLabels, nil)
	descConnsEnded      = prometheus.NewDesc("tidegate_ended_connections_total", "Connections closed by the broker, by reason: memory needed by others, or a slow client.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (c transitCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTransitHeld, descTransitLimit, descTransitRefusals, descConnsEnded} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c transitCollector) Collect(ch chan<- prometheus.Metric) {
	var ended, slow int64
	for use, b := range c {
		ch <- prometheus.MustNewConstMetric(descTransitHeld, prometheus.GaugeValue, float64(b.Held()), use)
		ch <- prometheus.MustNewConstMetric(descTransitLimit, prometheus.GaugeValue, float64(b.Limit()), use)
		ch <- prometheus.MustNewConstMetric(descTransitRefusals, prometheus.CounterValue, float64(b.Refused()), use)
		ended += b.Closed()
		slow += b.Slow()
	}
	ch <- prometheus.MustNewConstMetric(descConnsEnded, prometheus.CounterValue, float64(ended), "memory")
	ch <- prometheus.MustNewConstMetric(descConnsEnded, prometheus.CounterValue, float64(slow), "slow")
}
