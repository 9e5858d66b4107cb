package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

// aSource has one of everything that has labels.
type aSource struct{}

func (aSource) Stats() engine.Stats {
	return engine.Stats{
		Topics:    []engine.TopicCount{{TopicSummary: status.TopicSummary{Name: "t"}, Removed: map[engine.RemovalCause]int64{engine.RemovedTime: 1}, Transactions: &engine.TransactionStats{}}},
		Groups:    []engine.GroupCount{{GroupSummary: status.GroupSummary{Group: "g", Topic: "t"}}},
		Refused:   map[engine.RefusalReason]int64{"full": 1},
		Throttled: map[string]int64{"topic backlog messages": 1},
	}
}
func (aSource) Throttles() []status.LimitState { return nil }
func (aSource) Healthy() error                 { return nil }
func (aSource) Serving() bool                  { return true }
func (aSource) Clients() int                   { return 1 }

// All collected series were described: a registry that checks it accepts them.
func TestCollectorDescribesItsMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(&collector{of: aSource{}}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Error(err)
	}
	if len(families) != len(descs) {
		t.Errorf("%d metrics of %d that are described", len(families), len(descs))
	}
}
