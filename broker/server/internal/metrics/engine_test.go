package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/status"
)

// aSource has one of everything that has labels.
type aSource struct{}

func (aSource) Stats() broker.Stats {
	return broker.Stats{
		Topics:        []broker.TopicStats{{Topic: "t", Removed: map[broker.RemovalCause]int64{broker.RemovedTime: 1}, Transactions: &broker.TransactionStats{}}},
		Subscriptions: []broker.SubscriptionStats{{Group: "g", Subscription: status.Subscription{Topic: "t"}}},
		Refused:       map[broker.RefusalReason]int64{"full": 1},
		Throttled:     map[string]int64{"topic backlog messages": 1},
	}
}
func (aSource) Throttles() []status.LimitState { return nil }
func (aSource) Healthy() error                 { return nil }
func (aSource) Serving() bool                  { return true }
func (aSource) Clients() int                   { return 1 }

// What is collected was described: a registry that checks it takes it all.
func TestCollectorDescribesWhatItCollects(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(&collector{aSource{}}); err != nil {
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
