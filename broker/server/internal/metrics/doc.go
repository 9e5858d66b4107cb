// Package metrics exports the counts of the engine to Prometheus, and counts requests by result and
// duration. It has the names, labels and help texts of all metrics except those of access.
package metrics
