package broker_test

import (
	"testing"

	"github.com/tidegate/tidegate/broker"
)

// BenchmarkOpen is the cost of a broker in memory for a test.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		br, err := broker.Open(broker.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := br.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
