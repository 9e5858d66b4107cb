// Package metrics says in Prometheus' words what the engine counts, and counts
// itself which requests were answered, how, and how fast. The names, labels and help of
// all metrics but those of access are here.
package metrics
